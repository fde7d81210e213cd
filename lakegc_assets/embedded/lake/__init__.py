"""The working parts of one server: settings, state, stores, and the names that it makes."""

from __future__ import annotations

from lakegc_assets.embedded.lake.lake import Lake

__all__ = ["Lake"]
