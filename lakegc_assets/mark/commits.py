"""Stage 3, ``active_commits``: the commits whose objects must stay.

The server's list is not trusted alone: its walk can drop commits that are inside their retention,
and a cut file would lose any of them. So the active commits are its list united with our own
computation over the branch logs, with the HEADs read before and after it, and with what the
previous mark of this repository knew to be active and is still inside its retention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import write_part
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.refs import (
    load_commits,
    read_commits,
    read_commits_csv,
    read_heads,
    read_tags,
)
from lakegc_assets.retention.active_commits import ActiveCommits, Reason
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain import NO_RETAIN, Retain
from lakegc_assets.retention.retained import lengthen, retained_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.united import UnitedActiveCommits, missing_heads, still_inside, unite
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.history import Earlier, earlier
from lakegc_assets.wording import counted

ASSET: Final = "active_commits"
#: Column that marks of earlier versions do not have.
RULE: Final = "rule"
ACTIVE: Final = pa.schema(
    [
        ("commit_id", pa.string()),
        ("metarange_id", pa.string()),
        ("branch", pa.string()),
        ("kind", pa.string()),
        ("counted_from", pa.timestamp("us", "UTC")),
        ("source", pa.string()),
        # Of these the attribution of storage follows.
        ("creation_date", pa.int64()),
        ("main_parent", pa.string()),
        ("committer", pa.string()),
        # Of the rules that lakeFS does not have, in words.
        (RULE, pa.string()),
    ]
)
EXPIRED: Final = pa.schema(
    [
        ("commit_id", pa.string()),
        ("metarange_id", pa.string()),
        ("creation_date", pa.int64()),
        ("branch", pa.string()),
        ("main_parent", pa.string()),
    ]
)
#: Part with the commits that an earlier mark knew and that nothing leads to any more.
FORGOTTEN: Final = "forgotten"
_FORGOTTEN: Final = pa.schema(
    [("commit_id", pa.string()), ("metarange_id", pa.string()), ("branch", pa.string())]
)
HEADS: Final = pa.schema(
    [("branch", pa.string()), ("commit_id", pa.string()), ("metarange_id", pa.string())]
)
TAGS: Final = pa.schema(
    [
        ("tag", pa.string()),
        ("commit_id", pa.string()),
        ("metarange_id", pa.string()),
        ("active", pa.bool_()),
    ]
)

_NONE: Final[Mapping[str, Commit]] = MappingProxyType({})


class Refs(NamedTuple):
    """Names of branches and tags that were there earlier, so that they may not just be missing."""

    branches: Sequence[str] = ()
    tags: Sequence[str] = ()


_NO_REFS: Final = Refs()
_THREADS: Final = 8


def refs_of(ctx: RunContext, mark: AttemptArtifacts, active: Manifest) -> Refs:
    """What a mark found; its tags only where some may protect.

    Args:
        ctx: the run.
        mark: any.
        active: manifest of its ``active_commits``.

    Raises:
        IntegrityError: a file is missing, or is not what the manifest says.
    """
    branches = mark.rows(active, "heads", ["branch"])["branch"].to_pylist()
    if not ctx.settings.protect_tags and not ctx.settings.retain.reads_tags:
        return Refs(branches)
    return Refs(branches, mark.rows(active, "tags", ["tag"])["tag"].to_pylist())


@dataclass(frozen=True)
class Liveness:
    """Which commits are active at one moment, and who says so.

    Attributes:
        rules: the retention rules; None where the repository has none, so that all is active.
        heads: HEAD of each branch, as last read.
        tags: commit of each tag.
        commits: every commit that was reached, by id.
        active: why each active commit is active, and what only one witness named.
        server_run_id: lakeFS's run id of the list of commits; empty without rules.
        retain: rules that keep more than lakeFS's.
    """

    rules: Rules | None
    heads: dict[str, str]
    tags: dict[str, str]
    commits: dict[str, Commit]
    active: UnitedActiveCommits
    server_run_id: str
    retain: Retain = NO_RETAIN

    def tables(self) -> dict[str, pa.Table]:
        """The parts of the asset: ``data``, ``expired``, ``heads`` and ``tags``."""
        of, active = self.commits, self.active.active
        tags = [(t, c, of[c].metarange_id, c in active) for t, c in sorted(self.tags.items())]
        return {
            "data": _table(self.active_rows(), ACTIVE),
            "expired": _table(self.expired_rows(), EXPIRED),
            "heads": self.heads_table(),
            "tags": _table(tags, TAGS),
        }

    def heads_table(self) -> pa.Table:
        """Rows of ``HEADS``."""
        of = self.commits
        heads = [(b, c, of[c].metarange_id) for b, c in sorted(self.heads.items())]
        return _table(heads, HEADS)

    def active_rows(self) -> list[tuple[object, ...]]:
        """Rows of ``ACTIVE``."""
        sources = {
            "server": self.active.only_server,
            "own computation": self.active.only_own,
            "previous mark": self.active.only_previous,
        }
        named = {commit: source for source, ids in sources.items() for commit in ids}
        return [
            (
                commit,
                self.commits[commit].metarange_id,
                reason.branch,
                reason.kind,
                reason.counted_from,
                named.get(commit, "server and own computation"),
                self.commits[commit].creation_date,
                self.commits[commit].main_parent,
                self.commits[commit].committer,
                reason.rule or None,
            )
            for commit, reason in sorted(self.active.active.items())
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


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def find_active_commits(ctx: RunContext) -> Manifest:
    """Write the ``active_commits`` asset, with expired commits, HEADs and tags beside it.

    Raises:
        OtherServerError: the mark was begun with another server.
        IntegrityError: the server's list is cut, or contradicts the log.
        RulesError: the rules make no sense.
        LakeFSError: the server did not answer.
    """
    started = ctx.clocks.now()
    client, connections = ctx.connect()
    require_one_server(client, ctx.repository, connections.store())
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("uncommitted_snapshot", connections.namespace_url)
    start = datetime.fromisoformat(str(chain["store_listing"].facts["start"]))
    latest = _latest(ctx, connections)
    known = _NO_REFS if latest is None else refs_of(ctx, latest.attempt, latest.manifest)
    liveness = find_liveness(ctx, client, connections, start, known)

    store = attempt.store()
    tables = liveness.tables()
    if (forgotten := _forgotten(latest, liveness.commits)).num_rows:
        tables[FORGOTTEN] = forgotten
    parts = {name: [write_part(store, f"{ASSET}/{name}/", table)] for name, table in tables.items()}
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
    }
    keys = pc.binary_join_element_wise(
        tables["data"]["commit_id"], tables["data"]["metarange_id"], " "
    )
    manifest = chain["uncommitted_snapshot"]
    return ctx.finish(ASSET, manifest, started, parts, facts, key_digest(keys))


def _forgotten(latest: Earlier | None, commits: Collection[str]) -> pa.Table:
    """Commits that the latest mark knew, or one before it, and that are not reached any more."""
    tables = [_FORGOTTEN.empty_table()]
    if latest is not None:
        tables += [
            latest.attempt.rows(latest.manifest, part, _FORGOTTEN.names)
            for part in ("data", "expired", FORGOTTEN)
            if part in latest.manifest.parts
        ]
    known = pa.concat_tables(tables)
    reached = pc.is_in(known["commit_id"], pa.array(sorted(commits), pa.string()))
    return known.filter(pc.invert(reached))


def find_liveness(
    ctx: RunContext,
    client: LakeFSClient,
    connections: Connections,
    now: datetime,
    refs: Refs = _NO_REFS,
    known: Mapping[str, Commit] = _NONE,
) -> Liveness:
    """Find the active commits by all the ways there are.

    Args:
        ctx: the run.
        client: the server.
        connections: how to reach the store.
        now: the moment against which ages are taken; the start of the run, so that the time a run
            takes never makes anything expire.
        refs: that an earlier mark found.
        known: commits that an earlier look has read; they are not read again.
    """
    retain = ctx.settings.retain
    raw_rules = client.gc_rules(ctx.repository)
    rules = None if raw_rules is None else Rules.parse(raw_rules)
    heads_before = read_heads(client, ctx.repository, refs.branches)
    listed: dict[str, str] = {}
    run_id = ""
    if rules is not None:
        with report_progress(
            ctx.log, lambda: f"lakeFS lists the active commits of {ctx.repository}"
        ):
            prepared = client.prepare_commits(ctx.repository)
        run_id = prepared.run_id
        listed = read_commits_csv(
            connections.store(), connections.namespace(), prepared.gc_commits_location
        )
    heads = read_heads(client, ctx.repository, heads_before)
    unmoved = {branch: head for branch, head in heads_before.items() if heads.get(branch) == head}
    if rules is not None and (missing := missing_heads(listed.keys(), unmoved)):
        raise IntegrityError(
            f"the HEADs of {counted(len(missing), 'branch', 'branches')}, "
            f"{next(iter(missing))!r} for one, are not among the active commits "
            f"that lakeFS wrote to {prepared.gc_commits_location}: the list is cut or of another "
            "time. Run again",
        )
    tags = read_tags(client, ctx.repository, refs.tags)
    previous: dict[str, Reason] = {}
    if rules is not None:
        longest = lengthen(rules, retain, heads)
        previous = _previously_active(ctx, connections, heads, longest, now)
    roots = [*heads_before.values(), *heads.values(), *tags.values(), *listed, *previous]
    if retain.metadata:
        roots += _earlier_commits(ctx, connections)
    read: dict[str, Commit] = {}
    with report_progress(
        ctx.log, lambda: f"reading commits of {ctx.repository}: {len(read):,} so far"
    ):
        load_commits(client, ctx.repository, roots, known.keys(), read)
    commits = {**known, **read}
    for commit, metarange_id in listed.items():
        if commits[commit].metarange_id != metarange_id:
            raise IntegrityError(
                f"commit {commit} has metarange {commits[commit].metarange_id!r} in the log, but "
                f"{metarange_id!r} in the list of active commits: the list cannot be trusted",
            )
    if rules is None:
        everything = {commit: Reason(None, "no rules") for commit in commits}
        none: frozenset[str] = frozenset()
        united = UnitedActiveCommits(everything, none, none, none)
        return Liveness(rules, heads, tags, commits, united, run_id, retain)
    # A branch that moved while this ran counts with both of its HEADs.
    before = retained_commits(commits, heads_before, tags, rules, retain, now)
    after = before
    if heads != heads_before:
        after = retained_commits(commits, heads, tags, rules, retain, now)
    own = ActiveCommits(before.active | after.active, before.expired & after.expired)
    if ctx.settings.protect_tags:
        tagged = {commit: Reason(None, "tag") for commit in tags.values()}
        own = ActiveCommits(tagged | own.active, own.expired - tagged.keys())
    united = unite(listed, own, later_heads=heads, previous=previous)
    return Liveness(rules, heads, tags, commits, united, run_id, retain)


def heads_alone(client: LakeFSClient, repository: str, rules: Rules | None) -> Liveness:
    """What is active whatever else is: the HEADs. For when nobody can tell more.

    Args:
        client: the server.
        repository: its name.
        rules: the retention rules, as far as they are known.

    Raises:
        LakegcError: not even the HEADs can be read.
    """
    heads = read_heads(client, repository)
    commits = read_commits(client, repository, heads.values())
    active = {commit: Reason(branch, "head") for branch, commit in sorted(heads.items())}
    none: frozenset[str] = frozenset()
    return Liveness(rules, heads, {}, commits, UnitedActiveCommits(active, none, none, none), "")


def governing_branches(
    commits: dict[str, Commit], heads: dict[str, str], rules: Rules
) -> dict[str, str]:
    """The branch with the longest retention among those whose main ancestry holds a commit."""
    governing: dict[str, str] = {}
    for branch in sorted(heads, key=lambda name: (-rules.days(name), name)):
        commit_id: str | None = heads[branch]
        while commit_id is not None and commit_id not in governing:
            governing[commit_id] = branch
            commit_id = commits[commit_id].main_parent
    return governing


def _latest(ctx: RunContext, connections: Connections) -> Earlier | None:
    """The latest other run whose active commits are whole."""
    found = earlier(ctx.root, ctx.repository, ASSET, connections.namespace_url, ctx.run)
    for one in found:
        with suppress(LakegcError):
            one.attempt.manifest(ASSET)
            return one
    return None


def _earlier_commits(ctx: RunContext, connections: Connections) -> set[str]:
    """All commits that the latest mark knew, or one before it: each hands them on to the next.

    A branch may be deleted, and a commit of it still has to stay for its metadata, which lakeFS
    tells of a commit that nothing leads to, too. No other witness has it: so a mark that cannot be
    read is not passed over.

    Raises:
        IntegrityError: a mark is damaged.
        StorageError: the store did not answer.
    """

    def read(run: str) -> Earlier | None:
        try:
            attempt = ctx.root.attempt(ctx.repository, run)
        except RefusedError:
            return None
        return Earlier(attempt, attempt.recorded(ASSET)) if attempt.has(ASSET) else None

    marks = thread_map(read, ctx.root.runs(ctx.repository), _THREADS)
    here = [one for one in marks if one and one.manifest.namespace == connections.namespace_url]
    if not here:
        return set()
    latest = max(here, key=lambda one: one.manifest.finished)
    return {
        commit_id
        for part in ("data", "expired", FORGOTTEN)
        if part in latest.manifest.parts
        for commit_id in latest.attempt.rows(latest.manifest, part, ["commit_id"])[
            "commit_id"
        ].to_pylist()
    }


def _previously_active(
    ctx: RunContext,
    connections: Connections,
    heads: dict[str, str],
    rules: Rules,
    now: datetime,
) -> dict[str, Reason]:
    """Commits of the latest earlier mark that are still inside their retention."""
    latest = _latest(ctx, connections)
    if latest is None:
        return {}
    marked_at = latest.manifest.started
    previous = {
        row["commit_id"]: Reason(row["branch"], row["kind"], None, row["counted_from"])
        for row in latest.attempt.rows(latest.manifest).to_pylist()
    }
    return still_inside(previous, marked_at=marked_at, heads=heads, rules=rules, now=now)
