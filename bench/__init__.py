"""The benchmarks: each is a module that is run by itself."""
