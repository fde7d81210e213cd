"""The independent witness: what must hold of candidates, found on a path that is not the mark's."""
