"""What is copied onto its own path keeps an etag that is not its own: neither side believes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from hashlib import md5
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakegc_assets.checks.invariants import evaluate
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.objects import copies, linking, objects
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.mark import signatures
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.etags import etag_files
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.lookups import Inquiry
from lakegc_assets.mark.served_candidates import served_candidates
from lakegc_assets.mark.signature_relations import SERVED, UNVERIFIED
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, RUN, SmallLake, running
from lakegc_assets_tests.sessions import Session

#: Of what was uploaded in two parts; no content has it for its MD5.
PARTS = f"{'a' * 32}-2"
MANY = 10
BEFORE = (list_store, snapshot_uncommitted, find_active_commits, read_committed_addresses)


@dataclass(frozen=True)
class Copied:
    """A lake up to its live sets, on a store whose etags are MD5s but of uploads in parts.

    Attributes:
        lake: the running server.
        bucket: of its objects.
        shadows: copies that are served and listed nowhere, by the path that serves them.
        dead: planted objects, by the path whose object has their size.
    """

    lake: SmallLake
    bucket: str
    shadows: dict[str, str]
    dead: dict[str, str]

    def key(self, address: str) -> Any:
        """The store's own record of an object, to be changed behind everybody's back."""
        return recorded.backend().buckets[self.bucket].keys[f"{REPOSITORY}/{address}"]

    def rewrite(self, address: str, etag: str) -> Any:
        """Let an object have another etag, and be as old as before; the store's record of it."""
        old = self.key(address)
        new = recorded.backend().put_object(self.bucket, old.name, old.value, etag=etag)
        new.last_modified = old.last_modified
        return new


@pytest.fixture
def copied(s3_server: str, s3_bucket: str, tmp_path: Path) -> Iterator[Copied]:
    """Of ``parts``, ``imported`` and ``many/3`` a copy lies over HEAD; all have their own size."""
    s3, config = boto3.client("s3", endpoint_url=s3_server), StoreConfig(endpoint_url=s3_server)
    where: dict[str, Any] = {"store": f"s3://{s3_bucket}", "store_config": config}
    with running(tmp_path, faults=frozenset({Fault.SHADOWED_UPLOADS}), **where) as lake:
        lake.calendar.days_ago = 30
        lake.client.create_repository(REPOSITORY, f"s3://{s3_bucket}/{REPOSITORY}")
        found = Copied(lake, s3_bucket, {}, {})
        contents = {"parts": "uploaded in two parts", "imported": "of another store, imported"}
        contents |= {f"many/{n}": f"one of many, {n}" for n in range(MANY)}
        for path, content in contents.items():
            stage(found, path, content.encode())
        for n in range(3):
            lake.client.upload_object(REPOSITORY, "main", f"plain/{n}", b"plain %d" % n)
        lake.commit("main")
        for path in ("parts", "imported", "many/3"):
            copy = copies.copy(
                lake.server.lake, REPOSITORY, "main", path, source_ref="main", source_path=path
            )
            found.shadows[path] = copy.entry.address
            found.rewrite(copy.entry.address, md5(contents[path].encode()).hexdigest())
        for path, content in {**contents, "plain": "plain n"}.items():
            if path in {*found.shadows, "plain"}:
                found.dead[path] = f"data/dead/{path.replace('/', '-')}"
                body = content[::-1].encode()
                s3.put_object(Bucket=s3_bucket, Key=f"{REPOSITORY}/{found.dead[path]}", Body=body)
        written = datetime.now(timezone.utc) - timedelta(minutes=1)
        for key in recorded.backend().buckets[s3_bucket].keys.values():
            key.last_modified = written
        lake.calendar.days_ago = 0
        yield found


def stage(found: Copied, path: str, body: bytes) -> None:
    """Stage an object with an etag that is not its content's."""
    server = found.lake.server.lake
    if path == "imported":
        key = recorded.backend().put_object(found.bucket, "outside/imported", body)
        # It looks like an MD5, as those of encrypted objects do.
        entry = Entry(f"s3://{found.bucket}/{key.name}", size=len(body), e_tag="c" * 32)
        linking.stage_outside(server, REPOSITORY, "main", path, entry)
        return
    entry = objects.upload(server, REPOSITORY, "main", path, body).entry
    objects.stage_entry(server, REPOSITORY, "main", path, replace(entry, e_tag=PARTS))
    found.rewrite(entry.address, PARTS)


def marked(copied: Copied, spark: Session, **settings: Any) -> RunContext:
    ctx = copied.lake.context(spark, **settings)
    for run in (*BEFORE, find_candidates):
        run(ctx)
    return ctx


def results(ctx: RunContext) -> tuple[set[str], dict[str, str]]:
    """The candidates, and what was spared."""
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    rows = attempt.read("deletion_candidates", "spared").to_pylist()
    candidates = attempt.read("deletion_candidates")["address"].to_pylist()
    return set(candidates), {row["address"]: row["why"] for row in rows}


@pytest.mark.parametrize(
    "path",
    ["imported", *(pytest.param(p, marks=pytest.mark.conformance) for p in ("parts", "many/3"))],
)
def test_a_copy_over_an_etag_that_says_nothing_is_asked_for_by_a_mark_and_its_checks(
    path: str, copied: Copied, spark: Session
) -> None:
    ctx = marked(copied, spark)
    candidates, spared = results(ctx)
    assert spared == dict.fromkeys(copied.shadows.values(), SERVED)
    assert candidates == set(copied.dead.values()), "what is not served may go"
    assert [c.summary for c in evaluate(ctx) if c.blocking and not c.passed] == []
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    listed = {row["address"]: row for row in attempt.read("store_listing").to_pylist()}
    planted = {**listed[copied.shadows[path]], "reason": "unreferenced"}
    recorded.rewrite(
        ctx, "deletion_candidates", "data", lambda rows: [*rows, planted], manifests=True
    )
    recorded.rewrite(
        ctx,
        "deletion_candidates",
        "spared",
        lambda rows: [row for row in rows if row["address"] != planted["address"]],
        manifests=True,
    )
    failed = [c for c in evaluate(ctx) if c.blocking and not c.passed]
    assert [c.name for c in failed] == ["none_shadowed"]
    assert repr(planted["address"]) in failed[0].summary


def test_such_entries_are_asked_for_by_the_rarest_size_first(
    copied: Copied, spark: Session
) -> None:
    candidates, spared = results(marked(copied, spark, max_served_lookups=MANY - 1))
    crowd = {copied.shadows["many/3"], copied.dead["many/3"]}
    assert candidates == set(copied.dead.values()) - crowd
    rest = dict.fromkeys(set(copied.shadows.values()) - crowd, SERVED)
    assert spared == rest | dict.fromkeys(crowd, UNVERIFIED)


def test_without_time_only_their_sizes_are_in_doubt(copied: Copied, spark: Session) -> None:
    ctx = marked(copied, spark)
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    manifest, store = attempt.manifest("deletion_candidates"), attempt.store()

    def ask(seconds: float) -> dict[str, str]:
        rows, _ = served_candidates(
            ctx.connect(),
            Inquiry(store.url, "test/", time.time() + seconds),
            attempt.read("active_commits", "heads"),
            manifest.parts["data"],
            etag_files(attempt.manifest("store_listing")),
        )
        return {row["address"]: row["why"] for row in rows.to_pylist()}

    in_doubt = {address for path, address in copied.dead.items() if path != "plain"}
    assert ask(-1) == dict.fromkeys(in_doubt, UNVERIFIED)
    assert ask(60) == {}


def test_what_clients_linked_with_the_store_s_etags_proves_no_checksum(
    copied: Copied, spark: Session
) -> None:
    """Etags agree wherever one looks, but the copy of an object has another one."""
    lake, server = copied.lake, copied.lake.server.lake
    lake.calendar.days_ago = 30
    lake.client.create_branch(REPOSITORY, "own", "main")
    linked = objects.upload(server, REPOSITORY, "own", "linked", b"linked by a client").entry
    entry = replace(linked, e_tag="d" * 32)
    objects.stage_entry(server, REPOSITORY, "own", "linked", entry)
    lake.commit("own")
    where: dict[str, Any] = {"source_ref": "own", "source_path": "linked"}
    copy = copies.copy(server, REPOSITORY, "own", "linked", **where).entry.address
    lake.calendar.days_ago = 0
    for address, etag in ((linked.address, "d" * 32), (copy, "e" * 32)):
        key = copied.rewrite(address, etag)
        key.last_modified = datetime.now(timezone.utc) - timedelta(seconds=50)
    candidates, spared = results(marked(copied, spark))
    assert spared == dict.fromkeys({*copied.shadows.values(), copy}, SERVED)
    assert candidates == set(copied.dead.values())


def test_the_content_of_a_candidate_does_not_tell_it_from_such_an_entry(
    copied: Copied, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries that are looked into may all be others."""
    monkeypatch.setattr(signatures, "entries_are_checksums", lambda *_: True)
    own = {*copied.shadows.values(), *copied.dead.values()}
    for name, key in [*recorded.backend().buckets[copied.bucket].keys.items()]:
        address = name.removeprefix(f"{REPOSITORY}/")
        if address.startswith("data/") and address not in own and key.etag.strip('"') != PARTS:
            copied.rewrite(address, md5(address.encode()).hexdigest())
    candidates, spared = results(marked(copied, spark, max_served_lookups=0))
    assert candidates == {copied.dead["plain"]}
    assert spared == dict.fromkeys(own - candidates, UNVERIFIED)
