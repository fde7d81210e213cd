"""The guards of the protocol, each with a way to switch it off, so that its loss can be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from lakegc_assets.retention.united import UnitedActiveCommits, unite
from lakegc_assets.run import artifacts
from lakegc_assets.sweep import deletion, lease, look, rounds, sweep
from lakegc_assets.sweep.hold import read_hold
from lakegc_assets.sweep.lease import LeaseRecord, lost
from lakegc_assets.sweep.look import Look, judge
from lakegc_assets_tests.simulation.world import World

Patch = tuple[object, str, object]


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        what: it does, in a few words.
        patches: that switch it off.
        world: what is set in each world besides.
    """

    what: str
    patches: tuple[Patch, ...] = ()
    world: Mapping[str, Any] | None = None


def _blind(**ignored: bool) -> Callable[..., Any]:
    """``judge`` that does not look at HEADs, rules, the lease or the hold."""

    def judged(seen: Look, delta: Any, taken: Any) -> Any:
        if ignored.get("heads"):
            seen = replace(seen, seen=seen.seen._replace(heads=delta.heads))
        if ignored.get("rules"):
            seen = replace(seen, seen=seen.seen._replace(rules=delta.rules))
        if ignored.get("lease"):
            seen = replace(seen, lost="")
        if ignored.get("hold"):
            seen = replace(seen, held=False)
        return judge(seen, delta, taken)

    return judged


def _unfenced(store: Any, token: str, number: int, now: Any) -> str:
    try:
        number = lease.read_lease(store).round
    except Exception:  # noqa: BLE001 - the real one says what is wrong
        return lost(store, token, number, now)
    return lost(store, token, number, now)


def _only_own(server: Any, own: Any, **more: Any) -> UnitedActiveCommits:
    return unite((), own, **more)


def _only_server(server: Any, own: Any, **more: Any) -> UnitedActiveCommits:
    united = unite(server, own, **more)
    listed = set(server)
    return replace(united, active={c: r for c, r in united.active.items() if c in listed})


_FOREVER: Final = 1e9
GUARDS: Final[dict[str, Guard]] = {
    "HEADs before a batch": Guard("", ((deletion, "judge", _blind(heads=True)),)),
    "rules before a batch": Guard("", ((deletion, "judge", _blind(rules=True)),)),
    "age of the delta mark": Guard("", ((look, "DELTA_LIFETIME", _FOREVER),)),
    "lease in the task": Guard("", ((deletion, "judge", _blind(lease=True)),)),
    "fence of the round": Guard("", ((deletion, "lost", _unfenced),)),
    "hold": Guard(
        "",
        (
            (deletion, "judge", _blind(hold=True)),
            (rounds, "require_no_hold", lambda _: None),
            (sweep, "require_no_hold", lambda _: None),
        ),
    ),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Switch a guard off."""
    guard = GUARDS[name]
    patches = [mock.patch.object(*patch) for patch in guard.patches]
    for name, value in (guard.world or {}).items():
        patches.append(mock.patch.object(World, name, value))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


__all__ = ["GUARDS", "Guard", "LeaseRecord", "artifacts", "read_hold", "without"]
