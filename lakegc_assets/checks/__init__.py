"""The independent witness: the invariants of candidates, checked without the mark's code."""
