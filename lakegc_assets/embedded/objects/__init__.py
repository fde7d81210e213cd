"""Objects at paths of branches, and the addresses that their data have."""
