"""A small lakeFS server for trials and tests without a real one."""

from __future__ import annotations

from lakegc_assets.embedded.server import EmbeddedLakeFS, embedded, main

__all__ = ["EmbeddedLakeFS", "embedded", "main"]
