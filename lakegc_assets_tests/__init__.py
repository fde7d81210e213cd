"""Tests; the packages mirror those of lakegc_assets."""
