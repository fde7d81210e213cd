"""What Dagster has no public name for, in one place, each with its reason."""

from __future__ import annotations

# Dagster raises it where a run is terminated, and exports no base class of it but BaseException.
from dagster._core.errors import DagsterExecutionInterruptedError

# The times of a schedule: Dagster computes them for who evaluates its ticks, by its own parser of
# cron strings, whose dialect (`@daily`, several strings) another library would not share.
from dagster._utils.schedules import cron_string_iterator, reverse_cron_string_iterator

__all__ = [
    "DagsterExecutionInterruptedError",
    "cron_string_iterator",
    "reverse_cron_string_iterator",
]
