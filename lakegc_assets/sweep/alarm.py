"""After a sweep: put back objects that are gone and needed, else raise an alarm with a hold."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_part, read_parts, write_part
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.mark.commits import Liveness
from lakegc_assets.mark.explanation import staging_areas
from lakegc_assets.mark.holders import paths_in, ranges_naming
from lakegc_assets.mark.live_sets import CAME_BACK
from lakegc_assets.mark.marked_objects import Stretch, stretches
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.recovery.undeletion import bring_back
from lakegc_assets.run import strings
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.delta import DeltaMark, DeltaMarks
from lakegc_assets.sweep.hold import (
    HOLD,
    add_alarm,
    look_first,
    object_lines,
    restore_command,
    without_accepted,
)
from lakegc_assets.sweep.ledger import PUT_BACK, Outcome
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets.sweep.lost_objects import as_lost, copies_of, find_lost
from lakegc_assets.wording import counted

_BATCH: Final = 1000
#: Seconds of one core to look an object up.
_LOOKUP_S: Final = 0.003
#: Least number of lookups of a task.
_EACH: Final = 1000
_THREADS: Final = 16
#: Number of objects that an alarm names, and number in the message of its error.
_NAMED: Final = 100
_SHOWN: Final = 20
_OBSTACLES: Final = 3
#: Folder of the objects that an alarm found missing, below the folder of a sweep.
MISSING: Final = "after/missing/"
_NOTHING: Final = CAME_BACK.empty_table()
_NOBODY: Final = {"branch": None, "commit_id": None}
_PAIRS: Final = pa.schema([("metarange_id", pa.string()), ("range_id", pa.string())])


class AlarmError(IntegrityError):
    """An object is gone that is needed."""


class PartialLookError(IntegrityError):
    """Some references could not be read; all objects needed by the others are there.

    Attributes:
        unread: the references that could not be read, with the errors.
    """

    def __init__(self, unread: Sequence[str]) -> None:
        """Name the first unread references in the message."""
        more = f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else ""
        super().__init__(
            "the live set could be computed again only in part, since this could not be read: "
            f"{'; '.join(unread[:_SHOWN])}{more}. Correct the cause"
        )
        self.unread = unread

    def __reduce__(self) -> tuple[type[PartialLookError], tuple[Sequence[str]]]:
        """Pickle the error with its argument, since the message alone does not rebuild it."""
        return type(self), (self.unread,)


@dataclass(frozen=True)
class Holder:
    """The reference that needs an object; unknown parts are None.

    Attributes:
        branch: branch on which it is staged, or whose retention keeps the commit.
        commit: commit that holds it; None if it is staged.
    """

    address: str
    branch: str | None
    path: str | None
    commit: str | None

    def __str__(self) -> str:
        """Return the known parts, for messages."""
        known = {"branch": self.branch, "path": self.path, "commit": self.commit}
        return ", ".join(f"{name} {value!r}" for name, value in known.items() if value)


def raise_alarm_if_needed(deltas: DeltaMarks, recorded: LedgerState) -> None:
    """Compute the live set again; put back objects that it needs and are gone, else hold sweeps.

    All candidates are looked up, not only those that the ledger records as deleted. If a sweep was
    killed between a delete and its record, its next try may have found the object alive.

    Raises:
        AlarmError: a needed object is gone and could not be put back; the message names it and
            its holder.
        PartialLookError: some references could not be read; objects of the others were put back.
    """
    unread: list[str] = []
    delta = deltas.take(recorded.marked, "after", unread)
    try:
        _LastLook(deltas, recorded, delta).put_back_or_alarm()
    except AlarmError as error:
        if unread:
            raise AlarmError(f"{error}\nBesides, {PartialLookError(unread)}") from error
        raise
    if unread:
        raise PartialLookError(unread)


@dataclass(frozen=True)
class _LastLook:
    """A delta mark after a sweep, and the objects that are alive by it and missing."""

    deltas: DeltaMarks
    recorded: LedgerState
    delta: DeltaMark

    @property
    def ctx(self) -> RunContext:
        """The run."""
        return self.recorded.ctx

    @property
    def namespace(self) -> ObjectStore:
        """The store rooted at the storage namespace."""
        return self.recorded.space.connections.store()

    def put_back_or_alarm(self) -> None:
        """Put back objects that are gone and needed, else hold all sweeps."""
        missing = self._missing()
        if not self.ctx.settings.restore_revived:
            self._raise_alarm(missing, {})
            return
        obstacles, still, brought = dict[str, str](), _NOTHING, _NOTHING
        if missing.num_rows:
            obstacles = self._put_back(missing)
            lacking = strings.among(missing["address"], pa.array(list(obstacles), pa.string()))
            still, brought = missing.filter(lacking), missing.filter(pc.invert(lacking))

        def record() -> None:
            there = self.recorded.thought_gone(self.delta.spared, missing["address"])
            # An object that is there although the ledger records it as gone is back, too.
            back = pa.concat_tables([brought, there])
            if back.num_rows:
                artifacts, clocks = self.recorded.space.attempt.store(), self.ctx.clocks
                record_put_back(artifacts, back, self._holders(_named(back)), clocks)

        if still.num_rows:
            # The hold is written even if the record fails.
            with suppress(Exception):
                record()
        self._raise_alarm(still, obstacles)
        record()

    def _missing(self) -> pa.Table:
        """Find objects that are certainly alive and missing from the store (``CAME_BACK``)."""
        spared, attempt = self.delta.spared, self.recorded.space.attempt
        tasks = max(1, min(self.ctx.settings.sweep_num_partitions, spared.rows // _EACH))
        folder = f"{self.deltas.folder}after/gone/"
        task = partial(_gone, self.recorded.space.connections, attempt.url, folder)
        pieces = stretches(spared.parts, -(-spared.rows // tasks))
        gone = self.ctx.tasks.run("look objects up", task, pieces, spared.rows * _LOOKUP_S)
        parts = [part for task_parts in gone for part in task_parts]
        return pa.concat_tables([_NOTHING, *read_parts(attempt.store(), parts)])

    def _put_back(self, missing: pa.Table) -> dict[str, str]:
        """Put back missing objects; return the obstacle of each one that is still missing."""
        try:
            return put_back(self.recorded, self.deltas.chain, missing["address"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the alarm is raised
            self.ctx.log.warning("missing objects could not be put back: %s", error)
            return dict.fromkeys(missing["address"].to_pylist(), str(error) or type(error).__name__)

    def _raise_alarm(self, missing: pa.Table, obstacles: Mapping[str, str]) -> None:
        """Hold all sweeps, and report the missing objects, their holders, and the obstacles.

        Raises:
            AlarmError: unless nothing is missing.
        """
        missing = self._not_accepted(missing)
        if not missing.num_rows:
            return
        ctx, artifacts = self.ctx, self.recorded.space.attempt.store()
        lacking = set(missing["address"].to_pylist())
        obstacles = {address: why for address, why in obstacles.items() if address in lacking}
        folder = f"{self.deltas.folder}{MISSING}"
        part = write_part(artifacts, folder, missing.select(SPARED.names))
        alarm: dict[str, object] = {
            "run": ctx.run,
            "at": ctx.clocks.now().isoformat(),
            "alarm": counted(
                missing.num_rows,
                f"object of mark {ctx.run!r} is gone, and is needed",
                f"objects of mark {ctx.run!r} are gone, and are needed",
            ),
            "count": missing.num_rows,
            "all": f"{artifacts.url}/{part.key}",
            "not_put_back": _summary_of(obstacles) or "restore_revived is off",
        }
        named = _named(missing)
        # The first hold has no holders: to find them takes time, and may fail.
        held = self._hold(alarm | {"objects": _objects(named, {}, obstacles)})
        alarm["objects"] = _objects(named, self._holders(named), obstacles)
        held = self._hold(alarm) or held
        raise AlarmError(self._message(alarm, held=held))

    def _not_accepted(self, missing: pa.Table) -> pa.Table:
        """Return the missing objects without losses that a person has accepted."""
        if not missing.num_rows:
            return missing
        try:
            return without_accepted(self.namespace, self.ctx.run, missing)
        except Exception as error:  # noqa: BLE001 - whatever it is, the alarm is raised
            self.ctx.log.warning(
                "accepted losses cannot be read, so the alarm names them again: %s", error
            )
            return missing

    def _hold(self, alarm: Mapping[str, object]) -> bool:
        try:
            add_alarm(self.namespace, alarm)
        except LakegcError:
            return False
        return True

    def _holders(self, named: Mapping[str, str]) -> dict[str, Holder]:
        """Find the holders of the objects; none if they cannot be found now."""
        ctx, liveness = self.ctx, self.delta.liveness
        if liveness is None:
            return {}
        try:
            return _holders_of(ctx, liveness, self.deltas.ranges, named)
        except Exception as error:  # noqa: BLE001 - whatever it is, the alarm is raised
            ctx.log.warning("the branches that need the missing objects cannot be found: %s", error)
            return {}

    def _message(self, alarm: Mapping[str, object], *, held: bool) -> str:
        """Return the message of an alarm: the first lines say what happened and what to do."""
        ctx = self.ctx
        of_run = ctx.repository, "--run", ctx.run
        sweeping = command_line("sweep", *of_run, settings=ctx.given_settings)
        state = f"{ctx.repository!r} is on hold: no sweep starts until the hold is accepted."
        afterwards = f"After the acceptance: `{sweeping}`"
        if not held:
            url = f"{self.recorded.space.connections.namespace_url}/{HOLD}"
            state = f"{url} COULD NOT BE WRITTEN, so start no sweep of {ctx.repository!r} yet."
            afterwards = f"Afterwards: `{sweeping}`"
        obstacles = " ".join(str(alarm["not_put_back"]).split())
        return "\n".join(
            [
                f"{alarm['alarm']}. Not put back: {obstacles}",
                f"{state} First restore the objects: `{restore_command(ctx, ctx.run)}`",
                f"{look_first(ctx)}. {afterwards}",
                *object_lines(alarm["objects"], alarm["count"]),
                f"All objects: {alarm['all']}",
            ]
        )


def put_back(
    recorded: LedgerState, chain: Mapping[str, Manifest], missing: pa.ChunkedArray
) -> dict[str, str]:
    """Put objects back at keys where nothing is now.

    This is safe even if another process has taken the lease: an object at a key is never touched,
    and every sweep spares needed objects. A needed object also counts as missing if another object
    is at its key by now.

    ``missing``: addresses of objects that are gone and needed.

    Returns:
        The obstacle of each object that is still missing, by address.
    """
    log, store = recorded.ctx.log, recorded.space.connections.store()
    lost, proof, problem = find_lost(recorded, chain, missing)
    if problem:
        log.warning("%s", problem)
    still = dict[str, str]()
    for at in range(0, lost.num_rows, _BATCH):
        rows = lost.slice(at, _BATCH)
        for result in bring_back(store, as_lost(rows), copies_of(rows, proof)):
            if result.outcome in {"restored", "already_there"} and not result.detail:
                continue
            still[result.key] = result.detail or result.error_code or result.outcome
            if len(still) <= _SHOWN:
                log.warning("%s could not be put back: %s", result.key, still[result.key])
    return still


def record_put_back(
    artifacts: ObjectStore, back: pa.Table, holders: Mapping[str, Holder], clocks: Clocks
) -> None:
    """Record in the ledger that objects (address, size, why) are back, with holders if known."""
    columns = (back[name].to_pylist() for name in ("address", "size", "why"))
    outcomes = [
        Outcome(
            address,
            size,
            PUT_BACK,
            detail=f"{why}: {holders[address]}" if address in holders else why,
        )
        for address, size, why in zip(*columns, strict=True)
    ]
    ledger.record(artifacts, f"put-back-{secrets.token_hex(8)}", outcomes, clocks)


def _gone(connections: Connections, url: str, folder: str, piece: Sequence[Stretch]) -> list[Part]:
    """Look objects up, and write the missing ones to files; a task."""
    artifacts, store = connections.open(url), connections.store()
    parts = []
    for part, begin, count in piece:
        rows = read_part(artifacts, part).slice(begin, count)
        alive = rows.filter(rows["certain"])
        there = thread_map(store.exists, alive["address"].to_pylist(), _THREADS)
        if not all(there):
            gone = alive.filter(pc.invert(pa.array(there, pa.bool_())))
            parts.append(write_part(artifacts, folder, gone))
    return parts


@reads_tables
def _holders_of(
    ctx: RunContext, liveness: Liveness, ranges: pa.Table, addresses: Collection[str]
) -> dict[str, Holder]:
    """Find one holder of each object: a commit, a HEAD if possible; else a staging area.

    ``ranges``: ranges that may hold the objects (range_id, entries).
    """
    found: dict[str, Holder] = {}
    if range_ids := ranges_naming(ctx, ranges, addresses):
        active = liveness.tables()["data"]
        pairs = pairs_of(ctx, set(active["metarange_id"].to_pylist()), range_ids)
        named = pairs.select(_PAIRS.names).cast(_PAIRS)
        holders = named.join(active, "metarange_id", join_type="inner").to_pylist()
        # A HEAD comes first, if there is one.
        holders.sort(key=lambda row: (row["kind"] != "head", row["commit_id"]))
        for range_id in range_ids:
            holder = next((row for row in holders if row["range_id"] == range_id), _NOBODY)
            for address, path in paths_in(ctx.connections, range_id, addresses).items():
                found[address] = Holder(address, holder["branch"], path, holder["commit_id"])
    if staged := set(addresses) - found.keys():
        areas = staging_areas(ctx.at(ctx.lakefs.connect(), ctx.connections), staged)
        found |= {address: Holder(address, *area, None) for address, area in areas.items()}
    return found


def _named(objects: pa.Table) -> dict[str, str]:
    """Return the first objects by address, with the reason why each is needed."""
    first = objects.sort_by("address").slice(0, _NAMED)
    return dict(zip(first["address"].to_pylist(), first["why"].to_pylist(), strict=True))


def _objects(
    named: Mapping[str, str], holders: Mapping[str, Holder], obstacles: Mapping[str, str]
) -> list[dict[str, object]]:
    return [
        {"address": address, "why": why}
        | (asdict(holders[address]) if address in holders else {})
        | ({"not_put_back": obstacles[address]} if address in obstacles else {})
        for address, why in named.items()
    ]


def _summary_of(obstacles: Mapping[str, str]) -> str:
    """Summarize the reasons why objects could not be put back, the most frequent first."""
    counted = Counter(obstacles.values()).most_common()
    text = "; ".join(f"{obstacle} ({count} of them)" for obstacle, count in counted[:_OBSTACLES])
    more = len(counted) - _OBSTACLES
    return f"{text}; and {more} other reasons" if more > 0 else text
