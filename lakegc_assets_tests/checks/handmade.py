"""Marks of recorded repositories that no stage has made: written by hand, right or wrong."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from pyspark.sql import SparkSession

from lakegc_assets.checks.context import Case, CheckResult
from lakegc_assets.engine.choice import Engine
from lakegc_assets.engine.datasets import Part, PartWriter, write_part
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.session import Session
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.graveler.ranges import read_metarange, read_range
from lakegc_assets.run.artifacts import LISTING, ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.manifest import PROTECTION, PROTECTION_VERSION, Manifest
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests.listings import listing_of
from lakegc_assets_tests.replay import GOLDEN, ReplayServer

BUCKET = "lab"
SETTINGS = Settings(
    min_age_hours=1 / 3600,
    allow_unsafe_min_age=True,
    clock_skew_seconds=0,
    max_candidate_share=0.9,
)
TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    ("store_listing", "data"): LISTING,
    ("uncommitted_snapshot", "data"): pa.schema([("address", pa.string())]),
    ("active_commits", "data"): pa.schema([("commit_id", pa.string())]),
    ("active_commits", "heads"): pa.schema([("branch", pa.string()), ("commit_id", pa.string())]),
    ("active_commits", "tags"): pa.schema(
        [("tag", pa.string()), ("commit_id", pa.string()), ("active", pa.bool_())]
    ),
    ("committed_addresses", "data"): pa.schema([("hash", pa.int64())]),
    ("committed_addresses", "ranges"): pa.schema(
        [("range_id", pa.string()), ("entries", pa.int64()), ("digest", pa.string())]
    ),
    ("deletion_candidates", "data"): LISTING,
}
CHAIN = tuple(dict.fromkeys(asset for asset, _ in SCHEMAS))

Row = dict[str, Any]
Changes = Mapping[tuple[str, str], Callable[[list[Row]], list[Row]]]


def _no_spark() -> SparkSession:
    raise AssertionError("so little needs no Spark")


class CountedTasks(Tasks):
    """Runs tasks as always, and says which."""

    calls: list[str]

    def __init__(self) -> None:
        super().__init__(Engine("embedded", "so little"), _no_spark)
        object.__setattr__(self, "calls", [])

    def run(
        self,
        what: str,
        task: Callable[[Any], Any],
        inputs: Sequence[Any],
        seconds: float,
        threads: int | None = None,
        **how: bool,
    ) -> list[Any]:
        self.calls.append(what)
        # As tasks and answers come through Spark.
        task, inputs = pickle.loads(pickle.dumps((task, inputs)))
        answers = super().run(what, task, inputs, seconds, threads, **how)
        again: list[Any] = pickle.loads(pickle.dumps(answers))
        return again


class CountedFrames(EmbeddedSession):
    """Computes frames as always, and says which."""

    def __init__(self, connections: Connections, calls: list[str]) -> None:
        super().__init__(connections.open, None)
        self._calls = calls

    def write(self, *given: Any) -> list[Part]:
        self._calls.append(given[-1])
        return super().write(*given)

    def collect(self, *given: Any) -> pa.Table:
        self._calls.append(given[-1])
        return super().collect(*given)


@dataclass(frozen=True)
class CountingContext(RunContext):
    """A run whose calls of tasks are counted, and the frames that it computes on its own engine."""

    counted: CountedTasks = field(default_factory=CountedTasks)

    @property
    def tasks(self) -> Any:
        return self.counted

    def frames(self) -> Session:
        if self.engine.kind == "spark":
            return super().frames()
        return CountedFrames(self.connections, self.counted.calls)


@dataclass(frozen=True)
class Lab:
    """A recorded repository on an S3 server, of which marks are written by hand."""

    server: ReplayServer
    endpoint: str
    folder: Path

    @property
    def repository(self) -> str:
        return self.server.repository

    @property
    def golden(self) -> Path:
        return GOLDEN / self.repository

    @cached_property
    def s3(self) -> Any:
        return boto3.client("s3", endpoint_url=self.endpoint)

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=f"{self.repository}/{key}", Body=body)

    def remove(self, key: str) -> None:
        self.s3.delete_object(Bucket=BUCKET, Key=f"{self.repository}/{key}")

    @cached_property
    def listing(self) -> list[Row]:
        with (self.golden / "listing_before.tsv").open(newline="") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
        return [
            {
                "address": row["key"].removeprefix(f"{self.repository}/"),
                "size": int(row["size"]),
                "last_modified": datetime.fromisoformat(
                    row["last_modified"].replace("Z", "+00:00")
                ),
                "etag": row["etag"].strip('"'),
            }
            for row in rows
        ]

    @cached_property
    def lists(self) -> list[str]:
        """Keys of the lists of staged objects."""
        root = self.golden / "prepare" / "files"
        files = (path for path in root.rglob("*") if path.is_file())
        keys = (str(path.relative_to(root)) for path in files)
        return sorted(key for key in keys if "/gc/uncommitted/" in key)

    @cached_property
    def now(self) -> datetime:
        newest: datetime = max(row["last_modified"] for row in self.listing)
        return newest + timedelta(hours=1)

    def load(self) -> None:
        """Put the objects into an empty bucket, by the short way into this process's server."""
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for row in self.listing:
            raw = self.golden / "raw" / row["address"]
            body = raw.read_bytes() if raw.is_file() else b"x" * row["size"]
            backend.put_object(BUCKET, f"{self.repository}/{row['address']}", body)
        for key in self.lists:
            body = (self.golden / "prepare" / "files" / key).read_bytes()
            backend.put_object(BUCKET, f"{self.repository}/{key}", body)

    def ranges(self, commit_id: str) -> list[str]:
        metarange = self.server.recording.commits[commit_id]["meta_range_id"]
        return [*_ranges_of(self.table(metarange))] if metarange else []

    def file(self, table_id: str) -> bytes:
        return self.table(table_id).read_bytes()

    def table(self, table_id: str) -> Path:
        return self.golden / "raw" / "_lakefs" / table_id

    def held(self, commit_id: str) -> set[str]:
        """The addresses that a commit holds, by the slow reader."""
        namespace = StorageNamespace.parse(f"s3://{BUCKET}/{self.repository}")
        return {
            address
            for range_id in self.ranges(commit_id)
            for entry in _entries_of(self.table(range_id))
            for address in (
                {entry.address}
                if entry.address_type is AddressType.RELATIVE
                else namespace.resolve(entry.address, entry.address_type)
            )
        }

    @cached_property
    def heads(self) -> dict[str, str]:
        return {b["id"]: b["commit_id"] for b in self.server.recording.branches()}

    def mark(self, run: str = "run1", changes: Changes | None = None, **facts: Any) -> Marked:
        """Write a mark up to its candidates.

        Args:
            run: its id.
            changes: from the right rows of a part of an asset to those that are written.
            facts: of the assets, in place of the right ones.
        """
        ctx = CountingContext(
            repository=self.repository,
            run=run,
            settings=SETTINGS,
            lakefs=self.server.config(self.folder),
            root=ArtifactRoot(
                str(self.folder / "artifacts"), StoreConfig(endpoint_url=self.endpoint)
            ),
            session=_no_spark,
        )
        attempt = ctx.root.new_attempt(self.repository, run)
        rules = self.server.recording.calls.get("gc_rules_settings", {})
        known = {
            "start": self.now.isoformat(),
            "files": self.lists,
            "rules": rules["body"] if rules.get("status") == 200 else None,
            **facts,
        }
        previous = ""
        for asset in CHAIN:
            parts = {}
            for (owner, part), schema in SCHEMAS.items():
                if owner == asset:
                    rows = (changes or {}).get((asset, part), list)(self._rows(asset, part))
                    writer = PartWriter(attempt.store(), f"{asset}/{part}/", schema)
                    made = listing_of(rows) if schema is LISTING else None
                    writer.add(pa.Table.from_pylist(rows, schema) if made is None else made)
                    parts[part] = writer.finish()
            manifest = Manifest(
                asset=asset,
                repository=self.repository,
                run=run,
                attempt=attempt.attempt,
                namespace=f"s3://{BUCKET}/{self.repository}",
                cutoff=self.now - timedelta(seconds=1),
                started=self.now,
                finished=self.now,
                rows=sum(part.rows for part in parts["data"]),
                digest="",
                parts=parts,
                previous=previous,
                settings=SETTINGS.to_json(),
                facts={PROTECTION: PROTECTION_VERSION, **known},
            )
            previous = attempt.finish(manifest).sha256
        return Marked(self, ctx, attempt)

    @cached_property
    def candidates(self) -> list[Row]:
        dead = set((self.golden / "expected_deleted.txt").read_text().splitlines())
        return [row for row in self.listing if row["address"] in dead]

    def sweep(self, run: str, outcomes: Mapping[str, str]) -> None:
        """Write the outcomes of a sweep under a mark of another id."""
        marked = self.mark(run)
        rows = {"address": list(outcomes), "outcome": list(outcomes.values())}
        part = write_part(marked.attempt.store(), "swept_set/data/", pa.table(rows))
        last = marked.manifest("deletion_candidates")
        marked.attempt.finish(
            replace(last, asset="swept_set", parts={"data": [part]}, rows=part.rows)
        )

    def _rows(self, asset: str, part: str) -> list[Row]:
        """The right rows of a part; none of those that no check reads."""
        rows: dict[tuple[str, str], Callable[[], list[Row]]] = {
            ("store_listing", "data"): lambda: [
                row for row in self.listing if not row["address"].startswith("_lakefs/")
            ],
            ("active_commits", "data"): lambda: [
                {"commit_id": commit} for commit in sorted(self.server.recording.commits)
            ],
            ("active_commits", "heads"): lambda: [
                {"branch": branch, "commit_id": commit} for branch, commit in self.heads.items()
            ],
            ("active_commits", "tags"): lambda: [
                {"tag": tag["id"], "commit_id": tag["commit_id"], "active": True}
                for tag in self.server.recording.body("tags")["results"]
            ],
            ("committed_addresses", "ranges"): lambda: [
                self.range_row(range_id) for range_id in self._all_ranges()
            ],
            ("deletion_candidates", "data"): lambda: self.candidates,
        }
        return rows.get((asset, part), list)()

    def _all_ranges(self) -> list[str]:
        commits = filter(self._kept, self.server.recording.commits)
        return sorted({range_id for commit in commits for range_id in self.ranges(commit)})

    def _kept(self, commit_id: str) -> bool:
        metarange: str = self.server.recording.commits[commit_id]["meta_range_id"]
        return (self.golden / "raw" / "_lakefs" / metarange).is_file()

    def range_row(self, range_id: str) -> Row:
        entries = _entries_of(self.table(range_id))
        return {
            "range_id": range_id,
            "entries": len(entries),
            "digest": _digest_of(self.table(range_id)),
        }


# What is recorded stays as it is, and the slow reader reads it once for all tests.


@cache
def _ranges_of(metarange: Path) -> tuple[str, ...]:
    return tuple(info.id for info in read_metarange(metarange.read_bytes(), metarange.name))


@cache
def _entries_of(table: Path) -> tuple[Entry, ...]:
    return tuple(entry for _, entry in read_range(table.read_bytes(), table.name))


@cache
def _digest_of(table: Path) -> str:
    addresses = [entry.address for entry in _entries_of(table)]
    return str(key_digest(pa.array(addresses, pa.string())))


@dataclass(frozen=True)
class Marked:
    """A mark that was written by hand."""

    lab: Lab
    ctx: CountingContext
    attempt: AttemptArtifacts

    @property
    def calls(self) -> list[str]:
        return self.ctx.counted.calls

    def manifest(self, asset: str) -> Manifest:
        return self.attempt.manifest(asset)

    def case(
        self,
        planted: Iterable[str] = (),
        *,
        only: bool = False,
        chain: Mapping[str, Manifest] | None = None,
        **settings: Any,
    ) -> Case:
        """The candidates of the mark, and some more that are none of it.

        Args:
            planted: addresses; those that are listed come with their size, time and etag.
            only: nothing but the planted ones.
            chain: manifests in place of the mark's.
            settings: of the run, that differ.
        """
        ctx = replace(self.ctx, settings=self.ctx.settings.changed(**settings)).connect()
        found = self.attempt.chain("deletion_candidates", ctx.connections.namespace_url)
        parts = [] if only else list(found["deletion_candidates"].parts["data"])
        parts += self.plant(planted)
        given = {**found, **(chain or {})}
        frames = ctx.frames()
        return Case(ctx, frames, self.attempt, given, parts)

    def plant(self, addresses: Iterable[str]) -> list[Part]:
        listed = {row["address"]: row for row in self.lab.listing}
        long_ago = datetime(2020, 1, 1, tzinfo=timezone.utc)
        other = {"size": 1, "last_modified": long_ago, "etag": "0" * 32}
        rows = [listed.get(a, {**other, "address": a}) for a in addresses]
        if not rows:
            return []
        table = listing_of(rows)
        return [write_part(self.attempt.store(), "planted/", table)]


def fails(result: CheckResult, *, blocking: bool = True) -> str:
    assert (result.passed, result.blocking) == (False, blocking)
    return result.summary
