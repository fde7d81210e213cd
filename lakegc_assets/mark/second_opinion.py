"""What branches hold, found on a path of its own: one commit at a time, with the slow reader.

The invariants are evaluated with this. It shares neither the decoder, the cache, the commit walk
nor the lists of lakeFS with the mark that it checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.graveler.ranges import read_metarange, read_range
from lakegc_assets.lakefs.calls import LARGEST_PAGE
from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.retention.commits import Commit
from lakegc_assets.run.context import Connections
from lakegc_assets.storage.errors import ObjectNotFoundError

_SMALLEST_PAGE = 16
RANGES = "commit_id string, range_id string"
ENTRIES = (
    "range_id string, path string, address string, size long, etag string, entry_modified timestamp"
)


def main_ancestries(
    client: LakeFSClient, repository: str, refs: Iterable[str]
) -> dict[str, Commit]:
    """The commits of the main ancestries of some commits, as the server's log tells them."""
    commits: dict[str, Commit] = {}
    for ref in refs:
        for found in client.log(repository, ref, first_parent=True):
            if found.id in commits:
                break
            commits[found.id] = Commit(
                id=found.id,
                parents=tuple(found.parents),
                creation_date=found.creation_date,
                metarange_id=found.meta_range_id,
                version=found.version,
            )
    return commits


def ranges_of_commits(
    spark: SparkSession, connections: Connections, repository: str, commit_ids: Iterable[str]
) -> DataFrame:
    """The ranges of commits, each asked for by its id (``RANGES``)."""
    ids = sorted(set(commit_ids))
    partitions = max(1, min(8, len(ids)))
    return (
        spark.createDataFrame([(commit_id,) for commit_id in ids], "commit_id string")
        .repartition(partitions)
        .mapInArrow(partial(_ranges, connections, repository), RANGES)
    )


def entries_of_ranges(connections: Connections, range_ids: DataFrame, partitions: int) -> DataFrame:
    """The entries of ranges (``ENTRIES``); ``address`` is null where it is outside or unclear."""
    ids = range_ids.select("range_id").distinct()
    tasks = max(1, min(partitions, ids.count()))
    return ids.repartition(tasks).mapInArrow(partial(_entries, connections), ENTRIES)


def served_addresses(
    connections: Connections, repository: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The physical addresses that lakeFS serves at some places, in every spelling (``address``).

    Args:
        connections: how to reach lakeFS and the store.
        repository: lakeFS repository.
        batches: the places (branch, path), in order.
    """
    served = _Served(connections.lakefs.connect(), repository)
    namespace = connections.namespace()
    for batch in batches:
        spellings: list[str] = []
        for place in batch.to_pylist():
            found = served.address(place["branch"], place["path"])
            if found is None:
                continue
            spellings.append(found)
            try:
                spellings += as_paths(namespace.relatives(found))
            except UnresolvableAddressError as error:
                spellings += sorted(error.last_components)
        yield pa.RecordBatch.from_arrays([pa.array(spellings, pa.string())], names=["address"])


class _Served:
    """Asks for a path, and lists what follows it: as much as answered questions lately.

    A page tells what is served, never what is not: a path that no page showed is asked for.
    """

    def __init__(self, client: LakeFSClient, repository: str) -> None:
        self._client = client
        self._repository = repository
        self._branch = ""
        self._known: dict[str, str] = {}
        self._until = ""
        self._amount = _SMALLEST_PAGE
        self._answered = 0

    def address(self, branch: str, path: str) -> str | None:
        """The physical address at a path of a branch; None where nothing is served."""
        if branch == self._branch and path <= self._until:
            known = self._known.get(path)
            self._answered += known is not None
            return known or self._asked(branch, path)
        found = self._asked(branch, path)
        self._turn(branch, path)
        return found

    def _asked(self, branch: str, path: str) -> str | None:
        try:
            return self._client.stat(self._repository, branch_ref(branch), path).physical_address
        except NotFoundError:
            return None

    def _turn(self, branch: str, path: str) -> None:
        factor = 2 if self._answered > 1 else 0.5
        self._amount = min(max(int(self._amount * factor), _SMALLEST_PAGE), LARGEST_PAGE)
        self._branch, self._answered = branch, 0
        try:
            objects, _ = self._client.objects_page(
                self._repository, branch_ref(branch), after=path, amount=self._amount
            )
        except NotFoundError:
            objects = []
        self._known = {o.path: o.physical_address for o in objects}
        self._until = max(self._known, default=path)


def _ranges(
    connections: Connections, repository: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    client, store = connections.lakefs.connect(), connections.store()
    for batch in batches:
        rows: list[tuple[str, str]] = []
        for commit_id in batch["commit_id"].to_pylist():
            metarange_id = client.commit(repository, commit_id).meta_range_id
            if not metarange_id:
                continue
            try:
                data = store.get(f"_lakefs/{metarange_id}")
            except ObjectNotFoundError as error:
                raise IntegrityError(
                    f"metarange {metarange_id} of commit {commit_id} is missing from "
                    f"{connections.namespace_url}/_lakefs/",
                ) from error
            rows += [(commit_id, info.id) for info in read_metarange(data, metarange_id)]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([r[0] for r in rows], pa.string()),
                pa.array([r[1] for r in rows], pa.string()),
            ],
            names=["commit_id", "range_id"],
        )


def _entries(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store, namespace = connections.store(), connections.namespace()
    for batch in batches:
        for range_id in batch["range_id"].to_pylist():
            try:
                data = store.get(f"_lakefs/{range_id}")
            except ObjectNotFoundError as error:
                raise IntegrityError(
                    f"range {range_id} is missing from {connections.namespace_url}/_lakefs/",
                ) from error
            columns: list[list[object]] = [[], [], [], [], [], []]
            for path, entry in read_range(data, range_id):
                # A path that is no UTF-8 is shown with escapes; nobody can ask the API for it.
                path = path.encode(errors="surrogateescape").decode(errors="backslashreplace")  # noqa: PLW2901
                for address in _addresses(namespace, entry.address, entry.address_type):
                    seconds, nanos = entry.last_modified
                    moment = seconds * 1_000_000 + nanos // 1000
                    values = (range_id, path, address, entry.size, entry.e_tag, moment)
                    for column, value in zip(columns, values, strict=True):
                        column.append(value)
            types = (
                *(pa.string(),) * 3,
                pa.int64(),
                pa.string(),
                pa.timestamp("us", "UTC"),
            )
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
                names=["range_id", "path", "address", "size", "etag", "entry_modified"],
            )


def as_paths(addresses: Iterable[str]) -> list[str]:
    """Relative addresses, and the paths that some stores take them for: ``data//a``, ``data/a``."""
    paths = []
    for address in addresses:
        parts: list[str] = []
        for part in re.split(r"[/\\]", address):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        paths += [address, "/".join(parts)]
    return paths


def _addresses(
    namespace: StorageNamespace, address: str, address_type: AddressType
) -> set[str | None]:
    """Every relative address that an entry may mean; None where it means none, or it is unclear."""
    try:
        return set(namespace.resolve(address, address_type)) or {None}
    except UnresolvableAddressError:
        return {None}
