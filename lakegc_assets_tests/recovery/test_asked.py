"""Which objects a store is asked to give back, where a backup has copies of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.recovery.journal import CopyVerifier
from lakegc_assets.recovery.undeletion import BackupCopies, bring_back, forecast
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import ARCHIVED, Lost, ObjectInfo, Recovery, UndeleteOutcome


class Asked(LocalStore):
    """Notes what it is asked to give back, which it never can."""

    kind = "nothing"

    def recovery(self) -> Recovery:
        return Recovery(self.kind, None, "as the test says")  # type: ignore[arg-type] # one of its words

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        self.asked = [one.key for one in objects]
        return [UndeleteOutcome(one.key, "not_kept") for one in objects]


@pytest.mark.parametrize(
    ("kind", "asked"), [("nothing", ["b"]), ("versions", ["a", "b"]), ("unknown", ["a", "b"])]
)
def test_one_that_keeps_nothing_is_asked_only_for_what_has_no_copy(
    tmp_path: Path, kind: str, asked: list[str]
) -> None:
    (tmp_path / "lake").mkdir()
    store = Asked(tmp_path / "lake", "file:///lake")
    store.kind = kind
    backup = LocalStore(tmp_path / "backup", "file:///backup")
    etag = backup.put("a", b"what was marked")
    lost = [Lost(key=key, size=15, etag=etag) for key in ("a", "b")]
    found = bring_back(store, lost, BackupCopies({"a": etag}, CopyVerifier(backup)))
    assert [(one.key, one.outcome) for one in found] == [("a", "restored"), ("b", "not_kept")]
    assert store.get("a") == b"what was marked"
    assert store.asked == asked


class Suspended(Asked):
    """Its versioning was on when the objects were deleted, and is suspended now."""

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        self.asked = [one.key for one in objects]
        for key in self.asked:
            self.put(key, b"what was marked")
        return [UndeleteOutcome(key, "restored") for key in self.asked]


def test_one_that_keeps_nothing_today_is_asked_for_what_has_lost_its_copy(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    store = Suspended(tmp_path / "lake", "file:///lake")
    backup = LocalStore(tmp_path / "backup", "file:///backup")
    etags = {key: backup.put(key, b"what was marked") for key in ("a", "gone", "changed")}
    backup.delete_many(["gone"])
    backup.put("changed", b"another content")
    lost = [Lost(key=key, size=15, etag="e") for key in etags]
    found = bring_back(store, lost, BackupCopies(etags, CopyVerifier(backup)))
    assert [(one.outcome, one.source) for one in found] == [
        ("restored", "backup"),
        ("restored", "store"),
        ("restored", "store"),
    ]
    assert store.asked == ["gone", "changed"]


class Archiving(LocalStore):
    """What it keeps is in an archive."""

    def recovery(self) -> Recovery:
        return Recovery("versions", None, "as the test says")

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        for one in objects:
            if not one.copied:
                self.put(one.key, b"what was marked")
        return self.kept_many(objects)

    def kept_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        return [
            UndeleteOutcome(one.key, "not_kept" if one.copied else "restored", None, ARCHIVED)
            for one in objects
        ]


def test_a_copy_that_can_be_read_is_preferred_to_an_archive(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    store = Archiving(tmp_path / "lake", "file:///lake")
    backup = LocalStore(tmp_path / "backup", "file:///backup")
    etags = {key: backup.put(key, b"what was marked") for key in ("a", "gone")}
    backup.delete_many(["gone"])
    lost = [Lost(key, 15, "e") for key in ("a", "gone", "no copy")]
    copies = BackupCopies(etags, CopyVerifier(backup))
    foreseen = [(one.verdict, one.why) for one in forecast(store, lost, copies)]
    assert foreseen == [("backup", ""), ("versions", ARCHIVED), ("versions", ARCHIVED)]
    found = bring_back(store, lost, copies)
    assert [(one.outcome, one.source, one.detail) for one in found] == [
        ("restored", "backup", None),
        ("restored", "store", ARCHIVED),
        ("restored", "store", ARCHIVED),
    ]


class Listed(LocalStore):
    """Notes what it is asked for one by one, and can list too little."""

    asked: list[str]
    blind = False

    def head(self, key: str) -> ObjectInfo:
        self.asked.append(key)
        return super().head(key)

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        return iter(()) if self.blind else super().list(prefix, start_after, end_before)


@pytest.mark.parametrize("blind", [False, True])
def test_what_is_listed_as_free_is_written_without_asking_and_nothing_is_overwritten(
    tmp_path: Path, *, blind: bool
) -> None:
    """Also where the listing lacks what is there."""
    (tmp_path / "lake").mkdir()
    store, backup = (
        Listed(tmp_path / "lake", "file:///lake"),
        LocalStore(tmp_path / "b", "file:///b"),
    )
    keys = [f"data/{number}" for number in range(9)]
    etags = {key: backup.put(key, b"what was marked") for key in keys}
    store.put(keys[4], b"what is there")
    store.asked, store.blind = [], blind
    lost = [Lost(key, 15, etags.get(key, "none")) for key in [*keys, "data/no copy"]]
    found = bring_back(store, lost, BackupCopies(etags, CopyVerifier(backup)))
    outcomes = ["restored"] * 9 + ["not_kept"]
    outcomes[4] = "already_there"
    assert [one.outcome for one in found] == outcomes
    assert store.get(keys[4]) == b"what is there"
    assert set(store.asked) == {keys[4], "data/no copy"}
    if blind:
        assert store.asked.count(keys[4]) == 1
