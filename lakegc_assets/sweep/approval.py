"""An approval: a person has seen the report of one mark, and lets it be swept for a while.

It is a file of the attempt, ``approvals/<time>.json``: who, when, until when, for which mark, and
what was approved beyond the settings. It says that a sweep may begin, and nothing about what it may
delete: the sweep evaluates every check again for itself.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from lakegc_assets.checks.evaluation import (
    check_candidates,
    evaluate,
    read_results,
    require_passed,
)
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.mark.report import report
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.ledger import ASSET

#: Where approvals are, below the attempt.
FOLDER: Final = "approvals/"


@dataclass(frozen=True)
class Approval:
    """One approval.

    Attributes:
        repository: lakeFS repository.
        run: the mark id.
        mark: SHA-256 of the manifest of ``gc_report``, which pins the whole mark.
        digest: of the addresses that the mark names.
        by: who approved.
        at: when, by the clock of the machine that evaluated the checks.
        ends: from when on it counts no more.
        max_candidate_share: the share of the listing that was approved.
    """

    repository: str
    run: str
    mark: str
    digest: str
    by: str
    at: datetime
    ends: datetime
    max_candidate_share: float

    @property
    def id(self) -> str:
        """Tells it from other approvals of the same mark."""
        return f"{self.at:%Y%m%dT%H%M%S%f}"

    def to_bytes(self) -> bytes:
        """The approval as it is stored."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, default=str).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Approval:
        """Read a stored approval.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            values = json.loads(data)
            for name in ("at", "ends"):
                values[name] = datetime.fromisoformat(values[name])
                if values[name].tzinfo is None:
                    raise ValueError(f"{name} has no time zone")  # noqa: TRY301 - it is damage
            return cls(**values)
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"{where} is damaged ({error}): approve again") from error


def approve(ctx: RunContext, by: str, lifetime: timedelta) -> tuple[Approval, Manifest | None]:
    """Evaluate every check with the settings of this run, and let the mark be swept if they hold.

    A mark that was refused by its checks is checked again and, where they hold now, published.

    Args:
        ctx: the run, with what is approved in its settings.
        by: who approves.
        lifetime: of the approval.

    Returns:
        The approval, and the manifest of the report where it was published by this.

    Raises:
        ConfigurationError: nobody approves, or for no time.
        RefusedError: the mark is unknown, did not finish, or was swept; or a check does not hold.
        IntegrityError: the artifacts are not whole.
    """
    if not by.strip():
        raise ConfigurationError("an approval needs a name: who approves?")
    if lifetime <= timedelta(0):
        raise ConfigurationError(f"approval_lifetime is {lifetime}: it must be positive")
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    swept = recorded_sweep(ctx)
    if swept is not None:
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} was {when(swept)}: nothing is to be approved"
        )
    if not attempt.has("deletion_candidates"):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} did not finish, so nobody can have seen it: "
            "mark again"
        )
    published = None
    if attempt.has("gc_report"):
        require_passed(evaluate(ctx))
    else:
        require_passed(check_candidates(ctx))
        published = report(ctx)
    _, connections = ctx.connect()
    chain = attempt.chain("gc_report", connections.namespace_url)
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
    attempt.store().put_if_absent(f"{FOLDER}{approval.id}.json", approval.to_bytes())
    return approval, published


def approval_of(attempt: AttemptArtifacts, now: datetime) -> Approval | None:
    """The last approval of this very mark that holds now; None where nothing is approved.

    Args:
        attempt: the present attempt; its mark may not have finished.
        now: the time, UTC.

    Raises:
        IntegrityError: an approval, or the manifest that it is about, is damaged.
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
    holding = [a for a in found if (a.repository, a.run, a.mark) == about and a.at <= now < a.ends]
    return holding[-1] if holding else None


def with_share(ctx: RunContext, share: float) -> RunContext:
    """A run in which a person has approved that a share of the listing goes."""
    settings = ctx.settings.changed(max_candidate_share=share)
    return dataclasses.replace(ctx, settings=settings)


def approved(ctx: RunContext) -> RunContext:
    """A run with the share that was approved for its mark, where an approval holds.

    Raises:
        RefusedError: the run is unknown.
        IntegrityError: its approval is damaged.
    """
    approval = approval_of(ctx.root.attempt(ctx.repository, ctx.run), ctx.clocks.now())
    if approval is None or approval.max_candidate_share <= ctx.settings.max_candidate_share:
        return ctx
    return with_share(ctx, approval.max_candidate_share)


def refusal_of(attempt: AttemptArtifacts) -> str:
    """The failures in the recorded checks of an unpublished mark; empty if all passed."""
    try:
        require_passed(read_results(attempt, attempt.manifest("deletion_candidates")))
    except RefusedError as error:
        return str(error)
    return ""


def recorded_sweep(ctx: RunContext) -> Manifest | None:
    """The record of a finished sweep of this mark; None where there is none.

    Raises:
        IntegrityError: it is damaged.
    """
    try:
        attempt = ctx.root.attempt(ctx.repository, ctx.run)
    except RefusedError:
        return None
    return attempt.manifest(ASSET) if attempt.has(ASSET) else None


def when(swept: Manifest) -> str:
    """The time at which a mark was swept, in words."""
    return f"swept on {swept.finished:%Y-%m-%d} at {swept.finished:%H:%M} UTC"
