"""Marks that wait for a person, and their approval."""

from __future__ import annotations

import getpass
from typing import Any

from lakegc_assets.cli.jobs import run_job
from lakegc_assets.cli.queries import Site
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.repository_state import APPROVED, PERSON, UNREADABLE, Standing, standing
from lakegc_assets.estate.run_state import ON_HOLD, REFUSED
from lakegc_assets.lakefs.reads import utc_now
from lakegc_assets.sweep.approval import Approval, approval_of

_THREADS = 8


def approve(
    repository: str, run: str, by: str | None, share: float | None, settings: dict[str, Any]
) -> Approval:
    """Run the job ``gc_approve`` in this process.

    Args:
        repository: lakeFS repository.
        run: the mark id.
        by: who approves; None for this user.
        share: of the listing that is approved to go; None for what the settings say.
        settings: of the run.

    Raises:
        ConfigurationError: there is no such repository.
        RefusedError: there is no such mark, it was swept, or a check does not hold.
    """
    config: dict[str, Any] = {"by": getpass.getuser() if by is None else by}
    if share is not None:
        config["max_candidate_share"] = share
    run_job("gc_approve", repository, run, settings, {"approve": config})
    approval = approval_of(Site.defined().attempt(repository, run), utc_now())
    if approval is None:
        raise LakegcError(f"the approval of mark {run!r} of {repository!r} was not recorded")
    return approval


def pending() -> list[dict[str, Any]]:
    """The conditions for which the last mark of each repository waits, as JSON values.

    Raises:
        LakegcError: lakeFS does not answer.
    """
    site = Site.defined()
    now = utc_now()
    names = [r.id for r in site.lakefs.connect().repositories() if not r.read_only]

    def look(repository: str) -> Standing:
        return standing(site.root, repository, "approved", now, checked=True)

    found = thread_map(look, names, _THREADS)
    return [_told(one) for one in found if one.state in {*PERSON, APPROVED}]


def _told(one: Standing) -> dict[str, Any]:
    told: dict[str, Any] = {
        "repository": one.repository,
        "run": one.run,
        "state": one.state,
        "because": one.because,
    }
    if one.state not in {UNREADABLE, REFUSED, ON_HOLD}:
        told |= {"objects": one.garbage, "bytes": one.garbage_size}
    return told
