"""A Dagster project that collects two lakeFS servers."""
