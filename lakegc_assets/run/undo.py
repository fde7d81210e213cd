"""Sentences and facts on how far a sweep can be undone, before it and after it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from lakegc_assets.storage.values import Recovery
from lakegc_assets.wording import counted, duration

#: Most days of a period; rules may have more days than the calendar.
_MOST_DAYS: Final = 36_500


def with_trash(recovery: Recovery, stays: timedelta) -> Recovery:
    """Return the recovery options of a store, limited by the lifetime of trash; 0 for no trash."""
    if recovery.kind != "trash":
        return recovery
    if not stays:
        notice = "trash_days is 0, so deleted files are not moved into the trash"
        return Recovery("nothing", None, notice)
    return recovery._replace(days=stays / timedelta(days=1))


def whether_undone(recovery: Recovery, backup_url: str | None) -> str:
    """Return a sentence on the undo of a sweep to come, with or without a backup of its mark."""
    if recovery.kind == "unknown":
        also = " from the store, besides from its backup" if backup_url else ""
        return f"it is not known if this sweep can be undone{also}: {recovery.notice}"
    if recovery.kind == "nothing" and backup_url:
        return f"this sweep can be undone from its backup only ({recovery.notice})"
    if recovery.kind == "nothing":
        return (
            f"this sweep cannot be undone: set backup_url, or turn versions on ({recovery.notice})"
        )
    ends = "" if recovery.days is None else f" for {duration(timedelta(days=recovery.days))}"
    return f"this sweep can be undone{ends}: {recovery.notice}"


def kept_until(since: datetime, days: float) -> datetime:
    """Return the end of a period of days; at most a hundred years later."""
    return since + timedelta(days=min(days, _MOST_DAYS))


def recovery_facts(recovery: Recovery, since: datetime) -> dict[str, object]:
    """Return the recovery facts for the manifest of a sweep: kind, days, notice, and end.

    ``since``: the earliest time of a delete, UTC.
    """
    until = None if recovery.days is None else kept_until(since, recovery.days)
    return {**recovery._asdict(), "until": until and until.isoformat()}


def undoable(facts: Mapping[str, Any], now: datetime) -> str:
    """Return a sentence on the undo of a finished sweep, by the facts of its manifest."""
    return f"{_of_this_try(facts, now)}{_of_earlier_tries(facts.get('perhaps_kept', 0))}"


def _of_this_try(facts: Mapping[str, Any], now: datetime) -> str:
    recovery, backup = facts["recovery"], facts["backup"]
    in_backup = f"from the backup {backup} until that is pruned" if backup else ""
    in_backup += _except_for(facts.get("not_in_backup", 0)) if backup else ""
    not_kept = facts.get("not_kept", 0)
    all_without_trash = not_kept and not_kept == facts["outcomes"]["deleted"]["objects"]
    if recovery["kind"] == "nothing" or (all_without_trash and not in_backup):
        if in_backup:
            return f"the deleted objects can be restored {in_backup}"
        earlier = "an earlier try deleted them without trash"
        because = earlier if all_without_trash else recovery["notice"]
        return f"the deleted objects cannot be restored: {because}"
    if recovery["kind"] == "unknown":
        if in_backup:
            return f"the deleted objects can be restored {in_backup}"
        return f"it is not known if the deleted objects can be restored: {recovery['notice']}"
    more = _except_for(not_kept) + (f"; and {in_backup}" if in_backup else "")
    what = recovery["kind"].replace("_", " ")
    if recovery["until"] is None:
        return f"the deleted objects can be restored ({what}); the end is not known{more}"
    until = datetime.fromisoformat(recovery["until"])
    verb = "can" if now < until else "could"
    return f"the deleted objects {verb} be restored until {until:%Y-%m-%d %H:%M} UTC ({what}){more}"


def _except_for(objects: int) -> str:
    """Return a clause on objects that the store or backup lacks; older sweeps have no number."""
    if not objects:
        return ""
    those = counted(objects, "object", "objects")
    are = "is" if objects == 1 else "are"
    return f", except for {those} that an earlier try deleted and that {are} not there"


def _of_earlier_tries(objects: int) -> str:
    if not objects:
        return ""
    return (
        f"; the store may not have kept {counted(objects, 'object')} that an earlier try deleted, "
        "since its settings may have been different then"
    )
