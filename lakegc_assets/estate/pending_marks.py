"""Marks that wait for a person: what can be approved, and what an approver wants to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lakegc_assets.checks.evaluation import read_results
from lakegc_assets.estate.repository_state import WAITING, Standing
from lakegc_assets.estate.run_state import REFUSED
from lakegc_assets.run.artifacts import ArtifactRoot

#: The check whose refusal a person may overrule.
APPROVABLE: Final = "candidate_share"


@dataclass(frozen=True)
class WaitingMark:
    """A mark that waits for approval.

    Attributes:
        repository: lakeFS repository.
        run: the mark id.
        objects: that it names.
        size: of these, in bytes.
        listed: objects that the store held.
        marked: when its candidates were found.
        refused: it is not published, since its share of the listing is too large.
        because: what it waits for, in a sentence.
    """

    repository: str
    run: str
    objects: int
    size: int
    listed: int
    marked: datetime
    refused: bool
    because: str


def waiting_mark(root: ArtifactRoot, standing: Standing) -> WaitingMark | None:
    """The mark of a repository that waits for approval; None where none does.

    Raises:
        LakegcError: its artifacts cannot be read.
    """
    if standing.state not in (WAITING, REFUSED) or standing.run is None:
        return None
    attempt = root.attempt(standing.repository, standing.run)
    candidates = attempt.manifest("deletion_candidates")
    refused = standing.state == REFUSED
    if refused:
        results = read_results(attempt, candidates)
        if [one.name for one in results if one.blocking and not one.passed] != [APPROVABLE]:
            return None
    return WaitingMark(
        repository=standing.repository,
        run=standing.run,
        objects=candidates.rows,
        size=sum(total["bytes"] for total in candidates.facts["by_reason"].values()),
        listed=candidates.facts["listed"],
        marked=candidates.finished,
        refused=refused,
        because=standing.because,
    )
