"""Finds objects of a lakeFS server that no collection of a repository finds."""
