"""The command line: a thin client of the jobs of the graph, and the demo."""
