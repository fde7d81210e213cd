"""The approval of a mark, by a person or by limits, which lets a sweep of it begin.

A person's approval is a file of the attempt, ``approvals/<time>.json``: the person, the time, the
expiry, the mark, and the share that was approved beyond the settings. An approval only lets a sweep
begin. It does not decide what is deleted: the sweep evaluates every check again for itself.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from lakegc_assets.checks.invariants import (
    candidate_share_of,
    check_candidates,
    evaluate,
    read_results,
    require_passed,
)
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.mark.report import report
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line, in_dagster
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import earlier
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.run.manifest import Manifest, require_begun, require_protection
from lakegc_assets.run.undo import with_trash
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets.storage.trash import trash_folder
from lakegc_assets.storage.values import Recovery, require_removed
from lakegc_assets.sweep.lease import leased
from lakegc_assets.sweep.lease_record import PROBES
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.status import restored
from lakegc_assets.wording import counted

#: Folder of the approvals, below the attempt.
FOLDER: Final = "approvals/"
#: Folder of withdrawn approvals.
_WITHDRAWN: Final = "withdrawn/"
#: Modes of sweeps that no person started: never, after an approval, or within limits.
MODES: Final = ("never", "approved", "auto")
#: Means to restore objects that may be required.
REQUIRED: Final = ("nothing", "backup", "undo", "backup or undo")
_UNDO: Final = ("versions", "soft_delete", "trash")
#: Most minutes by which the approver's clock may be ahead. An approval is of one mark only, so a
#: few minutes more do not let another mark be swept.
_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class Approval(JsonRecord, damaged="remove it, then approve again"):
    """One approval.

    Attributes:
        mark: SHA-256 of the manifest of ``gc_report``, which pins the whole mark.
        digest: digest of the addresses of the candidates.
        at: time of the approval, by the clock of the machine that evaluated the checks.
        max_candidate_share: the approved share of the listing.
    """

    repository: str
    run: str
    mark: str
    digest: str
    by: str
    at: Moment
    ends: Moment
    max_candidate_share: float

    @property
    def id(self) -> str:
        """Id that is unique among the approvals of the same mark."""
        return f"{self.at:%Y%m%dT%H%M%S%f}"


def approve(
    ctx: RunContext, by: str, lifetime: timedelta, digest: str = ""
) -> tuple[Approval, Manifest | None]:
    """Evaluate every check with the settings of this run, and approve the mark if they hold.

    A mark that its checks refused is checked again and, if they hold now, published.

    ``digest``: the digest of the candidates that the person has read; empty for any.

    Returns:
        The approval, and the manifest of the report if this call published it.

    Raises:
        ConfigurationError: the name is empty, or the lifetime is not positive.
        RefusedError: the mark is unknown, did not finish, was swept, names other objects than
            those that were read, was made by another version, which spares other objects, or began
            later than now; a clock is off; or a check does not hold.
        IntegrityError: the artifacts are incomplete or damaged.
    """
    if not by.strip():
        raise ConfigurationError(
            "an approval needs the name of the person who approves: --by, or `by` in the launchpad"
        )
    if lifetime <= timedelta(0):
        raise ConfigurationError(f"approval_lifetime_days is {lifetime}: it must be positive")
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    ctx = _approvable(ctx, attempt, digest)
    published = None
    if attempt.has("gc_report"):
        require_passed(evaluate(ctx))
    else:
        require_passed(check_candidates(ctx))
        published = report(ctx)
    chain = attempt.chain("gc_report", ctx.connections.namespace_url)
    now = ctx.clocks.now()
    approval = Approval(
        repository=ctx.repository,
        run=ctx.run,
        mark=chain["gc_report"].sha256,
        digest=chain["deletion_candidates"].digest,
        by=by.strip(),
        at=now,
        ends=now + lifetime,
        max_candidate_share=ctx.settings.max_candidate_share,
    )
    attempt.store().create(f"{FOLDER}{approval.id}.json", approval.to_bytes())
    return approval, published


def _approvable(ctx: RunContext, attempt: AttemptArtifacts, digest: str) -> RunContext:
    """Return the connected run if its mark can be approved, its checks aside; raises otherwise."""
    swept, name = recorded_sweep(ctx), f"mark {ctx.run!r} of {ctx.repository!r}"
    if swept is not None:
        raise RefusedError(f"{name} was {when(swept)}: there is nothing to approve")
    if not attempt.has("deletion_candidates"):
        raise RefusedError(f"{name} did not finish, so there is no report to approve: mark again")
    candidates = attempt.recorded("deletion_candidates")
    if digest and digest != candidates.digest:
        raise RefusedError(
            f"{name} has the digest {candidates.digest}, and {digest} was to be approved: the mark "
            "was made again and names other objects, or the digest is of another mark. Read its "
            "report, and approve the digest that it shows"
        )
    require_protection(candidates)
    ctx = ctx.connect()
    now = ctx.check_clocks(ctx.client, ctx.connections.store())
    require_begun(attempt.recorded("store_listing"), now, ctx.settings.clock_skew)
    return ctx


def withdraw(ctx: RunContext, by: str) -> None:
    """Withdraw every approval of a mark, under the lease, so that no sweep of it runs meanwhile.

    A sweep that is about to begin looks for its approval again when it has the lease. Sweeps within
    the limits of ``auto``, and sweeps that a person starts, need no approval.

    Raises:
        RefusedError: the mark is unknown, was swept, or was not approved; or another process holds
            the lease, for example a sweep, which must be ended first.
        StorageError: an approval could not be removed, and may still be valid.
    """
    ctx = ctx.connect()
    with leased(ctx, ctx.connections.store(), doing="withdrawal of an approval", run=ctx.run):
        store = ctx.root.attempt(ctx.repository, ctx.run).store()
        swept = recorded_sweep(ctx)
        keys = [info.key for info in store.infos_to_the_end(FOLDER)]
        if swept is not None or not keys:
            reason = "is not approved" if swept is None else f"was {when(swept)}"
            raise RefusedError(
                f"mark {ctx.run!r} of {ctx.repository!r} {reason}: there is nothing to withdraw"
            )
        for key in keys:
            record = {"by": by, "at": ctx.clocks.now().isoformat()}
            record["approval"] = store.get(key).decode(errors="replace")
            store.put(f"{_WITHDRAWN}{key.removeprefix(FOLDER)}", json.dumps(record).encode())
        require_removed(
            store.delete_many(keys), store.url, "The approval may still be valid: withdraw it again"
        )


def approval_of(attempt: AttemptArtifacts, now: datetime) -> Approval | None:
    """Return the last valid approval of this very mark; None if there is none.

    ``attempt``: the current attempt; its mark may not have finished.

    Raises:
        IntegrityError: an approval, or the manifest of its mark, is damaged.
    """
    store = attempt.store()
    keys = [info.key for info in store.infos(FOLDER)]
    if not keys or not attempt.has("gc_report"):
        return None
    mark = attempt.recorded("gc_report").sha256
    found = [
        Approval.from_bytes(store.get(key), f"{attempt.url}/{key}")
        for key in sorted(keys)
        if key.endswith(".json")
    ]
    about = (attempt.repository, attempt.run, mark)
    of_mark = [a for a in found if (a.repository, a.run, a.mark) == about]
    holding = [a for a in of_mark if a.at - _SKEW <= now < a.ends]
    return holding[-1] if holding else None


def with_share(ctx: RunContext, share: float) -> RunContext:
    """Return a run with the share of the listing that a person has approved."""
    settings = ctx.settings.changed(max_candidate_share=share)
    return dataclasses.replace(ctx, settings=settings)


def approved(ctx: RunContext) -> RunContext:
    """Return a run with the approved share of its mark, if there is a valid approval.

    Raises:
        RefusedError: the run is unknown.
        IntegrityError: its approval is damaged.
    """
    approval = approval_of(ctx.root.attempt(ctx.repository, ctx.run), ctx.clocks.now())
    if approval is None or approval.max_candidate_share <= ctx.settings.max_candidate_share:
        return ctx
    return with_share(ctx, approval.max_candidate_share)


def refusal_of(attempt: AttemptArtifacts) -> str:
    """Return the failures in the recorded checks of an unpublished mark; empty if all passed."""
    try:
        require_passed(read_results(attempt, attempt.manifest("deletion_candidates")))
    except RefusedError as error:
        return str(error)
    return ""


def recorded_sweep(ctx: RunContext) -> Manifest | None:
    """Return the record of a finished sweep of this mark; None if there is none.

    Raises:
        IntegrityError: the record is damaged.
    """
    try:
        attempt = ctx.root.attempt(ctx.repository, ctx.run)
    except RefusedError:
        return None
    return attempt.manifest(ASSET) if attempt.has(ASSET) else None


def when(swept: Manifest) -> str:
    """Return the time at which a mark was swept, in words."""
    return f"swept on {swept.finished:%Y-%m-%d} at {swept.finished:%H:%M} UTC"


class Wait(NamedTuple):
    """The reason why a mark is not swept yet."""

    #: With what a person can do.
    sentence: str
    #: The limits that the mark exceeds: "since …"; empty if it waits for another reason.
    limits: str = ""


@dataclass(frozen=True)
class Limits:
    """Limits of a mark that is swept without a person; None for no limit.

    Attributes:
        share: share of the listed objects, 0 to 1.
        growth: factor against the last mark that was swept, in objects and in bytes; 2 is twice as
            much.
        required: one of ``REQUIRED``.
    """

    share: float | None = None
    objects: int | None = None
    bytes: int | None = None
    growth: float | None = None
    required: str = "nothing"


def waits_for(ctx: RunContext, mode: str, limits: Limits) -> Wait | None:
    """Return the reason why the published mark of a run waits; None if it may be swept now.

    ``mode``: one of ``MODES``; ``limits``: the limits of the mode ``auto``.

    Raises:
        RefusedError: the run is unknown.
        IntegrityError: its artifacts are damaged.
        StorageError: the probe of the recovery options failed, since nothing can be written.
    """
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    name = f"mark {ctx.run} of {ctx.repository}"
    if mode == "never":
        sweeping = command_line(
            "sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings
        )
        return Wait(
            f"{name} is not swept, since `sweep` is `never`. To sweep it nevertheless: `{sweeping}`"
        )
    if not attempt.has("gc_report") or approval_of(attempt, ctx.clocks.now()) is not None:
        # The sweep itself refuses a mark that did not finish, with the reason.
        return None
    if not attempt.manifest("gc_report").facts["objects"]:
        # A mark without candidates needs no approval: its sweep deletes nothing.
        return None
    because = "" if mode == "approved" else _exceeded_limits(ctx, attempt, limits)
    if mode == "auto" and not because:
        return None
    how = how_to_approve(attempt.recorded("deletion_candidates"))
    since = f", {because}" if because else ""
    return Wait(f"{name} waits for approval{since}: {how}", because)


def how_to_approve(candidates: Manifest) -> str:
    """Return instructions for a person who has read the report of a mark."""
    return (
        f"read its report, then run the job {in_dagster('gc_approve')} on its partition, or "
        f"`{command_line('approve', *approving(candidates))}`"
    )


def approving(candidates: Manifest) -> list[str]:
    """Return the arguments of the command ``approve`` that approve exactly these candidates."""
    return [candidates.repository, "--run", candidates.run, "--digest", candidates.digest]


def _exceeded_limits(ctx: RunContext, attempt: AttemptArtifacts, limits: Limits) -> str:
    """Return the limits that a mark exceeds, as "since …"; empty if none."""
    report = attempt.manifest("gc_report")
    objects, size = report.facts["objects"], report.facts["bytes"]
    found = []
    if limits.share is not None:
        # The share as the check counts it: without objects that are gone and, if the store was not
        # listed, with the objects that HEADs hold, since nearly all objects looked up are garbage.
        candidates = attempt.manifest("deletion_candidates")
        share = candidate_share_of(attempt, candidates)
        if share > limits.share:
            whole = "was listed"
            if candidates.mode == "committed":
                whole = "was looked at, or HEADs hold"
            limit = f"the limit is {100 * limits.share:g}%"
            found.append(f"it names {share:.1%} of what {whole}, {limit}")
    if limits.objects is not None and objects > limits.objects:
        found.append(f"it names {counted(objects, 'object')}, the limit is {limits.objects:,}")
    if limits.bytes is not None and size > limits.bytes:
        found.append(f"it names {counted(size, 'byte')}, the limit is {limits.bytes:,}")
    if limits.growth is not None and objects:
        found += _growth(ctx, report, limits.growth)
    found += _missing_means(ctx, limits.required)
    return f"since {'; and '.join(found)}" if found else ""


def _growth(ctx: RunContext, report: Manifest, growth: float) -> list[str]:
    """Return the growth of a mark against the last one that was swept, if it exceeds a factor.

    A mark that was not swept allows nothing. It may wait since it has grown itself, or be one of
    ``gc_rules``, which nobody looks at: the next mark of the same objects would not have grown.
    Objects that were restored do not count: to delete them was a mistake.
    """
    last, undone, before = None, "", {"objects": 0, "bytes": 0}
    for mark in earlier(ctx.root, ctx.repository, "gc_report", report.namespace, ctx.run):
        if mark.manifest.finished > report.started or not mark.attempt.has(ASSET):
            continue
        try:
            back = restored(mark.attempt)
        except IntegrityError as error:
            return [f"it is not known if the sweep of mark {mark.manifest.run} was undone: {error}"]
        if back is None or not back.whole:
            last = mark.manifest
            before = {measure: last.facts[measure] for measure in before}
            if back is not None:
                before["objects"] -= back.objects
                before["bytes"] -= back.size
            break
        undone = ", except for marks whose objects were all restored"
    if last is None:
        return [f"no earlier mark was swept{undone}, so there is none to compare it with"]
    return [
        f"it names {report.facts[measure]:,} {measure}, more than {growth:g} times the {most:,} of "
        f"mark {last.run}{' that were not restored' if back else ''}"
        for measure, most in before.items()
        if report.facts[measure] > growth * most
    ]


def _missing_means(ctx: RunContext, required: str) -> list[str]:
    """Return the missing means to restore objects, if the settings require one."""
    if required == "nothing":
        return []
    # A sweep with a backup deletes only objects with a verified copy.
    backup = bool(ctx.settings.backup_url)
    if backup and required != "undo":
        return []
    notice = "there is no backup_url"
    if required != "backup":
        recovery = _probed_recovery(ctx)
        if recovery.kind in _UNDO:
            return []
        notice = f"{recovery.notice}, and {notice}"
    return [f"{required} is required: {notice}"]


def _probed_recovery(ctx: RunContext) -> Recovery:
    """Probe the recovery options of the store: its settings alone promise nothing."""
    store = ctx.connect().connections.store()
    token, days, trash = secrets.token_hex(8), ctx.settings.trash_lifetime, None
    if days:
        trash = trash_folder(f"probe-{token}", store.server_time(), days)
    elif (found := store.recovery()).kind == "trash":
        return with_trash(found, days)
    return probe_recovery(store, f"{PROBES}{token}/", trash)
