"""The scale that garbage collection in lakeFS was designed for, on stores at their own limit.

20 M listed keys in 2,000 slices, 50 M entries in 1,000 ranges, 30,000 commits on 1,000 branches, 5
M staged objects, 1 M deletes. lakeFS and the store are one process with prepared answers
(``_rest``, ``_store``), so that the figures are those of the collector. It measures a clean mark
and a sweep. Then a hundredth of the objects and commits is new, and it measures an optimized run.
Each is compared with its floor. Prepared files are kept in a folder for the next time.

    python -m bench.seed_scale --objects 20000000 --ranges 1000 --commits 30000 --branches 1000
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from bench._collector import Collector
from bench._floors import bare_deletes, beside, floors
from bench._http import Served, Service, running
from bench._memory import watched
from bench._pages import NAMESPACE
from bench._rest import Refs, Rest
from bench._run import CORES, timed, use_simulated
from bench._seed import Kept, Seed, make
from bench._store import Store
from bench.active_commits import NOW, history
from lakegc_assets.embedded.lake.catalog import Commit
from lakegc_assets.engine.choice import ENGINE_SETTINGS
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.rules import Rules

_REPOSITORY = "bench"
_DAY = 86_400
_RULES = Rules(30, {f"b{n:05}": 7 for n in range(20)})
#: Age in days of expired commits, which may hold garbage if they are no HEADs.
_OLD_DAYS = 60
_HOLDERS = 200
#: Message to the servers that a hundredth is new.
_LATER = "later"
#: Number of metaranges that one task writes.
_CHUNK = 500


@dataclass(frozen=True)
class _Simulated:
    """lakeFS and the store of a seed; called in their process.

    Attributes:
        kept: files of the seed.
        trees: metarange of each commit, the new ones last.
    """

    kept: Kept
    trees: Sequence[str]

    def __call__(self) -> Service:
        """Answer with the first history, until a message."""
        seed = self.kept.seed
        store = Store(seed.pages(later=False), self.kept.folder)
        files = self.kept.staged_files()
        for file in files:
            folder = f"{NAMESPACE}/_lakefs/retention/gc/uncommitted/staged/uncommitted"
            store.put(f"{folder}/{file.name}", file)
        first, second = _histories(seed, self.trees)
        each = seed.count("staged") // seed.branches
        branches = {name: number * each for number, name in enumerate(sorted(first.heads))}
        paths = [f"staged/{n:07d}" for n in range(each)]

        def served(branch: str, after: str, most: int) -> list[tuple[str, str, int, str]]:
            begin = bisect_right(paths, after)
            some = paths[begin : begin + most]
            n = branches[branch] + np.arange(begin, begin + len(some))
            return list(
                zip(
                    some,
                    seed.addresses("staged", n),
                    seed.sizes("staged", n).tolist(),
                    seed.etags("staged", n),
                    strict=True,
                )
            )

        # Sizes are those of one branch: they only select the paths that may be those of candidates.
        diff = [
            json.dumps({"path": path, "path_type": "object", "type": "added", "size_bytes": size})
            for path, _, size, _ in served("main", "", each)
        ]
        rest = Rest(_REPOSITORY, store, diff, len(files), served)
        rest.show(first)

        def told(message: str) -> dict[str, int]:
            if message == _LATER:
                store.pages = seed.pages(later=True)
                rest.show(second)
            counts = dict(store.asked + rest.asked)
            store.asked.clear()
            rest.asked.clear()
            return counts

        return Service([store.answer, rest.answer], told)


def _histories(seed: Seed, trees: Sequence[str]) -> tuple[Refs, Refs]:
    """The first history, and the one with a new hundredth."""
    planned, heads = history(seed.commits, seed.branches)
    later = int(time.time() - NOW.timestamp())
    made: dict[str, Commit] = {}

    def commit(parents: Sequence[Commit], date: int) -> Commit:
        return Commit.new(
            committer="bench", message="m", metarange_id=trees[len(made)],
            creation_date=date, metadata={}, parents=tuple(parents),
        )  # fmt: skip

    for name, plan in planned.items():
        made[name] = commit([made[parent] for parent in plan.parents], plan.creation_date + later)
    first = Refs(
        {c.id: c for c in made.values()}, {b: made[c].id for b, c in heads.items()}, _RULES
    )
    commits, moved = dict(first.commits), dict(first.heads)
    busy = sorted(heads)[-max(1, seed.branches // 100) :]
    for number in range(seed.new_commits):
        branch = busy[number % len(busy)]
        new = commit([commits[moved[branch]]], int(time.time()) - 7200 + number)
        made[new.id] = commits[new.id] = new
        moved[branch] = new.id
    return first, Refs(commits, moved, _RULES)


def _make_trees(kept: Kept) -> list[str]:
    """Write metaranges of all commits; those of active HEADs hold every range, so all are read."""
    seed = kept.seed
    known = kept.folder / f"trees-{seed.commits}-{seed.branches}.json"
    if not known.exists():
        planned, heads = history(seed.commits, seed.branches)
        numbers = {name: number for number, name in enumerate(planned)}
        whole = {numbers[heads[name]]: n for n, name in enumerate(sorted(heads)[:4])}
        expired = active_commits(planned, heads, _RULES, NOW).expired
        old = NOW.timestamp() - _OLD_DAYS * _DAY
        holders = [numbers[c] for c in expired if planned[c].creation_date < old]
        task = partial(_write_trees, kept, whole, frozenset(sorted(holders)[:_HOLDERS]))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(CORES, context) as pool:
            count = seed.commits + seed.new_commits
            spans = [(n, min(n + _CHUNK, count)) for n in range(0, count, _CHUNK)]
            trees = [tree for some in pool.map(task, spans) for tree in some]
        known.write_text(json.dumps(trees))
    found: list[str] = json.loads(known.read_text())
    return found


def _write_trees(
    kept: Kept, whole: Mapping[int, int], holders: frozenset[int], span: tuple[int, int]
) -> list[str]:
    """Write metaranges of some commits: a few old ones hold garbage, the last ones new objects."""
    trees: list[str] = []
    for number in range(*span):
        more = kept.garbage if number in holders else ()
        if number >= kept.seed.commits:
            more = kept.new
        windows = kept.seed.tree(whole.get(number, random.Random(number)))
        trees.append(kept.write_tree(windows, more))
    return trees


def _measure(folder: Path, kept: Kept, served: Served, engine: str, limit: int | None) -> None:
    use_simulated(served.ports)
    # The store accepts every request.
    collector = Collector.new(
        folder,
        _REPOSITORY,
        sweep_keys_per_second=1e9,
        sweep_requests_per_second=1e9,
        engine=engine,
        embedded_memory=limit,
    )
    garbage = kept.seed.garbage(later=False)
    with floors() as bare:
        with watched() as memory:
            cold, cold_s = collector.mark("clean")
            cold.candidates(garbage)
        memory.show()
        _requests(served)
        beside("clean mark", cold_s, bare.mark(cold.ctx))
        with watched() as memory:
            sweep_s = cold.sweep()
        memory.show()
        _requests(served)
        beside(
            "sweep",
            sweep_s,
            bare_deletes(os.environ["AWS_ENDPOINT_URL"], [f"floor/{n:09}" for n in range(garbage)]),
        )
        served.tell(_LATER)
        with watched() as memory:
            warm, warm_s = collector.mark("optimized")
            warm.candidates(kept.seed.garbage(later=True))
        memory.show()
        _requests(served)
        beside("optimized mark", warm_s, bare.mark(warm.ctx))
        warm.sweep()
    print(f"the servers used {served.cpu_seconds:.0f} CPU seconds in all")
    collector.session.stop()


def _requests(served: Served) -> None:
    """Print the requests to the servers since the last call."""
    counts = sorted(served.tell("requests").items())
    print("requests: " + ", ".join(f"{kind} {count:,}" for kind, count in counts), flush=True)


@click.command()
@click.option("--objects", default=100_000, show_default=True, help="In steps of 100,000.")
@click.option("--ranges", default=8, show_default=True, help="In steps of 4.")
@click.option("--commits", default=300, show_default=True)
@click.option("--branches", default=20, show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for what is made once.")
@click.option(
    "--alike/--not-alike",
    default=True,
    show_default=True,
    help="Whether a few dead objects are as large as live ones, so that lakeFS is asked for them.",
)
@click.option("--engine", type=click.Choice(ENGINE_SETTINGS), default="auto", show_default=True)
@click.option("--memory", type=int, help="MB for DuckDB; else as the product chooses.")
def main(
    objects: int,
    ranges: int,
    commits: int,
    branches: int,
    cache: Path | None,
    engine: str,
    memory: int | None,
    *,
    alike: bool,
) -> None:
    """Make missing files, mark, sweep, mark again."""
    seed = Seed(objects, ranges, commits, branches, alike)
    with TemporaryDirectory() as name:
        folder = Path(name)
        kept: list[Kept] = []
        trees: list[str] = []
        timed("make ranges", lambda: kept.append(make(seed, cache or folder / "cache")))
        timed("make metaranges", lambda: trees.extend(_make_trees(kept[0])))
        with running(_Simulated(kept[0], trees)) as served:
            _measure(folder, kept[0], served, engine, memory)


if __name__ == "__main__":
    main()
