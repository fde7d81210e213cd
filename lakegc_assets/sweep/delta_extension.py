"""The extension of a delta mark in a deleting task, by the commits of branches that moved.

The log of a branch that moved forward shows its new commits. A branch may also be gone, or its new
HEAD may not be a descendant of its last HEAD. Such a branch may have held commits in between that
no branch leads to any more and that are within their retention: only lakeFS's list of active
commits names them. An object that was alive stays alive, whatever the branches do: an extension
only adds objects. If a task would have to read too much alone, or if no list names the commits in
between, the sweep takes a new delta mark instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_values, write_values
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_range, etag_hashes
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.ranges import Wanted, decode, require_length
from lakegc_assets.mark.refs import load_commits, read_commits_csv, read_heads
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain_rules import NO_RETAIN, Retain
from lakegc_assets.retention.retained_commits import path_commits, retained_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.retention.union import missing_heads
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.hashing import Hashes, address_hashes, pair_hashes, unsigned
from lakegc_assets.run.table_cache import Decoded
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.wording import counted

_COMMITS: Final = pa.schema(
    [
        ("commit_id", pa.string()),
        ("parents", pa.list_(pa.string())),
        ("creation_date", pa.int64()),
        ("metarange_id", pa.string()),
        ("version", pa.int64()),
        ("active", pa.bool_()),
        # Patterns of the path rules below which the commit keeps its entries.
        ("paths", pa.list_(pa.string())),
    ]
)
_HEADS: Final = schema("branch string, commit_id string")
_RANGES: Final = schema("range_id string")
HELD: Final = "an active commit holds it now"
ALIKE: Final = "it looks like what a branch has now"
#: Most metaranges, and most ranges, that a task reads for one extension.
MOST_TABLES: Final = 200
_THREADS: Final = 8
#: Most consecutive lists of active commits, if branches are set aside meanwhile.
_LISTS: Final = 3
_NOT_ASKED: Final[Mapping[str, str]] = MappingProxyType({})
_MD5: Final = "^[0-9a-f]{32}$"
_LOOKS: Final = schema("size bigint, etag_hash bigint")


@dataclass(frozen=True)
class KnownCommits:
    """The known commits of a repository.

    Attributes:
        rules: the retention rules; None if there are none, so that all commits are active.
        now: the time at which the age of commits is computed.
        heads: HEAD of each branch.
        commits: all commits that were reached, by id; with a commit also all its ancestors.
        paths: for each pattern of paths the inactive commits that keep their entries below it.
    """

    rules: Rules | None
    now: datetime
    heads: Mapping[str, str]
    commits: Mapping[str, Commit]
    active: AbstractSet[str]
    retain: Retain = NO_RETAIN
    paths: Mapping[str, AbstractSet[str]] = field(default_factory=dict)

    def metaranges(self) -> set[str]:
        """The metaranges of the active commits."""
        return {self.commits[commit].metarange_id for commit in self.active} - {""}


def with_commits(known: KnownCommits, read: Mapping[str, Commit]) -> KnownCommits:
    """Add commits, none of which is active yet."""
    return replace(known, commits={**known.commits, **read})


def moved_aside(known: KnownCommits, heads: Mapping[str, str]) -> list[str]:
    """Return branches that are gone, or whose last HEAD is not in their main ancestry any more.

    ``known``: includes the commits of the new HEADs, which are ``heads``.
    """
    return sorted(
        branch
        for branch, head in known.heads.items()
        if branch not in heads or not _is_behind(known.commits, head, heads[branch])
    )


def _is_behind(commits: Mapping[str, Commit], earlier: str, head: str) -> bool:
    current: str | None = head
    while current is not None and current != earlier:
        current = commits[current].main_parent
    return current == earlier


def extended(
    known: KnownCommits, heads: Mapping[str, str], listed: Mapping[str, str]
) -> KnownCommits:
    """Extend the known commits by the current branches; live commits stay live.

    ``known``: includes the commits of the new HEADs, and of the list. ``listed``: lakeFS's list of
    active commits with their metaranges, if it was requested.

    Raises:
        IntegrityError: the list contradicts the log, or commits are missing.
    """
    for commit, metarange in listed.items():
        if known.commits[commit].metarange_id != metarange:
            raise IntegrityError(
                f"commit {commit} has metarange {known.commits[commit].metarange_id!r} in the log, "
                f"but {metarange!r} in the list of active commits: the list cannot be "
                "trusted. Sweep again; if the message stays, check the log of the lakeFS server",
            )
    if known.rules is None:
        active: AbstractSet[str] = known.commits.keys()
    else:
        # Tags have not changed, or the delta mark would be over.
        active = retained_commits(
            known.commits, heads, {}, known.rules, known.retain, known.now
        ).active.keys()
    alive = known.active | active | listed.keys()
    return replace(known, heads=dict(heads), active=alive, paths=_paths(known, heads, alive))


def _paths(
    known: KnownCommits, heads: Mapping[str, str], alive: AbstractSet[str]
) -> Mapping[str, AbstractSet[str]]:
    if known.rules is None or not known.retain.paths:
        return known.paths
    now = path_commits(known.commits, heads, known.rules, known.retain, known.now)
    return {
        pattern: (known.paths.get(pattern, frozenset()) | kept.keys()) - alive
        for pattern, kept in now.items()
    }


def more_paths(before: KnownCommits, after: KnownCommits) -> list[str]:
    """Return patterns of paths below which additional commits keep entries."""
    return sorted(
        pattern
        for pattern, commits in after.paths.items()
        if not commits <= before.paths.get(pattern, frozenset())
    )


@dataclass(frozen=True)
class CommitFiles:
    """A snapshot of known commits; keys of files are relative to the attempt.

    Attributes:
        known: the known values that are not in the files.
        commits: file of the commits, with a column for the active ones.
        ranges: file of the ids of the ranges whose entries were read.
    """

    known: KnownCommits
    commits: Part
    heads: Part
    ranges: Part


def write_known(
    artifacts: ObjectStore, folder: str, known: KnownCommits, ranges: AbstractSet[str]
) -> CommitFiles:
    """Write the known commits and ranges to files.

    ``ranges``: ids of the ranges whose entries were read.
    """
    commits = [
        (
            *(commit.id, list(commit.parents), commit.creation_date, commit.metarange_id),
            *(commit.version, commit.id in known.active),
            [pattern for pattern, kept in known.paths.items() if commit.id in kept],
        )
        for commit in known.commits.values()
    ]
    return CommitFiles(
        known=replace(known, heads={}, commits={}, active=frozenset(), paths={}),
        commits=write_values(artifacts, folder, commits, _COMMITS),
        heads=write_values(artifacts, folder, list(known.heads.items()), _HEADS),
        ranges=write_values(artifacts, folder, [(i,) for i in sorted(ranges)], _RANGES),
    )


def read_known(artifacts: ObjectStore, files: CommitFiles) -> tuple[KnownCommits, AbstractSet[str]]:
    """Read the known commits, and the ranges whose entries were read.

    Raises:
        IntegrityError: a file is damaged.
    """
    rows = read_values(artifacts, files.commits)
    paths: dict[str, set[str]] = {pattern: set() for pattern in files.known.retain.paths}
    for row in rows:
        for pattern in row["paths"]:
            paths[pattern].add(row["commit_id"])
    heads = read_values(artifacts, files.heads)
    known = replace(
        files.known,
        heads={row["branch"]: row["commit_id"] for row in heads},
        commits={row["commit_id"]: _commit(row) for row in rows},
        # A commit that its metadata keep is already in ``active``.
        active={row["commit_id"] for row in rows if row["active"]},
        paths=paths,
    )
    return known, {row["range_id"] for row in read_values(artifacts, files.ranges)}


def _commit(row: Mapping[str, Any]) -> Commit:
    commit_id, parents, date, metarange, version = (row[name] for name in _COMMITS.names[:5])
    return Commit(commit_id, tuple(parents), date, metarange, version)


class TooMuchError(Exception):
    """A task cannot find the live objects: the sweep must take a new delta mark."""


@dataclass(frozen=True)
class AddedObjects:
    """Objects that added ranges keep alive.

    Attributes:
        last_parts: last parts of full addresses that may mean several objects.
        looks: size and ``etag_hash`` of each entry.
    """

    ranges: AbstractSet[str]
    hashes: Hashes
    last_parts: AbstractSet[str]
    looks: pa.Table

    def spares(self, objects: pa.Table) -> dict[str, str]:
        """Return the objects (address, size, etag) that must stay, with the reason.

        The delta mark asked for the objects that branches serve, and no move of a HEAD makes lakeFS
        serve another upload. So to spare objects that look like an entry is an extra precaution.
        """
        if not self.ranges:
            return {}
        addresses = objects["address"]
        held = np.isin(address_hashes(addresses), self.hashes)
        last = pc.replace_substring_regex(addresses, pattern="(?s)^.*/", replacement="")
        unclear = pc.is_in(last, pa.array(sorted(self.last_parts), pa.string()))
        spared: dict[str, str] = {}
        for which, why in ((held, HELD), (unclear, AMBIGUOUS), (self._alike(objects), ALIKE)):
            mask = pa.array(np.asarray(which), pa.bool_())
            for address in addresses.filter(mask).to_pylist():
                spared.setdefault(address, why)
        return spared

    def _alike(self, objects: pa.Table) -> npt.NDArray[np.bool_]:
        """Find objects with the size of an entry, and its etag if both may be checksums."""
        sizes, etags = self.looks["size"].to_numpy(), self.looks["etag_hash"].to_numpy()
        found = etag_hashes(objects["etag"].combine_chunks()).to_numpy(zero_copy_only=False)
        checksum = np.asarray(pc.match_substring_regex(objects["etag"], _MD5))
        by_size = np.isin(objects["size"].to_numpy(), sizes)
        # An entry without a usable etag may be the entry of any object with its size.
        by_unclear = np.isin(objects["size"].to_numpy(), sizes[etags == 0])
        by_both = np.isin(
            pair_hashes(objects["size"].to_numpy().view(np.uint64), found.view(np.uint64)),
            pair_hashes(sizes.view(np.uint64), etags.view(np.uint64)),
        )
        alike: npt.NDArray[np.bool_] = np.where(checksum, by_both | by_unclear, by_size)
        return alike


@dataclass(frozen=True)
class Extender:
    """Reads the commits and ranges of the current branches."""

    connections: Connections
    client: LakeFSClient
    repository: str

    def extend(
        self, known: KnownCommits, ranges: AbstractSet[str], seen: Mapping[str, str]
    ) -> tuple[KnownCommits, AddedObjects]:
        """Extend the known commits by the current branches, and find the objects that they add.

        ``ranges``: ranges whose entries were read. ``seen``: HEADs as read by the look that found
        moved branches; branches may have moved again since, even back to their last HEAD.

        Raises:
            TooMuchError: a task cannot find the objects.
            IntegrityError: an answer is incomplete, or contradicts another.
            LakegcError: lakeFS or the store did not answer.
        """
        heads = read_heads(self.client, self.repository, {*known.heads, *seen})
        alive, before = known.metaranges(), known
        # Every HEAD that was seen counts: no later HEAD shows a commit that a branch has left.
        known, aside = self._followed(known, seen)
        known, more = self._followed(known, heads)
        aside += more
        lists = 0
        # Only the next list names a commit that a branch left while lakeFS made a list.
        while aside:
            if known.rules is None or lists == _LISTS:
                raise TooMuchError(f"branch {aside[0]!r} is gone, or was set elsewhere")
            listed, later = self._listed(known.heads)
            known, aside = self._followed(known, later, listed)
            lists += 1
        if patterns := more_paths(before, known):
            raise TooMuchError(f"more commits than before keep what they have below {patterns[0]}")
        return known, self.read_added(known.metaranges() - alive, ranges)

    def _followed(
        self, known: KnownCommits, heads: Mapping[str, str], listed: Mapping[str, str] = _NOT_ASKED
    ) -> tuple[KnownCommits, list[str]]:
        """Extend the known commits by HEADs; also return the branches that were set aside."""
        if heads == known.heads and not listed:
            return known, []
        known = self._with_logs(known, {*listed, *heads.values()})
        return extended(known, heads, listed), moved_aside(known, heads)

    def _with_logs(self, known: KnownCommits, commits: Collection[str]) -> KnownCommits:
        roots = sorted(set(commits) - known.commits.keys())
        read = load_commits(self.client, self.repository, roots, known.commits.keys())
        return with_commits(known, read) if read else known

    def _listed(self, heads: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return lakeFS's list of active commits with their metaranges, and the HEADs after it."""
        location = self.client.prepare_commits(self.repository).gc_commits_location
        store, namespace = self.connections.store(), self.connections.namespace()
        listed = read_commits_csv(store, namespace, location)
        later = read_heads(self.client, self.repository, heads)
        unmoved = {name: head for name, head in heads.items() if later.get(name) == head}
        if missing := missing_heads(listed.keys(), unmoved):
            raise IntegrityError(
                f"the HEAD of branch {next(iter(missing))!r} is not among the active commits that "
                f"lakeFS wrote to {location}: the list is incomplete or old. Sweep again",
            )
        return listed, later

    @reads_tables
    def read_added(self, metaranges: AbstractSet[str], ranges: AbstractSet[str]) -> AddedObjects:
        """Return the objects that ranges of metaranges keep alive, without ranges read before."""
        if len(metaranges) > MOST_TABLES:
            raise TooMuchError(f"{len(metaranges)} metaranges are to be read")
        get = self.connections.fetch_table
        ids = sorted(metaranges)
        entries = {
            info.id: info.count
            for table_id, data in zip(ids, thread_map(get, ids, _THREADS), strict=True)
            for info in read_metarange(data, self._url(table_id))
            if info.id not in ranges
        }
        if len(entries) > MOST_TABLES:
            raise TooMuchError(f"{counted(len(entries), 'range is', 'ranges are')} to be read")
        decoded = thread_map(partial(self._decode, get), sorted(entries.items()), _THREADS)
        hashes = [unsigned(d.rows["hash"]) for d in decoded]
        looks = [d.rows.select(_LOOKS.names) for d in decoded]
        return AddedObjects(
            ranges=entries.keys(),
            hashes=np.concatenate([np.empty(0, np.uint64), *hashes]),
            last_parts={last for d in decoded for last in d.facts["unresolved"]},
            looks=pa.concat_tables([_LOOKS.empty_table(), *looks]),
        )

    def _decode(self, get: Callable[[str], bytes], pair: tuple[str, int]) -> Decoded:
        range_id, entries = pair
        namespace = self.connections.namespace()
        decoded = decode(namespace, range_id, decode_range(get(range_id), self._url(range_id)))
        require_length(self.connections, Wanted(range_id, entries, None), decoded.facts["entries"])
        return decoded

    def _url(self, table_id: str) -> str:
        return self.connections.table_url(table_id)
