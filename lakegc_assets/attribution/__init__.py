"""Attributes the bytes that a mark listed to classes, branches, paths, committers and ages."""
