"""Copies of objects: shallow and recorded within a branch's staging area, of the data elsewhere.

A copy and a delete can move an address from a path that a scan of staged entries has not reached to
a path that it has passed. So every shallow copy is recorded, and the scan reads these records last.
A record is removed when no scan that began before the copy can still run: scans older than half of
``copies_kept`` are refused, and records are kept for the whole of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.objects import objects
from lakegc_assets.embedded.objects.objects import Found
from lakegc_assets.embedded.refs import refs, staging
from lakegc_assets.graveler.entry import (
    AddressType,
    Entry,
    decode_entry,
    encode_entry,
    entry_identity,
)
from lakegc_assets.graveler.namespace import UnresolvableAddressError
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.errors import ObjectNotFoundError


def copy(
    lake: Lake,
    repository: str,
    branch: str,
    path: str,
    *,
    source_ref: str,
    source_path: str,
    source_repository: str | None = None,
    metadata: Mapping[str, str] | None = None,
    content_type: str | None = None,
    expected: Entry | None = None,
    force: bool = False,
) -> Found:
    """Stage a copy of an object at a path of a branch.

    A staged entry of the same branch is copied with its address, and the copy is recorded. For
    every other source, the data are copied to a new address. The repository, the metadata and the
    content type are by default those of the source.

    Raises:
        ApiError: 404 when there is no such object, branch or repository, 410 when its data are
            gone, 412 if the source is not the ``expected`` entry any more, 403 for a protected
            branch, or for a read-only repository unless ``force``.
    """
    if not path:
        raise errors.bad_request("dest_path: required value: validation error")

    def copied(source: Entry, moment: float) -> Entry:
        if expected is not None and expected != source:
            raise errors.ApiError(412, "the source has changed")
        return replace(
            source,
            last_modified=objects.timestamp(moment),
            metadata=source.metadata if metadata is None else dict(metadata),
            content_type=source.content_type if content_type is None else content_type,
        )

    with lake.writing(repository, force=force) as (db, repo):
        catalog.require_writable(db, repo, branch)
        target = catalog.branch(db, repo, branch)
        at = None
        if source_repository in {None, repo.id}:
            at = refs.resolve(db, repo, source_ref).branch
        if at is not None and at.uid == target.uid:
            staged = staging.staged_change(db, target, source_path.encode())
            if staged and staged[1]:
                entry = copied(decode_entry(staged[1].value), lake.now())
                key = path.encode()
                record = Record(key, entry_identity(entry), encode_entry(entry))
                staging.stage(db, target, (key, record))
                _track(lake, db, repo, entry)
                return Found(repo, path, entry)
    source = objects.get_entry(lake, source_repository or repository, source_ref, source_path)
    moment = lake.now()
    address = lake.slices.new_address(repo.id, moment)
    entry = replace(
        copied(source.entry, moment), address=address, address_type=AddressType.RELATIVE
    )
    _copy_data(lake, source, repo, address, moment)
    return objects.stage_entry(
        lake, repository, branch, path, entry, force=force, namespace=repo.namespace
    )


def inside_addresses(lake: Lake, repo: Repository, address: str, address_type: int) -> set[str]:
    """The relative addresses that an entry keeps alive in the repository's namespace.

    Raises:
        ApiError: 500 if they cannot be computed: then no list of live objects would be complete.
    """
    if address_type == AddressType.RELATIVE:
        return {address}
    if Fault.STAGE_INSIDE_NAMESPACE in lake.settings.faults:
        relative = address.removeprefix(repo.address(""))
        return set() if relative == address else {relative}
    try:
        return set(repo.place.resolve(address, address_type))
    except UnresolvableAddressError as error:
        raise errors.ApiError(
            500, f"what is staged in {repo.id!r} cannot be listed: {error}; reset that path"
        ) from None


def purge(lake: Lake, db: sqlite3.Connection) -> None:
    """Remove the records of copies that no scan can still need, in all repositories."""
    limit = lake.now() - lake.settings.copies_kept
    db.execute("DELETE FROM copies WHERE copied < ?", (limit,))


def longest_scan(lake: Lake) -> float:
    """The longest time, in seconds, for which a scan may still read records of copies."""
    return lake.settings.copies_kept / 2


def tracked(db: sqlite3.Connection, repo: Repository, start: str) -> sqlite3.Cursor:
    """Address and creation date (epoch seconds) of the copies, by address, from a start on."""
    return db.execute(
        "SELECT address, created FROM copies WHERE repository = ? AND address >= ? "
        "ORDER BY address",
        (repo.id, start),
    )


def _track(lake: Lake, db: sqlite3.Connection, repo: Repository, entry: Entry) -> None:
    purge(lake, db)
    for address in inside_addresses(lake, repo, entry.address, entry.address_type):
        db.execute(
            "INSERT INTO copies VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
            "SET copied = max(copied, excluded.copied)",
            (repo.id, address, entry.last_modified.seconds, lake.now()),
        )


def _copy_data(lake: Lake, source: Found, repo: Repository, address: str, moment: float) -> None:
    """Copy data in the store, or by reading and writing if two stores hold the objects."""
    base, key = objects.locate(lake, source)
    source_store, target_store = lake.stores.open(base), lake.stores.open(repo.namespace)
    try:
        found = source_store.head(key)
        copy_object(
            source_store,
            key,
            target_store,
            address,
            size=found.size,
            etag=found.etag,
            if_absent=False,
        )
    except ObjectNotFoundError:
        raise errors.gone() from None
    lake.stores.set_time(repo, address, moment)
