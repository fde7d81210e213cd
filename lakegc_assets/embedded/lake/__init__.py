"""The working parts of one server: settings, state, stores, and new ids and addresses."""

from __future__ import annotations

from lakegc_assets.embedded.lake.lake import Lake

__all__ = ["Lake"]
