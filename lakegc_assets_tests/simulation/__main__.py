"""``python -m lakegc_assets_tests.simulation SEED`` replays one interleaving, step by step.

``--runs N`` runs N interleavings from that seed on, on all cores; ``--without GUARD`` switches a
guard off, and without a seed replays the schedule that is recorded for it; ``--minimal`` makes the
schedule of a seed that fails minimal, and tells it in words; ``--explore DEPTH`` runs every
interleaving of a small world with so many changes at most; ``--record`` finds the schedules anew
that are recorded for the guards.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from functools import partial

from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.explore import explore
from lakegc_assets_tests.simulation.guards import GUARDS, choices_of, without
from lakegc_assets_tests.simulation.recorded_schedules import (
    read_schedules,
    record,
    write_schedules,
)
from lakegc_assets_tests.simulation.reliability import write_table
from lakegc_assets_tests.simulation.search import (
    Report,
    collect_little,
    in_words,
    search,
    search_everywhere,
    smallest,
)

#: Interleavings that are run for a guard at most.
_MOST = 4000


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _summary(report: Report, seconds: float, guard: str | None) -> None:
    for (what, where), count in sorted(report.covered.items()):
        _say(f"{count:9d}  {what}: {where}")
    _say(
        f"{report.steps} steps; "
        f"{report.finished} sweeps ended well; {report.window} objects were lost inside the window "
        f"and reported; in {report.close} a check stopped what would have been a loss"
    )
    for seed, choices, failure in report.failures:
        _say(f"seed {seed}: {failure}")
        for line in in_words(Choices(None, smallest(choices, guard)), guard):
            _say(f"  {line}")
    _say(f"{report.interleavings} interleavings, {seconds:.0f} s")


def _record(guards: list[str], most: int) -> int:
    """Find schedules for guards anew; those of others stay."""
    found = read_schedules()
    with multiprocessing.get_context("spawn").Pool(None, collect_little) as pool:
        for guard, recorded in zip(
            guards, pool.imap(partial(record, found, most), guards), strict=True
        ):
            found[guard] = recorded
            _say(f"{guard}: {recorded}")
            write_schedules(found)
    return 0


def _explore(depth: int) -> int:
    """Run every interleaving of a small world."""
    with without(None):
        explored = explore(depth)
    for plan, broken in explored.failures:
        _say(f"{'; '.join(map(str, plan))}: {broken}")
    _say(f"{explored.interleavings} interleavings, {explored.same} of them led to what was known")
    return 1 if explored.failures else 0


def _replay(seed: int, asked: argparse.Namespace) -> int:
    """Tell one interleaving in words: of a seed, or the one that is recorded for a guard."""
    guard, choices = asked.without, choices_of(seed, asked.without)
    if asked.seed is None and guard is not None:
        choices = read_schedules()[guard].choices()
    elif asked.minimal:
        made = search(seed, 1, guard).failures
        if not made:
            _say(f"seed {seed} loses nothing")
            return 1
        fewest = smallest(made[0][1], guard)
        _say(f"the minimal schedule of seed {seed}: {fewest}")
        choices = Choices(None, fewest)
    for line in in_words(choices, guard, calls=not asked.minimal):
        _say(line)
    return 0


def main(arguments: list[str]) -> int:
    """Replay, or search."""
    parser = argparse.ArgumentParser(prog="python -m lakegc_assets_tests.simulation")
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--without", choices=sorted(GUARDS))
    parser.add_argument("--minimal", action="store_true")
    parser.add_argument("--table", action="store_true", help="write docs/reliability.md")
    parser.add_argument("--explore", type=int, metavar="DEPTH")
    parser.add_argument("--record", action="store_true", help="find the recorded schedules anew")
    asked = parser.parse_args(arguments)
    if asked.record:
        return _record([asked.without] if asked.without else list(GUARDS), asked.runs or _MOST)
    if asked.explore is not None:
        return _explore(asked.explore)
    seed = int(time.time()) * 1000 if asked.seed is None else asked.seed
    begun = time.monotonic()
    if asked.runs:
        if asked.without:
            collect_little()
            report = search(seed, asked.runs, asked.without)
        else:
            report = search_everywhere(seed, asked.runs, _say)
        _summary(report, time.monotonic() - begun, asked.without)
        if asked.table and not report.failures:
            write_table(report)
        return 1 if report.failures else 0
    return _replay(seed, asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
