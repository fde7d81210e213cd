"""Imports: objects outside the namespace become entries of one new commit, by full addresses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakegc_assets.embedded import errors, tasks
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Commit, Repository
from lakegc_assets.embedded.lake.trees import Cursor, Trees, TreeWriter
from lakegc_assets.embedded.refs import history, merging
from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.graveler.ranges import RangeInfo, range_record
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import ObjectInfo

TASK_PREFIX = "IM"
_PREFIX, _OBJECT = "common_prefix", "object"
_CANCELED = "Canceled"
_MESSAGE = "Import objects"


@dataclass(frozen=True)
class Location:
    """The source and destination of an import: one object, or all objects with a prefix.

    Attributes:
        kind: ``object`` or ``common_prefix``.
        path: URL of the source.
        destination: path on the branch, or the prefix there, which the import replaces.
    """

    kind: str
    path: str
    destination: str

    @property
    def prefix(self) -> str:
        """The prefix on the branch, with its slash; empty for the whole branch."""
        slash = "" if self.destination.endswith("/") or not self.destination else "/"
        return self.destination + slash

    def replaces(self, key: bytes) -> bool:
        """Return whether the branch's entry at a key is removed, if it is not imported again."""
        if self.kind == _OBJECT:
            return key == self.destination.encode()
        return key.startswith(self.prefix.encode())


@dataclass(frozen=True)
class Wanted:
    """One import: sources, branch, and message of its commit; empty for lakeFS's message."""

    repository: str
    branch: str
    locations: tuple[Location, ...]
    message: str
    metadata: Mapping[str, str]
    force: bool = False


def start(lake: Lake, wanted: Wanted) -> str:
    """Record an import for the background; its id.

    Raises:
        ApiError: 404 for an unknown branch, 403 for a read-only repository, 400 for a source that
            is invalid, is inside the namespace or contains it.
    """
    if not wanted.locations:
        raise errors.bad_request("paths: required value: validation error")

    def check(db: sqlite3.Connection, repo: Repository) -> None:
        catalog.branch(db, repo, wanted.branch)
        for location in wanted.locations:
            _check(lake, repo, location)

    return tasks.start(lake, wanted.repository, TASK_PREFIX, check, force=wanted.force)


def run(lake: Lake, wanted: Wanted, task: str) -> None:
    """Do a recorded import, and record its commit or its error; nothing if it was cancelled."""
    tasks.run(lake, task, lambda: _import(lake, wanted, task))


def cancel(lake: Lake, repository: str, task: str) -> None:
    """End an import without a commit; 409 if it has ended."""
    with lake.state.write() as db:
        repo = catalog.repository(db, repository)
        if tasks.recorded(db, repo, task)["completed"]:
            raise errors.conflict("conflict found")
        tasks.finish(lake, db, task, tasks.failed(_CANCELED))


def status(found: Mapping[str, Any]) -> dict[str, Any]:
    """An import's task as the API returns it: a failed import is not completed."""
    done = {"update_time": found["update_time"], "completed": "result" in found}
    if "error" in found:
        done["error"] = found["error"]
    return {**done, "ingested_objects": 0, **found.get("result", {})}


def _check(lake: Lake, repo: Repository, location: Location) -> None:
    if location.kind not in {_PREFIX, _OBJECT}:
        raise errors.bad_request(f"invalid import type: {location.kind!r}")
    if location.kind == _OBJECT and not location.destination:
        raise errors.bad_request("destination: required value: validation error")
    scheme = "s3://" if lake.settings.store else "local://"
    if not location.path.startswith(scheme):
        raise errors.bad_request(
            f"path {location.path!r} does not match {lake.stores.namespace_regex}"
        )
    try:
        source = StorageNamespace.parse(location.path)
    except ConfigurationError as error:
        raise errors.bad_request(f"invalid import path: {error}") from None
    if source.overlaps(repo.place):
        raise errors.bad_request(
            f"import path {location.path!r} overlaps with the repository's storage namespace: "
            "what is inside is collected as garbage, whoever refers to it"
        )


def _import(lake: Lake, wanted: Wanted, task: str) -> dict[str, object]:
    """Commit the imported entries; the task ends in the transaction that makes the commit valid."""
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, wanted.repository, force=wanted.force)
        target, head = history.clean_branch(lake, db, repo, wanted.branch)
    found = _records(lake, repo, wanted.locations)
    trees = lake.stores.trees(repo)
    source = TreeWriter(trees)
    for _, record in sorted(found.items()):
        source.add_record(record)
    made = Commit.new(
        message=wanted.message or _MESSAGE,
        metarange_id=overlay(trees, head.metarange_id, source.finish(), wanted.locations),
        creation_date=int(lake.now()),
        metadata={**wanted.metadata, history.STRATEGY_KEY: merging.SOURCE_WINS},
        parents=(head,),
    )
    result = {
        "ingested_objects": len(found),
        "metarange_id": made.metarange_id,
        "commit": made.shown(),
    }
    with lake.state.write() as db:
        if tasks.recorded(db, repo, task)["completed"]:
            return result
        history.advance_clean(lake, db, repo, target, made)
        tasks.finish(lake, db, task, {"result": result})
    return result


def _records(lake: Lake, repo: Repository, locations: Iterable[Location]) -> dict[bytes, Record]:
    """The new entries by key; of two locations with the same key the later one wins."""
    found: dict[bytes, Record] = {}
    for location in locations:
        records = [range_record(*each) for each in _entries(lake, repo, location)]
        found.update((record.key, record) for record in records)
        if not records:
            raise LakegcError(
                f"there is nothing at {location.path}; an import of nothing would only remove what "
                f"{location.destination!r} has on the branch"
            )
    return found


def _entries(lake: Lake, repo: Repository, location: Location) -> Iterator[tuple[str, Entry]]:
    source = StorageNamespace.parse(location.path)
    base = f"{source.scheme}://{source.authority}"
    store = lake.stores.open(base)
    key = location.path.removeprefix(f"{base}/").removeprefix(base)
    if location.kind == _OBJECT:
        try:
            yield location.destination, _entry(repo, base, store.head(key))
        except ObjectNotFoundError:
            raise LakegcError(f"there is no object {location.path}") from None
        return
    folder = key[: key.rfind("/") + 1]
    for info in store.infos(key):
        path = location.prefix + info.key.removeprefix(folder)
        if path:
            yield path, _entry(repo, base, info)


def _entry(repo: Repository, base: str, info: ObjectInfo) -> Entry:
    address = f"{base}/{info.key}"
    try:
        inside = repo.place.relatives(address)
    except UnresolvableAddressError as error:
        raise LakegcError(f"{address} cannot be imported: {error}") from None
    # Another folder of this server is known to be outside of the namespace.
    if inside and base == f"{repo.place.scheme}://{repo.place.authority}":
        raise LakegcError(f"{address} is inside the repository's storage namespace")
    return Entry(
        address=address,
        last_modified=Timestamp.of(info.last_modified),
        size=info.size,
        e_tag=info.etag,
        address_type=AddressType.FULL,
    )


def overlay(trees: Trees, dest: str, source: str, locations: Iterable[Location]) -> str:
    """Replace the entries of ``dest`` at the destinations of an import by those of ``source``.

    Ranges that need no change are taken over whole, from both trees, as in lakeFS (its
    pkg/graveler/committed/import.go). The trees and the result are metarange ids.
    """
    return _Overlay(trees, dest, source, tuple(locations)).finish()


class _Overlay:
    """Walks over both trees, place by place, and decides which records the result has."""

    def __init__(
        self, trees: Trees, dest: str, source: str, locations: tuple[Location, ...]
    ) -> None:
        self._writer = TreeWriter(trees)
        self._new = trees.cursor(source)
        self._old = trees.cursor(dest)
        self._locations = locations

    def finish(self) -> str:
        while self._new.range is not None or self._old.range is not None:
            new, old = _first_key(self._new), _first_key(self._old)
            if self._skip_or_take_range(new):
                continue
            if old is None or (new is not None and new <= old):
                self._take_new(same=new == old)
            else:
                self._take_old()
        return self._writer.finish()

    def _skip_or_take_range(self, new: bytes | None) -> bool:
        """Handle a place that is a whole range; False if its records must be read."""
        coming, there = self._new.range, self._old.range
        if coming and self._new.record is None and (not there or coming.max_key < there.min_key):
            self._take(self._new, coming)
            return True
        if not there or self._old.record is not None:
            return False
        if coming and self._new.record is None and coming.id == there.id:
            self._take(self._new, coming)
            self._old.skip_range()
        elif self._is_bounded(there):
            self._old.skip_range()
        elif (new is None or there.max_key < new) and not self._is_touched(there):
            self._take(self._old, there)
        else:
            return False
        return True

    def _take(self, side: Cursor, info: RangeInfo) -> None:
        self._writer.add_range(info)
        side.skip_range()

    def _take_new(self, *, same: bool) -> None:
        if self._new.record is None:
            self._new.advance()
        elif same and self._old.record is None:
            self._old.advance()
        else:
            self._writer.add_record(self._new.record)
            self._new.advance()
            if same:
                self._old.advance()

    def _take_old(self) -> None:
        record = self._old.record
        if record is not None and not any(each.replaces(record.key) for each in self._locations):
            self._writer.add_record(record)
        self._old.advance()

    def _is_bounded(self, info: RangeInfo) -> bool:
        """Return whether the whole range is below one replaced prefix."""
        return any(
            each.kind == _PREFIX and each.replaces(info.min_key) and each.replaces(info.max_key)
            for each in self._locations
        )

    def _is_touched(self, info: RangeInfo) -> bool:
        """Return whether anything in the range may be replaced."""
        for each in self._locations:
            start = (each.prefix if each.kind == _PREFIX else each.destination).encode()
            if each.replaces(info.min_key) or info.min_key <= start <= info.max_key:
                return True
        return False


def _first_key(side: Cursor) -> bytes | None:
    """The smallest key that may still follow, or None at the end."""
    if side.record is not None:
        return side.record.key
    return side.range.min_key if side.range else None
