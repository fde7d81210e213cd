"""A small lakeFS server, so that everything can be tried and tested without a real one."""

from __future__ import annotations

from lakegc_assets.embedded.server import EmbeddedLakeFS, embedded, main

__all__ = ["EmbeddedLakeFS", "embedded", "main"]
