"""lakeFS's formats in an object store: names, entries, ranges and metaranges."""
