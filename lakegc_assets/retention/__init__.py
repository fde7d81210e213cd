"""Finds the commits that must keep their objects, from rules and commits alone."""
