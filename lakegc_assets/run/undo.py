"""Says before a sweep whether what it deletes can be had back, and for how long."""

from __future__ import annotations

from datetime import timedelta

from lakegc_assets.storage.values import Recovery
from lakegc_assets.wording import duration


def with_trash(recovery: Recovery, stays: timedelta) -> Recovery:
    """The recovery options of a store, limited by the time that trash stays; 0 for no trash."""
    if recovery.kind != "trash":
        return recovery
    if not stays:
        return Recovery("nothing", None, f"trash_days is 0; with it, {recovery.notice}")
    return recovery._replace(days=stays / timedelta(days=1))


def whether_undone(recovery: Recovery, backup_url: str | None) -> str:
    """A sentence about a sweep that is to come, of a mark that is backed up before or not."""
    if recovery.kind == "unknown":
        also = " from the store, besides from its backup" if backup_url else ""
        return f"it is not known whether this sweep can be undone{also}: {recovery.notice}"
    if recovery.kind == "nothing" and backup_url:
        return f"this sweep can be undone from its backup only ({recovery.notice})"
    if recovery.kind == "nothing":
        return (
            f"this sweep cannot be undone: set backup_url, or turn versions on ({recovery.notice})"
        )
    ends = "" if recovery.days is None else f" for {duration(timedelta(days=recovery.days))}"
    return f"this sweep can be undone{ends}: {recovery.notice}"
