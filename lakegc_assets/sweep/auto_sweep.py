"""Conditions for sweeping a mark without a person; a sentence names what is waited for.

This only ever keeps a sweep from starting. What is swept, and whether, is decided by the sweep.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.command_line import command_line, in_dagster
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import earlier
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets.storage.trash import trash_folder
from lakegc_assets.storage.values import Recovery
from lakegc_assets.sweep.approval import approval_of
from lakegc_assets.sweep.lease_record import PROBES
from lakegc_assets.wording import counted

#: How marks are swept that nobody asked for.
MODES: Final = ("never", "approved", "auto")
#: What must be there to bring objects back.
REQUIRED: Final = ("nothing", "backup", "undo", "backup or undo")
_UNDO: Final = ("versions", "soft_delete", "trash")


@dataclass(frozen=True)
class Limits:
    """Up to where a mark is swept without a person; None for no limit.

    Attributes:
        share: of the listed objects, 0 to 1.
        objects: number of candidates.
        bytes: of the candidates together.
        growth: how many times as much as the last mark, in objects and in bytes; 2 is twice.
        required: one of ``REQUIRED``.
    """

    share: float | None = None
    objects: int | None = None
    bytes: int | None = None
    growth: float | None = None
    required: str = "nothing"


def waits_for(ctx: RunContext, mode: str, limits: Limits) -> str | None:
    """The reason why the published mark of a run waits; None if it may be swept now.

    Args:
        ctx: the run.
        mode: one of ``MODES``.
        limits: under which ``auto`` holds.

    Raises:
        RefusedError: the run is unknown.
        IntegrityError: its artifacts are damaged.
        StorageError: whether objects come back is to be tried, and nothing can be written.
    """
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    name = f"mark {ctx.run} of {ctx.repository}"
    if mode == "never":
        sweeping = command_line(
            "sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings
        )
        return f"{name} is not swept: `sweep` is `never`. `{sweeping}` does it all the same"
    if not attempt.has("gc_report") or approval_of(attempt, ctx.clocks.now()) is not None:
        # What did not finish the sweep itself refuses, with the reason.
        return None
    if not attempt.manifest("gc_report").facts["objects"]:
        # A mark of nothing waits for nobody: its sweep says so, and deletes nothing.
        return None
    because = "" if mode == "approved" else _beyond(ctx, attempt, limits)
    if mode == "auto" and not because:
        return None
    return f"{name} waits for approval{because}: {how_to_approve(attempt)}"


def how_to_approve(attempt: AttemptArtifacts) -> str:
    """Instructions for a person who has read the report."""
    return (
        f"read its report, then run the job {in_dagster('gc_approve')} on its partition, or "
        f"`{command_line('approve', attempt.repository, '--run', attempt.run)}`"
    )


def _beyond(ctx: RunContext, attempt: AttemptArtifacts, limits: Limits) -> str:
    """The limits that a mark exceeds, as the rest of a sentence; empty if it keeps all."""
    report = attempt.manifest("gc_report")
    listed = attempt.manifest("deletion_candidates").facts["listed"]
    objects, size = report.facts["objects"], report.facts["bytes"]
    found = []
    share = objects / listed if listed else float(objects > 0)
    if limits.share is not None and share > limits.share:
        found.append(f"it names {share:.1%} of what was listed, the limit is {limits.share:.1%}")
    if limits.objects is not None and objects > limits.objects:
        found.append(f"it names {counted(objects, 'object')}, the limit is {limits.objects:,}")
    if limits.bytes is not None and size > limits.bytes:
        found.append(f"it names {counted(size, 'byte')}, the limit is {limits.bytes:,}")
    if limits.growth is not None and objects:
        found += _grown(ctx, report, limits.growth)
    found += _unprotected(ctx, limits.required)
    return f", since {'; and '.join(found)}" if found else ""


def _grown(ctx: RunContext, report: Manifest, growth: float) -> list[str]:
    """The growth of a mark against the one before it, where it exceeds a factor."""
    last = next(
        (
            one.manifest
            for one in earlier(ctx.root, ctx.repository, "gc_report", report.namespace, ctx.run)
            if _before(one.manifest, report.started)
        ),
        None,
    )
    if last is None:
        return ["there is no earlier mark to compare it with"]
    found = []
    for what in ("objects", "bytes"):
        now, before = report.facts[what], last.facts[what]
        if now > growth * before:
            found.append(
                f"it names {now:,} {what}, more than {growth:g} times the {before:,} of mark "
                f"{last.run}"
            )
    return found


def _before(manifest: Manifest, moment: datetime) -> bool:
    return manifest.finished <= moment


def _unprotected(ctx: RunContext, required: str) -> list[str]:
    """The missing ways to bring objects back, if the settings require one."""
    if required == "nothing":
        return []
    # A sweep with a backup deletes only what is verified in it.
    backup = bool(ctx.settings.backup_url)
    if backup and required != "undo":
        return []
    notice = "there is no backup_url"
    if required != "backup":
        recovery = _tried(ctx)
        if recovery.kind in _UNDO:
            return []
        notice = f"{recovery.notice}, and {notice}"
    return [f"{required} is required: {notice}"]


def _tried(ctx: RunContext) -> Recovery:
    """The recovery options of the store, as probed: its settings alone promise nothing."""
    store = ctx.connect()[1].store()
    token, days, trash = secrets.token_hex(8), ctx.settings.trash_lifetime, None
    if days:
        trash = trash_folder(f"probe-{token}", store.server_time(), days)
    return probe_recovery(store, f"{PROBES}{token}/", trash)
