"""How runs and repositories stand: read from what they left, shown, and never acted upon."""
