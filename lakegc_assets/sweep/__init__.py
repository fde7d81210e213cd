"""The sweep: verifies a mark once more, deletes what it names, and records every outcome."""
