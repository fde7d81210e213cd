"""The memory of marks: commits that one hands on to the next, and until when they must stay.

Each mark that finishes its active commits hands on what it read of the one before it, so that the
latest is enough. It counts whatever became of its run: an attempt that failed later, or that a new
one of the same run has followed, has read what nobody else may know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.retention.active_commits import Reason, active_commits
from lakegc_assets.retention.commits import Commit, instant
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous, remember
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import Earlier

ASSET: Final = "active_commits"
#: Part with the commits that an earlier mark knew and that nothing leads to any more.
FORGOTTEN: Final = "forgotten"
#: Part with the commits that are not active, and of which stays what lies below some paths; only
#: where rules say so.
PATHS: Final = "paths"
#: Part with further reasons for which commits stay until a date. Earlier versions do not write it.
REMEMBERED: Final = "remembered"
#: Fact of a mark without rules: those that the repository had last.
LAST_RULES: Final = "last_rules"
#: Parts that together have all commits which a mark knew.
_ALL: Final = ("data", "expired", FORGOTTEN)
_FORGOTTEN: Final = schema("commit_id string, metarange_id string, branch string")
_REMEMBERED: Final = schema(_FORGOTTEN, "kind string, counted_from timestamp")
_THREADS: Final = 8


def latest_mark(ctx: RunContext) -> Earlier | None:
    """The latest attempt of any run, but the present one, whose active commits are whole.

    Raises:
        StorageError: the store did not answer.
    """
    marks: list[Earlier] = []
    for found in _marks(ctx, but_present=True):
        marks += [one for one in found if isinstance(one, Earlier)]
    for one in sorted(marks, key=_age, reverse=True):
        with suppress(IntegrityError):
            one.attempt.manifest(ASSET)
            return one
    return None


def earlier_commits(ctx: RunContext) -> set[str]:
    """All commits that the latest mark knew, or one before it: each hands them on to the next.

    A branch may be deleted, and a commit of it still has to stay for its metadata, which lakeFS
    returns for a commit that nothing leads to, too. No other witness has it: so a mark that cannot
    be read is not passed over.

    Raises:
        IntegrityError: a mark is damaged.
        StorageError: the store did not answer.
    """
    marks: list[Earlier] = []
    for found in _marks(ctx):
        for one in found:
            if isinstance(one, IntegrityError):
                raise one
            marks.append(one)
    if not marks:
        return set()
    tables = _tables(max(marks, key=_age), _ALL, ["commit_id"])
    return {commit_id for table in tables for commit_id in table["commit_id"].to_pylist()}


def _age(mark: Earlier) -> tuple[datetime, str, str]:
    return mark.manifest.finished, mark.manifest.run, mark.manifest.attempt


def _marks(ctx: RunContext, *, but_present: bool = False) -> list[list[Earlier | IntegrityError]]:
    """Of each run the attempts that have active commits of this namespace, or what is damaged.

    ``but_present``: without the present attempt of this run, which a sweep looks at anew.
    """

    def read(run: str) -> list[Earlier | IntegrityError]:
        try:
            attempts = ctx.root.attempts(ctx.repository, run)
        except RefusedError:
            return []
        except IntegrityError as error:
            return [error]
        found: list[Earlier | IntegrityError] = []
        for attempt in attempts[1:] if but_present and run == ctx.run else attempts:
            try:
                if attempt.has(ASSET):
                    found.append(Earlier(attempt, attempt.recorded(ASSET)))
            except IntegrityError as error:
                found.append(error)
        # What was at another namespace was another repository of the same name.
        here = ctx.connections.namespace_url
        return [
            one
            for one in found
            if isinstance(one, IntegrityError) or one.manifest.namespace == here
        ]

    return thread_map(read, ctx.root.runs(ctx.repository), _THREADS)


def _tables(
    mark: Earlier, parts: Sequence[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """Those of some parts that a mark has."""
    there = [part for part in parts if part in mark.manifest.parts]
    return [mark.attempt.rows(mark.manifest, part, columns) for part in there]


def previous_of(latest: Earlier) -> Previous:
    """The commits that a mark knew, with all reasons that it hands on.

    Raises:
        IntegrityError: a file is missing, or is not what the manifest says.
    """
    data = [row for table in _tables(latest, ["data"]) for row in table.to_pylist()]
    made = {row["commit_id"]: instant(row["creation_date"]) for row in data}
    # A commit may be the HEAD of several branches, and without rules none of them is its reason.
    heads = [
        {**row, "kind": "head", "counted_from": made.get(row["commit_id"])}
        for table in _tables(latest, ["heads"])
        for row in table.to_pylist()
    ]
    further = [row for table in _tables(latest, [PATHS, REMEMBERED]) for row in table.to_pylist()]
    reasons: dict[str, list[Reason]] = {}
    for row in (*data, *heads, *further):
        reason = Reason(row["branch"], row["kind"], None, row["counted_from"])
        known = reasons.setdefault(row["commit_id"], [])
        if reason not in known:
            known.append(reason)
    return Previous(reasons, latest.manifest.started)


def last_rules(latest: Earlier | None) -> Rules | None:
    """The rules of a mark, or those that it says there were last; None where none were known."""
    facts = {} if latest is None else latest.manifest.facts
    raw = facts.get("rules") or facts.get(LAST_RULES)
    return None if raw is None else Rules.parse(raw)


def forgotten_commits(latest: Earlier | None, commits: Collection[str]) -> pa.Table:
    """Commits that the latest mark knew, or one before it, and that are not reached any more."""
    if latest is None:
        return _FORGOTTEN.empty_table()
    tables = _tables(latest, _ALL, _FORGOTTEN.names)
    known = pa.concat_tables([_FORGOTTEN.empty_table(), *tables])
    reached = pc.is_in(known["commit_id"], pa.array(sorted(commits), pa.string()))
    return known.filter(pc.invert(reached))


@dataclass(frozen=True)
class Memory:
    """Input of what a mark hands on to the next beside what it found.

    Attributes:
        previous: what the latest mark knew.
        heads: branch → HEAD, as read first and last; one of them where none moved.
        read_at: when they were read first, or before.
        dated: rules that tell the dates for which commits are active today.
        rules: those that end what was handed on; none do where the repository has no rules.
        now: the moment of the run.
    """

    previous: Previous
    heads: Sequence[Mapping[str, str]]
    read_at: datetime
    dated: Rules
    rules: Rules
    now: datetime

    def table(
        self,
        commits: Mapping[str, Commit],
        recorded: Iterable[Mapping[str, Reason]],
    ) -> pa.Table:
        """Rows of the part ``REMEMBERED``.

        Args:
            commits: all that were reached.
            recorded: why each commit is active, and why some are kept below paths.
        """
        last = self.heads[-1]
        found: list[Mapping[str, Reason]] = [
            {head: Reason(branch, "previous mark", None, self.read_at)}
            for branch, head in self.heads[0].items()
            if last.get(branch) != head
        ]
        for heads in self.heads:
            own = active_commits(commits, heads, self.dated, self.now)
            found += [own.active, own.dated]
        told: dict[str, Reason] = {}
        for reasons in recorded:
            told = {**told, **reasons}
        reasons_of = remember(
            self.previous, found, told, heads=last, rules=self.rules, now=self.now
        )
        rows = [
            (commit_id, commits[commit_id].metarange_id, one.branch, one.kind, one.counted_from)
            for commit_id, reasons in sorted(reasons_of.items())
            for one in reasons
        ]
        return table_of(rows, _REMEMBERED)
