"""What happens to a repository while it is collected, and servers that answer wrongly."""
