"""Stage 3, ``active_commits``: the commits whose objects must stay.

The server's list alone is not enough: its walk can drop commits inside their retention, and a cut
file can lose any commit. So the active commits are the union of three sources: the server's list;
our own computation over the branch logs, with the HEADs read before and after the list; and the
commits that the previous mark of this repository knew to be active. The last ones count if they are
still inside their retention, for any reason that the mark recorded (``earlier_marks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import table_of, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import ORIGIN
from lakegc_assets.mark.earlier_marks import (
    ASSET,
    FORGOTTEN,
    LAST_RULES,
    MADE,
    PATHS,
    READ,
    REMEMBERED,
    EarlierMarks,
    Memory,
    earlier_commits,
    latest_marks,
)
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.refs import (
    load_commits,
    read_commits,
    read_commits_csv,
    read_heads,
    read_tags,
)
from lakegc_assets.retention.active_commits import ActiveCommits, Reason
from lakegc_assets.retention.commits import Commit, main_ancestry
from lakegc_assets.retention.retain_rules import NO_RETAIN, Retain
from lakegc_assets.retention.retained_commits import (
    lengthen,
    path_commits,
    raise_days,
    retained_commits,
)
from lakegc_assets.retention.rules import MAX_DAYS, Rules
from lakegc_assets.retention.union import (
    UnitedActiveCommits,
    missing_heads,
    still_inside,
    unite,
)
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.wording import counted

RULE: Final = "rule"
ACTIVE: Final = schema(
    "commit_id string, metarange_id string, branch string, kind string, counted_from timestamp, "
    "source string",
    # Columns for the attribution of storage.
    "creation_date bigint, main_parent string, committer string",
    # The rule of ``retain`` that keeps the commit, in words.
    f"{RULE} string",
)
EXPIRED: Final = schema(
    "commit_id string, metarange_id string, creation_date bigint, branch string, main_parent string"
)
_PATHS: Final = schema(
    "pattern string", (ACTIVE.field(name) for name in ACTIVE.names[:5]), [ACTIVE.field(RULE)]
)
HEADS: Final = schema("branch string, commit_id string, metarange_id string")
TAGS: Final = schema("tag string, commit_id string, metarange_id string, active boolean")

_NONE: Final[Mapping[str, Commit]] = MappingProxyType({})


class Refs(NamedTuple):
    """Branches and tags that an earlier mark found; a list that lacks one may be cut."""

    branches: Sequence[str] = ()
    tags: Sequence[str] = ()


_NO_REFS: Final = Refs()
#: Twice the time after a cherry-pick in which lakeFS may not find the picked commit by its id.
_PICKED: Final = timedelta(minutes=20)


def refs_of(ctx: RunContext, mark: AttemptArtifacts, active: Manifest) -> Refs:
    """The refs that a mark found; tags only where a rule may protect tags.

    ``mark``: any mark.
    ``active``: the manifest of its ``active_commits``.

    Raises:
        IntegrityError: a file is missing, or differs from the manifest.
    """
    branches = [row["branch"] for row in mark.values(active, "heads", ["branch"])]
    if not ctx.settings.protect_tags and not ctx.settings.retained.reads_tags:
        return Refs(branches)
    return Refs(branches, [row["tag"] for row in mark.values(active, "tags", ["tag"])])


@dataclass(frozen=True)
class Liveness:
    """The active commits at one moment, each with its source."""

    #: None if the repository has no rules; then every commit is active.
    rules: Rules | None
    #: HEADs by branch, as last read; commits by tag.
    heads: dict[str, str]
    tags: dict[str, str]
    #: All commits that were reached, by id.
    commits: dict[str, Commit]
    active: UnitedActiveCommits
    #: lakeFS's run id of the list of commits; empty without rules.
    server_run_id: str
    #: The rules that keep more than lakeFS's.
    retain: Retain = NO_RETAIN
    #: By pattern of paths: the commits that are not active, but of which the paths that match the
    #: pattern stay, with the reason.
    paths: Mapping[str, Mapping[str, Reason]] = field(default_factory=dict)
    #: None if no memory is handed on to later marks.
    memory: Memory | None = None
    #: The marks that the memory comes from; None if none was read.
    earlier: EarlierMarks | None = None

    def tables(self) -> dict[str, pa.Table]:
        """Parts of the asset: ``data``, ``expired``, ``heads``, ``tags``, and optional parts."""
        of, active = self.commits, self.active.active
        tags = [(t, c, of[c].metarange_id, c in active) for t, c in sorted(self.tags.items())]
        tables = {
            "data": table_of(self.active_rows(), ACTIVE),
            "expired": table_of(self.expired_rows(), EXPIRED),
            "heads": self.heads_table(),
            "tags": table_of(tags, TAGS),
        }
        if self.retain.paths:
            rows = (
                (pattern, i, of[i].metarange_id, r.branch, r.kind, r.counted_from, r.rule)
                for pattern, commits in self.paths.items()
                for i, r in sorted(commits.items())
            )
            tables[PATHS] = table_of(rows, _PATHS)
        if self.memory is not None:
            rows_of = self.memory.table(of, [*self.paths.values(), active])
            if rows_of.num_rows:
                tables[REMEMBERED] = rows_of
        return tables

    def active_metaranges(self) -> set[str]:
        """The metaranges of the active commits."""
        return {self.commits[commit].metarange_id for commit in self.active.active}

    def path_metaranges(self) -> dict[str, dict[str, int]]:
        """The metaranges of commits that stay in part, by pattern, for ``path_ranges``."""
        return {
            pattern: dict.fromkeys({self.commits[i].metarange_id for i in commits} - {""}, 0)
            for pattern, commits in self.paths.items()
        }

    def heads_table(self) -> pa.Table:
        """Rows of ``HEADS``."""
        of = self.commits
        heads = [(b, c, of[c].metarange_id) for b, c in sorted(self.heads.items())]
        return table_of(heads, HEADS)

    def active_rows(self) -> list[tuple[object, ...]]:
        """Rows of ``ACTIVE``."""
        sources = {
            "server": self.active.only_server,
            "own computation": self.active.only_own,
            "previous mark": self.active.only_previous,
        }
        named = {commit: source for source, ids in sources.items() for commit in ids}
        pairs = ((self.commits[i], reason) for i, reason in sorted(self.active.active.items()))
        return [
            (
                *(commit.id, commit.metarange_id, reason.branch, reason.kind, reason.counted_from),
                named.get(commit.id, "server and own computation"),
                *(commit.creation_date, commit.main_parent, commit.committer, reason.rule or None),
            )
            for commit, reason in pairs
        ]

    def expired_rows(self) -> list[tuple[object, ...]]:
        """Rows of ``EXPIRED``."""
        governing: Mapping[str, str] = {}
        if self.rules is not None:
            longest = lengthen(self.rules, self.retain, self.heads)
            governing = governing_branches(self.commits, self.heads, longest)
        return [
            (
                *(commit.id, commit.metarange_id, commit.creation_date),
                *(governing.get(commit.id), commit.main_parent),
            )
            for commit in self.commits.values()
            if commit.id not in self.active.active
        ]


def find_active_commits(ctx: RunContext) -> Manifest:
    """Write the ``active_commits`` asset, with expired commits, HEADs and tags as further parts.

    Raises:
        OtherServerError: the mark was begun with another server.
        IntegrityError: the server's list is cut, or contradicts the log.
        RulesError: the retention rules are invalid.
        LakeFSError: the server did not answer.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    require_one_server(ctx.client, ctx.repository, ctx.connections.store())
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("uncommitted_snapshot", ctx.connections.namespace_url)
    start = chain["store_listing"].start
    manifests: dict[str, Manifest] = {}
    marks = latest_marks(ctx, manifests).marks
    known = refs_of(ctx, *marks[0]) if marks else _NO_REFS
    liveness = find_liveness(ctx, start, known, manifests=manifests)

    store = attempt.store()
    tables, earlier = liveness.tables(), liveness.earlier
    active = liveness.active
    facts: dict[str, object] = {
        "rules": liveness.rules.to_json() if liveness.rules else None,
        "retain": liveness.retain.to_json(),
        "server_run_id": liveness.server_run_id,
        "active": len(active.active),
        "expired": tables["expired"].num_rows,
        "branches": len(liveness.heads),
        "only_server": sorted(active.only_server)[:1000],
        "only_own": sorted(active.only_own)[:1000],
        "only_previous_mark": sorted(active.only_previous)[:1000],
        MADE: ctx.connections.made,
    }
    if earlier is not None:
        facts[READ] = earlier.names()
        if liveness.rules is None and (last := earlier.last_rules()) is not None:
            facts[LAST_RULES] = last.to_json()
        if (forgotten := earlier.forgotten(liveness.commits.keys())).num_rows:
            tables[FORGOTTEN] = forgotten
    if liveness.retain.paths:
        facts[PATHS] = {pattern: len(commits) for pattern, commits in liveness.paths.items()}
    keys = pc.binary_join_element_wise(
        tables["data"]["commit_id"], tables["data"]["metarange_id"], " "
    )
    parts = {name: [write_part(store, f"{ASSET}/{name}/", table)] for name, table in tables.items()}
    manifest = chain["uncommitted_snapshot"]
    return ctx.finish(ASSET, manifest, started, parts, facts, key_digest(keys))


def find_liveness(
    ctx: RunContext,
    now: datetime,
    refs: Refs = _NO_REFS,
    known: Mapping[str, Commit] = _NONE,
    manifests: dict[str, Manifest] | None = None,
) -> Liveness:
    """Find the active commits from all sources.

    ``now``: the moment for which ages are computed: the start of the run, so that a long run never
        lets a commit expire.
    ``refs``: the refs that an earlier mark found.
    ``known``: commits that an earlier call has read; they are not read again.
    ``manifests``: cache of manifests of earlier marks; the list of marks is read again.
    """
    manifests = {} if manifests is None else manifests
    retain = ctx.settings.retained
    raw_rules = ctx.client.gc_rules(ctx.repository)
    rules = None if raw_rules is None else Rules.parse(raw_rules)
    read_at = ctx.clocks.now()
    heads_before = read_heads(ctx.client, ctx.repository, refs.branches)
    # Before lakeFS makes its list: a server that does not find one of them ends with a panic.
    commits = {**known, **_read_commits(ctx, heads_before.values(), known)}
    listed = _Listed() if rules is None else _listed(ctx)
    heads = read_heads(ctx.client, ctx.repository, heads_before)
    if rules is not None:
        _require_heads(listed, heads_before, heads)
    # A branch that moved in between keeps both of its HEADs.
    head_sets = [heads_before] if heads == heads_before else [heads_before, heads]
    tags = read_tags(ctx.client, ctx.repository, refs.tags)
    # Read after the HEADs: another run may have seen a branch that is gone since.
    picked = _just_picked(commits.values(), now)
    earlier = latest_marks(ctx, manifests, picked)
    previous = earlier.previous()
    longest = lengthen(rules or earlier.last_rules() or Rules(MAX_DAYS), retain, heads)
    dated = raise_days(longest, max(retain.paths.values(), default=0))
    # Without rules, commits that earlier marks knew never expire.
    handed_on = dated if rules is not None else raise_days(dated, MAX_DAYS)
    memory = Memory(previous, head_sets, read_at, dated, handed_on, now)
    roots = [*heads_before.values(), *heads.values(), *tags.values()]
    roots += still_inside(previous, heads=heads, rules=handed_on, now=now)
    roots += listed.metaranges
    if retain.reads_all_commits:
        roots += earlier_commits(ctx, manifests, picked)
    commits |= _read_commits(ctx, roots, commits)
    _require_same_metaranges(listed, commits)
    if rules is None:
        everything = {commit: Reason(None, "no rules") for commit in commits}
        united = UnitedActiveCommits(everything)
        return Liveness(rules, heads, tags, commits, united, "", retain, {}, memory, earlier)
    own = [retained_commits(commits, one, tags, rules, retain, now) for one in head_sets]
    first, last = own[0], own[-1]
    active, expired = first.active | last.active, first.expired & last.expired
    if ctx.settings.protect_tags:
        active = {commit: Reason(None, "tag") for commit in tags.values()} | active
    kept = still_inside(previous, heads=heads, rules=longest, now=now)
    united = unite(
        listed.metaranges,
        ActiveCommits(active, expired.difference(active)),
        later_heads=heads,
        previous={commit: reasons[0] for commit, reasons in kept.items()},
    )
    below = [path_commits(commits, one, rules, retain, now, previous) for one in head_sets]
    paths = {
        pattern: {
            commit: reason
            for found in below
            for commit, reason in found[pattern].items()
            if commit not in united.active
        }
        for pattern in retain.paths
    }
    run_id = listed.run_id
    return Liveness(rules, heads, tags, commits, united, run_id, retain, paths, memory, earlier)


def _just_picked(commits: Iterable[Commit], now: datetime) -> set[str]:
    """The commits of which some commits are cherry-picks, made so shortly ago (``_PICKED``)."""
    since = (now - _PICKED).timestamp()
    recent = [one for one in commits if one.creation_date >= since]
    return {origin for one in recent for name, origin in one.metadata if name == ORIGIN}


def _read_commits(
    ctx: RunContext, roots: Iterable[str], known: Mapping[str, Commit]
) -> Mapping[str, Commit]:
    """The commits that can be reached from ``roots``, not through ``known`` commits."""
    read: dict[str, Commit] = {}
    with report_progress(
        ctx.log, lambda: f"reading commits of {ctx.repository}: {len(read):,} so far"
    ):
        load_commits(ctx.client, ctx.repository, roots, known.keys(), read)
    return read


class _Listed(NamedTuple):
    """The active commits that lakeFS lists; empty if it has no rules."""

    metaranges: Mapping[str, str] = MappingProxyType({})
    run_id: str = ""
    location: str = ""


def _listed(ctx: RunContext) -> _Listed:
    with report_progress(ctx.log, lambda: f"lakeFS lists the active commits of {ctx.repository}"):
        prepared = ctx.client.prepare_commits(ctx.repository)
    location = prepared.gc_commits_location
    store, namespace = ctx.connections.store(), ctx.connections.namespace()
    return _Listed(read_commits_csv(store, namespace, location), prepared.run_id, location)


def _require_heads(listed: _Listed, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise IntegrityError if the list lacks the HEAD of a branch that did not move."""
    unmoved = {branch: head for branch, head in before.items() if after.get(branch) == head}
    if missing := missing_heads(listed.metaranges.keys(), unmoved):
        raise IntegrityError(
            f"the HEADs of {counted(len(missing), 'branch', 'branches')}, "
            f"{next(iter(missing))!r} for one, are not in the list of active commits that lakeFS "
            f"wrote to {listed.location}: the list is cut or of another time. Run again; if the "
            "message stays, check the log of the lakeFS server",
        )


def _require_same_metaranges(listed: _Listed, commits: Mapping[str, Commit]) -> None:
    for commit, metarange_id in listed.metaranges.items():
        if commits[commit].metarange_id != metarange_id:
            raise IntegrityError(
                f"commit {commit} has metarange {commits[commit].metarange_id!r} in the log, but "
                f"{metarange_id!r} in the list of active commits at {listed.location}: the list "
                "cannot be trusted. Run again, so that lakeFS writes a new one; if the message "
                "stays, check the log of the lakeFS server",
            )


def heads_alone(client: LakeFSClient, repository: str, rules: Rules | None) -> Liveness:
    """The commits that are always active: the HEADs.

    ``rules``: the retention rules, as far as they are known.

    Raises:
        LakegcError: the HEADs cannot be read.
    """
    heads = read_heads(client, repository)
    commits = read_commits(client, repository, heads.values())
    active = {commit: Reason(branch, "head") for branch, commit in sorted(heads.items())}
    return Liveness(rules, heads, {}, commits, UnitedActiveCommits(active), "")


def governing_branches(
    commits: dict[str, Commit], heads: dict[str, str], rules: Rules
) -> dict[str, str]:
    """By commit, the branch with the longest retention that has it in its main ancestry."""
    governing: dict[str, str] = {}
    for branch in sorted(heads, key=lambda name: (-rules.days(name), name)):
        for commit in main_ancestry(commits, heads[branch]):
            if commit.id in governing:
                break
            governing[commit.id] = branch
    return governing
