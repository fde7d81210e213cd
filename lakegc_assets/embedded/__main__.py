"""Runs the embedded lakeFS with ``python -m lakegc_assets.embedded``."""

from __future__ import annotations

from lakegc_assets.embedded.server import main

if __name__ == "__main__":
    main()
