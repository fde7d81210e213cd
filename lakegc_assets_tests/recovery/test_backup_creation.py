"""What a backup holds, what it says of it, and that it goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.recovery import backup_creation, backup_task, portions
from lakegc_assets.recovery.backup_creation import PLACES, BackupPlace, make_backup
from lakegc_assets.recovery.backup_task import Orders, copy_portions
from lakegc_assets.recovery.backups import folder_url
from lakegc_assets.recovery.portions import Portion
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.storage.errors import AccessDeniedError, StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, running
from lakegc_assets_tests.recovery.conftest import ODD, Place, before_copies, make_odd
from lakegc_assets_tests.sessions import Session


def outcomes(place: Place) -> dict[str, str]:
    rows = place.outcomes.to_pylist()
    assert len({row["address"] for row in rows}) == len(rows)
    return {row["address"]: row["outcome"] for row in rows}


def test_a_backup_holds_what_the_mark_names_and_says_so(anywhere: Place, marked: Marked) -> None:
    before = anywhere.lake.contents(marked.candidates)
    record = make_backup(anywhere.context())
    assert record is not None
    assert anywhere.contents() == before
    assert outcomes(anywhere) == dict.fromkeys(marked.candidates, "copied")
    copied = anywhere.copied
    assert anywhere.found.record == record
    assert (record.objects, record.size) == (len(before), sum(map(len, before.values())))
    assert record.digest == str(key_digest(copied["address"]))
    for row in copied.to_pylist():
        info = anywhere.store.head(row["address"])
        assert (info.size, info.etag) == (row["size"], row["copy_etag"])
    # What is backed up is left alone, and is left as it is when it is asked for again.
    assert anywhere.lake.contents(marked.candidates) == before
    assert make_backup(anywhere.context()) == record
    # A prune of runs finds it, whatever backup_url is then.
    artifacts = anywhere.lake.root.attempt(REPOSITORY, RUN).store()
    ((key, place),) = [(one.key, artifacts.get(one.key)) for one in artifacts.infos(PLACES)]
    assert folder_url(BackupPlace.from_bytes(place, key).url, REPOSITORY, RUN) == anywhere.store.url


def test_without_backup_url_nothing_is_written(place: Place) -> None:
    before = {path: path.stat().st_mtime_ns for path in place.lake.folder.rglob("*")}
    assert make_backup(place.context(backup_url=None)) is None
    after = {path: path.stat().st_mtime_ns for path in place.lake.folder.rglob("*")}
    assert {p: m for p, m in after.items() if "kv" not in str(p)}.keys() <= before.keys()
    assert not Path(place.url).exists()


def test_odd_names(spark: Session, tmp_path: Path, s3_server: str, s3_bucket: str) -> None:
    make_odd(tmp_path, spark)
    with running(tmp_path) as lake:
        stores = replace(lake.root.stores, endpoint_url=s3_server)
        for url in (str(tmp_path / "backups"), f"s3://{s3_bucket}"):
            place = Place(lake, replace(lake.root, stores=stores), url, spark)
            make_backup(place.context())
            assert place.contents() == {name: f"content of {name}".encode() for name in ODD}


def test_an_empty_mark(spark: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakegc_assets_tests.recovery.conftest.ODD", ())
    make_odd(tmp_path, spark)
    with running(tmp_path) as lake:
        place = Place(lake, lake.root, str(tmp_path / "backups"), spark)
        record = make_backup(place.context())
        assert record is not None
        assert (record.objects, record.size, record.outcomes) == (0, 0, {})
        assert place.copied.num_rows == 0
        assert place.contents() == {}


@pytest.mark.conformance
def test_tasks_on_spark_and_every_setting_copy_the_same(place: Place, marked: Marked) -> None:
    for number, distribution in enumerate(("dynamic", "uniform")):
        here = replace(place, url=f"{place.url}-{number}")
        log = place.lake.folder / f"log-{number}"
        ctx = here.context(
            engine="spark",
            backup_distribution=distribution,
            backup_num_partitions=2,
            backup_bandwidth=100.0,
            backup_list_threads=40,
            backup_log=str(log),
        )
        make_backup(ctx)
        assert here.contents() == place.lake.contents(marked.candidates)
        lines = [
            json.loads(line)
            for path in (log / REPOSITORY / RUN).glob("*.log")
            for line in path.read_text().splitlines()
        ]
        assert sorted(line["address"] for line in lines) == sorted(marked.candidates)
        assert {line["outcome"] for line in lines} == {"copied"}


@pytest.mark.parametrize(("lost", "is_enough"), [(4, True), (5, False)])
def test_what_tasks_left_that_died_is_copied_up_to_the_last_round(
    lost: int,
    is_enough: bool,  # noqa: FBT001 - a parameter
    place: Place,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = 0

    def dies(orders: Orders, portions: Sequence[Portion]) -> LakegcError | None:
        nonlocal rounds
        rounds += 1
        return None if rounds <= lost else copy_portions(orders, portions)

    monkeypatch.setattr(backup_creation, "copy_portions", dies)
    if is_enough:
        record = make_backup(place.context())
        assert record is not None
        assert record.objects == len(marked.candidates)
    else:
        with pytest.raises(StorageError, match="without a copy and without an error"):
            make_backup(place.context())
    assert rounds == 5


def test_tasks_may_die_as_often_as_something_gets_done(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on machines that come and go."""
    rounds = 0

    def dies_soon(orders: Orders, portions: Sequence[Portion]) -> LakegcError | None:
        nonlocal rounds
        rounds += 1
        number, stretch = portions[0]
        return copy_portions(orders, [Portion(number, stretch._replace(rows=1))])

    monkeypatch.setattr(backup_creation, "copy_portions", dies_soon)
    monkeypatch.setattr(backup_creation, "IDLE_ROUNDS", 2)
    record = make_backup(place.context())
    assert record is not None
    assert record.objects == len(marked.candidates) == rounds > backup_creation.IDLE_ROUNDS


def test_what_changed_or_went_since_it_was_listed_is_told_and_not_copied(
    anywhere: Place, marked: Marked
) -> None:
    changed, gone, *others = sorted(marked.candidates)
    path = anywhere.lake.objects / changed
    path.unlink()
    path.write_text("another one")
    (anywhere.lake.objects / gone).unlink()
    record = make_backup(anywhere.context())
    assert record is not None
    assert outcomes(anywhere) == {changed: "changed", gone: "missing"} | dict.fromkeys(
        others, "copied"
    )
    assert anywhere.contents().keys() == set(others)
    assert record.objects == len(others)
    assert record.outcomes is not None
    assert record.outcomes["changed"]["objects"] == record.outcomes["missing"]["objects"] == 1


def test_a_backup_goes_on_where_it_was(
    anywhere: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier try has copied is not read again, unless it was changed since."""
    monkeypatch.setattr(backup_creation, "summarized", None)
    with pytest.raises(TypeError):
        make_backup(anywhere.context())
    monkeypatch.undo()
    changed, gone, *_ = sorted(marked.candidates)
    anywhere.store.put(changed, b"not what it was")
    anywhere.store.delete_many([gone])
    asked: list[str] = []
    before_copies(monkeypatch, asked.append)
    make_backup(anywhere.context())
    assert sorted(asked) == [changed, gone]
    assert anywhere.contents() == anywhere.lake.contents(marked.candidates)


def test_a_large_backup_is_listed_by_threads_and_its_requests_are_few(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("list", "head", "get", "put", "put_if_absent", "put_stream"):
        function = getattr(LocalStore, name)

        def counted(
            store: LocalStore,
            *given: Any,
            _name: str = name,
            _call: Callable[..., Any] = function,
            **more: Any,
        ) -> Any:
            if store.url.startswith(f"file://{place.url}"):
                calls.append(_name)
            return _call(store, *given, **more)

        monkeypatch.setattr(LocalStore, name, counted)
    make_backup(place.context())
    # Two small files and the manifest, one file of the journal, one of outcomes; and the copies.
    assert calls.count("list") <= 5
    assert calls.count("put") + calls.count("put_if_absent") <= 5 + len(marked.candidates)


def test_a_backup_that_another_process_finishes_meanwhile_is_left_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may rely on its copies by then; what replaces one of them is not what it saw."""
    monkeypatch.setattr(backup_task, "BATCH", 1)
    copied: list[str] = []

    def beside(key: str) -> None:
        copied.append(key)
        if len(copied) == 1:
            assert make_backup(place.context()) is not None
            copied[1:] = []

    before_copies(monkeypatch, beside)
    with pytest.raises(RefusedError, match=r"could not go on\..*: another process has finished"):
        make_backup(place.context())
    # But for what was under way.
    assert len(copied) == 1
    for row in place.copied.to_pylist():
        if row["address"] not in copied:
            assert place.store.head(row["address"]).etag == row["copy_etag"]


@pytest.mark.parametrize("in_a_row", [16, 4])
def test_what_is_kept_from_us_alone_keeps_nothing_else_from_being_copied(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch, in_a_row: int
) -> None:
    """An object may be sealed with a key of its own. Where all is denied, the backup stops."""
    sealed = min(marked.candidates)
    kept = {sealed}

    def denied(key: str) -> None:
        if key in kept:
            raise AccessDeniedError(f"{key}: no key for it")

    before_copies(monkeypatch, denied)
    monkeypatch.setattr(portions, "REFUSED_IN_A_ROW", in_a_row)
    monkeypatch.setattr(backup_task, "BATCH", 1)
    # Each in a portion of its own, and each portion in a task of its own: one has the sealed one.
    monkeypatch.setattr(backup_creation, "OBJECT_S", 10.0)
    alone: dict[str, Any] = {
        "backup_distribution": "uniform",
        "backup_num_partitions": 64,
        "engine": "embedded",
    }
    kept |= marked.candidates
    with pytest.raises(AccessDeniedError, match="Let the credentials read the storage namespace"):
        make_backup(place.context(**alone))
    assert place.contents() == {}
    kept.clear()
    kept.add(sealed)
    make_backup(place.context(**alone))
    others = marked.candidates - {sealed}
    assert outcomes(place) == dict.fromkeys(others, "copied") | {sealed: "failed"}
    assert place.contents().keys() == others
