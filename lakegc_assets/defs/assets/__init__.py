"""The graph, one module for each asset, in its order."""
