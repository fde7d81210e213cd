"""Runs of long ago, as they look from here: manifests, a few rows, and files of their age."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import MARK_ASSETS, PROTECTION, PROTECTION_VERSION, Manifest
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY

DAY = timedelta(days=1)
#: What is read of any asset; each has all of them.
COLUMNS = ("address", "metarange_id", "range_id", "commit_id")
COMMITS = {
    "creation_date": pa.array([0]),
    **{name: pa.array([None], pa.string()) for name in ("branch", "kind")},
    "counted_from": pa.array([None], pa.timestamp("us", "UTC")),
}
NOTHING = {"kind": "nothing", "days": None, "notice": "it keeps nothing", "until": None}


def long_ago(
    root: ArtifactRoot,
    run: str,
    days: float,
    *,
    repository: str = REPOSITORY,
    namespace: str = "",
    assets: tuple[str, ...] = (*MARK_ASSETS, "swept_set"),
    protection: int = PROTECTION_VERSION,
    **swept: Any,
) -> AttemptArtifacts:
    """A run that was made so many days ago.

    Args:
        root: of the artifacts, in a folder.
        run: its id.
        days: its age.
        repository: lakeFS repository.
        namespace: of it.
        assets: those that were finished.
        protection: ``PROTECTION_VERSION`` of the code that made it.
        swept: facts of its sweep.
    """
    start = datetime.now(timezone.utc).replace(microsecond=0) - days * DAY
    attempt = AttemptArtifacts(root, repository, run, f"{start:%Y%m%dT%H%M%SZ}-0123abcd")
    name = f'{{"attempt": "{attempt.attempt}", "earlier": []}}'
    root.open(repository, run).put("attempt.json", name.encode())
    facts = {
        "store_listing": {"start": start.isoformat(), "clean_at": start.isoformat()},
        "swept_set": {
            "outcomes": {"deleted": {"objects": 1, "bytes": 1}},
            "recovery": NOTHING,
            "backup": None,
            **swept,
        },
    }
    previous = ""
    for asset in assets:
        rows = pa.table({**{name: [f"data/{run}"] for name in COLUMNS}, **COMMITS})
        manifest = Manifest(
            asset=asset,
            repository=repository,
            run=run,
            attempt=attempt.attempt,
            namespace=namespace or f"local://{repository}",
            cutoff=start - timedelta(hours=26),
            started=start,
            finished=start,
            rows=1,
            digest="",
            parts={
                part: [write_part(attempt.store(), f"{asset}/{part}/", rows)]
                for part in ("data", "expired", "ranges")
            },
            previous=previous,
            settings={"mode": "unified"},
            facts={PROTECTION: protection, **facts.get(asset, {})},
        )
        attempt.store().put(f"{asset}/manifest.json", manifest.to_bytes())
        previous = manifest.sha256
    age(Path(root.url, repository, run), days)
    return attempt
