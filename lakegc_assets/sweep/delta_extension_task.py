"""Extends a delta mark in the task that deletes: reads what branches that moved have now.

What that keeps alive is only ever added. Where it is more than a task should read alone, or where
nothing tells what was lost from sight, the sweep takes a new delta mark instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.decode import decode_range, etag_hashes
from lakegc_assets.graveler.ranges import read_metarange
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.ranges import Wanted, decode, require_length
from lakegc_assets.mark.refs import load_commits, read_commits_csv, read_heads
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.retention.union import missing_heads
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.hashing import Hashes, address_hashes, pair_hashes, unsigned
from lakegc_assets.run.table_cache import Decoded
from lakegc_assets.sweep.delta_extension import (
    Known,
    extended,
    more_paths,
    moved_aside,
    unread,
    with_commits,
)
from lakegc_assets.wording import counted

HELD: Final = "an active commit holds it now"
ALIKE: Final = "it looks like what a branch has now"
#: A task reads no more metaranges, and no more ranges, for one extension.
_MOST: Final = 200
_THREADS: Final = 8
#: How often in a row it has lakeFS list the active commits, where branches are set aside meanwhile.
_LISTS: Final = 3
_NOT_ASKED: Final[Mapping[str, str]] = MappingProxyType({})
_MD5: Final = "^[0-9a-f]{32}$"
_LOOKS: Final = pa.schema([("size", pa.int64()), ("etag_hash", pa.int64())])


class TooMuchError(Exception):
    """A task cannot tell what is alive now: the sweep must take a new delta mark."""


@dataclass(frozen=True)
class Found:
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
    """Reads what branches have now.

    Attributes:
        connections: how to reach the store.
        client: of lakeFS.
        repository: lakeFS repository.
    """

    connections: Connections
    client: LakeFSClient
    repository: str

    def extend(
        self, known: Known, ranges: AbstractSet[str], seen: Mapping[str, str]
    ) -> tuple[Known, Found]:
        """Extend the known commits by the current branches, and find the objects that these add.

        Args:
            known: so far.
            ranges: those whose entries were looked at.
            seen: HEAD of each branch when the look found that some had moved; they may have moved
                again since, and be back where they were.

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
        return known, self._read_added(known.metaranges() - alive, ranges)

    def _followed(
        self, known: Known, heads: Mapping[str, str], listed: Mapping[str, str] = _NOT_ASKED
    ) -> tuple[Known, list[str]]:
        """Extend the known commits by the current branches; return branches set aside, too."""
        if heads == known.heads and not listed:
            return known, []
        known = self._with_logs(known, {*listed, *heads.values()})
        return extended(known, heads, listed), moved_aside(known, heads)

    def _with_logs(self, known: Known, commits: Collection[str]) -> Known:
        roots = unread(known, commits)
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
    def _read_added(self, metaranges: AbstractSet[str], ranges: AbstractSet[str]) -> Found:
        """Objects that the ranges of some metaranges keep alive, without those read before."""
        if len(metaranges) > _MOST:
            raise TooMuchError(f"{len(metaranges)} metaranges are to be read")
        get = self.connections.fetch_table
        ids = sorted(metaranges)
        entries = {
            info.id: info.count
            for table_id, data in zip(ids, thread_map(get, ids, _THREADS), strict=True)
            for info in read_metarange(data, self._url(table_id))
            if info.id not in ranges
        }
        if len(entries) > _MOST:
            raise TooMuchError(f"{counted(len(entries), 'range is', 'ranges are')} to be read")
        decoded = thread_map(partial(self._decode, get), sorted(entries.items()), _THREADS)
        hashes = [unsigned(d.rows["hash"]) for d in decoded]
        looks = [d.rows.select(_LOOKS.names) for d in decoded]
        return Found(
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
