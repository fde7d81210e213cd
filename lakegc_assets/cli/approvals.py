"""What waits for a person, and the approval of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lakegc_assets.cli.jobs import run_job
from lakegc_assets.cli.queries import Site
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.lakefs.reads import utc_now
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.run.tasks import each
from lakegc_assets.sweep.approval import Approval, approval_of, refusal_of
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.unattended import how_to_approve

_THREADS = 8


def approve(repository: str, run: str, by: str | None, share: float | None) -> Approval:
    """Run the job ``gc_approve`` in this process.

    Args:
        repository: lakeFS repository.
        run: the mark id.
        by: who approves; None for this user.
        share: of the listing that is approved to go; None for what the settings say.

    Raises:
        ConfigurationError: there is no such repository.
        RefusedError: there is no such mark, it was swept, or a check does not hold.
    """
    config: dict[str, Any] = {} if by is None else {"by": by}
    if share is not None:
        config["max_candidate_share"] = share
    run_job("gc_approve", repository, run, {}, {"approve": config})
    approval = approval_of(Site.defined().attempt(repository, run), utc_now())
    if approval is None:
        raise LakegcError(f"the approval of mark {run!r} of {repository!r} was not recorded")
    return approval


def pending() -> list[dict[str, Any]]:
    """The last mark of each repository that was not swept, as JSON values: what it waits for.

    Raises:
        LakegcError: lakeFS or the store of the artifacts does not answer.
    """
    site = Site.defined()
    now = utc_now()
    names = [r.id for r in site.lakefs.connect().repositories() if not r.read_only]

    def look(repository: str) -> dict[str, Any] | None:
        try:
            return _pending(site.root, repository, now)
        except IntegrityError as error:
            # What is damaged in one of them hides nothing of the others.
            return {
                "repository": repository,
                "run": None,
                "state": "unreadable",
                "because": str(error),
            }

    return [one for one in each(look, names, _THREADS) if one is not None]


def _pending(root: ArtifactRoot, repository: str, now: datetime) -> dict[str, Any] | None:
    def marked(run: str) -> tuple[datetime, AttemptArtifacts] | None:
        try:
            attempt = root.attempt(repository, run)
            return attempt.recorded("deletion_candidates").finished, attempt
        except LakegcError:
            return None

    marks = [one for one in each(marked, root.runs(repository), _THREADS) if one is not None]
    if not marks:
        return None
    finished, last = max(marks, key=lambda one: one[0])
    if last.has(ASSET):
        return None
    told = {"repository": repository, "run": last.run, "marked": finished.isoformat()}
    if not last.has("gc_report"):
        refusal = refusal_of(last)
        return {**told, "state": "refused", "because": refusal} if refusal else None
    facts = last.manifest("gc_report").facts
    told |= {"objects": facts["objects"], "bytes": facts["bytes"]}
    approval = approval_of(last, now)
    if approval is None:
        return {**told, "state": "waits", "because": how_to_approve(last)}
    because = f"by {approval.by}, until {approval.ends:%Y-%m-%d %H:%M} UTC"
    return {**told, "state": "approved", "because": because}
