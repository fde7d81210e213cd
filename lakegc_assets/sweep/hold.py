"""The hold that an alarm leaves in the namespace: no sweep starts until a person accepts it.

``_lakefs/retention/gc/lakegc/hold.json`` does not expire, and is never removed. Its acceptance
(``acceptance``) replaces it by a conditional write, so that only the hold that was looked at is
accepted. Restores ignore a hold, since they bring lost objects back.
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
#: JSON key of the acceptance, in the record that replaces an accepted hold.
ACCEPTED: Final = "accepted"
#: Folder of the acceptances, one file each, which stay there when another hold is written.
RECORDS: Final = f"{FOLDER}accepted-holds/"
#: JSON key of the lost objects in an acceptance, by run.
LOST: Final = "lost"
#: Dagster's job that shows and accepts a hold.
ACCEPTING_JOB: Final = "gc_accept_hold"
#: Number of objects that a message names.
_SHOWN: Final = 10
_ID: Final = 16
#: Most conditional writes of an alarm, if other processes write meanwhile.
_TRIES: Final = 5


class HoldError(RefusedError):
    """The repository is on hold."""


@dataclass(frozen=True)
class Hold:
    """The object at the key of the hold."""

    text: str

    @property
    def id(self) -> str:
        """Id of this very hold: a digest of its content."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_ID]

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Its values; empty if its content is not the JSON of an alarm."""
        try:
            found = json.loads(self.text)
        except DAMAGE:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def acceptance(self) -> Mapping[str, Any] | None:
        """Person, time and result of the acceptance; None while it holds all sweeps."""
        found = self.values.get(ACCEPTED)
        return found if isinstance(found, dict) and found.get("id") else None

    @property
    def alarms(self) -> Sequence[Mapping[str, Any]]:
        """Its alarm, followed by the alarms that it replaced before they were accepted."""
        if not self.values or self.acceptance is not None:
            return []
        earlier = self.values.get("earlier")
        return [self.values, *(Hold(earlier).alarms if isinstance(earlier, str) else ())]


def find_hold(store: ObjectStore) -> Hold | None:
    """Return the hold of a repository, accepted or not; None if there is none.

    Raises:
        StorageError: the store could not be read.
    """
    try:
        return Hold(store.get(HOLD).decode(errors="replace"))
    except ObjectNotFoundError:
        return None


def read_hold(store: ObjectStore) -> Hold | None:
    """Return the hold that stops sweeps; None if there is none, or if it was accepted.

    Raises:
        StorageError: the store could not be read.
    """
    found = find_hold(store)
    return None if found is None or found.acceptance is not None else found


def require_no_hold(ctx: RunContext, store: ObjectStore) -> None:
    """Refuse to continue while an alarm was not accepted.

    Raises:
        HoldError: there is a hold; the message says what happened, and what to do.
        StorageError: the store could not be read.
    """
    hold = read_hold(store)
    if hold is not None:
        raise HoldError(hold_message(ctx, hold, f"{store.url}/{HOLD}"))


def write_hold(store: ObjectStore, what: Mapping[str, object]) -> None:
    """Write a hold, so that no sweep starts until a person accepts it.

    Raises:
        StorageError: the hold was not written.
    """
    store.put(HOLD, json.dumps(what, indent=1).encode())


def add_alarm(store: ObjectStore, what: Mapping[str, object]) -> None:
    """Write a hold, and keep the alarms of the hold that it replaces.

    Earlier alarms are restored and accepted together with this one. An earlier version of this
    alarm is replaced, and an acceptance is copied to its own file.

    Args:
        store: rooted at the storage namespace.
        what: the alarm, as JSON values.

    Raises:
        LakegcError: it is unknown if the hold was written.
    """
    for attempt in range(1, _TRIES + 1):
        etag: str | None = None
        found: Hold | None = None
        try:
            with suppress(ObjectNotFoundError):
                etag = store.head(HOLD).etag
                found = find_hold(store)
        except LakegcError:
            # An unreadable hold is replaced: it is worse if nothing holds the sweeps.
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
            # Another alarm was raised, whose hold stops the sweeps, too.
            if attempt == _TRIES:
                raise
        except StoreUnavailableError:
            # The write may have succeeded without an answer. A plain write has more retries.
            if attempt == _TRIES:
                write_hold(store, {**what, **_earlier(what, found)})
        else:
            return


def _earlier(new: Mapping[str, object], found: Hold | None) -> Mapping[str, object]:
    """Return the earlier alarms of a hold, in the form in which the next alarm keeps them."""
    if found is None or found.acceptance is not None:
        return {}
    if all(name in new and found.values.get(name) == new[name] for name in ("run", "at", "all")):
        return {name: found.values[name] for name in ("earlier",) if name in found.values}
    return {"earlier": found.text}


def keep_acceptance(store: ObjectStore, found: Hold) -> None:
    """Copy an acceptance to its own file, before another alarm replaces it.

    Raises:
        StorageError: it is unknown if it was copied.
    """
    if found.acceptance is not None:
        with suppress(PreconditionFailedError):
            key = f"{RECORDS}{found.acceptance['id']}.json"
            store.put_if_absent(key, found.text.encode())


def without_accepted(store: ObjectStore, run: str, objects: pa.Table) -> pa.Table:
    """Return objects without those whose loss was accepted with an alarm of the same mark.

    No sweep of that mark deletes them again, since its ledger records them as gone.

    ``objects``: objects that are gone and needed (address, why).

    Raises:
        StorageError: the store could not be read.
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
    """Return the message of a hold: first what happened and what to do, then some objects."""
    alarm = hold.alarms[0] if hold.alarms else {}
    since = f" since {minute(alarm['at'])}" if alarm.get("at") else ""
    messages = [str(raised["alarm"]) for raised in hold.alarms if raised.get("alarm")]
    summary = "; before that ".join(messages) or f"{url} is not the JSON of an alarm"
    run = alarm.get("run")
    restoring = f"First restore the objects: `{restore_command(ctx, str(run))}`" if run else ""
    return "\n".join(
        [
            f"{ctx.repository!r} is on hold{since}, and is not swept: {summary}",
            look_first(ctx),
            *filter(None, [restoring]),
            *object_lines(alarm.get("objects"), alarm.get("count")),
            f"All objects: {alarm.get('all') or url}",
        ]
    )


def restore_command(ctx: RunContext, run: str) -> str:
    """Return the command that restores all objects of a mark that can be restored."""
    of_run = ctx.repository, "--run", run, "--all"
    return command_line("restore", *of_run, settings=ctx.given_settings)


def hold_command(ctx: RunContext) -> str:
    """Return the command that shows the losses and the possible steps."""
    return command_line("hold", ctx.repository, settings=ctx.given_settings)


def look_first(ctx: RunContext) -> str:
    """Return a sentence with the command to run first."""
    job = in_dagster(ACCEPTING_JOB)
    return f"The lost objects and the next steps: `{hold_command(ctx)}`, or the job {job}"


def object_lines(objects: object, count: object = None) -> Iterator[str]:
    """Yield the first objects that a hold names, one per line."""
    named = [row for row in objects if isinstance(row, dict)] if isinstance(objects, list) else []
    for row in named[:_SHOWN]:
        holder = {name: row.get(name) for name in ("branch", "path", "commit")}
        known = ", ".join(f"{name} {value!r}" for name, value in holder.items() if value)
        parts = [row.get("state"), row.get("why"), known]
        yield f"  {row.get('address')}  {': '.join(str(text) for text in parts if text)}"
    more = (count if isinstance(count, int) else len(named)) - len(named[:_SHOWN])
    if more > 0:
        yield f"  and {more} more"
