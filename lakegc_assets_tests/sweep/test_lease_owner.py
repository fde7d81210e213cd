"""The end of the owner of a lease is known on its own machine, and nowhere else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakegc_assets.sweep import lease_record as module
from lakegc_assets.sweep.lease_record import describe, is_gone, owner_of, work_of

_OWNER = """
import json, sys
from lakegc_assets.sweep.lease_record import owner_of
print(json.dumps(dict(owner_of(run="r"))), flush=True)
sys.stdin.read()
"""
#: The first thread ends, and another one goes on.
_WITHOUT_ITS_FIRST_THREAD = """
import ctypes, json, sys, threading
from lakegc_assets.sweep.lease_record import owner_of
main = threading.main_thread().native_id
named = json.dumps(dict(owner_of()))
def go_on():
    while open(f"/proc/self/task/{main}/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    print(named, flush=True)
    sys.stdin.read()
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def owner(program: str = _OWNER) -> Iterator[tuple[subprocess.Popen[str], Mapping[str, str]]]:
    """A process that could hold a lease, and how it names itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def test_a_process_is_gone_when_it_was_killed_and_not_before() -> None:
    with owner() as (process, named):
        assert not is_gone(named)
        process.send_signal(signal.SIGSTOP)
        assert not is_gone(named)
        process.kill()
        # Whether or not its parent has asked for its end.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert is_gone(named)
        process.wait()
        assert not Path(f"/proc/{process.pid}").exists()
        assert is_gone(named)


def test_one_whose_first_thread_has_ended_is_not_gone() -> None:
    with owner(_WITHOUT_ITS_FIRST_THREAD) as (_process, named):
        assert named["process"]
        assert not is_gone(named)


def test_another_process_with_its_number_is_not_it() -> None:
    mine = owner_of()
    assert not is_gone(mine)
    place, _, started = mine["process"].rpartition(" ")
    assert is_gone({**mine, "process": f"{place} {int(started) - 1}"})


def _elsewhere(mine: Mapping[str, str], part: int) -> Mapping[str, str]:
    words = mine["process"].split(" ")
    words[part] = f"{words[part]}0"
    return {**mine, "process": " ".join(words)}


def test_of_a_process_elsewhere_nothing_is_known() -> None:
    """Another boot, another container, another clock, another host; or an owner who did not say."""
    with owner() as (process, named):
        process.kill()
        process.wait()
        assert is_gone(named)
        assert len(named["process"].split(" ")) == 4
        others = [_elsewhere(named, part) for part in range(3)]
        others.append({**named, "host": "elsewhere"})
        others += [{k: v for k, v in named.items() if k != name} for name in ("process", "pid")]
        others += [{**named, "pid": pid} for pid in ("", "0", "-1", "x", "²", "9" * 30)]
        assert not any(map(is_gone, others))


def test_a_process_that_is_hidden_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that /proc hides (hidepid) is found by its number all the same."""
    with owner() as (_process, named):
        monkeypatch.setattr(module, "process_of", lambda _pid: None)
        assert not is_gone(named)


def test_where_proc_shows_another_namespace_nobody_knows_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner() as (process, named):
        process.kill()
        process.wait()
        (tmp_path / "self").symlink_to("another")
        (tmp_path / "another").symlink_to("/proc/self")
        (tmp_path / "sys").symlink_to("/proc/sys")
        monkeypatch.setattr(module, "PROC", tmp_path)
        assert not is_gone(named)
        assert not is_gone({name: value for name, value in named.items() if name != "process"})
        assert "process" not in owner_of()


def test_a_kernel_without_clocks_of_namespaces_has_a_name_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "NAMESPACES", ("pid", "clock"))
    mine = owner_of()
    assert " no-clock " in mine["process"]
    assert not is_gone(mine)


def test_owners_are_named_in_words() -> None:
    mine = owner_of(run="r", started_by=None)
    assert set(mine) == {"host", "user", "pid", "command", "process", "run"}
    assert mine["process"] not in describe(mine)
    ann = {"host": "h", "user": "ann", "pid": "7", "command": "lakegc sweep", "run": "first"}
    assert describe(ann) == "ann on h (process 7, lakegc sweep)"
    assert describe({**ann, "since": "yesterday", "started_by": "Dagster run x"}) == (
        "ann on h (process 7, lakegc sweep, Dagster run x) since yesterday"
    )
    assert describe({}) == "somebody"
    assert work_of(ann) == "a sweep of run 'first'"
    assert work_of({"doing": "prune"}) == "a prune"
