"""What Dagster sees: assets, checks, partitions, jobs and resources."""
