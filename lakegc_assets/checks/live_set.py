"""The live set, read again and independently of the mark: ranges of commits, staged, pinned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.checks.witness import KIND, meanings
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_each
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.ranges import RangeInfo, read_metarange
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.scratch import Folder
from lakegc_assets.storage.base import ObjectStore

#: Reason for which the checks read a commit; a commit may have several roles.
Role = Literal["head", "tag", "retained", "active"]
#: Rows of the files of addresses that tasks and relations write.
ADDRESSES: Final = schema("address string")
#: Rows: a range of a commit.
PAIRS: Final = schema([(KIND.id_column, pa.string())], "commit_id string")
#: Seconds of one core to read a commit with its metarange, and a list of staged objects.
COMMIT_S: Final = 0.02
LIST_S: Final = 0.2
#: Arrow types of a string column.
_TEXTS: Final = frozenset({"string", "large_string", "binary", "large_binary"})
_PINS: Final = "_lakefs/retention/gc/lakegc/pins/"
_THREADS: Final = 8
#: Number of commits whose ranges are in memory at a time.
_AT_ONCE: Final = 64
#: Addresses that need plain Python: with a scheme, or with parts that stores may interpret.
_ODD: Final = r"://|(^|/)(/|$)|\.(/|$)|\\"


@dataclass(frozen=True)
class LiveSet:
    """The live set as tasks read it: the ranges of commits, and the staged addresses."""

    #: Range ids of all commits of a role, with the number of entries from the metaranges.
    ranges: Mapping[Role, Mapping[str, int]]
    #: First path of each range.
    first_paths: Mapping[str, bytes]
    #: Files of ``PAIRS``: the ranges of each commit, which thousands of branches may share.
    pairs: Sequence[Part]
    #: Files of the staged addresses, in every spelling.
    staged: Sequence[Part]

    def of(self, role: Role) -> Mapping[str, int]:
        """Return the ranges of the commits of a role; none if no commit has the role."""
        return self.ranges.get(role, {})


def read_live_set(
    scratch: Folder, repository: str, named: Sequence[tuple[str, AbstractSet[Role]]]
) -> LiveSet:
    """Read commits and lists of staged objects; a task.

    ``named``: ids of commits with their roles, and keys of lists of staged objects without roles.

    Raises:
        IntegrityError: a metarange is missing or damaged, or a file is no list of staged objects.
        LakeFSError: lakeFS does not know a commit.
    """
    connections = scratch.connections
    commits = {commit: roles for commit, roles in named if roles}
    ranges: dict[Role, dict[str, int]] = {}
    first_paths: dict[str, bytes] = {}

    def pairs() -> Iterator[pa.Table]:
        read = partial(_ranges, connections, repository)
        for commit_id, infos in thread_each(read, [*commits], _THREADS, _AT_ONCE):
            for role in commits[commit_id]:
                ranges.setdefault(role, {}).update((info.id, info.count) for info in infos)
            first_paths.update((info.id, info.min_key) for info in infos)
            ids = [info.id for info in infos]
            yield pa.table([ids, [commit_id] * len(ids)], schema=PAIRS)

    written = scratch.write(PAIRS, pairs())
    lists = (key for key, roles in named if not roles)
    staged = write_addresses(scratch, (some for key in lists for some in _staged(connections, key)))
    return LiveSet(ranges, first_paths, written, staged)


def write_addresses(folder: Folder, addresses: Iterable[pa.Array]) -> list[Part]:
    """Write addresses, of a type that can be cast to a string, to files of ``ADDRESSES``."""
    texts = (pa.table([array.cast(pa.string())], schema=ADDRESSES) for array in addresses)
    return folder.write(ADDRESSES, texts)


def united(found: Sequence[LiveSet]) -> LiveSet:
    """Unite the results of several tasks."""
    ranges: dict[Role, dict[str, int]] = {}
    for one in found:
        for role, counts in one.ranges.items():
            ranges.setdefault(role, {}).update(counts)
    first_paths = {i: path for one in found for i, path in one.first_paths.items()}
    pairs = [part for one in found for part in one.pairs]
    return LiveSet(ranges, first_paths, pairs, [part for one in found for part in one.staged])


def _ranges(connections: Connections, repository: str, commit_id: str) -> list[RangeInfo]:
    metarange_id = connections.client().commit(repository, commit_id).meta_range_id
    if not metarange_id:
        return []
    data = connections.fetch_table(metarange_id)
    return read_metarange(data, connections.table_url(metarange_id))


def _staged(connections: Connections, key: str) -> Iterator[pa.Array]:
    """Yield the addresses of a list of staged objects, in every spelling."""
    namespace = connections.namespace()
    for addresses in _listed(connections, key):
        yield addresses
        odd = addresses.filter(pc.match_substring_regex(addresses, _ODD)).to_pylist()
        full = [
            meanings(namespace, address, AddressType.FULL) for address in odd if "://" in address
        ]
        more = as_paths([*odd, *(one for found in full for one in found if one is not None)])
        yield pa.array(more, pa.string())


def _listed(connections: Connections, key: str) -> Iterator[pa.Array]:
    """Yield the addresses of a list of staged objects, without change."""
    data, rows = connections.store().get(key), 0
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            for page in file.iter_batches(columns=["physical_address"]):
                addresses = page["physical_address"]
                kind = addresses.type
                # A cast of a number gives a string that is no object's address.
                if str(getattr(kind, "value_type", kind)) not in _TEXTS:
                    raise ValueError(f"its addresses are of the type {kind}")  # noqa: TRY301
                texts = addresses.cast(pa.string())
                texts.validate(full=True)
                if texts.null_count:
                    raise ValueError("it holds an empty address")  # noqa: TRY301
                rows += len(texts)
                yield texts
            # Arrow reads a truncated file without an error, and returns the rows that are there.
            if rows != file.metadata.num_rows:
                raise ValueError("it lacks rows")  # noqa: TRY301
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise IntegrityError(
            f"{connections.namespace_url}/{key} is no list of staged objects as lakeFS writes it "
            f"({error}): mark again under a new id"
        ) from error


def as_paths(addresses: Iterable[str]) -> list[str]:
    """Return addresses, and the paths that some stores read them as.

    ``data//a`` is ``data/a`` in several stores, and ``data/a.`` in Azure.
    """
    paths = []
    for address in addresses:
        parts: list[str] = []
        for part in re.split(r"[/\\]", address):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        path = "/".join(parts)
        undotted = [part.rstrip(".") for part in parts]
        paths += [address, path, path.rstrip("./"), "/".join(part for part in undotted if part)]
    return paths


def pinned_addresses(store: ObjectStore) -> Iterator[pa.Array]:
    """Yield the addresses that are pinned now, by the store's clock, in batches.

    Raises:
        IntegrityError: a pin is damaged.
    """
    now = store.server_time()
    for page in store.list_to_the_end(_PINS):
        for key in page["key"].to_pylist():
            content = pa.BufferReader(store.get(key))
            try:
                with pq.ParquetFile(content, page_checksum_verification=True) as file:
                    until = datetime.fromisoformat(file.schema_arrow.metadata[b"until"].decode())
                    if until > now:
                        for batch in file.iter_batches(columns=["address"]):
                            yield batch["address"]
            except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
                raise IntegrityError(
                    f"{store.url}/{key} is damaged ({error}), so the restored objects that it "
                    "protects are not known. Restore them again (`lakegc restore`), then remove "
                    "the file. If none of them must stay, only remove the file"
                ) from error
