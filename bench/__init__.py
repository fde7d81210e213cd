"""The benchmarks: each module runs on its own."""
