"""What every stage of a run stands on: its context, settings, artifacts, tasks and lock."""
