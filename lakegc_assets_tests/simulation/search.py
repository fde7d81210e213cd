"""Runs many interleavings on all cores, and says what they covered and what they found."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.guards import choices_of, without
from lakegc_assets_tests.simulation.interleaving import interleave
from lakegc_assets_tests.simulation.minimal import minimal
from lakegc_assets_tests.simulation.world import Result

#: Schedules that came close, of which some are changed a little and run again.
_CLOSE: Final = 200
_MUTATED: Final = 0.2
#: After so many new objects some of them are looked at again: those of a few interleavings.
_OBJECTS: Final = 50_000


@dataclass
class Report:
    """What some interleavings did.

    Attributes:
        interleavings: how many there were.
        steps: of all of them.
        finished: sweeps that ended well.
        window: live objects that were deleted inside the window, and reported.
        close: interleavings in which a check stopped a batch that held something live.
        covered: how often which fault met which call, and which change was made.
        failures: seed, choices and what was broken.
    """

    interleavings: int = 0
    steps: int = 0
    finished: int = 0
    window: int = 0
    close: int = 0
    covered: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[str, Sequence[int], str]] = field(default_factory=list)

    def add(self, seed: str, ended: Result) -> None:
        """Take one interleaving."""
        oracle, steps = ended.world.oracle, ended.world.scheduler.steps
        met = len(oracle.finished), len(oracle.window), int(bool(oracle.close))
        failures = [(seed, ended.choices, ended.failure)] if ended.failure else []
        self.merge(Report(1, steps, *met, ended.world.covered, failures))

    def merge(self, other: Report) -> None:
        """Take those of another process."""
        self.interleavings += other.interleavings
        self.steps += other.steps
        self.finished += other.finished
        self.window += other.window
        self.close += other.close
        self.covered.update(other.covered)
        self.failures += other.failures


def collect_little() -> None:
    """Look for what nobody uses among what interleavings leave, not in all that was imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])


def search(first: int, runs: int, guard: str | None = None) -> Report:
    """Run interleavings in this process from a first seed on, until one fails."""
    report = Report()
    close: list[Sequence[int]] = []
    with without(guard):
        for seed in range(first, first + runs):
            script = _mutated(close, random.Random(f"mutate {seed}")) if close else []
            ended = interleave(choices_of(seed, guard, script))
            report.add(str(seed), ended)
            if ended.world.oracle.close:
                close = [*close[-_CLOSE:], ended.choices]
            if ended.failure:
                break
            ended.world.forget()
    return report


def _mutated(close: Sequence[Sequence[int]], drawn: random.Random) -> list[int]:
    """A schedule that came close, with some choices changed, or ended early; mostly none."""
    if drawn.random() >= _MUTATED:
        return []
    script = list(drawn.choice(close))
    for _ in range(drawn.randrange(1, 4)):
        at = drawn.randrange(len(script))
        script[at] = 0 if script[at] else drawn.randrange(64)
    return script[: drawn.randrange(len(script) // 2, len(script))]


def search_everywhere(first: int, runs: int, tell: Callable[[str], None]) -> Report:
    """Run interleavings on all cores."""
    cores = os.cpu_count() or 1
    chunk = max(1, min(max(500, runs // 500), -(-runs // cores)))
    chunks = [(at, min(chunk, first + runs - at)) for at in range(first, first + runs, chunk)]
    report = Report()
    with multiprocessing.get_context("spawn").Pool(cores, collect_little) as pool:
        for one in pool.imap_unordered(_search, chunks):
            report.merge(one)
            if report.failures:
                break
            tell(f"{report.interleavings} of {runs}")
    return report


def _search(chunk: tuple[int, int]) -> Report:
    return search(*chunk)


def smallest(choices: Sequence[int], guard: str | None = None, most: int = 400) -> list[int]:
    """The minimal schedule that breaks the same kind of promise."""
    with without(guard):
        what = _kind(interleave(Choices(None, choices)).failure)

        def fails(some: Sequence[int]) -> bool:
            return _kind(interleave(Choices(None, some)).failure) == what

        return minimal(choices, fails, most)


def _kind(failure: str | None) -> str:
    return (failure or "").partition(" is ")[2][:25] or (failure or "")[:25]


def in_words(choices: Choices, guard: str | None = None, *, calls: bool = False) -> list[str]:
    """What happens in an interleaving, a line for each step; without the calls that only ask."""
    lines: list[str] = []
    with without(guard):
        ended = interleave(choices, lines.append)
    shown = [line for line in lines if calls or "> " not in line[33:37]]
    return [*shown, ended.failure or "nothing was lost, and no promise broken"]
