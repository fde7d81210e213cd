"""A mark is written where lakeFS's collectors, old and new, look for one; in full or not at all."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.mark.foreign_marks import find_mark
from lakegc_assets.mark.publication import Forms, forms, require_unused
from lakegc_assets.mark.report import report
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import MODES, Mode, Publish
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Copied
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.mark.test_report import lake
from lakegc_assets_tests.sessions import Session

__all__ = ["lake"]

GC = "_lakefs/retention/gc/"
UNIFIED, OLDER = f"unified/{RUN}/", f"uncommitted/{RUN}/"
COMMITTED, COMMITTED_TEXT = f"addresses/mark_id={RUN}/", f"addresses.text/mark_id={RUN}/"
#: By mode: folders of Parquet lists, folders of lists in text, summaries.
PLACES: Mapping[Mode, tuple[set[str], set[str], set[str]]] = {
    "unified": (
        {f"{UNIFIED}deleted/"},
        {f"{UNIFIED}deleted.text/", COMMITTED_TEXT, f"{OLDER}deleted.text/"},
        {UNIFIED, OLDER},
    ),
    "committed": (
        {f"{UNIFIED}deleted/", COMMITTED},
        {f"{UNIFIED}deleted.text/", COMMITTED_TEXT},
        {UNIFIED},
    ),
    "uncommitted": (
        {f"{UNIFIED}deleted/", f"{OLDER}deleted/"},
        {f"{UNIFIED}deleted.text/", f"{OLDER}deleted.text/"},
        {UNIFIED, OLDER},
    ),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mode:
    chosen: Mode = request.param

    def of_this_mode(run: str, _: Mode, publish: Publish) -> Forms:
        return forms(run, chosen, publish)

    monkeypatch.setattr("lakegc_assets.mark.report.forms", of_this_mode)
    return chosen


def written(lake: SmallLake) -> dict[str, bytes]:
    """All that collectors wrote, by key below their folder."""
    folder = lake.objects / GC
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    own = ("unified/", "addresses", OLDER, f"reports/{RUN}/")
    return {key: body for key, body in found.items() if key.startswith(own)}


def sweepable(files: Mapping[str, bytes]) -> set[str]:
    """What lakeFS's older collectors would sweep."""
    committed = {key for key in files if key.startswith("addresses/")}
    has_summary = f"{OLDER}summary.json" in files
    return committed | {key for key in files if has_summary and key.startswith(f"{OLDER}deleted/")}


def require_exact(lake: SmallLake, mode: Mode, candidates: frozenset[str]) -> None:
    lists, texts, summaries = PLACES[mode]
    files = written(lake)
    assert {key.rpartition("/")[0] + "/" for key in files} == lists | texts | summaries
    for folder in lists:
        parts = [body for key, body in sorted(files.items()) if key.startswith(folder)]
        tables = [pq.read_table(pa.BufferReader(body)) for body in parts]
        assert sorted(a for t in tables for a in t["address"].to_pylist()) == sorted(candidates)
        assert len(parts) > 1
    for folder in texts:
        lines = [line for key in files if key.startswith(folder) for line in lines_of(files[key])]
        assert sorted(lines) == sorted(candidates)
    bodies = {files[f"{folder}summary.json"] for folder in summaries}
    assert len(bodies) == 1
    count = len(lists) + len(texts)
    parts_each = sum(key.startswith(f"{UNIFIED}deleted/") for key in files)
    assert len(files) == count * parts_each + len(summaries)


def lines_of(body: bytes) -> list[str]:
    assert body.endswith(b"\n")
    return body.decode()[:-1].split("\n")


def test_each_mode_has_the_forms_of_its_collector(
    lake: SmallLake, mode: Mode, told: Marked, spark: Session
) -> None:
    facts = report(lake.context(spark)).facts
    require_exact(lake, mode, told.candidates)
    named = {url.partition(GC)[2] for url in facts["files"]}
    assert named == written(lake).keys()
    assert facts["files"][-1].endswith(f"{UNIFIED}summary.json")


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, what: str, number: int) -> None:
    """Let a call of the store fail: the one with this number whose key holds these words."""
    whole, calls = getattr(LocalStore, name), []

    def failing(self: LocalStore, key: str, *args: Any) -> Any:
        if what in key:
            calls.append(key)
            if len(calls) == number:
                raise KeyboardInterrupt
        return whole(self, key, *args)

    monkeypatch.setattr(LocalStore, name, failing)


def in_reports(lake: SmallLake) -> dict[str, bytes]:
    """What the standalone collector would find."""
    folder = lake.objects / GC / "reports" / RUN
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


@pytest.mark.parametrize(
    "fault",
    [
        None,
        ("put_if_absent", f"{UNIFIED}summary.json", 1),
        ("put_stream", "reports/", 1),
        ("put", "reports/", 1),
    ],
)
def test_a_mark_is_published_as_the_standalone_collector_would_where_it_is_asked_for(
    fault: tuple[str, str, int] | None, lake: SmallLake, told: Marked, spark: Session
) -> None:
    plain = lake.context(spark)
    ctx = replace(plain, settings=plain.settings.changed(publish="sgc"))
    if fault is not None:
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, *fault)
            with pytest.raises(KeyboardInterrupt):
                report(ctx)
        assert "summary.json" not in in_reports(lake)
    report(ctx)
    found = in_reports(lake)
    rows = list(csv.reader(StringIO(found.pop("deleted.csv").decode(), newline="")))
    assert rows[0] == ["address"]
    assert sorted(rows[1:]) == [[address] for address in sorted(told.candidates)]
    assert found == {"summary.json": written(lake)[f"{UNIFIED}summary.json"]}
    store = ctx.connect().connections.store()
    assert find_mark(store, RUN).ours
    assert find_mark(store, f"reports/{RUN}").ours


def test_a_csv_that_does_not_read_back_leaves_no_mark_of_the_standalone_collector(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = lake.context(spark)
    ctx = replace(plain, settings=plain.settings.changed(publish="sgc"))
    whole = LocalStore.put_stream

    def cut(
        self: LocalStore, key: str, pieces: Iterable[bytes], size: int, **options: Any
    ) -> Copied:
        return whole(self, key, [b"".join(pieces)[:-1]], size - 1, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_stream", cut)
        with pytest.raises(IntegrityError, match="does not read back"):
            report(ctx)
    assert "summary.json" not in in_reports(lake)
    # The same command finishes the mark, whose candidates are the same.
    report(ctx)
    assert "summary.json" in in_reports(lake)


def test_a_mark_of_both_kinds_is_swept_at_one_place_only(lake: SmallLake, spark: Session) -> None:
    report(lake.context(spark))
    assert sweepable(written(lake)) == set()


#: Calls of the store at which a publication is killed, for every mode and for some only.
KILLED = [
    ("put", f"{UNIFIED}deleted/", 1),
    ("put", "text", 4),
    ("get", f"{UNIFIED}deleted/", 1),
    ("get", "text", 3),
    ("put_if_absent", f"{UNIFIED}summary.json", 1),
    ("put_if_absent", "gc_report/manifest.json", 1),
]
KILLED_IN: Mapping[Mode, list[tuple[str, str, int]]] = {
    "unified": [("put", f"{OLDER}summary.json", 1)],
    "committed": [("put", COMMITTED, 1), ("put", COMMITTED, 2), ("get", COMMITTED, 2)],
    "uncommitted": [("put", f"{OLDER}deleted/", 2), ("put", f"{OLDER}summary.json", 1)],
}


@pytest.mark.parametrize(
    ("mode", "name", "what", "number"),
    [
        *(("unified", *fault) for fault in KILLED),
        *((mode, *fault) for mode in MODES for fault in KILLED_IN[mode]),
        *(
            pytest.param(mode, *fault, marks=pytest.mark.conformance)
            for mode in MODES
            for fault in KILLED
            if mode != "unified"
        ),
    ],
    indirect=["mode"],
)
def test_what_a_killed_publication_left_is_swept_by_nobody(
    name: str, what: str, number: int, lake: SmallLake, mode: Mode, told: Marked, spark: Session
) -> None:
    ctx = lake.context(spark)
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, name, what, number)
        with pytest.raises(KeyboardInterrupt):
            report(ctx)
    files = written(lake)
    if f"{UNIFIED}summary.json" not in files:
        assert sweepable(files) == set()
    else:
        assert not what.startswith(UNIFIED), "the summary comes last"
        assert what != "text", "the summary comes last"
    report(ctx)
    require_exact(lake, mode, told.candidates)


def put(lake: SmallLake, key: str) -> None:
    path = lake.objects / GC / key
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"address": ["data/live"]}), path)


def test_lists_of_another_try_are_removed_wherever_they_are(
    lake: SmallLake, mode: Mode, told: Marked, spark: Session
) -> None:
    for folder in (COMMITTED, f"{OLDER}deleted/", f"{UNIFIED}deleted/"):
        put(lake, f"{folder}part-00099.snappy.parquet")
    for folder in (COMMITTED_TEXT, f"{OLDER}deleted.text/", f"{UNIFIED}deleted.text/"):
        put(lake, f"{folder}part-00099.txt")
    report(lake.context(spark))
    require_exact(lake, mode, told.candidates)


def test_lists_of_another_try_are_removed_although_a_listing_of_them_ends_early(
    lake: SmallLake, told: Marked, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reads back what is no list of this try, and rclone would sweep by it."""
    for number in range(97, 100):
        put(lake, f"{COMMITTED_TEXT}part-000{number}.txt")
    whole = LocalStore.list

    def cut(store: LocalStore, prefix: str = "", start_after: str | None = None) -> Any:
        for page in whole(store, prefix, start_after):
            yield page.slice(0, 1) if ".text/" in prefix else page

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "list", cut)
        report(lake.context(spark))
    require_exact(lake, "unified", told.candidates)


@pytest.mark.parametrize(
    "key",
    [
        f"{COMMITTED}part-00000-b9367db6-c000.snappy.parquet",
        f"{COMMITTED_TEXT}_SUCCESS",
        f"{OLDER}uncommitted/dc0i1p1ksdue9psu42i0",
        f"{UNIFIED}deleted/part-00000-b9367db6-c000.snappy.parquet",
        f"reports/{RUN}/deleted.csv",
        f"reports/{RUN}/summary.json",
    ],
)
def test_an_id_that_lakefs_collector_used_is_refused(
    key: str, lake: SmallLake, spark: Session
) -> None:
    """Its lists may be all that a backup can be restored by: they are left alone."""
    plain = lake.context(spark)
    ctx = replace(plain, settings=plain.settings.changed(publish="sgc"))
    put(lake, key)
    unused = partial(require_unused, ctx.connect().connections.store(), RUN, "sgc")
    for stage in (partial(report, ctx), unused):
        with pytest.raises(RefusedError, match="is in use by another collector"):
            stage()
    assert written(lake).keys() == {key}


@pytest.mark.parametrize("folder", ["deleted.text/", "addresses", OLDER])
def test_a_list_in_text_that_does_not_read_back_is_not_published(
    folder: str, lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx: RunContext = lake.context(spark)
    whole = LocalStore.put

    def cut(self: LocalStore, key: str, data: bytes, *args: Any) -> str:
        odd = folder in key and key.endswith("00001.txt")
        return whole(self, key, data[:-1] if odd else data, *args)

    monkeypatch.setattr(LocalStore, "put", cut)
    with pytest.raises(IntegrityError, match="does not read back as it was written"):
        report(ctx)
    assert f"{UNIFIED}summary.json" not in written(lake)
    assert not ctx.root.attempt(REPOSITORY, RUN).has("gc_report")
