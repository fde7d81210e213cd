"""A lakeFS of its maker's own code, with writers on it, while this product collects."""
