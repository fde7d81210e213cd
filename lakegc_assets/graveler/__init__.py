"""What lakeFS keeps in an object store: names, entries, ranges and metaranges."""
