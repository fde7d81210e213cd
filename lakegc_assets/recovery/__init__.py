"""Backups of what a mark names: made, read, listed, ended; and bringing back what was deleted."""
