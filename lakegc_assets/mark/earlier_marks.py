"""Commits that earlier marks knew; each mark hands them on to the next, with their dates.

A mark that finishes its active commits hands on the commits of the marks that it has read, and
names these marks. So only marks that no other mark names must be read: the latest, and those that
overlapped with it. A mark counts even if its run failed: an attempt that failed later, or that was
replaced by a new attempt of the same run, may have read commits that no other mark knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
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
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import READERS, Earlier
from lakegc_assets.run.manifest import Manifest

ASSET: Final = "active_commits"
#: Part with the commits that an earlier mark knew and that nothing refers to any more.
FORGOTTEN: Final = "forgotten"
#: Part with commits that are not active, but of which some paths stay; only if rules name paths.
PATHS: Final = "paths"
#: Part with further reasons for which commits stay until a date. Earlier versions do not write it.
REMEMBERED: Final = "remembered"
#: Fact of a mark without rules: the last rules that the repository had.
LAST_RULES: Final = "last_rules"
#: Fact: the attempts of marks that a mark has read. Earlier versions read the latest mark only.
READ: Final = "handed_on"
#: Fact: the creation date of the repository, in seconds since 1970.
MADE: Final = "repository_made"
#: Parts that together hold all commits that a mark knew.
_ALL: Final = ("data", "expired", FORGOTTEN)
_FORGOTTEN: Final = schema("commit_id string, metarange_id string, branch string")
_REMEMBERED: Final = schema(_FORGOTTEN, "kind string, counted_from timestamp")
_THREADS: Final = 8
_NEVER: Final = datetime(1, 1, 2, tzinfo=timezone.utc)
#: Maximum difference between the clocks of two machines, each within its allowed error.
_SKEW: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class EarlierMarks:
    """The marks of a repository that no other mark has read, the latest first.

    A repository may be made anew or restored in a namespace. Of marks from before that, only the
    commits count that the new repository has.

    Attributes:
        picked: commits that this repository has, although lakeFS may not find them by their ids.
    """

    ctx: RunContext
    marks: Sequence[Earlier] = ()
    picked: AbstractSet[str] = frozenset()

    def names(self) -> list[str]:
        """The attempts, in the form of ``READ``."""
        return [_name(mark) for mark in self.marks]

    def previous(self) -> list[Previous]:
        """The commits that each mark knew, with all reasons that it hands on.

        Raises:
            IntegrityError: a file is missing, or differs from the manifest.
        """
        found: list[Previous] = []
        for mark in self.marks:
            with _of_earlier_mark(mark):
                known = previous_of(mark)
            reasons = {i: known.reasons[i] for i in self._there(mark, known.reasons)}
            found.append(known._replace(reasons=reasons))
        return found

    def last_rules(self) -> Rules | None:
        """The last rules that the latest mark with any rules records."""
        for mark in self.marks:
            facts = mark.manifest.facts
            if (raw := facts.get("rules") or facts.get(LAST_RULES)) is not None:
                return Rules.parse(raw)
        return None

    def forgotten(self, reached: Collection[str] = ()) -> pa.Table:
        """All commits that the marks knew or handed on, except the reached ones.

        Raises:
            IntegrityError: a file is missing, or differs from the manifest.
        """
        known: dict[str, dict[str, str]] = {}
        ids = pa.array(list(reached), pa.string())
        for mark in self.marks:
            with _of_earlier_mark(mark):
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
        # One list of refs saves a request for each commit that is not found.
        refs = chain(client.branches(repository), client.tags(repository))
        named = {ref.commit_id for ref in refs} | self.picked
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


def latest_marks(
    ctx: RunContext, read: dict[str, Manifest], picked: AbstractSet[str] = frozenset()
) -> EarlierMarks:
    """The attempts of all runs, except the present one, whose active commits are complete.

    An unreadable mark, perhaps written by another version, is passed over with a warning. Otherwise
    no mark could be made until a person removes it, and lakeFS's own rules do not need it.

    ``read``: cache of manifests by names of marks; manifests never change. Manifests in it are not
        read again, and new ones are added.
    ``picked``: as in ``EarlierMarks``.

    Raises:
        StorageError: the store did not answer.
    """

    def pass_over(why: object) -> None:
        ctx.log.warning("passed over, with what only that mark knew of commits: %s", why)

    def is_known(mark: Earlier) -> bool:
        if is_whole(mark):
            return True
        pass_over(f"files of {mark.attempt.url}/{ASSET} are missing")
        return False

    readable: list[Earlier] = []
    for one in _marks(ctx, read, but_present=True):
        if isinstance(one, IntegrityError):
            pass_over(one)
        else:
            readable.append(one)
    found = unread_marks(readable, ctx.clocks.now(), is_known, made=ctx.connections.made)
    return EarlierMarks(ctx, found, picked)


def later_marks(ctx: RunContext, mark: Manifest, read: dict[str, Manifest]) -> list[Manifest]:
    """The ``active_commits`` of other attempts, of any run, that may be later than a mark.

    An attempt is earlier if the mark has read it, directly or through other marks. For all others
    the times count. A mark that overlapped with this one counts as later. An unreadable mark is
    passed over with a warning, as by ``latest_marks``.

    ``mark``: the ``active_commits`` of the present attempt of this run. ``read``: as in
        ``latest_marks``.

    Raises:
        StorageError: the store did not answer.
    """
    found: dict[str, Manifest] = {}
    for one in _marks(ctx, read, but_present=True):
        if isinstance(one, IntegrityError):
            ctx.log.warning("passed over, with the rules that only that mark had: %s", one)
        else:
            found[_name(one)] = one.manifest
    earlier = set[str]()
    unseen = [*mark.facts.get(READ, ())]
    while unseen:
        name = unseen.pop()
        if name not in earlier:
            earlier.add(name)
            unseen += found[name].facts.get(READ, ()) if name in found else ()
    return [
        one
        for name, one in found.items()
        if name not in earlier and one.finished > mark.started - _SKEW
    ]


def earlier_commits(
    ctx: RunContext, read: dict[str, Manifest], picked: AbstractSet[str]
) -> set[str]:
    """All commits that any earlier mark knew; each mark hands them on to the next.

    A commit of a deleted branch may have to stay for its metadata: lakeFS still returns the
    metadata of a commit that nothing leads to. No other source has such commits, so an unreadable
    mark is an error here.

    ``read``, ``picked``: as in ``latest_marks``.

    Raises:
        IntegrityError: a mark is damaged.
        StorageError: the store did not answer.
    """
    marks: list[Earlier] = []
    for one in _marks(ctx, read):
        if isinstance(one, IntegrityError):
            raise IntegrityError(
                "rules of `retain` need every commit that an earlier mark knew, and one mark "
                f"cannot be read: {one}. A new mark does not help: restore the file from a copy, "
                "or, if no rule must keep a commit of a deleted branch, remove the run's folder"
            ) from one
        marks.append(one)
    found = unread_marks(marks, ctx.clocks.now(), made=ctx.connections.made)
    earlier = EarlierMarks(ctx, found, picked)
    return set(earlier.forgotten()["commit_id"].to_pylist())


def unread_marks(
    marks: Iterable[Earlier],
    now: datetime,
    is_whole: Callable[[Earlier], bool] = lambda _: True,
    *,
    made: int | None = None,
) -> list[Earlier]:
    """The complete marks of one namespace that no other one of them has read.

    A mark hands on the commits of the marks that it has read, and of those that these have read.
    There are two exceptions, and the marks that such a mark has read count as unread. A mark that
    began later than now was made while the clocks were ahead: it has dropped dates as over that are
    not over yet. A mark of another repository in this namespace has dropped the commits that its
    repository did not have.

    ``now``: this machine's time.
    ``made``: the creation date of the present repository; None for that of the latest mark.
    """
    found: list[Earlier] = []
    read, before = set[str](), _NEVER
    latest_first = sorted(marks, key=_age, reverse=True)
    if made is None and latest_first:
        made = latest_first[0].manifest.facts.get(MADE)
    for mark in latest_first:
        names = mark.manifest.facts.get(READ)
        of_earlier_version = names is None and mark.manifest.finished < before
        if _name(mark) not in read and not of_earlier_version:
            if not is_whole(mark):
                continue
            found.append(mark)
        made_then = mark.manifest.facts.get(MADE)
        is_of_another = None not in {made, made_then} and made_then != made
        if is_of_another or mark.manifest.started > now + _SKEW:
            continue
        if names is None:
            # A mark of an earlier version has read every mark that had finished when it began,
            # except what its version cannot know. The times come from the clocks of two machines.
            before = max(before, mark.manifest.started - _SKEW)
        else:
            read.update(names)
    return found


def is_whole(mark: Earlier) -> bool:
    """True if the files of a mark's active commits exist."""
    try:
        mark.attempt.manifest(ASSET)
    except IntegrityError:
        # A listing that the store cut may lack files that exist.
        return mark.attempt.holds(mark.manifest)
    return True


def _name(mark: Earlier) -> str:
    return f"{mark.manifest.run}/{mark.manifest.attempt}"


def _age(mark: Earlier) -> tuple[datetime, str, str]:
    return mark.manifest.finished, mark.manifest.run, mark.manifest.attempt


def _marks(
    ctx: RunContext, manifests: dict[str, Manifest], *, but_present: bool = False
) -> list[Earlier | IntegrityError]:
    """All attempts with active commits of this namespace, and errors of damaged ones.

    ``manifests``: the cache of ``latest_marks``.
    ``but_present``: leave out the present attempt of this run, which a sweep reads anew.
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
        # An attempt at another namespace is of another repository with the same name.
        here = ctx.connections.namespace_url
        return [
            one
            for one in found
            if isinstance(one, IntegrityError) or one.manifest.namespace == here
        ]

    found = thread_map(look, ctx.root.runs(ctx.repository), READERS)
    return [one for of_run in found for one in of_run]


@contextmanager
def _of_earlier_mark(mark: Earlier) -> Iterator[None]:
    """Say in an error of a damaged file that no new mark can do without it."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(
            f"the commits that an earlier mark knew cannot be read: {error}. A new mark does not "
            "help, since it needs them, too: restore the file from a copy, or, if no commit must "
            f"stay that only run {mark.attempt.run!r} knew, remove the run's folder"
        ) from error


def _tables(
    mark: Earlier, parts: Sequence[str], columns: Sequence[str] | None = None
) -> list[pa.Table]:
    """The tables of a mark for those of the parts that it has."""
    existing = [part for part in parts if part in mark.manifest.parts]
    return [mark.attempt.rows(mark.manifest, part, columns) for part in existing]


def previous_of(mark: Earlier) -> Previous:
    """The commits that a mark knew, with all reasons that it hands on.

    Raises:
        IntegrityError: a file is missing, or differs from the manifest.
    """
    data = [row for table in _tables(mark, ["data"]) for row in table.to_pylist()]
    made = {row["commit_id"]: instant(row["creation_date"]) for row in data}
    # ``data`` has one reason for each commit, but a commit may be HEAD of several branches; without
    # rules it names no branch at all.
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
    """The inputs for the commits that a mark hands on, in addition to its active commits.

    Attributes:
        previous: the commits of each earlier mark.
        heads: branch → HEAD, as read first and last; one mapping if no branch moved.
        read_at: time of the first read of the HEADs, or earlier.
        dated: rules for the dates until which commits are active as of today.
        rules: rules that end what was handed on; without rules of the repository, nothing ends.
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
            commits: all commits that were reached.
            recorded: reasons of active commits, and of commits kept below paths.
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
        recorded_reasons: dict[str, Reason] = {}
        for reasons in recorded:
            recorded_reasons = {**recorded_reasons, **reasons}
        reasons_of = remember(
            self.previous, found, recorded_reasons, heads=last, rules=self.rules, now=self.now
        )
        rows = [
            (commit_id, commits[commit_id].metarange_id, one.branch, one.kind, one.counted_from)
            for commit_id, reasons in sorted(reasons_of.items())
            for one in reasons
        ]
        return table_of(rows, _REMEMBERED)
