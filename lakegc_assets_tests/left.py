"""Artifacts as runs leave them, without the runs: manifests with the facts that overviews read."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from lakegc_assets.checks.context import CheckResult
from lakegc_assets.checks.invariants import NAMES
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.manifest import PROTECTION, PROTECTION_VERSION, Manifest
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.ledger import Outcome, record

#: When the first of these runs began.
BEGAN = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
_HOUR = timedelta(hours=1)


def root_at(folder: Path) -> ArtifactRoot:
    return ArtifactRoot(str(folder / "artifacts"), StoreConfig())


def begun(root: ArtifactRoot, repository: str, run: str, day: float = 0) -> AttemptArtifacts:
    """A run that has left nothing but its beginning."""
    attempt = f"{BEGAN + timedelta(days=day):%Y%m%dT%H%M%SZ}-00000000"
    root.open(repository, run).put(
        "attempt.json", json.dumps({"attempt": attempt, "earlier": []}).encode()
    )
    return AttemptArtifacts(root, repository, run, attempt)


def checked(
    root: ArtifactRoot, repository: str, run: str, day: float = 0, *, refused: str = ""
) -> AttemptArtifacts:
    """A mark whose checks were evaluated; one of them refuses it with a sentence, or none."""
    attempt = begun(root, repository, run, day)
    manifest = finish(
        attempt, "deletion_candidates", day, {"listed": 100, "listed_bytes": 10_000, "spared": {}}
    )
    results = [
        CheckResult(name, not (refused and name == "candidate_share"), blocking=True,
                    summary=refused)
        for name in NAMES
    ]  # fmt: skip
    record = {"candidates": manifest.sha256, "results": [asdict(one) for one in results]}
    attempt.store().put("deletion_candidates/checks.json", json.dumps(record).encode())
    return attempt


def marked(
    root: ArtifactRoot, repository: str, run: str, day: float = 0, *, objects: int = 40
) -> AttemptArtifacts:
    """A published mark."""
    attempt = checked(root, repository, run, day)
    finish(attempt, "gc_report", day, {"objects": objects, "bytes": 100 * objects})
    return attempt


def swept(
    root: ArtifactRoot, repository: str, run: str, day: float = 0, *, size: int = 4000
) -> AttemptArtifacts:
    """A mark that was swept an hour later."""
    attempt = marked(root, repository, run, day)
    outcomes = {"deleted": {"objects": 40, "bytes": size}} if size else {}
    finish(attempt, "swept_set", day + 1 / 24, {"outcomes": outcomes})
    return attempt


def deleted(attempt: AttemptArtifacts, *outcomes: str) -> None:
    """Outcomes of objects of 100 bytes, as a try that was killed recorded them."""
    rows = [Outcome(f"data/g/{n}", 100, outcome) for n, outcome in enumerate(outcomes)]
    record(attempt.store(), "sweep-0001-00000-000000", rows)


def finish(attempt: AttemptArtifacts, asset: str, day: float, facts: dict[str, Any]) -> Manifest:
    return attempt.finish(manifest_of(attempt, asset, day, facts))


def manifest_of(
    attempt: AttemptArtifacts, asset: str, day: float, facts: dict[str, Any]
) -> Manifest:
    at = BEGAN + timedelta(days=day)
    return Manifest(
        asset=asset,
        repository=attempt.repository,
        run=attempt.run,
        attempt=attempt.attempt,
        namespace=f"local://{attempt.repository}",
        cutoff=at - 25 * _HOUR,
        started=at,
        finished=at + _HOUR / 60,
        rows=0,
        digest="",
        parts={"data": []},
        previous="",
        settings={},
        facts={PROTECTION: PROTECTION_VERSION, **facts},
    )
