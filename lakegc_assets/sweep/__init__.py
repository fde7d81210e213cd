"""The sweep: verifies a mark again, deletes its candidates, and records every outcome."""
