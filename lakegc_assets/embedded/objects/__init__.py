"""Objects at paths of branches, and the physical addresses of their data."""
