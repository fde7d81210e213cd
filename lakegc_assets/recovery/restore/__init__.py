"""Restores: select marked objects, restore and pin them, and read a sample through lakeFS."""
