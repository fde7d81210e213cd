"""What no collection of a repository finds: leftovers of a lakeFS server and of its stores."""
