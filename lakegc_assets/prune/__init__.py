"""Housekeeping: removes old runs and caches that nothing needs any more."""
