"""Tests of the graph on a Spark cluster on this machine."""
