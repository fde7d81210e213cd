"""Restores: choose what a mark names, bring it back, pin it, and read a sample through lakeFS."""
