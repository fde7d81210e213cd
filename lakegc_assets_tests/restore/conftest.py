"""A lake that was marked once and is swept in each test, with a place for backups."""

from lakegc_assets_tests.recovery.conftest import _few_tasks, anywhere, lake, marked, place

__all__ = ["_few_tasks", "anywhere", "lake", "marked", "place"]
