"""The REST API of a lakeFS server: calls, answers, retries and errors."""
