"""A scheduler for what happens during a collection: at a stage of the graph, or at a request in it.

Nothing is left to chance: stages announce themselves, and every request of the collector is held
by the server until what was placed there has happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lakegc_assets.sweep import rounds

SWEEP = "sweep"
EVALUATE = "sweep: checks"
DELETE = "sweep: deletes"


@dataclass(frozen=True)
class Position:
    """A moment of a collection.

    Attributes:
        name: in words.
        stage: a function of the mark, or one of the sweep's parts; the moment is just before it.
        request: or just before a request in it is answered: method and path match this.
        number: which of these, from 1.
        after: a request that must have come before; those before it do not count.
        refuses: whether the mark is refused when an object of a HEAD comes to life there: what it
            has read of the HEADs is older, and its checks read them again.
    """

    name: str
    stage: str
    request: str = ""
    number: int = 1
    after: str = ""
    refuses: bool = False


_PAGE = "POST .*/gc/prepare_uncommited"
_COMMITS = "POST .*/gc/prepare_commits(/async)?"

#: In the order in which they come.
POSITIONS = (
    Position("before store_listing", "list_store"),
    Position("before uncommitted_snapshot", "snapshot_uncommitted"),
    Position("HEADs read, before the first staged page", "snapshot_uncommitted", _PAGE),
    Position("between two staged pages", "snapshot_uncommitted", _PAGE, 2),
    Position("all staged pages made", "snapshot_uncommitted", "GET .*/repositories/repo", 1, _PAGE),
    Position("before active_commits", "find_active_commits"),
    Position("HEADs read, before prepare_commits", "find_active_commits", _COMMITS),
    Position(
        "prepare_commits done, HEADs not read again",
        "find_active_commits",
        "GET .*/branches",
        after=_COMMITS,
    ),
    Position(
        "HEADs read again, before the logs", "find_active_commits", "GET .*/tags", refuses=True
    ),
    Position("before committed_addresses", "read_committed_addresses", refuses=True),
    Position("before deletion_candidates", "find_candidates", refuses=True),
    Position(
        "before lakeFS is asked what it serves",
        "find_candidates",
        "GET .*/objects/ls",
        refuses=True,
    ),
    Position("before the checks", "check_candidates", refuses=True),
    Position("before gc_report", "report"),
    Position("before the sweep", SWEEP),
    Position("delta mark: between two staged pages", SWEEP, _PAGE, 2),
    Position("delta mark: HEADs read, before prepare_commits", SWEEP, _COMMITS),
    Position("between the delta mark and the sweep's checks", EVALUATE),
    Position("between the sweep's checks and the deletes", DELETE),
)


@dataclass
class Event:
    """Something that happens once, at one position of a collection."""

    position: Position
    act: Callable[[], None]
    happened: bool = False
    armed: bool = False
    seen: int = 0


class Schedule:
    """Lets things happen at positions of a collection, each once.

    Args:
        events: what happens where.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self._stage = ""
        self._acting = False

    def enter(self, stage: str) -> None:
        """A stage begins."""
        self._stage = stage
        for event in self.events:
            event.seen, event.armed = 0, not event.position.after
            if stage == event.position.stage and not event.position.request:
                self._let(event)

    def see(self, method: str, path: str) -> None:
        """A request has come, and is not answered yet."""
        if self._acting:
            return
        request = f"{method} {path}"
        for event in self.events:
            where = event.position
            if event.happened or not where.request or where.stage != self._stage:
                continue
            if not event.armed:
                event.armed = re.fullmatch(where.after, request) is not None
            elif re.fullmatch(where.request, request):
                event.seen += 1
                if event.seen == where.number:
                    self._let(event)

    def watch_sweep(self, patch: pytest.MonkeyPatch) -> None:
        """Let the parts of the sweep announce themselves."""
        for stage, name in ((EVALUATE, "evaluate"), (DELETE, "delete")):
            patch.setattr(rounds, name, self._announced(stage, getattr(rounds, name)))

    def _announced(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*args: Any) -> Any:
            self.enter(stage)
            found = function(*args)
            self.enter(SWEEP + ", going on")
            return found

        return announced

    def _let(self, event: Event) -> None:
        if event.happened:
            return
        self._acting = True
        event.act()
        self._acting, event.happened = False, True
