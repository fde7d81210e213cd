"""Marks and sweeps of a repository on a real S3 server while that fails: exact, or stopped."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark import lookups
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.live_ranges import live_ranges
from lakegc_assets.mark.publication import read_summary
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.storage import files
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.http_server import Answer, Asked, Silence
from lakegc_assets_tests.lake import REPOSITORY, RUN, STAGES, SmallLake
from lakegc_assets_tests.reliability.conftest import s3_behind
from lakegc_assets_tests.reliability.places import Fault, Place, S3Dialect, clock_off, unanswered
from lakegc_assets_tests.reliability.proxy import Ask, Meddle, leave_alone
from lakegc_assets_tests.reliability.recorder import LOCAL, S3, shows
from lakegc_assets_tests.reliability.world import Bucket, Marked, context, make_marked
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server

pytestmark = pytest.mark.stores

HOUR = timedelta(hours=1)
SAYS = S3Dialect
_PAGE = 5


@pytest.fixture(scope="module")
def marked(
    versitygw_server: Server, tmp_path_factory: pytest.TempPathFactory, spark: Session
) -> Iterator[Marked]:
    for place in s3_behind(versitygw_server.endpoint):
        # Pages are small, so that a few objects make several; nothing here has to time out.
        config = replace(place.config, page_size=_PAGE, read_timeout_s=60)
        root = replace(place, url=place.url.removesuffix("/n s"), config=config)
        name = root.url.removeprefix("s3://")
        bucket = Bucket(root, versitygw_server.log.parent / "objects" / name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lookups, "TASKS", 1)
            yield make_marked(tmp_path_factory.mktemp("marked"), bucket, spark)


@pytest.fixture
def lake(marked: Marked, tmp_path: Path) -> Iterator[SmallLake]:
    with marked.copy(tmp_path) as found:
        yield found
    marked.bucket.place.proxy.meddle = leave_alone


@pytest.fixture
def place(marked: Marked) -> Place:
    return marked.bucket.place


def lists_namespace(asked: Asked) -> bool:
    """A page of a listing of objects of lakeFS, in whatever slices, not of one level of folders."""
    prefix = asked.query.get("prefix", "")
    objects = prefix == f"{REPOSITORY}/" or prefix.startswith(f"{REPOSITORY}/data/")
    return SAYS.lists(asked) and objects and "delimiter" not in asked.query


def ended(ask: Ask) -> Answer:
    return SAYS.ended(ask())


def troubles(failures: list[str], pages: list[Answer]) -> Meddle:
    """Each of the first deletes fails in another way, and no listing of all objects is whole."""

    def some_unnamed(ask: Ask) -> Answer:
        return SAYS.some_unnamed(ask())

    faults: dict[str, Fault] = {
        "busy": lambda _ask: SAYS.busy,
        "some unnamed": some_unnamed,
        "unanswered": unanswered,
    }
    waiting = iter(faults.items())

    def meddle(asked: Asked, ask: Ask) -> Answer | Silence:
        if lists_namespace(asked):
            page = ended(ask)
            # Larger pages are only looked at, to plan the listing.
            if asked.query["max-keys"] == str(_PAGE):
                pages.append(page)
            return page
        # What tries the store with objects of our own is left alone.
        own = b"_lakefs/" in asked.body or "_lakefs/" in asked.path
        if SAYS.deletes(asked) and not own:
            name, fault = next(waiting, ("", None))
            failures.append(name)
            return fault(ask) if fault else ask()
        return ask()

    return meddle


@shows(
    "SlowDown, 503; partial bulk results; answers lost", "a whole sweep", [S3],
    "exact: every marked object with one outcome, all others untouched",
)  # fmt: skip
@shows(
    "Listing ends early", "the listing of a sweep", [S3],
    "marked objects that it lacks are asked for by themselves; what was written again is spared",
)  # fmt: skip
@pytest.mark.long
def test_a_sweep_through_all_of_it(
    lake: SmallLake, marked: Marked, place: Place, spark: Session
) -> None:
    """The object that was written again is the last, which the cut listing does not show."""
    rewritten = max(marked.dead)
    path = marked.bucket.folder / REPOSITORY / rewritten
    store = open_store(f"{place.url}/{REPOSITORY}", place.direct)
    store.put(rewritten, path.read_bytes())
    failures: list[str] = []
    pages: list[Answer] = []
    place.proxy.meddle = troubles(failures, pages)
    ctx = marked.context(lake, spark, sweep_batch=6)
    # What is not answered is waited for.
    config = replace(place.config, page_size=_PAGE, read_timeout_s=10)
    manifest = sweep(replace(ctx, root=ArtifactRoot(ctx.root.url, config)))
    assert failures[:3] == ["busy", "some unnamed", "unanswered"]
    assert pages
    assert not any(rewritten.encode() in page.body for page in pages)
    assert manifest.facts["conditional_deletes"] == "none"
    rows = lake_rows(marked, lake, spark)
    assert rows.keys() == marked.dead
    assert rows[rewritten] == "spared"
    # Where the answer did not say so, it is the next look that finds them gone.
    others = {outcome for address, outcome in rows.items() if address != rewritten}
    assert others == {"deleted", "already_missing"}
    assert marked.bucket.keys() == marked.live | {rewritten}


def lake_rows(marked: Marked, lake: SmallLake, spark: Session) -> dict[str, str]:
    """The outcome of each marked object, which has only one."""
    ctx = marked.context(lake, spark)
    rows = ctx.root.attempt(REPOSITORY, RUN).read("swept_set").to_pylist()
    found = {row["address"]: str(row["outcome"]) for row in rows}
    assert len(found) == len(rows)
    return found


@shows(
    "Listing ends early", "the listing of a mark", [S3],
    "the mark stops: HEADs name objects that it lacks and the store has; nothing is published",
)  # fmt: skip
def test_a_mark_whose_listing_ends_early(
    lake: SmallLake, marked: Marked, place: Place, spark: Session
) -> None:
    ctx = context(lake, marked.bucket, spark, run="mark-2", clean=True)
    place.meddle(lists_namespace, ended)
    manifest = list_store(ctx)
    assert 0 < manifest.rows < len(marked.live | marked.dead)
    place.proxy.meddle = leave_alone
    *before, publish = STAGES
    for stage in before[1:]:
        stage(ctx)
    with pytest.raises(RefusedError, match="the listing is not complete"):
        publish(ctx)
    store = open_store(f"{place.url}/{REPOSITORY}", place.direct)
    assert read_summary(store, "mark-2") is None
    assert marked.bucket.keys() == marked.live | marked.dead


@shows(
    "Listing ends early", "the ranges of a repository without retention rules", [S3],
    "IntegrityError if it lacks what an active commit needs",
)  # fmt: skip
def test_tables_that_are_not_listed(
    lake: SmallLake, marked: Marked, place: Place, spark: Session
) -> None:
    ctx = marked.context(lake, spark).connect()
    head = ctx.client.commit(REPOSITORY, lake.head("main"))
    active = {head.meta_range_id}
    assert live_ranges(ctx, active, every=True).ranges.num_rows > 0

    def nothing(ask: Ask) -> Answer:
        page = ask()
        start, end = page.body.index(b"<Contents>"), page.body.rindex(b"</Contents>")
        body = page.body[:start] + page.body[end + len(b"</Contents>") :]
        body = body[: body.index(b"<KeyCount>")] + body[body.index(b"</KeyCount>") + 11 :]
        return SAYS.ended(replace(page, body=body))

    place.meddle(lambda asked: asked.query.get("prefix", "").endswith("_lakefs/"), nothing)
    with pytest.raises(IntegrityError, match="is not listed"):
        live_ranges(ctx, active, every=True)


@shows("Clock an hour ahead", "a mark", [S3], "RefusedError before anything is listed")
def test_a_mark_on_a_store_whose_clock_is_ahead(
    lake: SmallLake, marked: Marked, place: Place, spark: Session
) -> None:
    place.proxy.meddle = clock_off(HOUR)
    with pytest.raises(RefusedError, match="clock of the object store differs"):
        list_store(context(lake, marked.bucket, spark, run="mark-2"))


@shows("Clock an hour behind", "a mark", [S3], "RefusedError before anything is listed")
def test_a_mark_on_a_store_whose_clock_is_behind(
    lake: SmallLake, marked: Marked, place: Place, spark: Session
) -> None:
    place.proxy.meddle = clock_off(-HOUR)
    with pytest.raises(RefusedError, match="clock of the object store differs"):
        list_store(context(lake, marked.bucket, spark, run="mark-2"))


@shows("Clock an hour behind", "a whole sweep", [S3], "RefusedError; nothing is deleted")
def test_a_sweep_on_a_store_whose_clock_is_behind(
    lake: SmallLake, marked: Marked, place: Place, spark: Session
) -> None:
    place.proxy.meddle = clock_off(-HOUR)
    with pytest.raises(RefusedError, match="clock of the object store differs"):
        sweep(marked.context(lake, spark))
    assert marked.bucket.keys() == marked.live | marked.dead


@shows(
    "Full disk", "the manifest of a mark", [LOCAL],
    "StorageError; the asset did not finish, and the stage after it refuses to start",
)  # fmt: skip
def test_a_full_disk_under_a_mark(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(lake, marked.bucket, spark, run="mark-2")

    write = os.fsync

    def full(descriptor: int) -> None:
        if "store_listing" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            list_store(ctx)
    with pytest.raises(LakegcError, match="store_listing"):
        snapshot_uncommitted(ctx)
    assert marked.bucket.keys() == marked.live | marked.dead
