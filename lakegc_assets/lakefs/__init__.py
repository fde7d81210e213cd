"""The REST API of a lakeFS server: what is asked, how it is asked, and what can go wrong."""
