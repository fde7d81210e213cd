"""What stops a backup, or an object of it, and the sentence that says so."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.recovery import backup_task
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import BEGIN, MANIFEST, Record, find_backup
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage import files, local
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StorageError,
    StoreFullError,
)
from lakegc_assets.storage.files import open_directories
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place, before_copies


def _is_below(descriptor: int, place: Place) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(place.url)


def no_space(place: Place, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The disk of the backup takes so many files, and is full."""
    sync, left = os.fsync, [after]

    def full(descriptor: int) -> None:
        if _is_below(descriptor, place) and Path(f"/proc/self/fd/{descriptor}").is_file():
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(files, "fsync", full)


def read_only(place: Place, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The credentials let so many files be written, and no more."""
    left = [after]

    def denied(
        stack: ExitStack, root: Path, segments: Sequence[str], *, create: bool
    ) -> Sequence[int]:
        if create and root.is_relative_to(place.url):
            left[0] -= 1
            if left[0] < 0:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_directories(stack, root, segments, create=create)

    monkeypatch.setattr(local, "open_directories", denied)


@pytest.mark.parametrize("after", [0, 1, 6])
@pytest.mark.parametrize(
    ("spoil", "kind", "advice"),
    [
        (no_space, StoreFullError, "Make room at the backup, or choose another backup_url"),
        (read_only, AccessDeniedError, "Let the credentials read the storage namespace, and"),
    ],
)
def test_a_place_that_takes_nothing_any_more(
    place: Place,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Place, pytest.MonkeyPatch, int], None],
    kind: type[StorageError],
    advice: str,
    after: int,
) -> None:
    Path(place.url, REPOSITORY, RUN).mkdir(parents=True)
    spoil(place, monkeypatch, after)
    with pytest.raises(kind, match=advice) as raised:
        make_backup(place.context())
    assert place.url in str(raised.value)
    assert ("nothing can be written at backup_url" in str(raised.value)) == (after == 0)
    assert find_backup(place.root.stores, place.url, REPOSITORY, RUN) is None
    monkeypatch.undo()
    record = make_backup(place.context())
    assert record is not None
    assert record.objects == len(marked.candidates)


def test_a_bucket_that_does_not_exist(place: Place, s3_server: str) -> None:
    stores = replace(place.root.stores, endpoint_url=s3_server)
    there = replace(place, url="s3://no-such-bucket/a", root=replace(place.root, stores=stores))
    with pytest.raises(ConfigurationError, match="bucket does not exist"):
        make_backup(there.context())


#: Places where no backup may be, and what is said of each.
FORBIDDEN = (
    ("ftp://host/backups", "backup_url cannot be used: .*scheme 'ftp' is not known"),
    ("s3://", "backup_url cannot be used: .*is not the name of a bucket"),
    ("local://{repo}", "lies in the storage namespace of repository 'repo'"),
    ("local://{repo}/backups", "lies in the storage namespace of repository 'repo'"),
    ("{objects}/repo/_lakefs/backups", "lies in the storage namespace of repository 'repo'"),
    ("file://{objects}/repo/data", "lies in the storage namespace of repository 'repo'"),
    ("{objects}", r"lies in the storage namespace of repository '\w+' .*, or around it"),
    ("{objects}/other/x", "lies in the storage namespace of repository 'other'"),
    ("{link}", "lies in the storage namespace of repository 'repo'"),
    ("{artifacts}", "and the artifacts at .* overlap"),
    ("{artifacts}/backups", "and the artifacts at .* overlap"),
)


def test_a_place_where_no_backup_may_be(place: Place, tmp_path: Path) -> None:
    objects = place.lake.server.objects_dir
    place.lake.client.create_repository("other", "local://other")
    link = tmp_path / "link"
    link.symlink_to(objects / "repo")
    before = place.lake.keys()
    for url, words in FORBIDDEN:
        told = url.format(objects=objects, artifacts=place.root.url, repo=REPOSITORY, link=link)
        with pytest.raises(ConfigurationError, match=words):
            make_backup(place.context(backup_url=told))
        with pytest.raises(ConfigurationError, match=words.replace("backup_url", "backup_log")):
            make_backup(place.context(backup_log=told))
        assert place.lake.keys() == before


def test_a_folder_that_is_a_link_into_a_namespace_or_the_artifacts(place: Place) -> None:
    """What is looked at is where the copies would lie, not only where all backups do."""
    there = Path(place.url, REPOSITORY)
    there.parent.mkdir(parents=True)
    before = place.lake.keys()
    for target, words in (
        (place.lake.objects / "data", "lies in the storage namespace of repository 'repo'"),
        (Path(place.root.url), "and the artifacts at .* overlap"),
    ):
        there.symlink_to(target)
        with pytest.raises(ConfigurationError, match=f"backup_url: the folder .*{words}"):
            make_backup(place.context())
        beside = place.context(backup_url=f"{place.url}-2", backup_log=place.url)
        with pytest.raises(ConfigurationError, match=f"backup_log: the folder .*{words}"):
            make_backup(beside)
        there.unlink()
    assert place.lake.keys() == before
    # A link to where nothing else is, is as good as a folder.
    (there.parent / "elsewhere").mkdir()
    there.symlink_to(there.parent / "elsewhere")
    assert make_backup(place.context()) is not None


def test_the_namespace_of_a_server_that_nobody_here_knows(place: Place, tmp_path: Path) -> None:
    """Its collector would take the copies for garbage."""
    (tmp_path / "theirs/_lakefs").mkdir(parents=True)
    (tmp_path / "theirs/_lakefs/0123abcd").write_bytes(b"a range")
    for inside in ("theirs", "theirs/data", "theirs/data/backups/x"):
        with pytest.raises(
            ConfigurationError, match=r"perhaps of another lakeFS server: .*theirs/_lakefs/"
        ):
            make_backup(place.context(backup_url=str(tmp_path / inside)))
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["_lakefs"]
    assert make_backup(place.context(backup_url=str(tmp_path / "theirs-too"))) is not None


def test_logs_among_the_copies_are_refused(place: Place) -> None:
    for log in (place.url, f"{place.url}/{REPOSITORY}/{RUN}/log"):
        with pytest.raises(ConfigurationError, match=r"backup_log .* and backup_url .* overlap"):
            make_backup(place.context(backup_log=log))


def test_neighbours_with_a_name_that_begins_alike_are_no_overlap(place: Place) -> None:
    beside = f"{place.lake.server.objects_dir}/{REPOSITORY}-backups"
    record = make_backup(place.context(backup_url=beside))
    assert record is not None


def test_another_backup_at_the_place(place: Place) -> None:
    make_backup(place.context())
    for inside in (f"{place.url}/{REPOSITORY}/{RUN}", f"{place.url}/{REPOSITORY}/{RUN}/data/x"):
        with pytest.raises(ConfigurationError, match=r"lies in the backup at .*choose another"):
            make_backup(place.context(backup_url=inside))
    store = open_store(f"{place.url}-2/{REPOSITORY}/{RUN}")
    store.put("r/x/_lakegc/begin.json", b"another one")
    with pytest.raises(ConfigurationError, match="is not empty: it holds 'r/x/_lakegc/b"):
        make_backup(place.context(backup_url=f"{place.url}-2"))


def alter(place: Place, key: str, **values: object) -> None:
    record = Record.from_bytes(place.store.get(key), key)
    record = replace(record, subject=replace(record.subject, **values))  # type: ignore[arg-type]
    place.store.put(key, record.to_bytes())


@pytest.mark.parametrize("key", [BEGIN, MANIFEST])
def test_a_backup_of_another_attempt(place: Place, key: str) -> None:
    make_backup(place.context())
    if key == BEGIN:
        place.store.delete_many([MANIFEST])
    whole, before = place.store.get(key), place.contents()
    for name in ("attempt", "namespace", "mark", "digest"):
        alter(place, key, **{name: "another"})
        of = f"another attempt or mark: it is of {name} 'another'"
        with pytest.raises(RefusedError, match=of):
            make_backup(place.context())
        assert place.contents() == before
        place.store.put(key, whole)


def test_what_a_backup_says_of_itself_is_damaged(place: Place) -> None:
    make_backup(place.context())
    of_another_version = b'{"version": 2}'
    for content in (b"", b"{", b"[]", b'{"version": 1}', of_another_version):
        place.store.put(MANIFEST, content)
        words = "no copy in this backup can be trusted"
        if content == of_another_version:
            words = "lakegc reads version 1"
        with pytest.raises(IntegrityError, match=words):
            make_backup(place.context())


@pytest.mark.parametrize("damage", ["removed", "changed", "digest"])
def test_the_outcomes_of_a_backup_are_damaged(place: Place, damage: str) -> None:
    record = make_backup(place.context())
    assert record is not None
    key = record.parts[0].key
    if damage == "removed":
        place.store.delete_many([key])
    elif damage == "changed":
        place.store.put(key, place.store.get(key)[:-1] + b"?")
    else:
        said = json.loads(place.store.get(MANIFEST)) | {"digest": "0-0"}
        place.store.put(MANIFEST, json.dumps(said).encode())
    with pytest.raises(IntegrityError, match="can be trusted"):
        _ = place.copied


def test_a_journal_that_is_damaged_is_not_believed(place: Place, marked: Marked) -> None:
    make_backup(place.context())
    place.store.delete_many([MANIFEST])
    (key,) = [k for page in place.store.list("_lakegc/ledger/") for k in page["key"].to_pylist()]
    place.store.put(key, place.store.get(key)[:-1])
    record = make_backup(place.context())
    assert record is not None
    assert record.objects == len(marked.candidates)


def cutting(monkeypatch: pytest.MonkeyPatch, chosen: Callable[[str, int], bool]) -> dict[str, int]:
    """The store cuts copies short: of the chosen, by address and number of the try."""
    tries: dict[str, int] = {}

    def cut(key: str) -> None:
        tries[key] = tries.get(key, 0) + 1
        if chosen(key, tries[key]):
            raise StorageError(f"the copy {key!r} was cut short")

    before_copies(monkeypatch, cut)
    return tries


def test_a_copy_that_was_cut_once_is_made_again(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = cutting(monkeypatch, lambda _key, number: number == 1)
    record = make_backup(place.context())
    assert record is not None
    assert record.objects == len(marked.candidates)
    assert tries == dict.fromkeys(marked.candidates, 2)


def test_an_object_whose_copies_are_always_cut_is_told(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = min(marked.candidates)
    tries = cutting(monkeypatch, lambda key, _number: key == bad)
    record = make_backup(place.context())
    assert record is not None
    assert tries[bad] == 2
    (row,) = [row for row in place.outcomes.to_pylist() if row["address"] == bad]
    assert (row["outcome"], row["error_code"]) == ("failed", "Storage")
    assert "was cut short" in row["detail"]
    assert bad not in place.copied["address"].to_pylist()


def test_a_store_that_cuts_all_copies_stops_the_backup(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutting(monkeypatch, lambda _key, _number: True)
    with pytest.raises(StorageError, match=f"not one of {len(marked.candidates)} objects could be"):
        make_backup(place.context())
    monkeypatch.undo()
    record = make_backup(place.context())
    assert record is not None
    assert record.objects == len(marked.candidates)


def test_a_copy_that_is_gone_when_all_is_looked_at_stops_the_backup(
    anywhere: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = max(marked.candidates)

    def losing(source: Any, key: str, target: Any, *rest: Any, **more: Any) -> Any:
        copied = copy_object(source, key, target, *rest, **more)
        if key == lost:
            target.delete_many([key])
        return copied

    monkeypatch.setattr(backup_task, "copy_object", losing)
    with pytest.raises(StorageError, match=f"lacks 1 copy .*{lost}"):
        make_backup(anywhere.context())
    monkeypatch.undo()
    make_backup(anywhere.context())
    assert anywhere.contents().keys() == marked.candidates


def test_the_artifacts_of_a_swept_mark(place: Place) -> None:
    attempt = place.root.attempt(REPOSITORY, RUN)
    attempt.store().put("swept_set/manifest.json", b"{}")
    with pytest.raises(RefusedError, match="was swept already: its objects are deleted"):
        make_backup(place.context())


def test_a_mark_that_is_not_published(place: Place) -> None:
    place.root.attempt(REPOSITORY, RUN).store().delete_many(["gc_report/manifest.json"])
    with pytest.raises(RefusedError, match="did not finish"):
        make_backup(place.context())
    with pytest.raises(RefusedError, match="there is no mark 'other'"):
        make_backup(place.context("other"))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("backup_num_partitions", 0, "1 or more"),
        ("backup_bandwidth", 0.0, "more than 0 MB/s"),
        ("backup_bandwidth", float("nan"), "more than 0 MB/s"),
        ("backup_list_threads", 41, "from 1 to 40"),
        ("backup_distribution", "random", "'dynamic' or 'uniform'"),
    ],
)
def test_settings_that_make_no_sense(setting: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{setting} is {value!r}: .*{words}"):
        Settings(**{setting: value})
