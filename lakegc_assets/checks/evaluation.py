"""Evaluate all invariants, and record their results for the publication and the sweep."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from lakegc_assets.checks import invariants
from lakegc_assets.checks.context import Case, CheckResult
from lakegc_assets.checks.listing_check import listing_holds_heads
from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.command_line import in_dagster
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.storage.errors import ObjectNotFoundError

#: Every invariant of a set of candidates, in the order of evaluation.
INVARIANTS = (
    invariants.inside_namespace,
    invariants.not_special,
    invariants.older_than_cutoff,
    invariants.candidate_share,
    invariants.active_commits_complete,
    listing_holds_heads,
    invariants.none_head_reachable,
    invariants.none_retained,
    invariants.none_staged,
    invariants.none_shadowed,
    invariants.none_pinned,
    invariants.tagged_commits_whole,
)

#: Invariants that warn, and do not stop a run.
WARNINGS = frozenset({invariants.tagged_commits_whole})

NAMES = tuple(function.__name__ for function in INVARIANTS)

_RESULTS = "deletion_candidates/checks.json"


def evaluate(ctx: RunContext, candidates: Sequence[Part] | None = None) -> list[CheckResult]:
    """Evaluate every invariant.

    Args:
        ctx: the run; its mark is done up to ``deletion_candidates``.
        candidates: files of the candidates; the whole asset if None.

    Raises:
        IntegrityError: the artifacts are incomplete, so that no invariant can be evaluated.
    """
    ctx = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("deletion_candidates", ctx.connections.namespace_url)
    if candidates is None:
        candidates = chain["deletion_candidates"].parts["data"]
    with ctx.frames() as frames:
        case = Case(ctx, frames, attempt, chain, candidates)
        try:
            return [invariant(case) for invariant in INVARIANTS]
        finally:
            case.close()


def check_candidates(ctx: RunContext) -> list[CheckResult]:
    """Evaluate every invariant and record the results next to the candidates."""
    results = evaluate(ctx)
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    manifest = attempt.manifest("deletion_candidates")
    record = {
        "candidates": manifest.sha256,
        "results": [dataclasses.asdict(result) for result in results],
        "requests": ctx.requests_sent,
    }
    attempt.store().put(_RESULTS, json.dumps(record, indent=1, sort_keys=True).encode())
    return results


def requests_of(attempt: AttemptArtifacts) -> int:
    """Return the number of requests that the checks of a mark sent; 0 if it was not recorded."""
    try:
        return int(json.loads(attempt.store().get(_RESULTS)).get("requests", 0))
    except (ObjectNotFoundError, *DAMAGE):
        return 0


def read_results(attempt: AttemptArtifacts, manifest: Manifest) -> list[CheckResult]:
    """Read the recorded results for these candidates.

    Raises:
        RefusedError: the invariants were not evaluated, or were evaluated for other candidates.
    """
    where = f"{attempt.url}/{_RESULTS}"
    try:
        record = json.loads(attempt.store().get(_RESULTS))
        about = record["candidates"]
        results = [CheckResult(**result) for result in record["results"]]
    except ObjectNotFoundError as error:
        raise RefusedError(
            f"the checks of mark {attempt.run!r} were not run: nothing is published without them. "
            f"Run the job {in_dagster('gc_mark')} as a whole",
        ) from error
    except DAMAGE as error:
        raise IntegrityError(f"{where} is damaged ({error}): mark again") from error
    if about != manifest.sha256:
        raise RefusedError(
            f"the checks of mark {attempt.run!r} are of other candidates than those of the mark: "
            f"run the job {in_dagster('gc_mark')} as a whole"
        )
    return results


def candidate_share_of(attempt: AttemptArtifacts, manifest: Manifest) -> float:
    """Return the share of the listing that is to be deleted, 0 to 1, as the check recorded it.

    Raises as ``read_results``.
    """
    name = invariants.candidate_share.__name__
    return next(float(r.facts["share"]) for r in read_results(attempt, manifest) if r.name == name)


def require_passed(results: list[CheckResult]) -> None:
    """Refuse to continue unless every blocking invariant was evaluated and holds.

    Raises:
        RefusedError: an invariant does not hold (with its finding), or its result is missing.
    """
    missing = sorted(set(NAMES) - {result.name for result in results})
    if missing:
        raise RefusedError(
            f"these checks were not evaluated: {', '.join(missing)}. Another version of lakegc may "
            "have made the mark: mark again"
        )
    failed = [r for r in results if r.blocking and not r.passed]
    if failed:
        refused = RefusedError("\n".join(f"{r.name}: {r.summary}" for r in failed))
        refused.figures = {
            f"{r.name}: {name}": fact for r in failed for name, fact in r.facts.items()
        }
        raise refused
