"""Leftovers of a lakeFS server and its stores, which no collection of a repository finds."""
