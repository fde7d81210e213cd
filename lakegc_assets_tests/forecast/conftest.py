"""A running copy of a lake that was marked once, for what a real sweep leaves."""

from __future__ import annotations

from lakegc_assets_tests.marked import few_tasks, lake

__all__ = ["few_tasks", "lake"]
