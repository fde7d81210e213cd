"""The definitions that Dagster loads: assets, checks, jobs, schedules, sensors, resources."""
