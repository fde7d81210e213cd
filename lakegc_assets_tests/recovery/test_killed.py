"""A backup, or its end, that is killed at any line and run again ends as if it had never been."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lakegc_assets.engine.session import Dataset
from lakegc_assets.mark.live_sets import CAME_BACK
from lakegc_assets.recovery import (
    backup_creation,
    backup_pruning,
    backup_task,
    backups,
    copies,
    journal,
)
from lakegc_assets.recovery.backup_creation import PLACES, make_backup
from lakegc_assets.recovery.backups import find_backup
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.storage import local
from lakegc_assets.storage.files import link_new, replace
from lakegc_assets_tests.files import contents
from lakegc_assets_tests.kills import Killed, Lines
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.recovery.prunes import NAME, pruning


def shape(place: Place) -> tuple[str, ...]:
    """What lies there but for what differs at every run: what the next one finds, and goes by."""
    names = (re.sub(r"/ledger/.*", "/ledger", name) for name in contents(Path(place.url)))
    return tuple(sorted(names))


def check(place: Place, marked: Marked) -> None:
    """The backup is whole, and each object of the mark is in it, once, as it is in the store."""
    copied = place.copied
    assert sorted(copied["address"].to_pylist()) == sorted(marked.candidates)
    assert place.outcomes.num_rows == len(marked.candidates)
    assert place.contents() == place.lake.contents(marked.candidates)
    for row in copied.to_pylist():
        assert place.store.head(row["address"]).etag == row["copy_etag"]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files in the order in which local stores let them appear."""
    names: list[str] = []

    def noting(publish: Callable[[int, str, str], None]) -> Callable[[int, str, str], None]:
        def noted(directory: int, temporary: str, name: str) -> None:
            publish(directory, temporary, name)
            names.append(name)

        return noted

    for function in (link_new, replace):
        monkeypatch.setattr(local, function.__name__, noting(function))
    return names


@pytest.mark.parametrize(
    ("every", "tries"),
    [
        pytest.param(False, 1, id="around each write"),
        pytest.param(True, 4, id="every line", marks=pytest.mark.conformance),
    ],
)
def test_killed_at_any_line(
    place: Place,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    written: list[str],
    every: bool,  # noqa: FBT001 - a parameter
    tries: int,
) -> None:
    monkeypatch.setattr(backup_task, "BATCH", 5)
    modules = (backup_creation, backup_task, journal, copies, backups)
    lines = Lines(*(module.__file__ for module in modules), state=lambda: len(written))
    with lines.watch():
        make_backup(place.context())
    check(place, marked)
    assert len(lines.kills()) > 150
    kills = lines.kills() if every else lines.telling()
    assert len(kills) > 10
    artifacts = place.lake.root.attempt(REPOSITORY, RUN)
    tried: Counter[tuple[str, ...]] = Counter()
    for line, time in kills:
        shutil.rmtree(place.url, ignore_errors=True)
        shutil.rmtree(Path(artifacts.url, PLACES), ignore_errors=True)
        with pytest.raises(Killed), lines.watch(line, time):
            make_backup(place.context())
        # Most lines leave no trace: what was gone on from that often will end as it did before.
        tried[shape(place)] += 1
        if tried[shape(place)] > tries:
            continue
        # Nothing that is not whole is ever taken for a backup.
        if find_backup(place.root.stores, place.url, REPOSITORY, RUN) is not None:
            check(place, marked)
        make_backup(place.context())
        check(place, marked)
    assert len(tried) > 5


def test_killed_again_and_again(
    place: Place, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try goes on where the one before was killed, so that all is copied once."""
    monkeypatch.setattr(backup_task, "BATCH", 5)
    monkeypatch.setattr(backup_task, "THREADS", 1)
    lines = Lines(journal.__file__)
    with lines.watch():
        make_backup(place.context())
    recorded = next(line for line, seen in lines.seen.items() if seen == 4)
    shutil.rmtree(place.url)
    tries = 0
    while find_backup(place.root.stores, place.url, REPOSITORY, RUN) is None:
        try:
            # The first batch of each try is recorded, the second is not.
            with lines.watch(recorded, 2):
                make_backup(place.context())
        except Killed:
            tries += 1
    assert tries == -(-len(marked.candidates) // 5) - 1
    check(place, marked)


@pytest.mark.parametrize(
    ("every", "tries"),
    [
        pytest.param(False, 1, id="around each change"),
        pytest.param(True, 1_000, id="every line", marks=pytest.mark.conformance),
    ],
)
def test_a_prune_killed_at_any_line(
    place: Place,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    every: bool,  # noqa: FBT001 - a parameter
    tries: int,
) -> None:
    make_backup(place.context())
    whole = tmp_path / "whole"
    shutil.copytree(place.url, whole)
    asked: list[int] = []

    def nobody(space: Workspace, _namespace: str, objects: Dataset) -> Dataset:
        asked.append(objects.rows)
        return space.dataset((), CAME_BACK)

    monkeypatch.setattr(backup_pruning, "needed_now", nobody)
    for address in marked.candidates:
        (place.lake.objects / address).unlink()

    def prune() -> list[str]:
        names = [NAME] if contents(Path(place.url)) else []
        return [one.kept for one in pruning(place, *names).run()]

    def there() -> int:
        return hash(frozenset(Path(place.url).rglob("*")))

    lines = Lines(backup_pruning.__file__, state=there)
    with lines.watch():
        assert prune() == [""]
    assert contents(Path(place.url)) == {}
    assert asked == [len(marked.candidates)]
    assert len(lines.kills()) > 40
    kills = lines.kills() if every else lines.telling()
    tried: Counter[tuple[str, ...]] = Counter()
    for line, time in kills:
        shutil.rmtree(place.url, ignore_errors=True)
        shutil.copytree(whole, place.url)
        with pytest.raises(Killed), lines.watch(line, time):
            prune()
        left = place.contents() if contents(Path(place.url)) else {}
        if find_backup(place.root.stores, place.url, REPOSITORY, RUN) is not None:
            assert left.keys() == marked.candidates
        tried[shape(place)] += 1
        if tried[shape(place)] > tries:
            continue
        assert set(prune()) <= {""}
        assert contents(Path(place.url)) == {}
    assert len(tried) > 5


@pytest.mark.conformance
def test_kill_9(place: Place, marked: Marked) -> None:
    """Of a process: in the middle of the lines that a whole backup runs, and at its very end."""
    lake = place.lake
    command = [sys.executable, "-m", "lakegc_assets_tests.recovery.maker"]
    arguments = [str(lake.folder), lake.server.endpoint, str(lake.server.objects_dir), place.url]
    whole = subprocess.run([*command, "0", *arguments], capture_output=True, text=True, check=True)
    for share in (0.5, 0.999):
        shutil.rmtree(place.url)
        at = int(share * int(whole.stdout))
        killed = subprocess.run([*command, str(at), *arguments], capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL
        make_backup(place.context())
        check(place, marked)
