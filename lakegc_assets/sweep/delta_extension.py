"""The extension of a delta mark in the task that deletes, by what branches that moved have now.

A branch that moved forward tells by its log what it has now. One that is gone, or that stands
somewhere else than behind its last HEAD, may have held commits in between that no branch leads to
any more, and that are inside their retention: only lakeFS's list of active commits names these.
What was alive stays alive, whatever the branches do: what is found is only ever added. Where it is
more than a task should read alone, or where nothing tells what was lost from sight, the sweep takes
a new delta mark instead.
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
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_range, etag_hashes
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.ranges import Wanted, decode, require_length
from lakegc_assets.mark.refs import load_commits, read_commits_csv, read_heads
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain import NO_RETAIN, Retain
from lakegc_assets.retention.retained import path_commits, retained_commits
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
        # The patterns of paths below which it keeps what it has.
        ("paths", pa.list_(pa.string())),
    ]
)
_HEADS: Final = pa.schema([("branch", pa.string()), ("commit_id", pa.string())])
_RANGES: Final = pa.schema([("range_id", pa.string())])
HELD: Final = "an active commit holds it now"
ALIKE: Final = "it looks like what a branch has now"
#: A task reads no more metaranges, and no more ranges, for one extension.
MOST_TABLES: Final = 200
_THREADS: Final = 8
#: How often in a row it has lakeFS list the active commits, where branches are set aside meanwhile.
_LISTS: Final = 3
_NOT_ASKED: Final[Mapping[str, str]] = MappingProxyType({})
_MD5: Final = "^[0-9a-f]{32}$"
_LOOKS: Final = pa.schema([("size", pa.int64()), ("etag_hash", pa.int64())])


@dataclass(frozen=True)
class KnownCommits:
    """The known commits of a repository.

    Attributes:
        rules: the retention rules; None where there are none, so that all commits are active.
        now: the moment against which ages are taken.
        heads: HEAD of each branch.
        commits: all commits that were reached, by id; with a commit all those behind it.
        active: ids of those that are active.
        retain: rules that keep more than lakeFS's.
        paths: for each pattern of paths the commits of which stays what lies below it, but for
            active ones.
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
    """The known commits and more, none of which is active yet."""
    return replace(known, commits={**known.commits, **read})


def moved_aside(known: KnownCommits, heads: Mapping[str, str]) -> list[str]:
    """Branches that are gone, or whose last HEAD is not in their main ancestry any more.

    ``known``: with the commits of the new HEADs, which are those of ``heads``.
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

    ``known``: with the commits of the new HEADs, and of the list. ``listed``: lakeFS's list of
    active commits with their metaranges, where it was asked for.

    Raises:
        IntegrityError: the list contradicts the log, or commits are missing.
    """
    for commit, metarange in listed.items():
        if known.commits[commit].metarange_id != metarange:
            raise IntegrityError(
                f"commit {commit} has metarange {known.commits[commit].metarange_id!r} in the log, "
                f"but {metarange!r} in the list of active commits: the list cannot be trusted",
            )
    if known.rules is None:
        active: AbstractSet[str] = known.commits.keys()
    else:
        # Tags have not changed, or the delta mark is over.
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
    """Patterns of paths below which commits have something that were not known to."""
    return sorted(
        pattern
        for pattern, commits in after.paths.items()
        if not commits <= before.paths.get(pattern, frozenset())
    )


@dataclass(frozen=True)
class CommitFiles:
    """A snapshot of known commits; keys of files are relative to the attempt.

    Attributes:
        known: all that is not in the files.
        commits: file of the commits, with which of them are active.
        heads: file of the HEAD of each branch.
        ranges: file of the ids of the ranges whose entries were looked at.
    """

    known: KnownCommits
    commits: Part
    heads: Part
    ranges: Part


def write_known(
    artifacts: ObjectStore, folder: str, known: KnownCommits, ranges: AbstractSet[str]
) -> CommitFiles:
    """Write what is known.

    ``ranges``: ids of the ranges whose entries were looked at.
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
        ranges=write_values(artifacts, folder, [(one,) for one in sorted(ranges)], _RANGES),
    )


def read_known(artifacts: ObjectStore, files: CommitFiles) -> tuple[KnownCommits, AbstractSet[str]]:
    """Read the known commits, and the ranges whose entries were read.

    Raises:
        IntegrityError: a file is not what was written.
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
        # What a commit of these stays for in its metadata, it is active for already.
        active={row["commit_id"] for row in rows if row["active"]},
        paths=paths,
    )
    return known, {row["range_id"] for row in read_values(artifacts, files.ranges)}


def _commit(row: Mapping[str, Any]) -> Commit:
    commit_id, parents, date, metarange, version = (row[name] for name in _COMMITS.names[:5])
    return Commit(commit_id, tuple(parents), date, metarange, version)


class TooMuchError(Exception):
    """A task cannot tell what is alive now: the sweep must take a new delta mark."""


@dataclass(frozen=True)
class AddedObjects:
    """Objects that ranges keep alive.

    Attributes:
        ranges: their ids.
        hashes: of the addresses.
        last_parts: of full addresses that nobody can place.
        looks: size of each entry, and ``etag_hash``.
    """

    ranges: AbstractSet[str]
    hashes: Hashes
    last_parts: AbstractSet[str]
    looks: pa.Table

    def spares(self, objects: pa.Table) -> dict[str, str]:
        """Objects (address, size, etag) that must stay, with the reason.

        What branches served was asked for by the delta mark, and no move of a HEAD makes lakeFS
        serve another upload. So that an object looks like an entry is a reason beyond need.
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
        """Mark the entries of the same size, and the same etag where both may be checksums."""
        sizes, etags = self.looks["size"].to_numpy(), self.looks["etag_hash"].to_numpy()
        found = etag_hashes(objects["etag"].combine_chunks()).to_numpy(zero_copy_only=False)
        checksum = np.asarray(pc.match_substring_regex(objects["etag"], _MD5))
        by_size = np.isin(objects["size"].to_numpy(), sizes)
        # What has an entry without a telling etag may be served by any of its size.
        by_unclear = np.isin(objects["size"].to_numpy(), sizes[etags == 0])
        by_both = np.isin(
            pair_hashes(objects["size"].to_numpy().view(np.uint64), found.view(np.uint64)),
            pair_hashes(sizes.view(np.uint64), etags.view(np.uint64)),
        )
        alike: npt.NDArray[np.bool_] = np.where(checksum, by_both | by_unclear, by_size)
        return alike


@dataclass(frozen=True)
class Extender:
    """Reads what branches have now."""

    connections: Connections
    client: LakeFSClient
    repository: str

    def extend(
        self, known: KnownCommits, ranges: AbstractSet[str], seen: Mapping[str, str]
    ) -> tuple[KnownCommits, AddedObjects]:
        """Extend the known commits by the current branches, and find the objects that these add.

        ``ranges``: those whose entries were looked at. ``seen``: HEAD of each branch when the look
        found that some had moved; they may have moved again since, and be back where they were.

        Raises:
            TooMuchError: a task cannot tell.
            IntegrityError: an answer is not whole, or contradicts another.
            LakegcError: lakeFS or the store did not answer.
        """
        heads = read_heads(self.client, self.repository, {*known.heads, *seen})
        alive, before = known.metaranges(), known
        # A branch counts with every HEAD that was seen: what it leaves again, no HEAD shows.
        known, aside = self._followed(known, seen)
        known, more = self._followed(known, heads)
        aside += more
        lists = 0
        # What a branch left while lakeFS made a list, only the next list names.
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
        """Extend the known commits by the current branches; return branches set aside, too."""
        if heads == known.heads and not listed:
            return known, []
        known = self._with_logs(known, {*listed, *heads.values()})
        return extended(known, heads, listed), moved_aside(known, heads)

    def _with_logs(self, known: KnownCommits, commits: Collection[str]) -> KnownCommits:
        roots = sorted(set(commits) - known.commits.keys())
        read = load_commits(self.client, self.repository, roots, known.commits.keys())
        return with_commits(known, read) if read else known

    def _listed(self, heads: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The active commits that lakeFS lists, with their metaranges; and the HEADs after that."""
        location = self.client.prepare_commits(self.repository).gc_commits_location
        store, namespace = self.connections.store(), self.connections.namespace()
        listed = read_commits_csv(store, namespace, location)
        later = read_heads(self.client, self.repository, heads)
        unmoved = {name: head for name, head in heads.items() if later.get(name) == head}
        if missing := missing_heads(listed.keys(), unmoved):
            raise IntegrityError(
                f"the HEAD of branch {next(iter(missing))!r} is not among the active commits that "
                f"lakeFS wrote to {location}: the list is cut or of another time. Sweep again",
            )
        return listed, later

    @reads_tables
    def read_added(self, metaranges: AbstractSet[str], ranges: AbstractSet[str]) -> AddedObjects:
        """Objects that the ranges of some metaranges keep alive, without those read before."""
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

    def _decode(self, get: Callable[[str], bytes], one: tuple[str, int]) -> Decoded:
        range_id, entries = one
        namespace = self.connections.namespace()
        decoded = decode(namespace, range_id, decode_range(get(range_id), self._url(range_id)))
        require_length(self.connections, Wanted(range_id, entries, None), decoded.facts["entries"])
        return decoded

    def _url(self, table_id: str) -> str:
        return self.connections.table_url(table_id)
