"""Runs tasks as a cluster does: each attempt in a process of its own, which may be lost.

An attempt that was given up may live on, and go on deleting. Tasks that only read run in the
driver, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.engine.tasks import Tasks
from lakegc_assets_tests.simulation.current_world import world
from lakegc_assets_tests.simulation.scheduler import Actor, Process

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.world import World

#: How often a task is tried.
_TRIES: Final = 3
#: After how many seconds a driver gives an executor up.
_PATIENCE: Final = (15.0, 18.0, 100.0, 240.0)


class JobError(Exception):
    """What a cluster says when a task fails again and again."""


@dataclass
class _Attempt:
    """One attempt of a task."""

    actor: Actor
    answer: list[Any] = field(default_factory=list)
    error: Exception | None = None

    @property
    def over(self) -> bool:
        return self.actor.done or not self.actor.process.alive


class SimTasks(Tasks):
    """Runs tasks that delete as other actors, which are tried again; all others at once."""

    def run(
        self,
        what: str,
        task: Callable[[Any], Any],
        inputs: Sequence[Any],
        _seconds: float,
        _threads: int | None = None,
        *,
        in_processes: bool = False,  # noqa: ARG002 - each is an actor, in a process of its own or not
    ) -> list[Any]:
        """As ``Tasks.run``."""
        if what != "delete":
            return [task(one) for one in inputs]
        here = world()
        assert isinstance(task, partial)
        driver = here.scheduler.current
        assert driver is not None
        suspended = driver.process.thawed
        facts = {"orders": task.args[0], "run": driver.facts["run"], "suspended": suspended}
        attempts = [_start(here, task, one, number, facts) for number, one in enumerate(inputs)]
        return [_await(here, task, one, a, facts) for one, a in zip(inputs, attempts, strict=True)]


def _start(
    here: World, task: Callable[[Any], Any], one: Any, number: int, facts: dict[str, Any]
) -> _Attempt:
    serial = here.serial()
    driver = here.process
    # Half of them run beside their driver, the others on machines with clocks of their own.
    beside = number % 2 == 0
    name = f"task {number} ({serial[-2:]})"
    boot, ahead = (driver.boot, driver.ahead) if beside else (serial, 1000.0 * len(serial))

    def run() -> None:
        try:
            attempt.answer.append(task(one))
            here.oracle.ended_task(attempt.answer[0])
        except Exception as error:  # noqa: BLE001 - the driver raises it
            here.say(f"ends with {type(error).__name__}: {error}")
            attempt.error = error

    process = Process(name, boot, ahead)
    process.asked = {}
    actor = here.scheduler.spawn(name, process, run)
    actor.facts.update(facts)
    actor.near = True
    attempt = _Attempt(actor)
    return attempt


def _await(
    here: World, task: Callable[[Any], Any], one: Any, attempt: _Attempt, facts: dict[str, Any]
) -> Any:
    for tried in range(_TRIES):
        patience = float("inf")
        if "give up" in here.faulty and (given := here.choices.pick(len(_PATIENCE) + 1, 0.3)):
            patience = _PATIENCE[given - 1]
        waited = attempt
        here.scheduler.step("waits for its tasks")
        here.scheduler.sleep(patience, lambda waited=waited: waited.over)  # type: ignore[misc]
        if attempt.answer:
            return attempt.answer[0]
        if attempt.error is not None and tried == _TRIES - 1:
            raise attempt.error
        here.say(f"starts another attempt of {attempt.actor.name}")
        attempt = _start(here, task, one, tried + 1, facts)
    raise JobError("a task was lost again and again")
