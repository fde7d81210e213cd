"""The hold of an alarm and its acceptance: the loss is known, and sweeps may start again.

One conditional write replaces a hold by its acceptance. So a hold is either accepted or not, even
if the accepting process is killed, and only the hold that was looked at is accepted: another alarm
has written another hold. Before the write, every named object that can be restored is restored; an
object that is kept nowhere is lost. The losses are recorded below ``accepted-holds/``, and a later
sweep of the same mark raises no second alarm for them.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.served_candidates import SPARED
from lakegc_assets.recovery.journal import CopyVerifier
from lakegc_assets.recovery.undeletion import Verdict, bring_back
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import LISTING, AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.object_lookup import look_up
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.run.records import read_rows
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import MISSING
from lakegc_assets.sweep.backup_guard import relied_on
from lakegc_assets.sweep.hold import (
    ACCEPTED,
    HOLD,
    LOST,
    RECORDS,
    Hold,
    HoldError,
    find_hold,
    hold_command,
)
from lakegc_assets.sweep.lease import leased
from lakegc_assets.sweep.ledger import ASSET, Outcome
from lakegc_assets.sweep.ledger_state import LedgerState
from lakegc_assets.sweep.lost_objects import LOST as ROWS
from lakegc_assets.sweep.lost_objects import as_lost, copies_of, find_lost, foresee
from lakegc_assets.wording import counted

_BATCH: Final = 1000
_SHOWN: Final = 3
#: States of an object that an alarm has named.
BACK: Final = "back"
BROUGHT: Final = "brought back now"
TAKEN: Final = "another object is at its address"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"
#: States of a missing object before it is restored, by the source from which it can be restored.
KEPT: Final[Mapping[Verdict, str]] = {
    "versions": "gone, and kept as a version",
    "trash": "gone, and in the trash",
    "soft_delete": "gone, and kept by soft delete",
    "backup": "gone, and in the backup",
}
LOST_NOW: Final = "gone, and nothing keeps it"
UNCLEAR: Final = "gone, and it is not known if anything keeps it"


@dataclass(frozen=True)
class Alarm:
    """An alarm, and the state of its objects.

    Attributes:
        values: the content that the alarm wrote into the hold.
        states: the state of each object, by its address.
        rows: sources from which marked objects can be restored (``lost_objects.LOST``).
        proof: evidence of their copies, if there is a backup.
        unread: reason why the objects or their sources are incomplete; else empty.
        problems: errors of single objects.
    """

    values: Mapping[str, Any]
    states: Mapping[str, str]
    rows: pa.Table
    proof: CopyVerifier | None = None
    unread: str = ""
    problems: Sequence[str] = ()

    @property
    def run(self) -> str:
        """The run whose sweep raised the alarm; empty if the hold does not name it."""
        return str(self.values.get("run") or "")

    def having(self, *states: str) -> list[str]:
        """Addresses of the objects in some states, in their order."""
        return sorted(address for address, state in self.states.items() if state in states)

    @property
    def lost(self) -> pa.Table:
        """Marked objects that were not restored (``lost_objects.LOST``)."""
        gone = pa.array(self.having(LOST, UNKNOWN), pa.string())
        return self.rows.filter(pc.is_in(self.rows["address"], gone))

    @property
    def is_back(self) -> bool:
        """Return True if all of its objects are at their addresses, so that nothing is lost."""
        return bool(self.states) and not self.unread and {*self.states.values()} == {BACK}

    @property
    def totals(self) -> Mapping[str, int]:
        """The number of objects in each state."""
        return Counter(self.states.values())


def look_at_alarms(ctx: RunContext, hold: Hold) -> list[Alarm]:
    """Look up the state of the objects that a hold names, without changing anything.

    Raises:
        StorageError: the store could not be read.
    """
    return [_with_states(ctx.connections, _alarm_of(ctx, values)) for values in hold.alarms]


def accept_hold(
    ctx: RunContext, hold_id: str, by: str, *, unverified: bool = False
) -> tuple[Hold, str]:
    """Restore the objects of a hold that can be restored, accept the loss of the rest, and end it.

    ``hold_id``: id of the hold that was looked at. ``unverified``: accept it even if it cannot be
    verified that all is lost, since artifacts or the backup of the sweep are gone; the named
    objects are then pinned.

    Returns:
        The record that replaces the hold, and the URL of its copy.

    Raises:
        HoldError: the hold has been replaced by another one.
        RefusedError: there is no hold; or another process holds the lease of the repository.
        IntegrityError: it is not verified for all named objects that they are lost.
        StorageError: the store did not answer, or it is unknown if the hold was accepted.
    """
    ctx = ctx.connect()
    store = ctx.connections.store()
    with leased(ctx, store, doing="accept a hold") as lease:
        etag, hold = _current_hold(ctx, store, hold_id)
        alarms = [_restored(store, _alarm_of(ctx, values)) for values in hold.alarms]
        _require_known(ctx, alarms, unverified=unverified)
        for alarm in alarms:
            record_missing(ctx, alarm, hold.id)
        pin_unclear(ctx, store, alarms, hold.id)
        acceptance = {"id": hold.id, "by": by, "at": ctx.clocks.now().isoformat()}
        accepted = _accepted(hold, alarms, {**acceptance, "owner": dict(lease.owner)})
        lease.require()
        replace_hold(store, accepted, etag)
        key = f"{RECORDS}{hold.id}.json"
        try:
            store.put(key, accepted.text.encode())
        except LakegcError as error:
            # The record has replaced the hold, and the next alarm copies it, too.
            ctx.log.warning(
                "the hold is accepted, but its copy %s/%s was not written: %s",
                *(store.url, key, error),
            )
    return accepted, f"{store.url}/{key}"


def _current_hold(ctx: RunContext, store: ObjectStore, hold_id: str) -> tuple[str, Hold]:
    """Return the etag of the hold that was looked at, and the hold, which is not older.

    Raises:
        HoldError: the hold has been replaced by another one.
        RefusedError: there is no hold.
    """
    try:
        etag = store.head(HOLD).etag
    except ObjectNotFoundError:
        raise RefusedError(
            f"{ctx.repository!r} is not on hold: there is nothing to accept"
        ) from None
    hold = find_hold(store)
    acceptance = None if hold is None else hold.acceptance
    if hold is None or acceptance is not None:
        detail = f": {acceptance['by']} has accepted it on {acceptance['at']}" if acceptance else ""
        raise RefusedError(f"{ctx.repository!r} is not on hold any more{detail}")
    if hold.id != hold_id:
        raise HoldError(
            f"the hold of {ctx.repository!r} is {hold.id} now, not {hold_id}: another alarm was "
            f"raised. Nothing was accepted. See the new hold with `{hold_command(ctx)}` first"
        )
    return etag, hold


def _with_states(connections: Connections, alarm: Alarm) -> Alarm:
    rows, states = alarm.rows, dict[str, str]()
    sizes = dict(zip(rows["address"].to_pylist(), rows["size"].to_pylist(), strict=True))
    # An object is only known to be lost if all sources could be searched.
    nowhere = UNCLEAR if alarm.unread else LOST_NOW
    for addresses in _batches(list(alarm.states)):
        there, ends = foresee(connections.store(), rows, addresses, alarm.proof)
        kept = {e.one.key: nowhere if e.verdict == "lost" else KEPT.get(e.verdict) for e in ends}
        for address, found in there.items():
            if found is None:
                states[address] = kept.get(address) or UNCLEAR
            else:
                same = sizes.get(address, found.size) == found.size
                states[address] = BACK if same else TAKEN
    return replace(alarm, states=states)


def _restored(store: ObjectStore, alarm: Alarm) -> Alarm:
    """Restore all objects of an alarm that can be restored, and return their states."""
    states, problems = dict(alarm.states), list[str]()
    # An object is only known to be lost if all sources could be searched.
    known = {"restored": BROUGHT, "not_kept": UNKNOWN if alarm.unread else LOST, "failed": FAILED}
    for at in range(0, alarm.rows.num_rows, _BATCH):
        batch = alarm.rows.slice(at, _BATCH)
        for result in bring_back(store, as_lost(batch), copies_of(batch, alarm.proof)):
            if result.outcome == "already_there":
                states[result.key] = TAKEN if result.detail else BACK
            else:
                states[result.key] = known[result.outcome]
            if result.outcome == "failed":
                problems.append(f"{result.key}: {result.error_code}: {result.detail}")
    for unasked in _batches([address for address, state in states.items() if state == UNKNOWN]):
        there = look_up(store, unasked)
        states |= {address: BACK for address, found in there.items() if found is not None}
    return replace(alarm, states=states, problems=problems)


def _batches(addresses: Sequence[str]) -> Iterator[Sequence[str]]:
    return (addresses[at : at + _BATCH] for at in range(0, len(addresses), _BATCH))


def _alarm_of(ctx: RunContext, values: Mapping[str, Any]) -> Alarm:
    """Build an alarm from its content in the hold and from the records of its sweep."""
    objects = values.get("objects")
    found = objects if isinstance(objects, list) else []
    named = {str(row["address"]) for row in found if isinstance(row, dict) and "address" in row}
    run = values.get("run")
    unread = "the hold does not name the run whose sweep raised the alarm"
    if isinstance(run, str) and run:
        try:
            return _of_mark(replace(ctx, run=run), values, named)
        except LakegcError as error:
            unread = f"the records of the sweep of mark {run!r} cannot be read: {error}"
    return Alarm(values, dict.fromkeys(sorted(named), UNKNOWN), ROWS.empty_table(), None, unread)


def _of_mark(ctx: RunContext, values: Mapping[str, Any], named: set[str]) -> Alarm:
    """Build an alarm with all objects that its sweep recorded as gone and needed, and sources."""
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    ctx = ctx.connect()
    chain = attempt.chain("gc_report", ctx.connections.namespace_url)
    artifacts = attempt.store()
    for page in artifacts.list_to_the_end(f"{ASSET}/"):
        for key in page["key"].to_pylist():
            if f"/{MISSING}" in key:
                named |= set(read_rows(artifacts, key, SPARED)["address"].to_pylist())
    addresses = pa.chunked_array([pa.array(sorted(named), pa.string())])
    with _workspace(ctx, attempt) as space:
        rows, proof, problem = find_lost(_recorded(space, chain), chain, addresses)
    if proof is None and not problem and (url := relied_on(artifacts)):
        problem = f"its sweep relied on the backup at {url}, and backup_url is not set"
    return Alarm(values, dict.fromkeys(sorted(named), UNKNOWN), rows, proof, problem)


def _workspace(ctx: RunContext, attempt: AttemptArtifacts) -> Workspace:
    """Create a folder of the sweep of a mark, as a context manager."""
    return Workspace(ctx, attempt, f"{ASSET}/{secrets.token_hex(8)}/")


def _recorded(space: Workspace, chain: Mapping[str, Manifest]) -> LedgerState:
    return LedgerState(space, space.dataset(chain["deletion_candidates"].parts["data"], LISTING))


def _require_known(ctx: RunContext, alarms: Sequence[Alarm], *, unverified: bool) -> None:
    """Refuse to accept a loss that may be none.

    Raises:
        IntegrityError: it is unknown for an object if it can be restored.
    """
    problems = [problem for alarm in alarms for problem in alarm.problems]
    if problems:
        raise IntegrityError(
            f"{counted(len(problems), 'object')} of {ctx.repository!r} could not be restored, and "
            f"may not be lost: {'; '.join(problems[:_SHOWN])}. The hold stays: correct the cause, "
            "then accept the hold again"
        )
    unread = [alarm.unread for alarm in alarms if alarm.unread]
    if not alarms:
        url = f"{ctx.connections.namespace_url}/{HOLD}"
        unread = [f"{url} is not the JSON of an alarm, so its objects are not known"]
    if unread and not unverified:
        raise IntegrityError(
            f"it is not known if all objects of the hold are lost: {'; '.join(unread)}. The hold "
            "stays. Accept it with the LAKEGC_ARTIFACT_ROOT and LAKEGC_BACKUP_URL of that sweep; "
            "or with --unverified (`unverified` in the launchpad), if the files there are gone "
            "for good"
        )


def record_missing(ctx: RunContext, alarm: Alarm, hold_id: str) -> None:
    """Record lost objects as gone in the ledger: no later try deletes at their addresses."""
    rows = alarm.lost
    if not rows.num_rows:
        return
    attempt = ctx.root.attempt(ctx.repository, alarm.run)
    chain = attempt.chain("gc_report", ctx.connections.namespace_url)
    with _workspace(replace(ctx, run=alarm.run), attempt) as space:
        done = ledger.done(_recorded(space, chain).outcomes_of(rows["address"]))["address"]
    rows = rows.filter(pc.invert(strings.among(rows["address"], done)))
    outcomes = [
        Outcome(address, size, "already_missing", detail=LOST)
        for address, size in zip(rows["address"].to_pylist(), rows["size"].to_pylist(), strict=True)
    ]
    if outcomes:
        ledger.record(attempt.store(), f"accepted-{hold_id}", outcomes)


def pin_unclear(ctx: RunContext, store: ObjectStore, alarms: Sequence[Alarm], hold_id: str) -> None:
    """Pin objects that may still be restored by hand, so that no prune removes their copies."""
    unclear = sorted({address for alarm in alarms for address in alarm.having(TAKEN, UNKNOWN)})
    if not unclear or not ctx.settings.pin_lifetime:
        return
    runs = ", ".join(sorted({alarm.run for alarm in alarms}))
    until = max(ctx.clocks.readings(ctx.client, store)) + ctx.settings.pin_lifetime
    pin = Pin(
        f"hold-{hold_id}", until, runs, "its loss was accepted, and not verified", len(unclear)
    )
    write_pin(store, pin, pa.array(unclear, pa.string()))


def _accepted(hold: Hold, alarms: Sequence[Alarm], acceptance: Mapping[str, Any]) -> Hold:
    """Build the record that replaces a hold; ``acceptance``: its id, person and time."""
    lost: dict[str, list[str]] = {}
    for alarm in alarms:
        # Only objects that the ledger records as gone, too: if a sweep of that mark deletes any
        # other one, that must be an alarm again.
        lost.setdefault(alarm.run, []).extend(sorted(alarm.lost["address"].to_pylist()))
    totals = [{"run": alarm.run, **alarm.totals} for alarm in alarms]
    unverified = sorted({address for alarm in alarms for address in alarm.having(UNKNOWN)})
    values = {
        ACCEPTED: acceptance,
        "totals": totals,
        LOST: lost,
        "unverified": unverified,
        "hold": hold.text,
    }
    return Hold(json.dumps(values, indent=1))


def replace_hold(store: ObjectStore, accepted: Hold, etag: str) -> None:
    """End the hold, unless it has been replaced by another one.

    Raises:
        HoldError: it has been replaced.
        StorageError: it is unknown if it has ended.
    """
    try:
        store.put_if_match(HOLD, accepted.text.encode(), etag)
    except PreconditionFailedError:
        raise HoldError(
            f"another alarm was raised meanwhile, and has replaced {store.url}/{HOLD}: no hold was "
            "accepted. See the new hold with `lakegc hold` first, then accept it"
        ) from None
    except StoreUnavailableError:
        # The store may have carried out a write that it did not answer.
        now = find_hold(store)
        if now != accepted:
            raise
