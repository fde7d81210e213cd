"""Attributes the bytes that a mark has listed to classes, branches, paths, committers and ages."""
