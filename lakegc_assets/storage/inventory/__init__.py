"""Inventory reports: lists of all objects of a bucket that its service writes by itself."""
