"""A sweep of a real S3 server that is killed ten times at random, and still ends exact."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lakegc_assets.cli.main import main as command
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.lease_record import read_lease
from lakegc_assets_tests.kills import kill, kill_workers, run_out, tail, wait_for, workers
from lakegc_assets_tests.lake import REPOSITORY, RUN
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.servers import Server
from lakegc_assets_tests.sweep import sweeper
from lakegc_assets_tests.sweep.s3_lake import S3Lake, mark, s3_lake
from lakegc_assets_tests.sweep.sweeper import log_of

pytestmark = [
    pytest.mark.stores,
]

SEED = 20
KILLS = 10
#: How many of them end the workers, and leave the rest of the sweep alone.
_OF_WORKERS = 5

What = Literal["all", "workers"]
Sign = Literal["keys gone", "batches recorded", "files written"]
#: The most of each that comes before a kill; all kills together leave something to do.
_MOST: Mapping[Sign, int] = {"keys gone": 200, "batches recorded": 10, "files written": 20}


@dataclass(frozen=True)
class Kill:
    """The target of a kill, and the count by which it is later than the kill before."""

    what: What
    sign: Sign
    count: int


def planned(seed: int) -> list[Kill]:
    """Ten kills: of whole sweeps, of the workers of another one on Spark, and of that at last."""
    rng = random.Random(seed)
    whats: list[What] = ["all"] * (KILLS - 1 - _OF_WORKERS)
    whats += ["workers"] * _OF_WORKERS
    signs = [rng.choice(list(_MOST)) for _ in range(KILLS)]
    return [
        Kill(what, sign, rng.randint(1, _MOST[sign]))
        for what, sign in zip([*whats, "all"], signs, strict=True)
    ]


@pytest.fixture
def found(tmp_path: Path, versitygw_server: Server) -> Iterator[S3Lake]:
    with s3_lake(tmp_path / "lake", versitygw_server) as made:
        yield made


def start(found: S3Lake, what: What) -> subprocess.Popen[bytes]:
    """A sweep whose requests last long enough for a kill to come in the middle of one.

    What loses its workers is on Spark, and runs the task of a worker that dies again.
    """
    return sweeper.start(
        found.lake,
        "local[2,4]" if what == "workers" else "",
        sweep_batch=20,
        sweep_num_partitions=2,
        lease_duration_seconds=120,
    )


def written(found: S3Lake) -> int:
    """The number of files that sweeps have written beside the objects: notes, the ledger."""
    folder = found.lake.folder / "artifacts" / REPOSITORY / RUN
    # Spark's temporary folders may go while they are walked.
    walked = os.walk(folder, onerror=lambda _: None)
    return sum(len(names) for place, _, names in walked if "/swept_set" in place)


def records(found: S3Lake) -> list[Path]:
    """The batches in the ledger, as they are on disk."""
    folder = found.lake.folder / "artifacts" / REPOSITORY / RUN
    return list(folder.glob("*/swept_set/ledger/*.parquet"))


def seen(found: S3Lake, dead: frozenset[str], sign: Sign) -> int:
    """The present count of what a kill waits for."""
    if sign == "keys gone":
        return len(dead - found.keys())
    return len(records(found)) if sign == "batches recorded" else written(found)


@pytest.mark.long
def test_it_ends_exact(found: S3Lake, spark: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = mark(found, spark)
    live = found.keys() - dead
    others = found.contents(without=dead)
    kills = planned(SEED)
    struck = strike(found, dead, kills)
    told = f"seed {SEED}: {kills}, after which so many were left: {struck}"
    # Some came in the middle of the deletes, and not all of them in one batch.
    assert len(set(struck)) > KILLS // 2, told
    assert 0 < struck[-1] < len(dead), told

    abandoned = read_lease(found.store)
    process = start(found, "all")
    try:
        wait_for(
            lambda: read_lease(found.store).token != abandoned.token,
            process, log_of(found.lake), pause=0.5,
        )  # fmt: skip
        # Its processes are gone, as the next one sees: how long that waits is in test_lease_owner.
        assert process.wait(600) == 0, f"{told}\n{tail(log_of(found.lake))}"
    finally:
        kill(process)
    assert read_lease(found.store).released

    assert found.keys() == live, told
    after = found.contents()
    changed = [key for key in others if after.get(key) != others[key]]
    assert not changed, f"{told}: these changed or are gone: {changed[:10]}"
    new = {key for key in after if key not in others}
    assert all(key.startswith(f"{REPOSITORY}/_lakefs/") for key in new), (told, sorted(new)[:10])
    check_ledger(found, dead, told)
    monkeypatch.setenv("LAKEGC_ARTIFACT_ROOT", found.lake.root.url)
    told_by_command = CliRunner().invoke(command, ["report", REPOSITORY, "--run", RUN, "--json"])
    assert told_by_command.exit_code == 0, told_by_command.output
    reported = json.loads(told_by_command.stdout)
    counts = {name: counted["objects"] for name, counted in reported["outcomes"].items()}
    assert reported["objects"] == sum(counts.values()) == len(dead), told
    assert counts.keys() <= {"deleted", "already_missing"}, told


def strike(found: S3Lake, dead: frozenset[str], kills: list[Kill]) -> list[int]:
    """Sweep and kill as planned; how many marked objects were left after each kill."""
    live, left = found.keys() - dead, [len(dead)]
    process = None
    try:
        for due in kills:
            target = seen(found, dead, due.sign) + due.count
            process = process or start(found, due.what)
            # A look at all keys takes a core for some milliseconds.
            is_due = partial(is_time, found, dead, due, target, process.pid)
            wait_for(is_due, process, log_of(found.lake), pause=0.02)
            if due.what == "workers":
                kill_workers(process.pid)
            else:
                kill(process)
                process = None
                if due is not kills[-1]:
                    run_out(found.store)
            keys = found.keys()
            assert live <= keys <= live | dead, (due, left, sorted(live - keys)[:10])
            left.append(len(keys - live))
            assert left[-1] <= left[-2], (due, left)
    finally:
        if process:
            kill(process)
    return left[1:]


def is_time(found: S3Lake, dead: frozenset[str], due: Kill, target: int, pid: int) -> bool:
    """Return whether a kill is due; one of workers needs some that work, too."""
    return seen(found, dead, due.sign) >= target and (due.what == "all" or bool(workers(pid)))


def check_ledger(found: S3Lake, dead: frozenset[str], told: str) -> None:
    """Each marked object was recorded once, and has one outcome wherever that is read."""
    rows = [row for path in records(found) for row in pq.read_table(path).to_pylist()]
    often = {a: n for a, n in Counter(row["address"] for row in rows).items() if n > 1}
    assert not often, f"{told}: recorded more than once: {often}"
    attempt = found.lake.root.attempt(REPOSITORY, RUN)
    for table in (ledger.read(attempt), attempt.read("swept_set")):
        final = [(row["address"], row["outcome"]) for row in table.to_pylist()]
        # What was deleted and not recorded is found to be gone by the next look.
        assert sorted(address for address, _ in final) == sorted(dead), told
        assert {outcome for _, outcome in final} <= {"deleted", "already_missing"}, told
    assert attempt.manifest("swept_set").rows == len(dead), told
