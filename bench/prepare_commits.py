"""Measures the embedded lakeFS's list of active commits: 30 K commits on 1 K branches.

Run ``python -m bench.prepare_commits``.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.active_commits import NOW, history
from lakegc_assets.embedded import gc
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.embedded.refs.history import create_repository


def plant(lake: Lake, n_commits: int, n_branches: int) -> None:
    """Write the history of ``bench.active_commits`` into a repository of its own."""
    now = int(NOW.timestamp())
    repo = Repository("bench", "local://bench", "main", now, read_only=False, rules=None)
    create_repository(lake, repo)
    commits, heads = history(n_commits, n_branches)
    with lake.state.write() as db:
        for commit in commits.values():
            made = catalog.Commit(
                commit.id,
                "c",
                "m",
                commit.metarange_id,
                commit.creation_date,
                {},
                commit.parents,
                1,
            )
            catalog.insert_commit(db, repo, made)
        catalog.delete_branch(db, catalog.branch(db, repo, "main"))
        for name, head in heads.items():
            catalog.insert_branch(db, repo, name, head, hidden=False)
    gc.set_rules(lake, "bench", 30, {name: 1 + i % 365 for i, name in enumerate(heads)})


def main() -> None:
    with TemporaryDirectory() as data:
        lake = Lake(ServerSettings(Path(data), clock=NOW.timestamp))
        plant(lake, 30_000, 1_000)
        began = time.perf_counter()
        location = gc.prepare_commits(lake, "bench")["gc_commits_location"]
        seconds = time.perf_counter() - began
        file = lake.settings.objects_dir / location.removeprefix("local://")
        listed = len(file.read_text().splitlines()) - 1
        lake.close()
    print(f"30,000 commits on 1,000 branches: {listed:,} listed in {seconds:.2f} s")


if __name__ == "__main__":
    main()
