"""Commits that earlier marks knew, which each mark hands on to the next with their dates.

Each mark that finishes its active commits hands on what it read of those before it, and names them.
So those are enough that no other one names: the latest, and what has overlapped with it. A mark
counts whatever became of its run: an attempt that failed later, or that a new one of the same run
has followed, has read what nobody else may know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.retention.active_commits import Reason, active_commits
from lakegc_assets.retention.commits import Commit, instant
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import Previous, remember
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import READERS, Earlier

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
#: Fact of a mark: the attempts of marks that it has read. Earlier versions read the latest only.
READ: Final = "handed_on"
#: Fact of a mark: when its repository was made, in seconds since 1970.
MADE: Final = "repository_made"
#: Parts that together have all commits which a mark knew.
_ALL: Final = ("data", "expired", FORGOTTEN)
_FORGOTTEN: Final = schema("commit_id string, metarange_id string, branch string")
_REMEMBERED: Final = schema(_FORGOTTEN, "kind string, counted_from timestamp")
_THREADS: Final = 8
_NEVER: Final = datetime(1, 1, 2, tzinfo=timezone.utc)
#: By which the clocks of two machines may differ, each being wrong as far as it may be.
_SKEW: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class EarlierMarks:
    """The marks of a repository that no other one has read, the latest first.

    A repository may be made anew, or restored, at a namespace: of what it was before only those
    commits count that it has.
    """

    ctx: RunContext
    marks: Sequence[Earlier] = ()

    def names(self) -> list[str]:
        """The attempts, as ``READ`` has them."""
        return [_name(mark) for mark in self.marks]

    def previous(self) -> list[Previous]:
        """The commits that each knew, with all reasons that it hands on.

        Raises:
            IntegrityError: a file is missing, or is not what the manifest says.
        """
        return [
            known._replace(reasons={i: known.reasons[i] for i in self._there(mark, known.reasons)})
            for mark in self.marks
            for known in [previous_of(mark)]
        ]

    def last_rules(self) -> Rules | None:
        """The rules of the latest mark that knows any, or says which there were last."""
        for mark in self.marks:
            facts = mark.manifest.facts
            if (raw := facts.get("rules") or facts.get(LAST_RULES)) is not None:
                return Rules.parse(raw)
        return None

    def forgotten(self, reached: Collection[str] = ()) -> pa.Table:
        """All commits that marks knew, or those before them, but those that are reached."""
        known: dict[str, dict[str, str]] = {}
        ids = pa.array(list(reached), pa.string())
        for mark in self.marks:
            tables = _tables(mark, _ALL, _FORGOTTEN.names)
            rows = {
                row["commit_id"]: row
                for table in tables
                for row in table.filter(pc.invert(pc.is_in(table["commit_id"], ids))).to_pylist()
            }
            known |= {i: rows[i] for i in self._there(mark, rows)}
        return pa.Table.from_pylist(list(known.values()), _FORGOTTEN)

    def _there(self, mark: Earlier, commits: Collection[str]) -> list[str]:
        """The commits of a mark that this repository has."""
        ids, made = list(commits), self.ctx.connections.made
        if mark.manifest.facts.get(MADE, made) == made:
            return ids
        client, repository = self.ctx.client, self.ctx.repository
        # Listed once, and not for each commit that is not found.
        refs = chain(client.branches(repository), client.tags(repository))
        named = {ref.commit_id for ref in refs}
        found = thread_map(lambda one: one in named or self._has(one), ids, _THREADS)
        return [i for i, there in zip(ids, found, strict=True) if there]

    def _has(self, commit_id: str) -> bool:
        try:
            self.ctx.client.commit(self.ctx.repository, commit_id, by_name=False)
        except EndpointNotFoundError:
            raise
        except NotFoundError:
            return False
        return True


def latest_marks(ctx: RunContext, read: dict[str, Manifest]) -> EarlierMarks:
    """The attempts of any run, but the present one, whose active commits are whole.

    What cannot be read, perhaps since another version wrote it, is passed over with a warning: no
    mark could be made until somebody removes it, and lakeFS's own rules need nothing of it.

    ``read``: manifests by the names of marks, which nobody writes anew: those in it are not read
    again, and all others are added.

    Raises:
        StorageError: the store did not answer.
    """
    readable: list[Earlier] = []
    for one in _marks(ctx, read, but_present=True):
        if isinstance(one, IntegrityError):
            ctx.log.warning("passed over, with what only that mark knew of commits: %s", one)
        else:
            readable.append(one)
    return EarlierMarks(ctx, unread_marks(readable, is_whole))


def earlier_commits(ctx: RunContext, read: dict[str, Manifest]) -> set[str]:
    """All commits that a mark knew, or one before it: each hands them on to the next.

    A branch may be deleted, and a commit of it still has to stay for its metadata, which lakeFS
    returns for a commit that nothing leads to, too. No other witness has it: so a mark that cannot
    be read is not passed over.

    ``read``: as ``latest_marks`` has it.

    Raises:
        IntegrityError: a mark is damaged.
        StorageError: the store did not answer.
    """
    marks: list[Earlier] = []
    for one in _marks(ctx, read):
        if isinstance(one, IntegrityError):
            raise one
        marks.append(one)
    earlier = EarlierMarks(ctx, unread_marks(marks))
    return set(earlier.forgotten()["commit_id"].to_pylist())


def unread_marks(
    marks: Iterable[Earlier], is_whole: Callable[[Earlier], bool] = lambda _: True
) -> list[Earlier]:
    """Marks of one namespace that are whole, and that no other one of them has read.

    What another one has read is handed on by it, and so is what that one had read.
    """
    found: list[Earlier] = []
    read, before = set[str](), _NEVER
    for mark in sorted(marks, key=_age, reverse=True):
        names = mark.manifest.facts.get(READ)
        of_earlier_version = names is None and mark.manifest.finished < before
        if _name(mark) not in read and not of_earlier_version:
            if not is_whole(mark):
                continue
            found.append(mark)
        if names is None:
            # It has read what had finished when it began, but for what such a version cannot know,
            # by the clocks of two machines.
            before = max(before, mark.manifest.started - _SKEW)
        else:
            read.update(names)
    return found


def is_whole(mark: Earlier) -> bool:
    """True if the files of a mark's active commits are there."""
    try:
        mark.attempt.manifest(ASSET)
    except IntegrityError:
        # What a list lacks that the store ended early may be there.
        return mark.attempt.holds(mark.manifest)
    return True


def _name(mark: Earlier) -> str:
    return f"{mark.manifest.run}/{mark.manifest.attempt}"


def _age(mark: Earlier) -> tuple[datetime, str, str]:
    return mark.manifest.finished, mark.manifest.run, mark.manifest.attempt


def _marks(
    ctx: RunContext, manifests: dict[str, Manifest], *, but_present: bool = False
) -> list[Earlier | IntegrityError]:
    """All attempts that have active commits of this namespace, or what is damaged.

    ``manifests``: those that were read, as ``latest_marks`` has it.
    ``but_present``: without the present attempt of this run, which a sweep looks at anew.
    """

    def look(run: str) -> list[Earlier | IntegrityError]:
        try:
            attempts = ctx.root.attempts(ctx.repository, run)
        except RefusedError:
            return []
        except IntegrityError as error:
            return [error]
        found: list[Earlier | IntegrityError] = []
        for attempt in attempts[1:] if but_present and run == ctx.run else attempts:
            try:
                name = f"{run}/{attempt.attempt}"
                manifest = manifests.get(name) or attempt.recorded_if_finished(ASSET)
                if manifest is not None:
                    manifests[name] = manifest
                    found.append(Earlier(attempt, manifest))
            except IntegrityError as error:
                found.append(error)
        # What was at another namespace was another repository of the same name.
        here = ctx.connections.namespace_url
        return [
            one
            for one in found
            if isinstance(one, IntegrityError) or one.manifest.namespace == here
        ]

    found = thread_map(look, ctx.root.runs(ctx.repository), READERS)
    return [one for of_run in found for one in of_run]


def _tables(
    mark: Earlier, parts: Sequence[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """The tables of those parts that a mark has."""
    there = [part for part in parts if part in mark.manifest.parts]
    return [mark.attempt.rows(mark.manifest, part, columns) for part in there]


def previous_of(mark: Earlier) -> Previous:
    """The commits that a mark knew, with all reasons that it hands on.

    Raises:
        IntegrityError: a file is missing, or is not what the manifest says.
    """
    data = [row for table in _tables(mark, ["data"]) for row in table.to_pylist()]
    made = {row["commit_id"]: instant(row["creation_date"]) for row in data}
    # A commit may be the HEAD of several branches, and without rules none of them is its reason.
    heads = [
        {**row, "kind": "head", "counted_from": made.get(row["commit_id"])}
        for table in _tables(mark, ["heads"])
        for row in table.to_pylist()
    ]
    further = [row for table in _tables(mark, [PATHS, REMEMBERED]) for row in table.to_pylist()]
    reasons: dict[str, list[Reason]] = {}
    for row in (*data, *heads, *further):
        reason = Reason(row["branch"], row["kind"], None, row["counted_from"])
        known = reasons.setdefault(row["commit_id"], [])
        if reason not in known:
            known.append(reason)
    return Previous(reasons, mark.manifest.started)


@dataclass(frozen=True)
class Memory:
    """The inputs of the commits that a mark hands on to the next beside those that it found.

    Attributes:
        previous: what each earlier mark knew.
        heads: branch → HEAD, as read first and last; one of them where none moved.
        read_at: when they were read first, or before.
        dated: rules that tell the dates for which commits are active today.
        rules: those that end what was handed on; none do where the repository has no rules.
        now: the moment of the run.
    """

    previous: Sequence[Previous]
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
