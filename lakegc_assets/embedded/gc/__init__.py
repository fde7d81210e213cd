"""The server's part of garbage collection: the lists that it prepares for a collector."""
