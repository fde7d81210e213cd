"""Load a recorded repository into an S3 server as a real lakeFS left it there, and mark it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakegc_assets.checks.context import CheckResult
from lakegc_assets.checks.invariants import check_candidates
from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.report import report
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, key_digest, unsigned
from lakegc_assets.run.manifest import MARK_ASSETS, Manifest
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.replay import GOLDEN, ReplayServer
from lakegc_assets_tests.sessions import Session

BUCKET = "lab"
_LONG_AGO = datetime(2026, 11, 20, tzinfo=timezone.utc)
STAGES: tuple[Callable[[RunContext], Manifest], ...] = (
    list_store,
    snapshot_uncommitted,
    find_active_commits,
    read_committed_addresses,
    find_candidates,
)
#: lakeFS's own mark was made with a minimum age of 1 s. Small data needs few partitions, and the
#: skew is 0 so that every recorded object is old enough to be missed in a listing.
SETTINGS = Settings(
    min_age_hours=1 / 3600,
    allow_unsafe_min_age=True,
    clock_skew_seconds=0,
    max_candidate_share=0.9,
    listing_num_partitions=2,
    range_num_partitions=2,
    address_num_partitions=2,
    sweep_num_partitions=2,
)


@dataclass(frozen=True)
class FixedClocks(Clocks):
    """All three clocks stand at one moment, unless a difference to ours is given."""

    moment: datetime
    lakefs_skew: timedelta = timedelta(0)
    store_skew: timedelta = timedelta(0)

    def now(self) -> datetime:
        return self.moment

    def of_lakefs(self, client: Any) -> datetime:  # noqa: ARG002 - the protocol's
        return self.moment + self.lakefs_skew

    def of_store(self, store: Any) -> datetime:  # noqa: ARG002 - the protocol's
        return self.moment + self.store_skew


def backend() -> Any:
    """The state of the S3 server, behind everybody's back."""
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


def load(repository: str, prepare: str = "prepare") -> None:
    """Make the store what was recorded: every object with its recorded time and etag."""
    store = backend()
    if BUCKET not in store.buckets:
        store.create_bucket(BUCKET, "us-east-1")
    for key in keys(repository):
        remove(repository, key)
    folder = GOLDEN / repository
    with (folder / "listing_before.tsv").open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    for row in rows:
        relative = row["key"].removeprefix(f"{repository}/")
        raw = folder / "raw" / relative
        body = raw.read_bytes() if raw.is_file() else b"x" * int(row["size"])
        written = datetime.fromisoformat(row["last_modified"].replace("Z", "+00:00"))
        plant(repository, relative, body, written, row["etag"].strip('"'))
    prepared = folder / prepare / "files"
    for path in sorted(p for p in prepared.rglob("*") if p.is_file()):
        plant(repository, str(path.relative_to(prepared)), path.read_bytes())


def plant(
    repository: str,
    key: str,
    body: bytes = b"planted",
    written: datetime | None = None,
    etag: str | None = None,
) -> str:
    """Put an object behind everybody's back, long ago if its slice allows; returns its key."""
    stored = backend().put_object(BUCKET, f"{repository}/{key}", body, etag=etag)
    made = slice_time(key.removeprefix("data/").partition("/")[0])
    stored.last_modified = written or max(_LONG_AGO, made or _LONG_AGO)
    return key


def remove(repository: str, key: str) -> None:
    """Remove an object behind everybody's back."""
    backend().buckets[BUCKET].keys.pop(f"{repository}/{key}")


@contextmanager
def set_aside() -> Iterator[None]:
    """The bucket of the recordings is there and empty inside; then it is as it was before."""
    store = backend()
    if BUCKET not in store.buckets:
        store.create_bucket(BUCKET, "us-east-1")
    bucket = store.buckets[BUCKET]
    kept, bucket.keys = bucket.keys, type(bucket.keys)()
    try:
        yield
    finally:
        bucket.keys = kept


@contextmanager
def preserved(repository: str) -> Iterator[None]:
    """What happens to the objects of a repository inside is undone at the end."""
    stored = backend().buckets[BUCKET].keys
    before = {
        key: (found, found.value, found.last_modified, found.etag.strip('"'))
        for key in keys(repository)
        for found in [stored[f"{repository}/{key}"]]
    }
    try:
        yield
    finally:
        for key in set(keys(repository)) - before.keys():
            remove(repository, key)
        for key, (found, *recorded) in before.items():
            if stored.get(f"{repository}/{key}") is not found:
                plant(repository, key, *recorded)


def content(repository: str, key: str) -> bytes:
    """What an object holds."""
    found: bytes = backend().buckets[BUCKET].keys[f"{repository}/{key}"].value
    return found


def keys(repository: str) -> list[str]:
    """The keys of a repository, relative to its namespace."""
    stored = backend().buckets[BUCKET].keys
    return [k.removeprefix(f"{repository}/") for k in stored if k.startswith(f"{repository}/")]


def expected(repository: str) -> set[str]:
    """The addresses that may be deleted, by the definition."""
    return set((GOLDEN / repository / "expected_deleted.txt").read_text().splitlines())


def mark_time(repository: str) -> datetime:
    """When lakeFS's own collector began its mark; for the others, just after the recording."""
    summaries = sorted(Path(GOLDEN / repository).glob("peer_mark/files/**/summary.json"))
    if summaries:
        text = json.loads(summaries[0].read_text())["start_time"]
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")
    return datetime(2026, 11, 21, 4, 45, tzinfo=timezone.utc)


def context(
    server: ReplayServer,
    endpoint: str,
    folder: Path,
    spark: Session,
    run: str = "run1",
    **settings: Any,
) -> RunContext:
    """A run on a recorded repository, at the time of lakeFS's own mark.

    Args:
        server: serves the recorded answers.
        endpoint: of the S3 server.
        folder: for credentials and artifacts; runs that share it know of each other.
        spark: the session.
        run: id of the run.
        settings: what differs from ``SETTINGS``.
    """
    # Of the other repositories of the recorded server only the names are known.
    known = {found["id"] for found in server.recording.body("repositories")["results"]}
    others = sorted(known - {server.repository})
    return RunContext(
        repository=server.repository,
        run=run,
        settings=SETTINGS.changed(**{"ignored_repositories": others, **settings}),
        lakefs=server.config(folder),
        root=ArtifactRoot(str(folder / "artifacts"), StoreConfig(endpoint_url=endpoint)),
        session=spark,
        clocks=FixedClocks(mark_time(server.repository)),
    )


@dataclass(frozen=True)
class Marked:
    """A mark that was made, up to its candidates, or to its report."""

    ctx: RunContext
    manifests: dict[str, Manifest]
    checks: list[CheckResult]

    @property
    def attempt(self) -> AttemptArtifacts:
        return self.ctx.root.attempt(self.ctx.repository, self.ctx.run)

    @property
    def candidates(self) -> set[str]:
        return self.addresses("deletion_candidates")

    @property
    def spared(self) -> dict[str, str]:
        rows = self.attempt.read("deletion_candidates", "spared").to_pylist()
        return {row["address"]: row["why"] for row in rows}

    def addresses(self, asset: str) -> set[str]:
        return set(self.attempt.read(asset)["address"].to_pylist())

    def commits_hold(self, addresses: set[str]) -> bool:
        """Whether active commits hold all of some addresses, by their hashes."""
        column = self.attempt.read("committed_addresses")["hash"]
        found = set(unsigned(column).tolist())
        return set(address_hashes(pa.array(sorted(addresses))).tolist()) <= found


def mark(ctx: RunContext, *, publish: bool = False) -> Marked:
    """Run the stages up to the candidates; with ``publish`` the checks and the report too."""
    manifests = {m.asset: m for m in (stage(ctx) for stage in STAGES)}
    checks: list[CheckResult] = []
    if publish:
        checks = check_candidates(ctx)
        manifests["gc_report"] = report(ctx)
    return Marked(ctx, manifests, checks)


def rewind(marked: Marked, folder: Path, asset: str = "gc_report", **settings: Any) -> Marked:
    """A copy of a mark from which an asset and all that follow it are gone.

    Args:
        marked: is left as it is.
        folder: an empty one, for the copy of the artifacts.
        asset: the first that is to be made again.
        settings: what differs in the copy.
    """
    ctx = marked.ctx
    shutil.copytree(ctx.root.url, folder / "artifacts")
    root = ArtifactRoot(str(folder / "artifacts"), ctx.root.stores)
    ctx = replace(ctx, root=root, settings=ctx.settings.changed(**settings))
    names = (*MARK_ASSETS, "swept_set")
    for name in names[names.index(asset) :]:
        shutil.rmtree(folder_of(ctx, name), ignore_errors=True)
    return Marked(ctx, marked.manifests, marked.checks)


def folder_of(ctx: RunContext, asset: str) -> Path:
    """Where the artifacts of an asset lie."""
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    return Path(attempt.url.removeprefix("file://")) / asset


def rewrite(
    ctx: RunContext,
    asset: str,
    part: str,
    change: Callable[[Any], Any],
    *,
    manifests: bool = False,
) -> None:
    """Change the rows of an asset behind its manifest's back.

    Args:
        ctx: the run.
        asset: whose rows.
        part: of the asset, ``data`` for its own rows.
        change: from the list of rows (dicts) to the rows to be written in their place.
        manifests: change the manifests as well, so that the chain is whole.
    """
    folder = folder_of(ctx, asset) / part
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    table = attempt.read(asset, part)
    rows: Iterable[dict[str, Any]] = change(table.to_pylist())
    for path in folder.iterdir():
        path.unlink()
    changed = pa.Table.from_pylist(list(rows), schema=table.schema)
    written = write_part(attempt.store(), f"{asset}/{part}/", changed)
    if manifests:
        _rechain(attempt, asset, part, written, changed)


def _rechain(
    attempt: AttemptArtifacts, asset: str, part: str, written: Part, rows: pa.Table
) -> None:
    """Let the manifests of a mark say that a part is what it is now."""
    previous = ""
    for name in MARK_ASSETS:
        key = f"{name}/manifest.json"
        if not attempt.has(name):
            return
        manifest = Manifest.from_bytes(attempt.store().get(key), key)
        if name == asset:
            parts = {**manifest.parts, part: [written]}
            manifest = replace(manifest, parts=parts)
            if part == "data":
                digest = key_digest(rows["address"]) if "address" in rows.column_names else None
                told = str(digest) if digest else manifest.digest
                manifest = replace(manifest, rows=rows.num_rows, digest=told)
        if previous:
            manifest = replace(manifest, previous=previous)
        previous = manifest.sha256
        attempt.store().put(key, manifest.to_bytes())
