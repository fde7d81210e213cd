"""Unreadable files below ``_lakefs/`` are passed over and reported, or end the run.

A file under the name of a table that cannot be one, and that nothing names, stops nobody. A damaged
file that something names stops what depends on it, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.graveler.ranges import read_metarange, write_range
from lakegc_assets.graveler.sstable import table_kind
from lakegc_assets.mark.commits import Liveness, find_liveness
from lakegc_assets.mark.references import UnreadableRepositoryError
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.errors import ArchivedError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep import delta, ledger
from lakegc_assets.sweep.alarm import PartialLookError
from lakegc_assets.sweep.delta import DeltaMarks
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake, candidates
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import OTHER, commit, commit_it, make_other, mark, name_it
from lakegc_assets_tests.sweep.outcomes import after_first_delete, revive_after_first_delete

STRAY = "5" * 64
#: What a half-written upload, a crash or a person leaves: none of it can be a table.
NO_TABLES = {
    STRAY: b"",
    "a" * 64: b"half of it",
    "b" * 64: json.dumps({"not": "a table"} | {f"key {n}": n for n in range(40)}).encode(),
}


def tables(lake: SmallLake, repository: str, kind: str) -> dict[str, bytes]:
    """The ranges, or the metaranges, of a repository by their ids."""
    folder = lake.server.objects_dir / repository / "_lakefs"
    files = {path.name: path.read_bytes() for path in folder.iterdir() if len(path.name) == 64}
    return {name: data for name, data in files.items() if table_kind(data, name) == kind}


def put(lake: SmallLake, repository: str, table_id: str, data: bytes) -> str:
    """Put a file in the place of a table; its URL."""
    path = lake.server.objects_dir / repository / "_lakefs" / table_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return f"local://{repository}/_lakefs/{table_id}"


def put_no_tables(lake: SmallLake, repository: str) -> list[str]:
    """Put one file of each kind that can be no table below ``_lakefs/``; their URLs."""
    return [put(lake, repository, name, data) for name, data in NO_TABLES.items()]


def flipped(data: bytes) -> bytes:
    """A table whose first block is damaged: its footer and properties are whole."""
    return data[:9] + bytes([data[9] ^ 255]) + data[10:]


def unreadable(data: bytes) -> bytes:
    """A table with its magic at its end, of which nobody can tell what it is."""
    return bytes(len(data) - 8) + data[-8:]


def told(ctx: RunContext) -> list[str]:
    """The files that were passed over, by the report of a published mark."""
    facts = ctx.root.attempt(REPOSITORY, ctx.run).manifest("gc_report").facts
    return [said for said in facts["warnings"] if "passed over" in said]


def rows_named(lake: SmallLake, metarange_id: str, repository: str = REPOSITORY) -> list[str]:
    path = lake.server.objects_dir / repository / "_lakefs" / metarange_id
    return [info.id for info in read_metarange(path.read_bytes(), metarange_id)]


def metarange_of(lake: SmallLake, commit_id: str, repository: str = REPOSITORY) -> str:
    return lake.client.commit(repository, commit_id).meta_range_id


@pytest.fixture
def without_rules(lake: SmallLake) -> SmallLake:
    """Every range below ``_lakefs/`` is live."""
    lake.client.delete_gc_rules(REPOSITORY)
    return lake


# Of another repository


def test_stray_files_of_another_repository_stop_neither_mark_nor_sweep(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Nor do tables that nothing names, and that are damaged."""
    held = min(marked.candidates)
    commit_it(lake, held)
    # As a commit that was given up before its metarange was written leaves them.
    data, metarange = (
        next(iter(tables(lake, OTHER, k).values())) for k in ("ranges", "metaranges")
    )
    urls = {
        *put_no_tables(lake, OTHER),
        put(lake, OTHER, "6" * 64, unreadable(data)),
        put(lake, OTHER, "7" * 64, flipped(data)),
        put(lake, OTHER, "8" * 64, flipped(metarange)),
    }
    ctx = mark(lake, spark, publish=True)
    assert candidates(ctx) == marked.candidates - {held}
    assert len(told(ctx)) == len(urls)
    assert all(any(url in said for said in told(ctx)) for url in urls)
    sweep(ctx)
    assert lake.keys() == marked.live | {held}


@pytest.mark.parametrize("kind", ["ranges", "metaranges"])
@pytest.mark.parametrize("data", [b"", b"x" * 30], ids=["empty", "cut"])
def test_what_a_commit_of_another_repository_needs_stops_the_run(
    lake: SmallLake, marked: Marked, spark: Session, kind: str, data: bytes
) -> None:
    """A file that is shorter than a footer is damage where something names it."""
    commit_it(lake, min(marked.candidates))
    head = metarange_of(lake, next(b.commit_id for b in lake.client.branches(OTHER)), OTHER)
    (range_id,) = rows_named(lake, head, OTHER)
    url = put(lake, OTHER, range_id if kind == "ranges" else head, data)
    with pytest.raises(UnreadableRepositoryError, match=url):
        mark(lake, spark)


def test_a_damaged_range_that_only_expired_commits_of_another_repository_have_stops_nobody(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    make_other(lake)
    lake.client.set_gc_rules(OTHER, 20, {})
    expired, active = sorted(marked.candidates)[:2]
    lake.calendar.days_ago = 100
    name_it(lake, expired)
    (range_id,) = rows_named(lake, metarange_of(lake, commit(lake), OTHER), OTHER)
    lake.calendar.days_ago = 50
    name_it(lake, active)
    commit(lake)
    lake.calendar.days_ago = 0
    kept = (lake.server.objects_dir / OTHER / "_lakefs" / range_id).read_bytes()
    put(lake, OTHER, range_id, kept[:100])
    assert candidates(mark(lake, spark)) == marked.candidates - {active}
    lake.client.delete_gc_rules(OTHER)
    with pytest.raises(UnreadableRepositoryError, match=range_id):
        mark(lake, spark, "without-rules")
    put(lake, OTHER, range_id, kept)
    assert candidates(mark(lake, spark, "mended")) == marked.candidates - {active, expired}


@pytest.mark.parametrize("rules", [True, False], ids=["rules", "no rules"])
def test_the_metarange_of_a_tagged_commit_is_named_though_no_branch_leads_to_it(
    lake: SmallLake, marked: Marked, spark: Session, *, rules: bool
) -> None:
    make_other(lake)
    if rules:
        lake.client.set_gc_rules(OTHER, 20, {})
    lake.client.create_branch(OTHER, "dev", "main")
    name_it(lake, min(marked.candidates), branch="dev")
    made = commit(lake, "dev")
    lake.client.create_tag(OTHER, "v1", made)
    lake.client.delete_branch(OTHER, "dev")
    url = put(lake, OTHER, metarange_of(lake, made, OTHER), b"cut")
    with pytest.raises(UnreadableRepositoryError, match=url):
        mark(lake, spark)


def test_what_was_passed_over_and_is_whole_again_counts(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Nothing else of the other repository has changed in between."""
    make_other(lake)
    held = min(marked.candidates)
    lake.client.create_branch(OTHER, "dev", "main")
    name_it(lake, held, branch="dev")
    made = commit(lake, "dev")
    lake.client.delete_branch(OTHER, "dev")
    metarange = metarange_of(lake, made, OTHER)
    lost = dict.fromkeys((*rows_named(lake, metarange, OTHER), metarange), b"")
    folder = lake.server.objects_dir / OTHER / "_lakefs"
    whole = {name: (folder / name).read_bytes() for name in lost}
    for name, data in lost.items():
        put(lake, OTHER, name, data)
    assert candidates(mark(lake, spark)) == marked.candidates
    for name, data in whole.items():
        put(lake, OTHER, name, data)
    assert candidates(mark(lake, spark, "later")) == marked.candidates - {held}


@pytest.mark.parametrize("cut", [{2}, {2, 3}], ids=["once", "twice"])
def test_a_range_of_another_repository_of_which_an_answer_was_cut_is_not_passed_over(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch, cut: set[int]
) -> None:
    """No metarange names it, and it alone names the object."""
    make_other(lake)
    held = min(marked.candidates)
    address = f"local://{REPOSITORY}/{held}"
    full = Entry(address, size=7, e_tag="0" * 32, address_type=AddressType.FULL)
    info, data = write_range([("a/path", full)])
    put(lake, OTHER, info.id, data)
    get, asked = LocalStore.get, list[str]()

    def get_cut(store: LocalStore, key: str) -> bytes:
        whole = get(store, key)
        if key.endswith(info.id):
            asked.append(key)
            # The first answer only tells that it is a range.
            return whole[: len(whole) // 2] if len(asked) in cut else whole
        return whole

    monkeypatch.setattr(LocalStore, "get", get_cut)
    with pytest.raises(UnreadableRepositoryError, match=f"{info.id} was not read in full"):
        mark(lake, spark)
    assert candidates(mark(lake, spark, "later")) == marked.candidates - {held}


# Of the repository itself


@pytest.mark.parametrize(
    "mode",
    ["unified", pytest.param("uncommitted", marks=pytest.mark.conformance), "committed"],
)
def test_stray_files_of_its_own_are_passed_over_where_every_range_counts(
    without_rules: SmallLake, marked: Marked, spark: Session, mode: str
) -> None:
    lake = without_rules
    plain = candidates(mark(lake, spark, "plain", mode=mode))
    urls = put_no_tables(lake, REPOSITORY)
    ctx = mark(lake, spark, publish=True, mode=mode)
    assert candidates(ctx) == plain
    assert len(told(ctx)) == len(urls)
    assert all(any(url in said for said in told(ctx)) for url in urls)
    sweep(ctx)
    assert lake.keys() == marked.live | marked.candidates - plain


@pytest.mark.parametrize("kind", ["ranges", "metaranges"])
def test_a_half_written_table_of_its_own_that_something_names_stops_the_run(
    without_rules: SmallLake, marked: Marked, spark: Session, kind: str
) -> None:
    """That of a commit which nothing but its branch's log leads to."""
    lake = without_rules
    metarange = metarange_of(lake, marked.commits["first"])
    kept = rows_named(lake, metarange_of(lake, marked.commits["second"]))
    name = metarange
    if kind == "ranges":
        name = next(i for i in rows_named(lake, metarange) if i not in kept)
    whole = (lake.objects / "_lakefs" / name).read_bytes()
    url = put(lake, REPOSITORY, name, whole[:40])
    forget_caches(lake)
    with pytest.raises(IntegrityError, match=url):
        mark(lake, spark)
    assert lake.keys() == marked.live | marked.candidates


def test_a_table_of_another_format_stops_the_run_though_nothing_names_it(
    without_rules: SmallLake, marked: Marked, spark: Session
) -> None:
    """A newer server may write it: pebble has a format, and a magic, of its own."""
    data = next(iter(tables(without_rules, REPOSITORY, "ranges").values()))
    url = put(without_rules, REPOSITORY, STRAY, data[:-8] + bytes.fromhex("f09faab3f09faab3"))
    with pytest.raises(IntegrityError, match=url):
        mark(without_rules, spark)
    assert marked.live <= without_rules.keys()


def test_a_range_of_which_an_answer_was_cut_is_not_passed_over(
    without_rules: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps an object alive that nothing else does."""
    lake = without_rules
    held = min(marked.groups["orphans"])
    info, data = write_range([("a/path", Entry(held, size=7, e_tag="0" * 32))])
    url = put(lake, REPOSITORY, info.id, data)
    get, cut = LocalStore.get, list[str]()

    def get_cut_once(store: LocalStore, key: str) -> bytes:
        whole = get(store, key)
        if key.endswith(info.id) and not cut:
            cut.append(key)
            return whole[: len(whole) // 2]
        return whole

    monkeypatch.setattr(LocalStore, "get", get_cut_once)
    with pytest.raises(IntegrityError, match=f"{url} was not read in full"):
        mark(lake, spark)
    assert candidates(mark(lake, spark, "later")) == marked.groups["orphans"] - {held}


def test_a_table_of_its_own_that_is_damaged_stops_the_run_though_nothing_names_it(
    without_rules: SmallLake, marked: Marked, spark: Session
) -> None:
    """A range counts whoever has it, where there are no rules: what this one held is not known."""
    lake = without_rules
    data = next(iter(tables(lake, REPOSITORY, "ranges").values()))
    for number, damaged in enumerate((unreadable(data), flipped(data))):
        url = put(lake, REPOSITORY, STRAY, damaged)
        with pytest.raises(IntegrityError, match=url):
            mark(lake, spark, f"again-{number}")
    assert marked.live <= lake.keys()


def forget_caches(lake: SmallLake) -> None:
    """As on another machine: what was read before is read again."""
    for path in (lake.folder / "artifacts").rglob("_cache/**/*"):
        if path.is_file():
            path.unlink()


# While it sweeps


def test_the_look_after_a_sweep_puts_back_what_it_can_prove_and_says_what_it_could_not_see(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """In mid-sweep one object comes back to life, and what another repository names is damaged."""
    revived: list[str] = []
    make_other(lake)

    def revive_and_damage(left: set[str]) -> None:
        revived.append(min(marked.candidates - left))
        lake.stage("busy", "too/late", revived[0])
        lake.commit("busy")
        before = tables(lake, OTHER, "ranges").keys()
        name_it(lake, "data/another", "y")
        commit(lake)
        for name in tables(lake, OTHER, "ranges").keys() - before:
            put(lake, OTHER, name, b"cut")

    after_first_delete(lake, marked, revive_and_damage)
    with pytest.raises(PartialLookError, match=r"'other' .* cannot be read") as raised:
        sweep(lake.context(spark, sweep_batch=6))
    assert set(revived) <= lake.keys()
    assert lake.client.get_object(REPOSITORY, "busy", "too/late")
    assert "The live set after the deletes was computed in part" in str(raised.value)
    assert not lake.root.attempt(REPOSITORY, "mark-1").has("swept_set")


def test_the_look_after_a_sweep_knows_what_heads_need_where_nobody_tells_which_commits_are_active(
    lake: SmallLake, marked: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    revived = revive_after_first_delete(lake, marked)

    def find_or_fail(*args: Any) -> Liveness:
        if revived:
            raise IntegrityError("the list of active commits is cut")
        return find_liveness(*args)

    monkeypatch.setattr(delta, "find_liveness", find_or_fail)
    with pytest.raises(PartialLookError, match=r"the active commits: the list .* is cut"):
        # In one batch: a second one would ask for another delta mark, which ends the sweep.
        sweep(lake.context(spark, sweep_batch=len(marked.candidates)))
    (address,) = revived
    assert lake.client.get_object(REPOSITORY, "busy", "too/late")
    recorded = ledger.read(lake.root.attempt(REPOSITORY, RUN)).to_pylist()
    assert {row["address"] for row in recorded if row["outcome"] == "put_back"} == {address}


@pytest.mark.parametrize("active", [set(), {STRAY}], ids=["none", "one that is damaged"])
def test_the_look_after_a_sweep_sees_every_range_without_an_active_commit_that_can_be_read(
    without_rules: SmallLake, marked: Marked, spark: Session, active: set[str]
) -> None:
    """A branch that is gone again has brought an object to life."""
    ctx = without_rules.context(spark)
    attempt = ctx.root.attempt(REPOSITORY, RUN)
    ctx = ctx.connect()
    chain = attempt.chain("gc_report", ctx.connections.namespace_url)
    deltas = DeltaMarks(ctx, chain, attempt, "x/")
    held = Entry(min(marked.candidates), size=7, e_tag="0" * 32)
    info, data = write_range([("a/path", held)])
    put(without_rules, REPOSITORY, info.id, data)
    for name in active:
        put(without_rules, REPOSITORY, name, b"cut")
    unread: list[str] = []
    seen = deltas.find_ranges(active, unread, every=True)
    assert info.id in seen["range_id"].to_pylist()
    assert len(unread) == len(active)


def test_files_that_lakefs_does_not_write_are_left_alone_and_told(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """Refs are dumped, and people keep their files, below ``_lakefs/``: lakeFS issue 8518."""
    folder: Path = lake.objects / "_lakefs"
    own = (
        "refs_manifest.json",
        "actions/log/run/hook.log",
        "exported/main/5f/t/symlink.txt",
        "dummy",
    )
    foreign = (
        f"backup/{STRAY}",
        "a b \u00fc",
        f"{STRAY}.json",
        STRAY[:-1],
        STRAY.replace("5", "A"),
    )
    for name in (*own, *foreign):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    lake.client.delete_gc_rules(REPOSITORY)
    ctx = mark(lake, spark, publish=True)
    assert candidates(ctx) == marked.groups["orphans"]
    facts = ctx.root.attempt(REPOSITORY, ctx.run).manifest("gc_report").facts
    (said,) = [said for said in facts["warnings"] if "left alone" in said]
    assert [name for name in foreign if repr(f"_lakefs/{name}") not in said] == []
    assert [name for name in own if name in said] == []
    sweep(ctx)
    assert all((folder / name).read_text() == "{}" for name in (*own, *foreign))


@pytest.mark.parametrize(
    ("mode", "kind", "expired"),
    [
        ("unified", "ranges", "given up"),
        ("committed", "metaranges", "first"),
        pytest.param("unified", "metaranges", "first", marks=pytest.mark.conformance),
        pytest.param("committed", "ranges", "first", marks=pytest.mark.conformance),
        pytest.param("committed", "metaranges", "given up", marks=pytest.mark.conformance),
        pytest.param("unified", "ranges", "first", marks=pytest.mark.conformance),
        pytest.param("unified", "metaranges", "given up", marks=pytest.mark.conformance),
        pytest.param("committed", "ranges", "given up", marks=pytest.mark.conformance),
    ],
)
def test_what_only_expired_commits_need_stops_nobody_where_there_are_rules(
    lake: SmallLake, marked: Marked, spark: Session, mode: str, kind: str, expired: str
) -> None:
    """Nothing that is live depends on it: what it alone names stays, or goes without its reason."""
    metarange = metarange_of(lake, marked.commits[expired])
    names = {"first", "second", "given up", "removal"} - {expired}
    others = {i for c in names for i in named_by(lake, marked.commits[c])}
    name = metarange
    if kind == "ranges":
        name = next(i for i in rows_named(lake, metarange) if i not in others)
    url = put(lake, REPOSITORY, name, b"cut")
    forget_caches(lake)
    ctx = mark(lake, spark, publish=True, mode=mode)
    found = candidates(ctx)
    assert found <= marked.candidates
    assert marked.groups["removed"] <= found
    # Only this mode looks at what is expired.
    assert [url in said for said in told(ctx)] == [True] * (mode == "committed")
    if mode == "unified":
        assert found == marked.candidates
        rows = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates").to_pylist()
        reasons = {row["address"]: row["reason"] for row in rows}
        assert {reasons[address] for address in marked.groups["removed"]} == {"expired"}


@pytest.mark.parametrize("commit", ["first", "removal"])
def test_an_archived_table_stops_a_mark_only_where_an_active_commit_needs_it(
    lake: SmallLake, marked: Marked, spark: Session, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life-cycle rule moves old files of a whole bucket, those below ``_lakefs/`` among them."""
    name = metarange_of(lake, marked.commits[commit])
    fetch = LocalStore.fetch

    def archived(store: LocalStore, key: str) -> bytes:
        if key.endswith(name):
            raise ArchivedError(f"{store.url}/{key}: it is in an archive")
        return fetch(store, key)

    monkeypatch.setattr(LocalStore, "fetch", archived)
    forget_caches(lake)
    if commit == "first":
        assert candidates(mark(lake, spark)) == marked.candidates
    else:
        lake.rules(1000)
        with pytest.raises(IntegrityError, match=f"{name}, which a commit needs, is in an archive"):
            mark(lake, spark)


def named_by(lake: SmallLake, commit_id: str) -> list[str]:
    return rows_named(lake, metarange_of(lake, commit_id))
