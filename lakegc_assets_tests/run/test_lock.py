"""One run at a time on a repository of this machine, and no lock outlives its process."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.run import lock
from lakegc_assets.run.lock import lock_file, repository_lock

_HOLD = """
import sys
from lakegc_assets.run.lock import repository_lock
with repository_lock("s3://bucket/repo"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def holder() -> subprocess.Popen[str]:
    """A process that holds the lock until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, "some", "arguments"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_is_named(holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(
            RefusedError,
            match=rf"machine: process {holder.pid} \(-c some arguments\) since 20.* UTC",
        ) as error,
        repository_lock("s3://bucket/repo"),
    ):
        pass
    assert "When that run has ended, run the same command again" in str(error.value)
    with repository_lock("s3://bucket/other"):
        pass
    holder.communicate()
    with repository_lock("s3://bucket/repo"):
        pass


def test_another_process_is_waited_for_as_long_as_it_may(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    pauses: list[float] = []
    monkeypatch.setattr(lock, "sleep", pauses.append)
    monkeypatch.setattr(lock, "monotonic", lambda: sum(pauses))
    with (
        pytest.raises(
            RefusedError, match=r"This run has waited 6 s for it\. When that run has ended"
        ),
        repository_lock("s3://bucket/repo", timedelta(seconds=6), reported.append),
    ):
        pass
    assert pauses == [5.0, 1.0]
    assert [line.partition(":")[0] for line in reported] == ["waiting, 0 s of 6 s at most"]
    assert (
        f"another run holds s3://bucket/repo on this machine: process {holder.pid}" in reported[0]
    )

    def end(_said: str) -> None:
        holder.communicate()

    with repository_lock("s3://bucket/repo", timedelta(hours=1), end):
        pass


def test_a_step_of_the_same_dagster_run_is_waited_for_until_it_ends(
    holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor may give each step a process, and begins two of them at once."""
    file = lock_file("s3://bucket/repo")
    file.write_text(json.dumps({**json.loads(file.read_text()), "started_by": "Dagster run 1"}))
    monkeypatch.setattr(lock, "STEP_POLL_S", 0.01)
    for other in ("Dagster run 2", None):
        with (
            pytest.raises(RefusedError, match="another run holds"),
            repository_lock("s3://bucket/repo", started_by=other),
        ):
            pass
    monkeypatch.setattr(lock, "sleep", lambda _: holder.communicate())
    said: list[str] = []
    with repository_lock("s3://bucket/repo", report=said.append, started_by="Dagster run 1"):
        assert holder.returncode == 0
    assert ["waiting for another step of this run" in line for line in said] == [True]


@pytest.mark.parametrize("text", ['{"pid"', "[" * 100_000])
def test_who_has_just_taken_it_and_not_written_yet_is_reported_in_words(
    text: str, holder: subprocess.Popen[str]
) -> None:
    lock_file("s3://bucket/repo").write_text(text)
    with (
        pytest.raises(RefusedError, match="this machine: it has just begun"),
        repository_lock("s3://bucket/repo"),
    ):
        pass
    holder.communicate()


def test_a_lock_ends_with_its_process(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()
    with repository_lock("s3://bucket/repo"):
        pass


def test_it_may_be_nested_and_ends_with_the_outermost() -> None:
    with repository_lock("s3://bucket/repo"):
        with repository_lock("s3://bucket/repo"):
            pass
        assert _refused_in_a_thread()
    assert not _refused_in_a_thread()


def test_it_is_released_after_an_error() -> None:
    with pytest.raises(KeyError), repository_lock("s3://bucket/repo"):
        raise KeyError
    assert not _refused_in_a_thread()


def test_a_refused_run_does_not_count_as_nested(holder: subprocess.Popen[str]) -> None:
    for _ in range(2):
        with pytest.raises(RefusedError), repository_lock("s3://bucket/repo"):
            pass
    holder.communicate()


def _refused_in_a_thread() -> bool:
    refused: list[RefusedError] = []

    def run() -> None:
        try:
            with repository_lock("s3://bucket/repo"):
                pass
        except RefusedError as error:
            refused.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return bool(refused)


def test_only_this_user_sees_the_locks() -> None:
    file = lock_file("s3://bucket/repo")
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.parent.stat().st_uid == os.getuid()
    assert file != lock_file("s3://bucket/repo2")


@pytest.mark.parametrize("mode", [None, 0o720, 0o702])
def test_a_folder_that_others_made_is_refused(tmp_path: Path, mode: int | None) -> None:
    """Anybody can make the folder first, with links in it to files that others cannot write to."""
    url, precious = "s3://bucket/repo", tmp_path / "precious"
    precious.write_text("the only copy")
    file = lock_file(url)
    file.symlink_to(precious)
    if mode is None:
        # Of a folder that is another's, or no longer: what it leads to does not tell.
        file.parent.symlink_to(file.parent.rename(tmp_path / "theirs"))
    else:
        file.parent.chmod(mode)
    with (
        pytest.raises(ConfigurationError, match=r"can write to: find out who made it"),
        repository_lock(url),
    ):
        pytest.fail("it leads to a file")
    assert precious.read_text() == "the only copy"


def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "os", SimpleNamespace(geteuid=lambda: os.geteuid() + 1))
    with pytest.raises(ConfigurationError, match="can write to: find out who made it"):
        lock_file("s3://bucket/repo")


def test_a_lock_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "gettempdir", lambda: str(tmp_path / "nowhere"))
    with (
        pytest.raises(ConfigurationError, match=r"nowhere.*Set TMPDIR to a folder"),
        repository_lock("s3://bucket/repo"),
    ):
        pytest.fail("there is none")


def test_a_lock_holds_where_its_owner_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "lock_file", lambda _: Path("/dev/full"))
    with (
        repository_lock("s3://bucket/repo"),
        Path("/dev/full").open("a+") as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
