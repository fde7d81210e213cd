"""Schedules that are recorded: for each guard one that breaks a promise without it.

``python -m lakegc_assets_tests.simulation --record`` finds them anew, where the code takes other
steps than it did, and writes the table of docs/safety.md. A schedule that still breaks its promise
when some of its choices come a few calls later is moved along; it keeps its seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations_with_replacement, islice, product
from pathlib import Path
from typing import Final

from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.guards import GUARDS, without
from lakegc_assets_tests.simulation.interleaving import interleave
from lakegc_assets_tests.simulation.search import in_words, search, smallest

_FILE: Final = Path(__file__).with_name("recorded_schedules.json")
_PAGE: Final = Path(__file__).parents[2] / "docs" / "safety.md"
_BEGIN: Final = "<!-- guards: begin -->"
_END: Final = "<!-- guards: end -->"
_CHUNK: Final = 200
#: How many more calls or fewer a schedule is tried with, and in how many ways.
_MORE: Final = 24
_MOVES: Final = 6000
#: So many choices are about the world, before anything is called.
_BEGUN: Final = 12


@dataclass(frozen=True)
class RecordedSchedule:
    """What was found without a guard.

    Attributes:
        seed: of the first interleaving that broke a promise; None if none did. Where there is a
            schedule all the same, it was put together by hand.
        runs: how many were run.
        broken: which promise.
        schedule: the choices of the minimal schedule that are not 0, by their place.
    """

    seed: int | None
    runs: int
    broken: str = ""
    schedule: dict[int, int] | None = None

    def choices(self) -> Choices:
        """Those of the schedule."""
        schedule = self.schedule or {}
        length = max(schedule, default=-1) + 1
        return Choices(None, [schedule.get(place, 0) for place in range(length)])


def read_schedules() -> dict[str, RecordedSchedule]:
    """What is recorded, by guard."""
    found: dict[str, RecordedSchedule] = {}
    for guard, one in json.loads(_FILE.read_text()).items():
        schedule = {int(place): choice for place, choice in (one["schedule"] or {}).items()}
        found[guard] = RecordedSchedule(**one | {"schedule": schedule})
    return found


def record(found: Mapping[str, RecordedSchedule], most: int, guard: str) -> RecordedSchedule:
    """Find a schedule that breaks a promise without a guard, and make it minimal.

    ``found``: what is recorded, by guard. ``most``: interleavings that are run.
    """
    if (moved := _shifted(guard, found.get(guard))) is not None:
        return moved
    for at in range(0, most, _CHUNK):
        report = search(at, min(_CHUNK, most - at), guard)
        for seed, choices, failure in report.failures:
            fewest = smallest(choices, guard)
            told = in_words(Choices(None, fewest), guard)[-1]
            schedule = {place: choice for place, choice in enumerate(fewest) if choice}
            assert failure
            return RecordedSchedule(int(seed), at + report.interleavings, told, schedule)
    return RecordedSchedule(None, most)


def _shifted(guard: str, known: RecordedSchedule | None) -> RecordedSchedule | None:
    """The recorded schedule of a guard, where it fails, if need be some calls earlier or later."""
    if known is None or not known.schedule:
        return None
    schedule = known.schedule
    with without(guard):
        for moved in islice(_moved(schedule), _MOVES):
            recorded = replace(known, schedule=moved)
            if failure := interleave(recorded.choices()).failure:
                return replace(recorded, broken=failure)
    return None


def _moved(schedule: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """A schedule with more calls in it, or fewer, at one place and at two; those before any stay.

    The least is tried first.
    """
    head = {place: choice for place, choice in schedule.items() if place < _BEGUN}
    body = sorted(schedule.keys() - head.keys())
    by = range(-_MORE, _MORE + 1)
    moves = sorted(product(by, by), key=lambda two: (abs(two[0]) + abs(two[1]), two))
    for (one, two), (first, second) in product(moves, combinations_with_replacement(body, 2)):
        if two or first == second:
            yield head | {
                place + one * (place >= first) + two * (place >= second): schedule[place]
                for place in body
            }


def write_schedules(found: dict[str, RecordedSchedule]) -> None:
    """Keep what was found, and write the table."""
    recorded = {guard: asdict(found[guard]) for guard in GUARDS if guard in found}
    _FILE.write_text(json.dumps(recorded, indent=1) + "\n")
    text = _PAGE.read_text()
    table = f"{_BEGIN}\n{_table(found)}\n{_END}"
    _PAGE.write_text(re.sub(f"{_BEGIN}.*{_END}", lambda _: table, text, flags=re.DOTALL))


def _table(found: dict[str, RecordedSchedule]) -> str:
    rows = [
        f"| {guard} | {_told(found[guard])} | {_place(found[guard])} |"
        for guard in GUARDS
        if guard in found
    ]
    head = ["| without | what goes wrong first | seed, of so many runs |", "|---|---|---|"]
    return "\n".join([*head, *rows])


def _told(one: RecordedSchedule) -> str:
    """What was broken, without the numbers of steps, which say nothing alone."""
    told = one.broken.partition(": ")[2]
    if told.startswith("mark ") and "outcomes" in told:
        return "an object that the mark does not name is swept"
    told = re.sub(r"data/[^\s,]+", "an object", told)
    told = re.sub(r"(the )?mark 'mark-\d'", "the mark", told).replace(", after", " after")
    told = re.sub(r", since step \d+; .*\)$", ")", told)
    told = re.sub(r" at step \d+| since step \d+|: its last look began.*", "", told)
    return told or "nothing was found to go wrong"


def _place(one: RecordedSchedule) -> str:
    if one.seed is None:
        return f"{'by hand' if one.schedule else 'none'}, {one.runs}"
    return f"{one.seed}, {one.runs}"
