"""What etags and sizes of listed objects say of those at HEADs, compared with a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.engine.embedded import EmbeddedSession
from lakegc_assets.engine.session import Session
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION
from lakegc_assets.mark import etags
from lakegc_assets.mark.etags import ETAGS, EtagFiles, Evidence
from lakegc_assets.mark.ranges import ROWS, Wanted
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.mark.signature_relations import SMALL, etag_evidence
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.local import LocalStore

HASH = st.integers(0, 6)
ETAG = st.integers(0, 2)
SIZE = st.sampled_from([1, SMALL, SMALL + 1])
Object = tuple[int, int, int, int]
OBJECTS = st.lists(st.tuples(HASH, ETAG, st.integers(1, 9), SIZE), max_size=8)
FILES = st.lists(OBJECTS, max_size=2)
ENTRIES = st.lists(st.tuples(HASH, SIZE, ETAG), max_size=8)


def plain(files: list[list[Object]], entries: list[tuple[int, int, int]]) -> Evidence:
    """Every object beside every entry of its address."""
    pairs = [
        (etag == of_entry if of_entry else None, modified, size, size == listed)
        for rows in files
        for hashed, etag, modified, listed in rows
        for other, size, of_entry in entries
        if hashed == other
    ]
    compared = [pair for pair in pairs if pair[0] is not None]
    same_sizes = all(same for *_, same in pairs)
    if not compared:
        return Evidence(sizes_agree=same_sizes)
    return Evidence(
        all(agree for agree, *_ in compared),
        max(modified for _, modified, *_ in compared),
        any(agree and size <= SMALL for agree, _, size, _ in compared),
        same_sizes,
    )


def written(store: LocalStore, files: list[list[Object]]) -> list[Part]:
    parts = []
    for rows in files:
        table = pa.Table.from_pylist([dict(zip(_NAMES, row, strict=True)) for row in rows], ETAGS)
        parts.append(write_part(store, "etags/", table))
    return parts


_NAMES = ("hash", "etag_hash", "last_modified", "size")


class Told:
    """Ranges in the cache, and a run that counts which of them are read for their etags."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = LocalStore(tmp_path / "store", f"file://{tmp_path}/store")
        self.cache = LocalStore(tmp_path / "cache", f"file://{tmp_path}/cache")
        self.ranges: dict[str, list[tuple[int, int, int]]] = {}
        self.read: list[str] = []
        monkeypatch.setattr(etags, "range_frame", self.entries)
        connections = SimpleNamespace(cache=lambda: self.cache)
        self.ctx = SimpleNamespace(connections=connections)

    def entries(
        self, _ctx: object, frames: Session, ranges: pa.Table, columns: Sequence[str]
    ) -> DataFrame:
        ids = ranges["range_id"].to_pylist()
        self.read += ids
        rows = [(one, *entry) for one in ids for entry in self.ranges[one]]
        table = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], ROWS)
        return frames.create(table)

    def of(self, ids: str, parts: list[Part], *kept: int) -> tuple[Evidence, str]:
        """What some ranges say, and which of them were read for that."""
        self.read.clear()
        wanted = [Wanted(one, len(self.ranges[one]), None) for one in ids]
        ctx = cast("RunContext", self.ctx)
        with EmbeddedSession(lambda _: self.store, None) as frames:
            work = SessionFolder(ctx, frames, self.store.url)
            found = etags.evidence_of(work, wanted, EtagFiles(parts, kept))
        return found, "".join(sorted(self.read))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told(tmp_path, monkeypatch)
    found.ranges = {"a": [(1, 1, 5), (2, 1, 5)], "b": [(2, 1, 5), (3, 1, 6)], "c": [(4, 1, 7)]}
    return found


FIRST, SECOND, THIRD = [(1, 5, 10, 1), (2, 5, 20, 1)], [(3, 6, 30, 1)], [(4, 8, 40, 1)]


def test_what_a_range_and_files_say_is_found_once(told: Told) -> None:
    """A sweep has the files of its mark, and another run what was carried forward to it."""
    parts = written(told.store, [FIRST, SECOND])
    assert told.of("ab", parts, 0, 1) == (Evidence(True, 30, small_agree=True), "ab")
    assert told.of("ab", parts) == (Evidence(True, 30, small_agree=True), "")
    assert told.of("abc", parts) == (Evidence(True, 30, small_agree=True), "c")
    # The first file again, under another name, and a new one behind it.
    again = written(told.store, [FIRST, THIRD])
    assert told.of("a", again[:1]) == (Evidence(True, 20, small_agree=True), "")
    assert told.of("ab", again, 1) == (Evidence(True, 20, small_agree=True), "ab")
    assert told.of("c", again, 1) == (Evidence(False, 40), "c")
    assert told.of("abc", again, 1) == (Evidence(False, 40, small_agree=True), "")


def test_what_a_range_said_that_no_branch_has_any_more_does_not_count(told: Told) -> None:
    parts = written(told.store, [FIRST, THIRD])
    assert told.of("abc", parts)[0].agree is False
    assert told.of("ab", parts) == (Evidence(True, 20, small_agree=True), "")
    assert told.of("", parts) == (Evidence(), "")


def test_files_that_say_something_else_are_compared_anew(told: Told) -> None:
    parts = written(told.store, [FIRST])
    assert told.of("a", parts, 1)[0].agree
    assert told.of("a", written(told.store, [[(1, 6, 10, 1), (2, 5, 20, 1)]]), 1) == (
        Evidence(False, 20, small_agree=True),
        "a",
    )


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_what_is_damaged_in_the_cache_is_found_anew(
    damage: str, told: Told, tmp_path: Path
) -> None:
    parts = written(told.store, [FIRST, THIRD])
    assert told.of("ac", parts, 1) == (Evidence(False, 40, small_agree=True), "ac")
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            changed = {"cut": data[:-1], "changed": data[:-1] + b"x", "gone": b""}[damage]
            file.write_bytes(changed)
            if not changed:
                file.unlink()
    assert told.of("ac", parts, 1) == (Evidence(False, 40, small_agree=True), "ac")
    assert told.of("ac", parts, 1) == (Evidence(False, 40, small_agree=True), "")


def test_a_range_that_was_not_looked_at_is_not_kept_as_one_that_says_nothing(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = written(told.store, [FIRST])
    relation = etag_evidence

    def lost(*given: Any) -> DataFrame:
        return relation(*given).where("number <> 1")

    with monkeypatch.context() as patch:
        patch.setattr(etags, "etag_evidence", lost)
        with pytest.raises(IntegrityError, match="range b were not compared"):
            told.of("ab", parts)
    assert told.of("ab", parts) == (Evidence(True, 20, small_agree=True), "ab")


def test_what_is_few_together_is_sent_to_each_task(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that are each few may be many."""
    parts, relation, sent = written(told.store, [FIRST, SECOND, THIRD]), etag_evidence, list[bool]()

    def noted(*given: Any) -> DataFrame:
        sent.append(given[-1])
        return relation(*given)

    monkeypatch.setattr(etags, "etag_evidence", noted)
    for ids, most in (("a", 3), ("b", 4)):
        monkeypatch.setattr(EmbeddedSession, "is_small", lambda _, of, most=most: of.rows <= most)
        told.of(ids, parts, 0, 1)
    assert sent == [False, True]


def test_one_size_that_differs_is_known_of_its_range_from_then_on(told: Told) -> None:
    parts = written(told.store, [FIRST, [(3, 6, 30, 2)]])
    false = Evidence(True, 30, small_agree=True, sizes_agree=False)
    assert told.of("ab", parts, 1) == (false, "ab")
    assert told.of("ab", parts) == (false, "")
    assert told.of("b", parts) == (false, "")
    assert told.of("a", parts) == (Evidence(True, 20, small_agree=True), "")
    assert told.of("b", parts[:1]) == (Evidence(True, 20, small_agree=True), "")


def test_another_decoder_believes_nothing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = written(told.store, [FIRST])
    told.of("a", parts)
    monkeypatch.setattr(etags, "DECODER_VERSION", DECODER_VERSION + 1)
    assert told.of("a", parts)[1] == "a"


@given(
    ranges=st.lists(ENTRIES.filter(len), min_size=1, max_size=4),
    runs=st.lists(
        st.tuples(
            st.lists(OBJECTS, max_size=2), st.lists(OBJECTS, max_size=2), st.sets(st.integers(0, 3))
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_in_any_row_of_runs_the_answer_is_that_of_a_plain_loop(
    tmp_path: Path,
    ranges: list[list[tuple[int, int, int]]],
    runs: list[tuple[list[list[Object]], list[list[Object]], set[int]]],
) -> None:
    """Each run carries forward what the last one knew as settled, and looks at other ranges."""
    with pytest.MonkeyPatch.context() as patch:
        told = Told(tmp_path / token_hex(4), patch)
        told.ranges = {str(n): entries for n, entries in enumerate(ranges)}
        carried: list[list[Object]] = []
        for settled, others, left_out in runs:
            files = [*carried, *settled, *others]
            ids = "".join(one for one in told.ranges if int(one) not in left_out)
            expected = plain(files, [e for one in ids for e in told.ranges[one]])
            parts, kept = written(told.store, files), (len(carried), len(carried) + len(settled))
            assert told.of(ids, parts, *kept)[0] == expected
            # The sweep of it.
            assert told.of(ids, parts) == (expected, "")
            carried += settled
