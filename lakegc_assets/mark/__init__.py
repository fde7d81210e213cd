"""The mark: which objects of a repository nothing needs any more, found with Spark."""
