"""The invariants of every set of candidates, evaluated before each publication and deletion.

Each invariant is a plain function of a ``Case``; ``evaluate`` runs all of them, and
``check_candidates`` records their results for the publication and the sweep. They are the asset
checks of ``deletion_candidates``, and the sweep evaluates them again for itself. None of them uses
the mark's code: they read commits, ranges and lists with code of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Final

from lakegc_assets.checks import context as checked
from lakegc_assets.checks import relations
from lakegc_assets.checks.context import EXAMPLES, Case, CheckResult
from lakegc_assets.checks.listing_check import carried_and_gone, listing_holds_heads
from lakegc_assets.checks.logged_commits import kept_commits, longest_rules, main_ancestries
from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import in_dagster
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.settings import recorded_retain
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.wording import counted

_RESULTS: Final = "deletion_candidates/checks.json"
_ATTACHED: Final = "please report it, with the log and each manifest.json of the mark"
_REPORT: Final = f"This is a fault of the mark: {_ATTACHED}"
_NESTED: Final = (
    "If another repository lies in this one's namespace, of whatever lakeFS server, what one of "
    "them needs looks like garbage in the other: do not collect it. If that repository was "
    "deleted and nothing reads its objects, remove its folder by hand and mark again. Otherwise "
    f"{_ATTACHED}"
)
_MOVED: Final = f"If a branch moved while the mark was made, mark again. Otherwise {_ATTACHED}"
_RESTORED: Final = (
    f"If they were restored while the mark was made, mark again. Otherwise {_ATTACHED}"
)
_DISAGREE: Final = (
    "The range is damaged, or one of the two readers is wrong. If a backup of the bucket has "
    "another content of this file, restore it from there; otherwise please report it, with the file"
)


def _verdict(context: Case, name: str, violation: str, advice: str) -> CheckResult:
    """Return the result of a blocking invariant, which holds if no candidate violates it."""
    count = sum(context.counts.get(name, {}).values())
    if count == 0:
        return CheckResult(name, passed=True, summary=f"no candidate {violation}")
    examples = context.examples(name)
    summary = f"{counted(count, 'candidate')}: each {violation}, for example {examples}. {advice}"
    facts = {"count": count, "examples": examples}
    return CheckResult(name, passed=False, summary=summary, facts=facts)


def inside_namespace(context: Case) -> CheckResult:
    """Every candidate is a relative key where lakeFS writes objects: in ``data/`` or the root."""
    violation = "is outside of where lakeFS writes"
    return _verdict(context, checked.OUTSIDE, violation, _REPORT)


def not_special(context: Case) -> CheckResult:
    """No candidate belongs to lakeFS itself, in any repository, or has a line break in its name."""
    violation = "is lakeFS's own or cannot be listed"
    return _verdict(context, checked.SPECIAL, violation, _NESTED)


def older_than_cutoff(context: Case) -> CheckResult:
    """Every candidate was written before the cutoff, according to the listing."""
    return _verdict(context, checked.NOT_OLD, "is not older than the cutoff", _REPORT)


def none_head_reachable(context: Case) -> CheckResult:
    """No branch HEAD holds a candidate, and both readers find the same addresses in its ranges."""
    if disagreement := _disagreement(context):
        return CheckResult(checked.HELD, passed=False, summary=disagreement)
    return _verdict(context, checked.HELD, "is held by a branch HEAD", _MOVED)


def _disagreement(context: Case) -> str:
    """Describe the first range in which the two readers disagree; empty if they agree."""
    rows = context.attempt.read("committed_addresses", "ranges", ["range_id", "digest"])
    read = dict(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))
    # A range of a HEAD that moved after the mark is not active, and the mark need not have read it.
    if unread := sorted(context.live_set.of("active").keys() - read.keys()):
        return (
            f"the mark did not read {counted(len(unread), 'range')} of branch HEADs, for example "
            f"{unread[:EXAMPLES]}. {_REPORT}"
        )
    for range_id, digest in sorted(context.witnessed.digests().items()):
        if read.get(range_id, digest) != digest:
            return (
                f"range {range_id} of {context.ctx.connections.namespace_url}: the mark's reader "
                f"finds the addresses {read[range_id]}, the checks' reader {digest}. {_DISAGREE}"
            )
    return ""


def none_staged(context: Case) -> CheckResult:
    """No candidate is in any list of staged objects that lakeFS wrote for this mark."""
    return _verdict(context, checked.STAGED, "is staged on a branch", _REPORT)


def none_shadowed(context: Case) -> CheckResult:
    """LakeFS serves no candidate where a HEAD entry has its size, and its etag if that is an MD5.

    If one entry has another size than its object, all entries without a confirmed size count.
    """
    return _verdict(context, checked.SERVED, "is served by lakeFS", _MOVED)


def none_pinned(context: Case) -> CheckResult:
    """No candidate is pinned: restored objects stay until their pin ends."""
    return _verdict(context, checked.PINNED, "is pinned", _RESTORED)


def none_retained(context: Case) -> CheckResult:
    """No candidate is held by a commit, or below a path, that the ``retain`` rules keep."""
    violation = "is held by a commit, or below a path, that `retain` keeps"
    return _verdict(context, checked.RETAINED, violation, _MOVED)


def active_commits_complete(context: Case) -> CheckResult:
    """The active commits include every recorded HEAD, and all that the naive walk finds active."""
    name = "active_commits_complete"
    rows = context.attempt.read("active_commits", "heads").to_pylist()
    heads = {row["branch"]: row["commit_id"] for row in rows}
    active, expected = context.active, set(heads.values())
    rules = context.chain["active_commits"].facts["rules"]
    if rules is not None:
        start = context.chain["store_listing"].start
        # If a branch moved since, its recorded HEAD is in the new HEAD's log, or is a ref itself.
        client, repository = context.ctx.client, context.ctx.repository
        commits = main_ancestries(client, repository, heads.values())
        retain = recorded_retain([context.chain["active_commits"].settings])
        longest = longest_rules(Rules.parse(rules), retain, heads)
        expected |= naive_active_commits(commits, heads, longest, start)
        tags = context.attempt.read("active_commits", "tags").to_pylist() if retain else []
        tagged = {row["tag"]: row["commit_id"] for row in tags}
        expected |= kept_commits(client, repository, heads, tagged, retain)
    missing = sorted(expected - active) or ([] if heads and active else ["every one"])
    hold = counted(len(active), "active commit holds", "active commits hold")
    summary = f"{hold} {'the HEAD' if len(heads) == 1 else f'all {len(heads):,} HEADs'}"
    if missing:
        summary = (
            f"{counted(len(missing), 'commit is', 'commits are')} missing from the active ones, "
            f"for example {missing[:EXAMPLES]}. {_REPORT}"
        )
    facts = {"active": len(active), "missing": len(missing)}
    return CheckResult(name, not missing, summary, facts)


def candidate_share(context: Case) -> CheckResult:
    """The share of the listing that is to be deleted is not above its limit."""
    # An approval of the mark also holds for its sweep.
    approved = context.chain["deletion_candidates"].settings["max_candidate_share"]
    limit = max(context.ctx.settings.max_candidate_share, approved)
    listing = context.chain["store_listing"]
    # Objects that were carried forward and swept since do not exist any more. The figure of the
    # listing is an upper bound: sweeps also delete objects that were not carried forward, and each
    # of the sweeps of several marks counts an object that all of the marks name.
    gone = min(listing.facts.get("carried_and_gone", 0), listing.facts.get("carried", 0))
    if gone and context.rows > limit * (listing.rows - gone):
        gone = carried_and_gone(context)
    listed, objects = listing.rows - gone, "listed objects"
    if context.by_name:
        # Nearly all objects that were looked up are garbage. So the share is computed with the
        # objects that HEADs hold. A listing would contain more objects, and the share be smaller.
        listed, objects = listed + _held_by_heads(context), "objects looked up, or held by HEADs,"
    share = context.rows / listed if listed else float(context.rows > 0)
    are = "is a candidate" if context.rows == 1 else "are candidates"
    summary = f"{context.rows} of {listed} {objects} {are} ({share:.1%})"
    if share > limit:
        summary += (
            f", more than the limit of {100 * limit:g}%. If that is what the rules should do, "
            f"approve this run by a higher max_candidate_share: --max-candidate-share {_up(share)}"
        )
    facts = {"candidates": context.rows, "listed": listed, "share": share, "limit": limit}
    return CheckResult("candidate_share", share <= limit, summary, facts)


def _up(share: float) -> str:
    """Round a share up to two digits."""
    return f"{min(1.0, math.ceil(share * 100) / 100):g}"


def _held_by_heads(context: Case) -> int:
    """Count the distinct objects of the namespace that HEADs hold, read by the witness."""
    return context.from_cache(
        lambda: context.total(relations.distinct(context.expected()), "count what HEADs hold")
    )


def tagged_commits_whole(context: Case) -> CheckResult:
    """A warning that does not stop the run: tagged commits that would lose objects, by name."""
    losing = dict(sorted(context.counts.get(checked.TAGGED, {}).items()))
    summary = "no tagged commit loses an object"
    if losing:
        summary = (
            f"tagged commits lose objects: {losing}. Set protect_tags (--protect-tags) to keep them"
        )
    facts = {"tags": losing, "at": datetime.now(timezone.utc).isoformat()}
    return CheckResult(checked.TAGGED, not losing, summary, facts, blocking=False)


#: Every invariant of a set of candidates, in the order of evaluation.
INVARIANTS: Final = (
    inside_namespace,
    not_special,
    older_than_cutoff,
    candidate_share,
    active_commits_complete,
    listing_holds_heads,
    none_head_reachable,
    none_retained,
    none_staged,
    none_shadowed,
    none_pinned,
    tagged_commits_whole,
)

#: Invariants that warn, and do not stop a run.
WARNINGS: Final = frozenset({tagged_commits_whole})

NAMES: Final = tuple(function.__name__ for function in INVARIANTS)


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
        "results": [asdict(result) for result in results],
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
    name = candidate_share.__name__
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
