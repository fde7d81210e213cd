"""Reads of each other repository of the server: staged addresses, HEADs, tables.

The repositories are read, never changed. A listing counts as complete only with proof: the store's
listing must have the metarange of every commit that can be reached from a branch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakegc_assets.engine.datasets import table_of
from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import DECODER_VERSION
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.mark.branch_diffs import changed_paths
from lakegc_assets.mark.live_ranges import listed_files
from lakegc_assets.mark.lookups import Page
from lakegc_assets.mark.refs import listed_heads, load_commits, require_gone
from lakegc_assets.retention.commits import Commit
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.table_cache import Decoded, Kind, TableCache, by_file
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: Kind of cached commits: the commits that were read for one state of a repository.
_KIND: Final = Kind("commits", 1, "look")
#: Folder of facts about other repositories, in the cache of the collected one.
_OTHERS: Final = "others/"
_SEEN: Final = f"{_OTHERS}v1-{DECODER_VERSION}/"
_COMMITS: Final = schema(
    "commit_id string, parents array<string>, creation_date bigint, metarange_id string, "
    "version bigint"
)


@dataclass(frozen=True)
class Other:
    """Another repository of the server."""

    repository: Repository
    connections: Connections

    @property
    def name(self) -> str:
        """The name of the repository."""
        return self.repository.id

    def is_same(self, listed: Repository) -> bool:
        """True for this very repository; False for one that was made anew under its name."""
        mine = (self.name, self.repository.storage_namespace, self.repository.creation_date)
        return mine == (listed.id, listed.storage_namespace, listed.creation_date)


@dataclass(frozen=True)
class Tables:
    """Tables below ``_lakefs/`` of a repository, and the tables that its commits need."""

    #: Digest of the list of tables and of the HEADs.
    state: str
    #: Metaranges of all commits reachable from branches; empty if ``naming`` is recorded.
    metaranges: frozenset[str]
    #: Ranges that name objects of the namespace, if recorded for this very state; else None.
    naming: Sequence[str] | None


def others_of(ctx: RunContext) -> list[Other]:
    """The other repositories that could name objects of this one, sorted by name.

    A repository can name objects in its own kind of store only, so repositories in other kinds of
    stores are left out. ``ignored_repositories`` are left out as well.

    Raises:
        IntegrityError: the list lacks the collected repository, or one that an earlier run has read
            and that may still exist: lakeFS lists only repositories that the user may see.
        ConfigurationError: the URL of a namespace cannot be parsed.
    """
    found: list[Other] = []
    listed: set[str] = set()
    namespace = ctx.connections.namespace()
    for repository in ctx.client.repositories():
        listed.add(repository.id)
        if repository.id == ctx.repository or repository.id in ctx.settings.ignored_repositories:
            continue
        if namespace.is_same_kind(repository.storage_namespace):
            place = StorageNamespace.parse(repository.storage_namespace)
            made = repository.creation_date
            found.append(Other(repository, ctx.connections_of(repository.id, place, made)))
    if ctx.repository not in listed:
        raise IntegrityError(
            f"the list of repositories has {len(listed)}, and not {ctx.repository!r}: it is not "
            "complete. Run again",
        )
    read = _names_read(ctx.connections.cache()) - {*ctx.settings.ignored_repositories}
    for name in sorted(read - listed):
        if ctx.client.may_have_repository(name):
            raise IntegrityError(
                f"the list of repositories lacks {name!r}, which an earlier run has read, and "
                f"which may name objects of {ctx.repository!r}: give these credentials "
                "fs:ListRepositories on *, or name it in ignored_repositories if it names none"
            )
    return found


def heads_of(client: LakeFSClient, other: Other) -> dict[str, str]:
    """HEAD of every branch; empty for a bare repository.

    Raises:
        IntegrityError: the list lacks the default branch, which exists.
    """
    heads = listed_heads(client, other.name)
    # A repository that was created bare has no branches at first.
    missing = {other.repository.default_branch} - heads.keys()
    require_gone("branch", other.name, missing, client.branch)
    return heads


@reads_tables
def staged_addresses(client: LakeFSClient, other: Other, branch: str) -> Iterator[str]:
    """The full addresses that lakeFS serves at staged paths of a branch.

    Raises:
        IntegrityError: an answer is incomplete.
    """
    page = Page(client, other.name)
    found = (page.staged(branch, path) for path in changed_paths(client, other.name, branch))
    return (address for address in found if address is not None)


def tables_of(
    client: LakeFSClient, other: Other, heads: Mapping[str, str], cache: ObjectStore
) -> Tables:
    """The tables of a repository, from a new listing.

    ``heads``: HEADs of its branches.

    Raises:
        IntegrityError: the listing lacks a table that a commit needs, or the log is damaged.
    """
    ids, _ = listed_files(other.connections.store())
    seen = [other.connections.namespace_url, sorted(ids), sorted(set(heads.values()))]
    state = hashlib.sha256(json.dumps(seen).encode()).hexdigest()
    naming = _recorded(cache, other.name, state)
    if naming is not None:
        return Tables(state, frozenset(), naming)
    known = _known_commits(other.connections.cache())
    read = load_commits(client, other.name, heads.values(), known.keys())
    if read:
        _write_commits(other.connections.cache(), state, read)
    commits = {**known, **read}
    reachable = _reachable(commits, heads.values())
    metaranges = {commits[commit].metarange_id for commit in reachable} - {""}
    if missing := sorted(metaranges - set(ids)):
        raise IntegrityError(
            f"{other.connections.namespace_url}/_lakefs/{missing[0]}, the metarange of a commit, "
            "is not listed, so the objects that this commit needs are unknown. If the file is in "
            "the store, run again; else restore it",
        )
    return Tables(state, frozenset(metaranges), None)


def record_naming(cache: ObjectStore, other: Other, state: str, naming: Sequence[str]) -> None:
    """Record the ranges of a repository that name objects, for one state of tables and HEADs."""
    data = json.dumps([state, sorted(naming)]).encode()
    cache.put(f"{_SEEN}{other.name}.json", _with_digest(data))


def record_read(cache: ObjectStore, other: Other) -> None:
    """Record that a repository was read, but nothing that a later run could use again."""
    record_naming(cache, other, "", ())


def _names_read(cache: ObjectStore) -> set[str]:
    """The repositories that earlier runs have read; also runs of earlier versions."""
    keys = (info.key for info in cache.infos(_OTHERS))
    return {key.rpartition("/")[2].removesuffix(".json") for key in keys}


def _recorded(cache: ObjectStore, name: str, state: str) -> list[str] | None:
    """The recorded ranges that name objects; None unless recorded completely for this state."""
    try:
        data = cache.get(f"{_SEEN}{name}.json")
    except ObjectNotFoundError:
        return None
    text = data.partition(b"\n")[2]
    if data != _with_digest(text):
        return None
    recorded: tuple[str, list[str]] = json.loads(text)
    return recorded[1] if recorded[0] == state else None


def _with_digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


# Commits that were read before


def _known_commits(cache: ObjectStore) -> dict[str, Commit]:
    """Cached commits; empty if an ancestor of one is not cached."""
    known: dict[str, Commit] = {}
    tables = TableCache(cache, _KIND)
    for file, slots in by_file(tables.compact().values()):
        for table in tables.read(file, slots) or ():
            columns = (table[name].to_pylist() for name in _COMMITS.names)
            for commit, parents, date, metarange, version in zip(*columns, strict=True):
                known[commit] = Commit(commit, tuple(parents), date, metarange, version)
    whole = all(parent in known for commit in known.values() for parent in commit.parents)
    return known if whole else {}


def _write_commits(cache: ObjectStore, state: str, read: Mapping[str, Commit]) -> None:
    rows = [
        (one.id, list(one.parents), one.creation_date, one.metarange_id, one.version)
        for one in read.values()
    ]
    table = table_of(rows, _COMMITS)
    TableCache(cache, _KIND).write([Decoded(state, table, {})])


def _reachable(commits: Mapping[str, Commit], heads: Iterable[str]) -> set[str]:
    """The commits that can be reached from the HEADs, by all parents."""
    found: set[str] = set()
    waiting = list(heads)
    while waiting:
        commit = waiting.pop()
        if commit not in found:
            found.add(commit)
            waiting += commits[commit].parents
    return found
