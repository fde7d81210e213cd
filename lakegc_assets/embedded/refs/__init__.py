"""Branches, tags and commits: what they name, how they change, and what differs between them."""
