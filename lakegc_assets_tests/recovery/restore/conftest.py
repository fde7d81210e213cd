"""A lake that was marked once and is swept in each test, with a place for backups."""

from lakegc_assets_tests.marked import few_tasks, lake
from lakegc_assets_tests.recovery.conftest import anywhere, place, where

__all__ = ["anywhere", "few_tasks", "lake", "place", "where"]
