"""The invariants of every set of candidates, evaluated before anything is published or deleted.

Each invariant is a plain function of a ``Case``; ``evaluate`` runs them all. They are asset checks
of ``deletion_candidates``, and the sweep evaluates them again for itself. None of them uses the
code of the mark: they read commits, ranges and lists on a path of their own.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Final

from lakegc_assets.checks import context as checked
from lakegc_assets.checks import relations
from lakegc_assets.checks.context import EXAMPLES, Case, CheckResult
from lakegc_assets.checks.listing_check import carried_and_gone
from lakegc_assets.checks.retained import kept_commits, longest_rules, main_ancestries
from lakegc_assets.retention.naive import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.settings import recorded_retain
from lakegc_assets.wording import counted


def _verdict(context: Case, name: str, what: str, then: str) -> CheckResult:
    """A blocking invariant that holds if no candidate is wrong."""
    count = sum(context.counts.get(name, {}).values())
    if count == 0:
        return CheckResult(name, passed=True, summary=f"no candidate {what}")
    examples = context.examples(name)
    summary = f"{counted(count, 'candidate')}: each {what}, for example {examples}. {then}"
    facts = {"count": count, "examples": examples}
    return CheckResult(name, passed=False, summary=summary, facts=facts)


_REPORT: Final = "This is a fault of the mark, please report it"
_OUTSIDE: Final = (
    "If they lie in deeper folders of data/ than lakeFS makes, an earlier version of this program "
    "made the mark, or the listing that it goes on from: mark again with --clean (setting "
    "`clean`). Else this is a fault of the mark, please report it"
)
_NESTED: Final = (
    "If another repository lies in this one's namespace, of whatever lakeFS server, what one of "
    "them needs looks like garbage in the other: do not collect it. Else please report it"
)
_MOVED: Final = "If a branch moved while the mark was made, mark again. Else please report it"
_RESTORED: Final = (
    "If they were restored while the mark was made, mark again. Else please report it"
)
_DISAGREE: Final = (
    "The range is damaged, or one of the two readers is wrong. Fetch it again from a backup if its "
    "content does not have its id; else please report it, with the range"
)


def inside_namespace(context: Case) -> CheckResult:
    """Every candidate is a relative key where lakeFS writes objects: ``data/`` or the root."""
    what = "is outside of where lakeFS writes"
    return _verdict(context, checked.OUTSIDE, what, _OUTSIDE)


def not_special(context: Case) -> CheckResult:
    """No candidate is lakeFS's own, of whatever repository, or has a line break in its name."""
    what = "is lakeFS's own or cannot be listed"
    return _verdict(context, checked.SPECIAL, what, _NESTED)


def older_than_cutoff(context: Case) -> CheckResult:
    """Every candidate was written before the cutoff, by the listing itself."""
    return _verdict(context, checked.NOT_OLD, "is not older than the cutoff", _REPORT)


def none_head_reachable(context: Case) -> CheckResult:
    """No candidate is held by the HEAD of any branch, and both readers say the same of them."""
    if disagreement := _disagreement(context):
        return CheckResult(checked.HELD, passed=False, summary=disagreement)
    return _verdict(context, checked.HELD, "is held by a branch HEAD", _MOVED)


def _disagreement(context: Case) -> str:
    """The first range on which the two readers disagree, in words; empty if there is none."""
    rows = context.attempt.read("committed_addresses", "ranges", ["range_id", "digest"])
    read = dict(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))
    # What a branch has moved to since then, the mark need not have read.
    if unread := sorted(context.refs.of("active").keys() - read.keys()):
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
    """No candidate is served at a path whose HEAD entry has its size, and its etag if an MD5.

    Where an entry has another size than its object, every one counts whose size is not confirmed.
    """
    return _verdict(context, checked.SERVED, "is served by lakeFS", _MOVED)


def none_pinned(context: Case) -> CheckResult:
    """No candidate is pinned: what was restored stays until its pin ends."""
    return _verdict(context, checked.PINNED, "is pinned", _RESTORED)


def none_retained(context: Case) -> CheckResult:
    """No candidate is held by a commit that ``retain`` keeps, or below a path that it keeps."""
    what = "is held by a commit, or below a path, that `retain` keeps"
    return _verdict(context, checked.RETAINED, what, _MOVED)


def active_commits_complete(context: Case) -> CheckResult:
    """The active commits hold every recorded HEAD, and all that the naive walk finds active."""
    name = "active_commits_complete"
    rows = context.attempt.read("active_commits", "heads").to_pylist()
    heads = {row["branch"]: row["commit_id"] for row in rows}
    active = set(
        context.attempt.read("active_commits", columns=["commit_id"])["commit_id"].to_pylist()
    )
    expected = set(heads.values())
    rules = context.chain["active_commits"].facts["rules"]
    if rules is not None:
        start = context.chain["store_listing"].start
        # A HEAD that moved meanwhile is still in the log of what it moved to, or its own ref.
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
    """The share of the listing that is to be deleted is below its limit."""
    # What was approved for the mark is approved for its sweep.
    approved = context.chain["deletion_candidates"].settings["max_candidate_share"]
    limit = max(context.ctx.settings.max_candidate_share, approved)
    listing = context.chain["store_listing"]
    # What was carried forward and swept since is not there any more. Sweeps deleted other objects,
    # too, and what several marks name each of their sweeps has found gone: so it is fewer at most.
    gone = min(listing.facts.get("carried_and_gone", 0), listing.facts.get("carried", 0))
    if gone and context.rows > limit * (listing.rows - gone):
        gone = carried_and_gone(context)
    listed, what = listing.rows - gone, "listed objects"
    if context.by_name:
        # What was looked at is hardly anything but garbage, so that it is held against what is
        # needed in any case. A listing would show more, and the share would be smaller.
        listed, what = listed + _held_by_heads(context), "objects looked at, or held by HEADs,"
    share = context.rows / listed if listed else float(context.rows > 0)
    are = "is a candidate" if context.rows == 1 else "are candidates"
    summary = f"{context.rows} of {listed} {what} {are} ({share:.1%})"
    if share > limit:
        summary += (
            f", more than the limit of {100 * limit:g}%. If that is what the rules should do, "
            f"approve this run by a higher max_candidate_share: --max-candidate-share {_up(share)}"
        )
    facts = {"candidates": context.rows, "listed": listed, "share": share, "limit": limit}
    return CheckResult("candidate_share", share <= limit, summary, facts)


def _up(share: float) -> str:
    """A share in two digits that is not below it."""
    return f"{min(1.0, math.ceil(share * 100) / 100):g}"


def _held_by_heads(context: Case) -> int:
    """The number of distinct objects of the namespace that HEADs hold, by the witness."""
    return context.from_cache(
        lambda: context.total(relations.distinct(context.expected()), "count what HEADs hold")
    )


def tagged_commits_whole(context: Case) -> CheckResult:
    """A warning, not a stop: tagged commits that would lose objects, with their names."""
    losing = dict(sorted(context.counts.get(checked.TAGGED, {}).items()))
    summary = "no tagged commit loses an object"
    if losing:
        summary = (
            f"tagged commits lose objects: {losing}. Set protect_tags (--protect-tags) to keep them"
        )
    facts = {"tags": losing, "at": datetime.now(timezone.utc).isoformat()}
    return CheckResult(checked.TAGGED, not losing, summary, facts, blocking=False)
