"""What becomes of listings, deletes, marks and sweeps while a store and its network misbehave."""
