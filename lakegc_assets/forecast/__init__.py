"""What other retention rules would free, and what the present ones will free in time."""
