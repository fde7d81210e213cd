"""The guards of the protocol, each with a way to switch it off, so that its loss can be found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from lakegc_assets.engine import datasets
from lakegc_assets.engine.session import Dataset
from lakegc_assets.mark import commits, committed_addresses, refs, uncommitted_snapshot
from lakegc_assets.mark.live_sets import CAME_BACK
from lakegc_assets.mark.references import References
from lakegc_assets.recovery import (
    backup_creation,
    backup_pruning,
    backups,
    old_trash,
)
from lakegc_assets.recovery.backups import Backup, State
from lakegc_assets.recovery.restore import restored_set
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.retention.union import UnitedActiveCommits, unite
from lakegc_assets.run import artifacts, pins
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.sweep import (
    batch_guard,
    deletion,
    delta,
    delta_extension,
    lease,
    rounds,
    store_comparison,
    sweep,
)
from lakegc_assets.sweep.backup_guard import BackupGuard
from lakegc_assets.sweep.batch_guard import Look, judge
from lakegc_assets.sweep.lease_record import lost, read_lease
from lakegc_assets.sweep.store_comparison import Compared
from lakegc_assets_tests.simulation import seams
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.current_world import world
from lakegc_assets_tests.simulation.interleaving import MORE, SHAPES, THEMES
from lakegc_assets_tests.simulation.mark_guards import MARK_GUARDS
from lakegc_assets_tests.simulation.mark_stages import READING
from lakegc_assets_tests.simulation.themes import MARK_THEMES
from lakegc_assets_tests.simulation.world import World

Patch = tuple[object, str, object]


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        patches: that switch it off.
        world: what is set in each world besides.
        theme: of the interleavings among which a loss is looked for; None for all.
    """

    patches: tuple[Patch, ...] = ()
    world: Mapping[str, Any] | None = None
    theme: int | None = None


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
        number = read_lease(store).round
    except Exception:  # noqa: BLE001 - the real one says what is wrong
        return lost(store, token, number, now)
    return lost(store, token, number, now)


def _settled_at_once(held: lease.Lease) -> lease.Lease:
    held.begin_round(0)
    return held


def _only_heads(*where: Any) -> dict[str, str]:
    """The list of lakeFS without what our own walk of the branches cannot know."""
    listed = _read_commits_csv(*where)
    heads = set(world().lake.branches.values())
    return {commit: metarange for commit, metarange in listed.items() if commit in heads}


_read_commits_csv: Final = refs.read_commits_csv


def _only_server(server: Any, own: Any, **more: Any) -> UnitedActiveCommits:
    united = unite(server, own, **more)
    listed = set(server)
    return replace(united, active={c: r for c, r in united.active.items() if c in listed})


def _last_try(real: Callable[..., None]) -> Callable[..., None]:
    """Keeps only the files of the last try of a snapshot."""

    def collect(links: Any, pages: Any, files: uncommitted_snapshot.UncommittedFiles) -> None:
        files.keys.clear()
        real(links, pages, files)

    return collect


def _uncounted(ctx: Any, attempt: Any, marked: Any, folder: str) -> Dataset:
    """What a mark names, whatever its manifest says."""
    with ctx.frames() as frames:
        found = frames.read(Dataset(attempt.url, marked.parts["data"], LISTING))
        parts = frames.write(found, attempt.url, folder, LISTING, "read")
        return Dataset(attempt.url, parts, LISTING)


def _unchecked(store: Any, part: Any) -> bytes:
    """``fetch_part`` that compares nothing with the manifest."""
    data: bytes = store.get(part.key)
    return data


def _uncompared(comparison: Any, batch: Any) -> list[Compared]:
    return [Compared(one, "same", comparison.clock()) for one in batch]


def _whenever_compared(real: Callable[..., Any]) -> Callable[..., Any]:
    """``checked_batch`` that takes what was compared at any time."""
    return lambda batch, _since, spared: real(batch, -_FOREVER, spared)


def _no_references(*_args: Any) -> References:
    return References()


def _any_server(*_args: Any) -> str:
    return ""


def _none_needed(space: Workspace, *_args: Any) -> Dataset:
    actor = world().scheduler.current
    assert actor is not None
    actor.facts["needed"] = world().oracle.now().step
    return space.dataset((), CAME_BACK)


def _by_manifest(store: Any) -> Any:
    """``backup_at`` that takes a manifest for a backup, whatever else is gone."""
    states: Sequence[tuple[str, State]] = (
        (backups.PRUNING, "being removed"),
        (backups.MANIFEST, "finished"),
    )
    for key, state in states:
        if (record := backups.read_record(store, key)) is not None:
            return Backup(store, record, state)
    begun = backups.read_record(store, backups.BEGIN)
    return begun and Backup(store, begun, "unfinished")


def _listed_once(client: Any, repository: str, known: Iterable[str] = ()) -> dict[str, str]:
    """``read_heads`` that takes the end of a list for the end of the branches."""
    heads = {branch.id: branch.commit_id for branch in client.branches(repository)}
    refs.require_gone("branch", repository, set(known) - heads.keys(), client.branch)
    return heads


_FOREVER: Final = 1e9
GUARDS: Final[dict[str, Guard]] = {
    "HEADs before a batch": Guard(((deletion, "judge", _blind(heads=True)),)),
    "rules before a batch": Guard(((deletion, "judge", _blind(rules=True)),)),
    "age of the delta mark": Guard(((batch_guard, "DELTA_LIFETIME", _FOREVER),), theme=2),
    "suspension of a process": Guard((), {"notices_suspensions": False}, theme=2),
    "lease in the task": Guard(((deletion, "judge", _blind(lease=True)),), theme=5),
    "fence of the round": Guard(((deletion, "lost", _unfenced),), theme=4),
    "hold": Guard(
        (
            (deletion, "judge", _blind(hold=True)),
            (rounds, "require_no_hold", lambda *_: None),
            (sweep, "require_no_hold", lambda *_: None),
        )
    ),
    "deadlines of requests": Guard(((deletion, "deadline_of", lambda *_: {}),), theme=3),
    "wait before the last look": Guard(((sweep, "settle", lambda *_: None),), theme=3),
    "no retries of the client": Guard((), {"retries_off": False}, theme=3),
    "conditional writes of the lease": Guard(
        ((lease, "require_conditional_puts", lambda *_: None),), {"conditions": False}, theme=1
    ),
    "lakeFS's own list of commits": Guard(
        (
            (commits, "read_commits_csv", _only_heads),
            (delta_extension, "read_commits_csv", _only_heads),
        ),
        theme=7,
    ),
    "our own walk of commits": Guard(((commits, "unite", _only_server),), theme=7),
    "diffs as second witness": Guard((), {"diff_witness": False}, theme=8),
    "union of the snapshot's tries": Guard(
        ((uncommitted_snapshot, "collect_files", _last_try(uncommitted_snapshot.collect_files)),),
        theme=8,
    ),
    "pins": Guard(((delta, "pinned", lambda _: pins.REASONS.empty_table()),), theme=10),
    "shadow rule": Guard((), {"shadow_rule": False}),
    "digests of the chain": Guard(
        (
            (datasets, "fetch_part", _unchecked),
            (sweep, "marked_in_order", _uncounted),
            (artifacts.AttemptArtifacts, "require_files", lambda *_: None),
        ),
        {"tampered": True},
    ),
    "gate of the backup": Guard(
        ((sweep, "spare_what_is_not_backed_up", lambda *_: BackupGuard("unchecked")),),
        theme=THEMES + len(MARK_THEMES),
    ),
    "pins before what comes back": Guard(
        ((restored_set, "pin_chosen", lambda *_: None),), theme=THEMES + len(MARK_THEMES)
    ),
    "comparison before a batch": Guard(
        ((store_comparison.Comparison, "compare", _uncompared),), theme=MORE + 3
    ),
    "age of the comparison": Guard(
        (
            (deletion, "COMPARISON_LIFETIME", _FOREVER),
            (deletion, "checked_batch", _whenever_compared(deletion.checked_batch)),
        ),
        theme=2,
    ),
    "branches behind the last": Guard(
        tuple(
            (module, "read_heads", _listed_once)
            for module in (uncommitted_snapshot, commits, batch_guard)
        ),
        theme=MORE + 8,
    ),
    "tags before a batch": Guard(((deletion, "judge", _blind(rules=True)),), theme=MORE),
    "references of other repositories": Guard(
        ((delta, "read_references", _no_references),), theme=MORE + 7
    ),
    "every range in the mode uncommitted": Guard(
        ((committed_addresses, "every_range", lambda _, rules: rules is None),), theme=THEMES + 8
    ),
    "references of other repositories, in a mark": Guard(
        ((committed_addresses, "read_references", _no_references),), theme=THEMES + 10
    ),
    "one server for a namespace": Guard(
        tuple((module, "require_one_server", _any_server) for module in (*READING, sweep)),
        theme=THEMES + 11,
    ),
    "look before trash goes": Guard(((old_trash, "needed_now", _none_needed),), theme=MORE + 6),
    "look before a backup goes": Guard(
        ((backup_pruning, "needed_now", _none_needed),), theme=MORE - 1
    ),
    "begin.json beside the manifest of a backup": Guard(
        tuple(
            (module, "backup_at", _by_manifest)
            for module in (backups, backup_creation, backup_pruning)
        ),
        theme=THEMES + len(MARK_THEMES) + 1,
    ),
    "lease of a prune": Guard((), {"alone": lambda *_: nullcontext()}, theme=MORE - 1),
    "lease check in the prune": Guard(((lease, "lost", lambda *_: ""),), theme=MORE - 1),
    "wait behind who is gone": Guard(
        ((lease, "wait_for_requests", lambda held, *_: _settled_at_once(held)),), theme=MORE + 9
    ),
    **{
        name: Guard(patches, theme=THEMES + theme) for name, (patches, theme) in MARK_GUARDS.items()
    },
}


def choices_of(seed: int, guard: str | None = None, script: Sequence[int] = ()) -> Choices:
    """The choices of a seed, with the theme in which a guard counts where one is off."""
    theme = None if guard is None else GUARDS[guard].theme
    if theme is not None:
        script = (seed % len(SHAPES), theme)
    return Choices(seed, script)


@contextmanager
def without(name: str | None) -> Iterator[None]:
    """Stand on simulated worlds, with a guard switched off; None for none."""
    guard = Guard() if name is None else GUARDS[name]
    with seams.installed(), ExitStack() as stack:
        for patch in guard.patches:
            stack.enter_context(mock.patch.object(*patch))
        for one in (guard.world or {}).items():
            stack.enter_context(mock.patch.object(World, *one))
        yield
