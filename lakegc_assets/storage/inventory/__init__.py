"""Inventory reports: lists of all objects of a bucket that the store's service writes."""
