"""Backups of marked objects: create, read, list and prune them; and restores of deleted objects."""
