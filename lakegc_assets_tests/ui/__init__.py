"""Walks through the interface as docs/first-run.md does, in headless Chromium."""
