"""Whose the bytes are that a mark has listed: by reason, branch, path, committer and age."""
