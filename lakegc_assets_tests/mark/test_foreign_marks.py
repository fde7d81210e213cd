"""Marks of lakeFS's collectors are read only if they are whole, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.engine.datasets import read_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.mark.foreign_marks import ForeignMark, find_mark, newest_mark, read_mark
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark import foreign
from lakegc_assets_tests.mark.conftest import Golden, Goldens
from lakegc_assets_tests.mark.foreign import GC, PART
from lakegc_assets_tests.replay import GOLDEN

ODD = ["data/a b", "data/ü#;|", " data/lead", "data/trail ", "data/%41", "-x", "data/\u2028\x85"]
_LIST = f"{GC}unified/m/deleted/{PART.format(0)}.snappy.parquet"
_TEXT = f"{GC}unified/m/deleted.text/{PART.format(0)}.txt"
_CSV = f"{GC}reports/m/deleted.csv"
_SUMMARY = f"{GC}unified/m/summary.json"
_GOOD = foreign.parquet(["data/a", "data/b"])
#: A list whose first page does not decompress: of the first text, a byte of its length is another.
_DAMAGED = _GOOD.replace(b"\0data/a", b"\xffdata/a", 1)
#: One whose first page has the checksum of what Spark wrote there.
_OTHER = foreign.parquet(["data/a", "data/b"], write_page_checksum=True).replace(b"a/a", b"a/c", 1)


def put(key: str, body: bytes) -> None:
    """Plant a file of a mark, written when lakeFS's own mark was."""
    recorded.plant("small", key, body, recorded.mark_time("small"))


@pytest.fixture
def small(golden: Goldens) -> Golden:
    return golden("small")


def store_of(small: Golden) -> ObjectStore:
    return small.marked.ctx.connect().connections.store()


def find(small: Golden, mark: str = "m") -> ForeignMark:
    return find_mark(store_of(small), mark)


def dataset(small: Golden, mark: ForeignMark) -> Dataset:
    """The objects that a mark names."""
    ctx = small.marked.ctx.connect()
    url = f"{ctx.root.url}/{ctx.repository}/_read"
    with ctx.frames() as frames:
        return read_mark(SessionFolder(ctx, frames, url, "mark/"), mark)


def read(small: Golden, mark: str = "m") -> tuple[Dataset, set[str], dict[str, str]]:
    """What a mark names: inside the namespace, and elsewhere with the reason."""
    named = dataset(small, find(small, mark))
    store = open_store(named.url)
    rows = [row for part in named.parts for row in read_part(store, part).to_pylist()]
    inside = {row["address"] for row in rows if row["elsewhere"] is None}
    elsewhere = {r["address"]: r["elsewhere"] for r in rows if r["elsewhere"] is not None}
    assert named.rows == len(rows) == len(inside) + len(elsewhere)
    return named, inside, elsewhere


@pytest.mark.parametrize(
    "repository",
    [
        "small",
        "orderhz",
        *(pytest.param(one, marks=pytest.mark.conformance) for one in ("retention", "identical")),
    ],
)
def test_recorded_marks_are_read(repository: str, golden: Goldens) -> None:
    one = golden(repository)
    with recorded.preserved(repository):
        mark = foreign.load_recorded(repository)
        found = find(one, mark)
        assert (found.form, found.ours, found.id) == ("unified", False, mark)
        assert found.made == recorded.mark_time(repository)
        assert found.objects == len(foreign.recorded_addresses(repository))
        assert dataset(one, found).rows == found.objects


def test_a_mark_that_failed_is_refused(small: Golden) -> None:
    with recorded.preserved("small"):
        path = next((GOLDEN / "norules" / "peer_mark").rglob("summary.json"))
        mark = path.parent.name
        foreign.with_summary(put, [], mark)
        put(f"{GC}unified/{mark}/summary.json", path.read_bytes())
        with pytest.raises(
            RefusedError, match=rf"mark '{mark}' failed, by s3://lab/small/.*: let the job"
        ):
            find(small, mark)


@pytest.mark.parametrize(
    ("form", "text_only"),
    [
        ("unified", False),
        ("uncommitted", True),
        ("mark_id", False),
        ("run_id", True),
        *(
            pytest.param(form, text_only, marks=pytest.mark.conformance)
            for form, text_only in (
                ("unified", True),
                ("uncommitted", False),
                ("mark_id", True),
                ("run_id", False),
            )
        ),
    ],
)
def test_every_form_is_read_whatever_the_names(form: str, text_only: bool, small: Golden) -> None:  # noqa: FBT001 - a parameter
    with recorded.preserved("small"):
        if form in {"unified", "uncommitted"}:
            foreign.with_summary(put, ODD, "m", form)
        else:
            foreign.without_summary(put, ODD, "m", form)
        if text_only:
            for key in recorded.keys("small"):
                if "/gc/" in key and key.endswith(".parquet") and "run1" not in key:
                    recorded.remove("small", key)
        found = find(small)
        assert bool(found.lists) is not text_only
        assert not found.ours
        assert found.made <= recorded.mark_time("small") + timedelta(days=1)
        assert read(small)[1] == set(ODD)


def test_a_mark_of_the_standalone_collector_is_read(small: Golden) -> None:
    names = [*ODD, "data/x,y", 'data/"q"', "data/a\nb", "s3://lab/small/data/full"]
    with recorded.preserved("small"):
        foreign.standalone(put, names, "m")
        found = find(small)
        assert (found.form, found.ours, found.objects) == ("standalone", False, len(names))
        assert read(small)[1] == {*names[:-1], "data/full"}
        recorded.remove("small", _CSV)
        put(f"{GC}reports/m/deleted.parquet", foreign.parquet(names))
        assert read(small)[1] == {*names[:-1], "data/full"}
        foreign.with_summary(put, ODD, "m")
        with pytest.raises(RefusedError, match="name one of them, unified/m or reports/m"):
            find(small)
        assert find(small, "reports/m").form == "standalone"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "does not end with a whole line"),
        (foreign.csv(["data/a", "data/b"])[:-1], "does not end with a whole line"),
        (foreign.csv(["data/a"]), "names 1 object, and the summary of mark 'm' says 2"),
        (b'"data/a"\n"data/b"\n', "its columns are"),
        (b"key\ndata/a\ndata/b\n", "its columns are"),
        (b'address\n"data/a"\n"data/b\n', "does not end with a whole line"),
        (b"address\ndata/a,x\ndata/b,y\n", "is no list of addresses"),
        (b"address\ndata/a\n\n", "without an address"),
        (b"address\ndata/a\n\xff\n", "is no list of addresses"),
    ],
)
def test_a_list_of_the_standalone_collector_must_be_whole(
    body: bytes, message: str, small: Golden
) -> None:
    with recorded.preserved("small"):
        foreign.standalone(put, ["data/a", "data/b"], "m")
        put(_CSV, body)
        with pytest.raises(IntegrityError, match=message):
            read(small)
        recorded.remove("small", f"{GC}reports/m/summary.json")
        with pytest.raises(RefusedError, match="did not finish"):
            find(small)


def test_the_newest_finished_mark_is_found(small: Golden) -> None:
    store = store_of(small)
    with recorded.preserved("small"):
        assert newest_mark(store, "sgc") is None
        for mark, day in (("b", 3), ("a", 4), ("c", 2)):
            foreign.standalone(put, ["data/a"], mark)
            start = f"2026-11-{day:02d}T04:43:14.559822476Z"
            put(f"{GC}reports/{mark}/summary.json", foreign.summary(mark, 1, start_time=start))
        foreign.standalone(put, ["data/a"], "failed")
        put(f"{GC}reports/failed/summary.json", foreign.summary("failed", 1, success=False))
        put(f"{GC}reports/unfinished/deleted.csv", foreign.csv(["data/a"]))
        assert newest_mark(store, "sgc") == "reports/a"
        # The run of the recorded repository has published its own mark there.
        assert newest_mark(store, "unified") is None
        foreign.with_summary(put, ["data/a"], "m")
        assert newest_mark(store, "unified") == "unified/m"
        put(f"{GC}reports/c/summary.json", b"{")
        with pytest.raises(IntegrityError, match="is damaged"):
            newest_mark(store, "sgc")


def test_full_addresses_are_read_as_keys_of_the_namespace(small: Golden) -> None:
    inside = ["s3://lab/small/data/a", "s3a://lab/small/data/a%20b", "s3n://lab/small/data/c d"]
    outside = ["s3://lab/smaller/data/a", "s3://other/small/x", "gs://lab/small/x"]
    doubtful = ["mystery://lab/small/x", "s3://lab/small/../x", "s3://LAB/small/x"]
    with recorded.preserved("small"):
        foreign.with_summary(put, [*inside, *outside, *doubtful, "data/s3://x"], "m")
        _, found, elsewhere = read(small)
    assert found == {"data/a", "data/a%20b", "data/c d", "data/s3://x"}
    assert {a for a, why in elsewhere.items() if why.startswith("it is not below s3://lab/")} == {
        *outside
    }
    assert {a for a, why in elsewhere.items() if "cannot be determined" in why} == {*doubtful}


def test_what_is_named_twice_counts_once(small: Golden) -> None:
    names = ["data/a", "data/b", "s3://lab/small/data/a", "data/c", "data/b"]
    for files in (1, 2, 5):
        with recorded.preserved("small"):
            foreign.with_summary(put, names, "m", files=files)
            assert find(small).objects == 5
            assert read(small)[1] == {"data/a", "data/b", "data/c"}


def test_a_name_with_a_line_break_is_one_object_in_parquet(small: Golden) -> None:
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a\nb", "data/c"], "m", files=1)
        assert read(small)[1] == {"data/a\nb", "data/c"}
        recorded.remove("small", _LIST)
        with pytest.raises(IntegrityError, match=r"names 3 objects, and the summary .* says 2"):
            read(small)


# What is not whole


def _no_summary() -> None:
    recorded.remove("small", _SUMMARY)


def _told(**told: Any) -> Callable[[], None]:
    def change() -> None:
        put(_SUMMARY, foreign.summary("m", 2, **told))

    return change


def _without(name: str) -> Callable[[], None]:
    def change() -> None:
        told = json.loads(foreign.summary("m", 2))
        del told[name]
        put(_SUMMARY, json.dumps(told).encode())

    return change


def _wrote(key: str, body: bytes) -> Callable[[], None]:
    return lambda: put(key, body)


def _no_lists() -> None:
    for key in (_LIST, _TEXT):
        recorded.remove("small", key)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (_no_summary, RefusedError, "did not finish: there is no s3://lab/small/.*summary.json"),
        (_told(success=False), RefusedError, "mark 'm' failed"),
        (_told(success="yes"), RefusedError, "mark 'm' failed"),
        (_told(run_id="n"), IntegrityError, "is damaged, or of another mark"),
        (_told(num_deleted_objects="2"), IntegrityError, "is damaged, or of another mark"),
        (_told(num_deleted_objects=3), IntegrityError, "names 2 objects, .* says 3: it is not"),
        (_told(start_time="now"), IntegrityError, "is damaged"),
        (_told(start_time="2026-11-21T04:41:04"), IntegrityError, "is damaged"),
        (_without("success"), IntegrityError, "is damaged"),
        (_without("num_deleted_objects"), IntegrityError, "is damaged"),
        (_wrote(_SUMMARY, b"{"), IntegrityError, "is damaged"),
        (_wrote(_SUMMARY, b"[]"), IntegrityError, "is damaged"),
        (_wrote(_SUMMARY, b"[" * 100_000), IntegrityError, "is damaged"),
        (_no_lists, RefusedError, "is there, but no list of addresses beside it"),
        (_wrote(_LIST, b""), IntegrityError, "snappy.parquet is no list of addresses"),
        (_wrote(_LIST, _GOOD[:-9]), IntegrityError, "is no list"),
        (_wrote(_LIST, _DAMAGED), IntegrityError, "snappy.parquet is no list of addresses"),
        (_wrote(_LIST, _OTHER), IntegrityError, "snappy.parquet is no list of addresses"),
        (_wrote(_LIST, foreign.parquet(["data/a", None])), IntegrityError, "without an address"),
        (_wrote(_LIST, foreign.parquet(["data/a"])), IntegrityError, "names 1 object"),
        (_wrote(_LIST, foreign.parquet(["a", "b"], "key")), IntegrityError, "is no list"),
        (_wrote(_LIST, foreign.parquet(["data/a", "data/c"])), IntegrityError, "in text do not na"),
        (_wrote(_TEXT, b"data/a\ndata/b"), IntegrityError, "does not end with a whole line"),
        (_wrote(_TEXT, b"data/a\n\xff\n"), IntegrityError, "txt is no list of addresses"),
        (_wrote(_TEXT, b"data/a\n"), IntegrityError, "in text do not name what"),
        (_wrote(f"{GC}unified/m/deleted/x.gz", b""), IntegrityError, "x.gz is no list of address"),
    ],
)
def test_what_is_missing_partial_or_damaged_is_refused(
    damage: Callable[[], None], error: type[Exception], message: str, small: Golden
) -> None:
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a", "data/b"], "m", files=1)
        assert read(small)[1] == {"data/a", "data/b"}
        damage()
        with pytest.raises(error, match=message):
            read(small)


def test_a_list_that_disappears_while_it_is_read_is_missed(small: Golden) -> None:
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a", "data/b"], "m", files=1)
        found = find(small)
        recorded.remove("small", _LIST)
        with pytest.raises(IntegrityError, match="is missing, since something removed it"):
            dataset(small, found)


@pytest.mark.parametrize("form", ["mark_id", "run_id"])
def test_without_a_summary_what_is_written_last_must_be_there(form: str, small: Golden) -> None:
    def lists() -> list[str]:
        found = recorded.keys("small")
        return [key for key in found if f"{form}=m/" in key and key.endswith(".parquet")]

    with recorded.preserved("small"):
        foreign.without_summary(put, ["data/a"], "m", form)
        assert find(small).objects is None
        (key,) = lists()
        for last in (f"addresses/m.meta/{PART.format(0)}.json", "addresses/_SUCCESS"):
            if f"{GC}{last}" in recorded.keys("small"):
                recorded.remove("small", f"{GC}{last}")
        with pytest.raises(RefusedError, match=r"mark 'm' did not finish: .* has neither m.meta"):
            find(small)
        later = recorded.mark_time("small") + timedelta(seconds=1)
        put(f"{GC}addresses/_SUCCESS", b"")
        assert find(small).id == "m"
        # The end of an earlier job says nothing about this one.
        recorded.plant("small", key, foreign.parquet(["data/a"]), later)
        with pytest.raises(RefusedError, match="did not finish"):
            find(small)


# Which mark is meant


def test_one_id_in_two_forms_is_refused_until_one_is_named(small: Golden) -> None:
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a"], "m")
        foreign.without_summary(put, ["data/b"], "m")
        foreign.with_summary(put, ["data/c"], "m", "uncommitted")
        with pytest.raises(RefusedError, match="unified/m or uncommitted/m or mark_id=m"):
            find(small)
        assert read(small, "unified/m")[1] == {"data/a"}
        assert read(small, "mark_id=m")[1] == {"data/b"}
        assert read(small, "uncommitted/m")[1] == {"data/c"}
        with pytest.raises(
            RefusedError, match=r"there is no mark 'm' in s3://lab/small: _lakefs/.*"
        ):
            find(small, "run_id=m")


def test_lists_in_text_alone_do_not_hide_where_the_mark_is(small: Golden) -> None:
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a"], "m")
        put(f"{GC}addresses.text/mark_id=m/{PART.format(0)}.txt", b"data/b\n")
        assert find(small).form == "unified"


def test_our_own_mark_is_known_by_its_files(small: Golden) -> None:
    found = find(small, "run1")
    assert found.ours
    assert found.objects == len(recorded.expected("small"))
    assert read(small, "run1")[1] == recorded.expected("small")


def test_our_own_mark_in_two_forms_is_one(small: Golden) -> None:
    lists = [key for key in recorded.keys("small") if "unified/run1/deleted/" in key]
    assert lists
    with recorded.preserved("small"):
        for key in lists:
            copy = f"{GC}addresses/mark_id=run1/{key.rpartition('/')[2]}"
            put(copy, recorded.content("small", key))
        found = find(small, "run1")
    assert (found.form, found.ours) == ("unified", True)


@pytest.mark.parametrize("mark", ["", "..", "a/b", "unified/", "mark_id=a/b", "a\nb"])
def test_what_cannot_be_an_id_is_refused(mark: str, small: Golden) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a mark id"):
        find(small, mark)


@pytest.mark.parametrize("mark", ["no such", "é", "a|b", "%2e%2e"])
def test_a_mark_that_nobody_wrote_is_refused(mark: str, small: Golden) -> None:
    with pytest.raises(RefusedError, match=r"there is no mark .* hold no list"):
        find(small, mark)


def test_the_servers_own_list_of_staged_objects_is_no_mark(small: Golden) -> None:
    """It lies in the folder of the uncommitted collector, under the id of the server's call."""
    with recorded.preserved("small"):
        put(f"{GC}uncommitted/m/uncommitted/x", b"parquet")
        with pytest.raises(RefusedError, match="there is no mark 'm'"):
            find(small)


def test_what_spark_has_not_committed_is_not_read(small: Golden) -> None:
    with recorded.preserved("small"):
        foreign.with_summary(put, ["data/a"], "m", files=1)
        put(f"{GC}unified/m/deleted/_temporary/0/{PART.format(1)}.snappy.parquet", b"half")
        put(f"{GC}unified/m/deleted/.part.crc", b"")
        assert read(small)[1] == {"data/a"}
