"""The guards of the mark, each with a way to switch it off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from lakegc_assets.mark import (
    candidates,
    commits,
    incremental_listing,
    listing,
    relations,
    report,
    uncommitted_snapshot,
)
from lakegc_assets.mark.listing import list_all, plan_listing
from lakegc_assets.mark.publication import begin, mark_folder
from lakegc_assets.run import artifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets_tests.mark import twins
from lakegc_assets_tests.simulation.current_world import world
from lakegc_assets_tests.simulation.mark_stages import Patch
from lakegc_assets_tests.simulation.twin_session import TwinFrame


def _listed_last(real: Callable[..., Any]) -> Callable[..., Any]:
    """``subtract_live`` from a listing made, with its cutoff, when all else has been read."""

    def subtracted(work: Any, attempt: Any, chain: Any) -> Any:
        ctx = work.ctx.connect()
        store = ctx.connections.store()
        now = store.server_time()
        found = list_all(ctx, attempt, plan_listing(ctx.connections), now)
        cutoff = ctx.settings.cutoff(now, ctx.client.grace_period())
        last = dataclasses.replace(chain["store_listing"], cutoff=cutoff, parts=found.parts)
        return real(work, attempt, {**chain, "store_listing": last})

    return subtracted


def _commits_first(real: Callable[..., Any]) -> Callable[..., Any]:
    """The lists of staged objects, after the commits have been read."""

    def prepare(ctx: Any) -> Any:
        actor = world().scheduler.current
        assert actor is not None
        if actor.name.startswith("marker"):
            actor.facts["liveness"] = _find_liveness(ctx, world().store_time())
        return real(ctx)

    return prepare


def _found_before(*args: Any, **more: Any) -> Any:
    actor = world().scheduler.current
    assert actor is not None
    return actor.facts.get("liveness") or _find_liveness(*args, **more)


_find_liveness: Final = commits.find_liveness


def _all_seen(unreferenced: Any, unresolved: Any, _seen: Any, *more: Any) -> Any:
    return TwinFrame(twins.judged(unreferenced, unresolved, [unreferenced], *more))


def _any_attempt(root: artifacts.ArtifactRoot, repository: str, run: str, _now: object) -> Any:
    """A new attempt of a mark, whether it is published or not."""
    attempt = f"again-{world().token_hex(4)}"
    root.open(repository, run).put(
        "attempt.json", b'{"attempt": "%s", "earlier": []}' % attempt.encode()
    )
    return artifacts.AttemptArtifacts(root, repository, run, attempt)


def _publish_again(real: Callable[..., bool]) -> Callable[..., bool]:
    """``begin`` for which there is no summary."""

    def begun(store: Any, summary: Any, publish: Any) -> bool:
        world().buckets["lake"].pop(f"repo/{mark_folder(summary.run_id)}summary.json", None)
        return real(store, summary, publish)

    return begun


def _nothing(*_args: object, **_how: object) -> None:
    pass


#: What switches each guard off, and the number of the theme of marks in which it counts.
MARK_GUARDS: Final[dict[str, tuple[tuple[Patch, ...], int]]] = {
    "listing first": (((candidates, "subtract_live", _listed_last(candidates.subtract_live)),), 5),
    "staged objects before commits": (
        (
            (
                uncommitted_snapshot,
                "prepare_uncommitted",
                _commits_first(uncommitted_snapshot.prepare_uncommitted),
            ),
            (commits, "find_liveness", _found_before),
        ),
        6,
    ),
    "age of candidates": (((Settings, "cutoff", lambda _self, start, _grace: start),), 2),
    "clocks that are compared": (
        ((RunContext, "check_clocks", lambda _run, _client, store: store.server_time()),),
        13,
    ),
    "two sightings of uploads in parts": (
        ((relations, "judged", _all_seen),),
        2,
    ),
    "frozen mark": (
        (
            (listing, "require_unused", _nothing),
            (artifacts.ArtifactRoot, "new_attempt", _any_attempt),
            (report, "begin", _publish_again(begin)),
        ),
        3,
    ),
    "margin of old slices": (
        ((listing, "settled_before", lambda _skew, _grace, start: start),),
        7,
    ),
    "fall-backs of optimized runs": (
        tuple(
            (incremental_listing, name, _nothing)
            for name in (
                "require_success",
                "require_same_rules",
                "require_no_restore",
                "require_folders",
                "require_not_restored",
            )
        ),
        4,
    ),
}
