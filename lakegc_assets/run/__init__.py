"""The base of every stage: the context of a run, its settings, artifacts and lock."""
