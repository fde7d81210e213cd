"""Branches, tags and commits: their resolution, their changes, and their differences."""
