"""States of runs and repositories: read from their artifacts, shown, and never acted upon."""
