"""Finds and removes leftovers of a lakeFS server and its stores that no collection finds."""
