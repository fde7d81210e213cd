"""Listings that end early are asked for again behind the last key; and writes without an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.storage.errors import PreconditionFailedError, StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Prefixes


class _Cut(LocalStore):
    """Shows two objects of each listing at most."""

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in super().list(prefix, start_after, end_before):
            yield batch.slice(0, 2)
            return

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        found = super().list_prefixes(prefix, max_objects)
        return found._replace(prefixes=found.prefixes[:2])


def test_plain_values_are_those_of_the_batches(tmp_path: Path) -> None:
    store = _Cut(tmp_path, f"file://{tmp_path}")
    for name in ("a/1", "a/2", "a/3", "a/4", "a/5", "b"):
        store.put(name, name.encode() * 3)
    rows = [row for batch in store.list_to_the_end("a/") for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == ["a/1", "a/2", "a/3", "a/4", "a/5"]
    assert [vars(info) for info in store.infos_to_the_end("a/")] == rows
    assert [info.key for info in store.infos("a/", "a/3")] == ["a/4", "a/5"]


def test_folders_behind_the_last_one_are_found(tmp_path: Path) -> None:
    store = _Cut(tmp_path, f"file://{tmp_path}")
    assert store.prefixes_to_the_end() == []
    for name in ("a/1", "a/z/2", "b/1", "b/\U0010ffffx", "b1", "c/1", "c/2", "d", "e/1", "z"):
        store.put(name, b"")
    assert store.prefixes_to_the_end() == ["a/", "b/", "c/", "e/"]


class _Unanswered(LocalStore):
    """Gives no answer to the first writes on a condition, of which it carries out some."""

    def __init__(self, root: Path, carried_out: Sequence[bool]) -> None:
        super().__init__(root, f"file://{root}")
        self.left = list(carried_out)
        self.sent = 0

    def put_if_absent(self, key: str, data: bytes) -> str:
        self.sent += 1
        is_lost, is_carried_out = bool(self.left), self.left.pop(0) if self.left else True
        etag = super().put_if_absent(key, data) if is_carried_out else ""
        if is_lost:
            raise StoreUnavailableError("no answer")
        return etag


@pytest.mark.parametrize(
    ("carried_out", "sent"), [([], 1), ([True], 1), ([False], 2), ([False, True], 2)]
)
def test_a_write_without_an_answer_is_found_or_sent_again(
    tmp_path: Path, carried_out: list[bool], sent: int
) -> None:
    store = _Unanswered(tmp_path, carried_out)
    store.create("one", b"mine")
    assert (store.get("one"), store.sent) == (b"mine", sent)


def test_a_write_that_arrives_when_it_was_given_up_is_nobody_elses(tmp_path: Path) -> None:
    """It may be on its way while what is there is read, and before it is sent again."""

    class Late(_Unanswered):
        def get(self, key: str) -> bytes:
            try:
                return super().get(key)
            finally:
                if not self.exists(key):
                    self.put(key, b"mine")

    store = Late(tmp_path, [False])
    store.create("one", b"mine")
    assert store.sent == 2


def test_what_another_has_written_stays(tmp_path: Path) -> None:
    store = _Unanswered(tmp_path, [])
    store.put("one", b"theirs")
    for lost in ([], [False]):
        store.left = list(lost)
        with pytest.raises(PreconditionFailedError):
            store.create("one", b"mine")
    assert store.get("one") == b"theirs"


def test_what_another_has_written_stays_where_a_store_ignores_conditions(tmp_path: Path) -> None:
    class Ignoring(LocalStore):
        def put_if_absent(self, key: str, data: bytes) -> str:
            if not self.exists(key):
                self.put(key, b"theirs")
                raise StoreUnavailableError("no answer")
            self.put(key, data)
            return ""

    store = Ignoring(tmp_path, f"file://{tmp_path}")
    with pytest.raises(PreconditionFailedError, match="'one' exists, with another content"):
        store.create("one", b"mine")
    assert store.get("one") == b"theirs"


def test_a_store_that_never_answers_is_not_asked_for_ever(tmp_path: Path) -> None:
    store = _Unanswered(tmp_path, [False] * 9)
    with pytest.raises(StoreUnavailableError):
        store.create("one", b"mine")
    assert store.sent == 3
