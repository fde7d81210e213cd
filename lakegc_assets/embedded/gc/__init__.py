"""The server's half of garbage collection: what it prepares for a collector."""
