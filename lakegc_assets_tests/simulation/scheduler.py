"""Actors that run one at a time under virtual time; before every call a choice says who goes on.

An actor is a greenlet, so that synchronous code needs no change. *Eager* actors run when their time
has come; *lazy* ones (writers, an operator) run only where a choice says so. A process is killed
without a word: no call of it has any effect from then on. One that is frozen goes on much later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from greenlet import greenlet

from lakegc_assets.run.clocks import SUSPENSION
from lakegc_assets_tests.simulation.choices import Choices

#: Virtual seconds of a call.
CALL_S: Final = 0.05
#: For how long a process may be frozen, or a call may be slow, in seconds.
PAUSES: Final = (20.0, 70.0, 130.0, 250.0, 700.0, 700.0)
_MOST_STEPS: Final = 6000
_NEVER: Final = float("inf")


class Killed(BaseException):
    """The process has ended: nothing that it does counts any more."""


class EndlessError(BaseException):
    """A run takes more steps than any should."""


class Process:
    """A process on a machine.

    Attributes:
        name: for people.
        boot: id of the machine since it was started.
        ahead: seconds by which its clock since boot is ahead of the virtual time.
        wall: seconds by which its wall clock is wrong.
        alive: whether it was not killed.
        frozen: until when it is suspended.
        thawed: when the last suspension ended that is long enough to be noticed.
        asked: when it asked for each object last, by key; None where nobody wants to know.
    """

    def __init__(self, name: str, boot: str, ahead: float) -> None:
        self.name, self.boot, self.ahead = name, boot, ahead
        self.wall = 0.0
        self.alive = True
        self.frozen = 0.0
        self.thawed = -_NEVER
        self.asked: dict[str, float] | None = None


class Actor:
    """Something that runs in a process.

    Attributes:
        name: for people.
        process: in which it runs.
        at: when it goes on.
        waits: for this to be true, or for ``at``; None if for time alone.
        facts: what the world and the oracle note about it.
        near: whether much may happen between its steps.
    """

    def __init__(
        self, name: str, process: Process, run: Callable[[], None], *, lazy: bool, order: int
    ) -> None:
        self.name, self.process, self.lazy, self.order = name, process, lazy, order
        self.greenlet = greenlet(run)
        self.at = 0.0
        self.waits: Callable[[], bool] | None = None
        self.done = False
        self.facts: dict[str, object] = {}
        self.near = False

    def due(self, now: float) -> float:
        """When it may go on."""
        at, frozen = self.at, self.process.frozen
        if at > now and self.waits is not None and self.waits():
            at = now
        # A call of max would take longer than all else here.
        return at if at > frozen else frozen  # noqa: FURB136


class Scheduler:
    """Runs actors.

    Args:
        choices: of the run.
        switch: how probable it is that another actor goes on at a step.
        fault: how probable a fault is.
        tell: is told of every step, for people and for the oracle.
    """

    def __init__(
        self, choices: Choices, switch: float, fault: float, tell: Callable[[str], None]
    ) -> None:
        self.choices, self.now, self.steps = choices, 0.0, 0
        self._chosen = choices.step
        self.odds = (switch, fault)
        #: Most of what is interesting happens from the first delta mark on.
        self.far = (switch / 8, fault / 4)
        self.tell = tell
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.failure: BaseException | None = None
        self._hub = greenlet(self._loop)
        self._next: Actor | None = None
        self._soonest = 0.0
        self._started = 0
        #: Whether an actor has ended, or its process was killed.
        self._ended = False
        #: Names of processes that were killed.
        self.killed: set[str] = set()

    def spawn(
        self, name: str, process: Process, run: Callable[[], None], *, lazy: bool = False
    ) -> Actor:
        """Let something run in a process."""

        def body() -> None:
            try:
                if process.alive:
                    run()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - whatever it is ends the run
                self.failure = error
            actor.done = True
            self._ended = True

        self._started += 1
        actor = Actor(name, process, body, lazy=lazy, order=self._started)
        actor.greenlet.parent = self._hub
        actor.at = self.now
        self.actors.append(actor)
        self._soonest = min(self._soonest, actor.at)
        return actor

    def spawn_person(self, name: str, run: Callable[[], None], *, lazy: bool = False) -> Actor:
        """Let somebody do something, whose process nothing befalls."""
        return self.spawn(name, Process(name, "people", 0.0), run, lazy=lazy)

    def call(
        self, name: str, process: Process, work: Callable[[], str], *, near: bool, **facts: object
    ) -> str | None:
        """Let something run in a process and wait for it; how it ended, or None if it was killed.

        Args:
            name: of its actor.
            process: a new one.
            work: returns how it ended.
            near: whether much may happen between its steps.
            facts: that the world and the oracle know about it.
        """
        ended: list[str] = []
        actor = self.spawn(name, process, lambda: ended.append(work()))
        actor.facts.update(facts)
        actor.near = near
        self.sleep(_NEVER, lambda: bool(ended) or not process.alive)
        return ended[0] if ended else None

    def run(self) -> None:
        """Run until no eager actor is left, then end the lazy ones."""
        self._hub.switch()
        if self.failure is not None:
            raise self.failure

    def step(self, what: str) -> int:
        """Before each call of an actor: others may go on; the number of a fault, or 0."""
        actor = self.current
        assert actor is not None
        if not actor.process.alive:
            raise Killed
        self.steps = steps = self.steps + 1
        self.now = now = self.now + CALL_S
        if steps > _MOST_STEPS:
            raise EndlessError(f"{what} after {steps} steps")
        switch, fault = self.odds if actor.near else self.far
        choice = self._chosen(what, switch, fault)
        if not choice:
            if self._soonest <= now:
                self._switch(actor)
            return 0
        if choice & 1:
            if others := self._others(actor, now):
                self._next = others[(choice >> 1) % len(others)]
                self._switch(actor)
            return 0
        return choice >> 1

    def sleep(self, seconds: float, waits: Callable[[], bool] | None = None) -> None:
        """Let time pass for the present actor, or until something holds."""
        actor = self.current
        assert actor is not None
        if not actor.process.alive:
            raise Killed
        actor.at = self.now + seconds
        actor.waits = waits
        self._leave(actor)
        actor.waits = None

    def freeze(self, process: Process, seconds: float) -> None:
        """Suspend a process; if it is the present actor's, that goes on only afterwards."""
        process.frozen = self.now + seconds
        if seconds > SUSPENSION:
            process.thawed = process.frozen
        self.meanwhile()
        actor = self.current
        if actor is not None and actor.process is process:
            self.sleep(0.0)

    def meanwhile(self) -> None:
        """Before a long pause: a lazy actor may go on in it, since nothing else may happen."""
        mine = self.current
        lazy = [a for a in self.actors if a.lazy and a is not mine and a.due(self.now) <= self.now]
        if lazy and (chosen := self.choices.pick(len(lazy) + 1, 0.6)):
            self._next = lazy[chosen - 1]

    def kill(self, process: Process) -> None:
        """End a process; if it is the present actor's, this does not return."""
        process.alive = False
        self.killed.add(process.name)
        self._ended = True
        if self.current is not None and self.current.process is process:
            raise Killed

    def _others(self, actor: Actor, now: float) -> list[Actor]:
        """Who else may go on now."""
        return [a for a in self.actors if a is not actor and a.due(now) <= now]

    def _switch(self, actor: Actor) -> None:
        actor.at = self.now
        self._leave(actor)

    def _leave(self, actor: Actor) -> None:
        """Let others go on until it is the turn of the present actor again.

        Most follow each other here; the loop has what ends, and what is to be unwound.
        """
        following, due = (None, _NEVER) if self._ended else self._choose()
        if following is None or due == _NEVER:
            self._hub.switch()
        else:
            self.now = max(self.now, due)
            self.current = following
            if following is not actor:
                following.greenlet.switch()
        if not actor.process.alive:
            raise Killed

    def _loop(self) -> None:
        while self.failure is None:
            self._bury()
            actor, due = self._choose()
            if actor is None:
                break
            if due == _NEVER:
                self.failure = EndlessError(f"all wait: {[a.name for a in self.actors]}")
                break
            self.now = max(self.now, due)
            self.current = actor
            actor.greenlet.switch()
            self.current = None
        self.end()

    def _choose(self) -> tuple[Actor | None, float]:
        """Who goes on, and when: who was chosen, or is first; notes when the next of the others."""
        now, soonest, chosen = self.now, _NEVER, self._next
        self._next = None
        first, at = chosen, chosen.due(now) if chosen else _NEVER
        for actor in self.actors:
            if actor.lazy or actor is chosen:
                continue
            due = actor.at
            if due > now:
                due = actor.due(now)
            elif due < actor.process.frozen:
                due = actor.process.frozen
            if chosen is None and (due < at or first is None):
                first, at, soonest = actor, due, at
            elif due < soonest:
                soonest = due
        self._soonest = soonest
        return first, at

    def _bury(self) -> None:
        """Unwind the actors of processes that were killed; nothing they do counts."""
        if not self._ended:
            return
        for actor in [a for a in self.actors if not a.process.alive and not a.done]:
            self.current = actor
            if actor.greenlet.dead or not actor.greenlet:
                actor.done = True
            else:
                actor.greenlet.throw(Killed)
            self.current = None
        self.actors = [a for a in self.actors if not a.done and a.process.alive]
        self._ended = False

    def end(self) -> None:
        """End all that is left."""
        for actor in self.actors:
            actor.process.alive = False
        self._ended = True
        self._bury()
