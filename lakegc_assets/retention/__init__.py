"""Decides from rules and commits alone which commits must keep their objects."""
