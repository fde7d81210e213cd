"""The hold that an alarm leaves in the namespace: nothing is swept until a person has accepted it.

``_lakefs/retention/gc/lakegc/hold.json`` does not expire, and is never removed: who accepts it
(``acceptance``) writes in its place that it is accepted, on the condition that it is still the one
that was looked at. Restores, which are to bring back what is lost, do not mind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.run.command_line import command_line, in_dagster
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lakegc_assets.sweep.lease_record import FOLDER
from lakegc_assets.wording import minute

HOLD: Final = f"{FOLDER}hold.json"
#: Key of what stands in the place of a hold that was accepted.
ACCEPTED: Final = "accepted"
#: Where what was accepted stays when there is another hold, a file for each.
RECORDS: Final = f"{FOLDER}accepted-holds/"
#: Key of what is lost in that, by run.
LOST: Final = "lost"
#: Dagster's job that shows and accepts a hold.
ACCEPTING_JOB: Final = "gc_accept_hold"
#: How many objects a message names.
_SHOWN: Final = 10
_ID: Final = 16
#: How often an alarm is written anew, on top of what others write meanwhile.
_TRIES: Final = 5


class HoldError(RefusedError):
    """The repository is on hold."""


@dataclass(frozen=True)
class Hold:
    """The object at the key of the hold."""

    text: str

    @property
    def id(self) -> str:
        """Names this very hold."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_ID]

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Its values; empty where it is not the JSON that an alarm writes."""
        try:
            found = json.loads(self.text)
        except DAMAGE:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def acceptance(self) -> Mapping[str, Any] | None:
        """By whom, when and how it was accepted; None while it holds all sweeps."""
        found = self.values.get(ACCEPTED)
        return found if isinstance(found, dict) and found.get("id") else None

    @property
    def alarms(self) -> Sequence[Mapping[str, Any]]:
        """Its alarm, followed by the alarms that were raised while it stood."""
        if not self.values or self.acceptance is not None:
            return []
        earlier = self.values.get("earlier")
        return [self.values, *(Hold(earlier).alarms if isinstance(earlier, str) else ())]


def find_hold(store: ObjectStore) -> Hold | None:
    """The hold of a repository, accepted or not; None without one.

    Raises:
        StorageError: nobody can tell.
    """
    try:
        return Hold(store.get(HOLD).decode(errors="replace"))
    except ObjectNotFoundError:
        return None


def read_hold(store: ObjectStore) -> Hold | None:
    """The hold that stops sweeps; None without one, or where it was accepted.

    Raises:
        StorageError: nobody can tell.
    """
    found = find_hold(store)
    return None if found is None or found.acceptance is not None else found


def require_no_hold(ctx: RunContext, store: ObjectStore) -> None:
    """Refuse to go on while an alarm was not accepted.

    Raises:
        HoldError: there is a hold; what happened, and what to do.
        StorageError: nobody can tell.
    """
    hold = read_hold(store)
    if hold is not None:
        raise HoldError(hold_message(ctx, hold, f"{store.url}/{HOLD}"))


def write_hold(store: ObjectStore, what: Mapping[str, object]) -> None:
    """Keep every sweep from starting until somebody has looked.

    Raises:
        StorageError: the hold was not written.
    """
    store.put(HOLD, json.dumps(what, indent=1).encode())


def add_alarm(store: ObjectStore, what: Mapping[str, object]) -> None:
    """Keep every sweep from starting, and keep what other alarms have written into the hold.

    They are restored and accepted with this one. What this alarm wrote before is replaced, and what
    was accepted is kept elsewhere.

    Args:
        store: rooted at the storage namespace.
        what: happened, as JSON values.

    Raises:
        LakegcError: the hold is not known to be written.
    """
    for attempt in range(1, _TRIES + 1):
        etag: str | None = None
        found: Hold | None = None
        try:
            with suppress(ObjectNotFoundError):
                etag = store.head(HOLD).etag
                found = find_hold(store)
        except LakegcError:
            # What nobody can read is replaced, sooner than that nothing holds the sweeps.
            write_hold(store, what)
            return
        if found is not None:
            with suppress(LakegcError):
                keep_acceptance(store, found)
        text = json.dumps({**what, **_earlier(what, found)}, indent=1).encode()
        try:
            if etag is None:
                store.put_if_absent(HOLD, text)
            else:
                store.put_if_match(HOLD, text, etag)
        except PreconditionFailedError:
            # Another alarm was raised, which holds the sweeps, too.
            if attempt == _TRIES:
                raise
        except StoreUnavailableError:
            # This one may be written, and the answer is lost. A plain write is tried for longer.
            if attempt == _TRIES:
                write_hold(store, {**what, **_earlier(what, found)})
        else:
            return


def _earlier(what: Mapping[str, object], found: Hold | None) -> Mapping[str, object]:
    """The earlier alarms of a hold, as the alarm that takes its place keeps them."""
    if found is None or found.acceptance is not None:
        return {}
    if all(name in what and found.values.get(name) == what[name] for name in ("run", "at", "all")):
        return {name: found.values[name] for name in ("earlier",) if name in found.values}
    return {"earlier": found.text}


def keep_acceptance(store: ObjectStore, found: Hold) -> None:
    """Keep what was accepted, before another alarm takes its place.

    Raises:
        StorageError: it is not known to be kept.
    """
    if found.acceptance is not None:
        with suppress(PreconditionFailedError):
            key = f"{RECORDS}{found.acceptance['id']}.json"
            store.put_if_absent(key, found.text.encode())


def without_accepted(store: ObjectStore, run: str, objects: pa.Table) -> pa.Table:
    """Objects but for those whose loss was accepted with an alarm about the same mark.

    No sweep of that mark deletes them again, since its ledger says that they are gone.

    ``objects``: that are gone, and needed (address, why).

    Raises:
        StorageError: nobody can tell.
    """
    keys = [info.key for info in store.infos_to_the_end(RECORDS)]
    texts = [store.get(key).decode(errors="replace") for key in keys]
    if (found := find_hold(store)) is not None:
        texts.append(found.text)
    lost: set[str] = set()
    for text in texts:
        accepted = Hold(text)
        of_runs = accepted.values.get(LOST) if accepted.acceptance is not None else None
        if isinstance(of_runs, dict):
            lost.update(map(str, of_runs.get(run) or ()))
    known = pc.is_in(objects["address"], pa.array(sorted(lost), pa.string()))
    return objects.filter(pc.invert(known))


def hold_message(ctx: RunContext, hold: Hold, url: str) -> str:
    """The message of a hold, in lines: first what happened and what to do, then some objects."""
    alarm = hold.alarms[0] if hold.alarms else {}
    since = f" since {minute(alarm['at'])}" if alarm.get("at") else ""
    said = [str(one["alarm"]) for one in hold.alarms if one.get("alarm")]
    what = "; before that ".join(said) or f"nobody can read what {url} says"
    run = alarm.get("run")
    restoring = f"First bring back what can be: `{restore_command(ctx, str(run))}`" if run else ""
    return "\n".join(
        [
            f"{ctx.repository!r} is on hold{since}, and is not swept: {what}",
            look_first(ctx),
            *filter(None, [restoring]),
            *object_lines(alarm.get("objects"), alarm.get("count")),
            f"All of them: {alarm.get('all') or url}",
        ]
    )


def restore_command(ctx: RunContext, run: str) -> str:
    """The command that brings back all objects of a mark that can be."""
    of_run = ctx.repository, "--run", run, "--all"
    return command_line("restore", *of_run, settings=ctx.given_settings)


def hold_command(ctx: RunContext) -> str:
    """The command that shows what is lost and what can be done."""
    return command_line("hold", ctx.repository, settings=ctx.given_settings)


def look_first(ctx: RunContext) -> str:
    """A sentence that names the command to read first."""
    job = in_dagster(ACCEPTING_JOB)
    return f"What is lost, and what can be done: `{hold_command(ctx)}`, or the job {job}"


def object_lines(objects: object, count: object = None) -> Iterator[str]:
    """The first of the objects that a hold names, a line for each."""
    named = [one for one in objects if isinstance(one, dict)] if isinstance(objects, list) else []
    for one in named[:_SHOWN]:
        holder = {name: one.get(name) for name in ("branch", "path", "commit")}
        known = ", ".join(f"{name} {value!r}" for name, value in holder.items() if value)
        told = [one.get("state"), one.get("why"), known]
        yield f"  {one.get('address')}  {': '.join(str(text) for text in told if text)}"
    more = (count if isinstance(count, int) else len(named)) - len(named[:_SHOWN])
    if more > 0:
        yield f"  and {more} more"
