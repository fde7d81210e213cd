"""Objects on branches: upload, stage, read, delete, list."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Branch, Repository
from lakegc_assets.embedded.paging import Paging, page
from lakegc_assets.embedded.refs import staging
from lakegc_assets.embedded.refs.refs import Resolved, resolve
from lakegc_assets.graveler.entry import (
    AddressType,
    Entry,
    Timestamp,
    decode_entry,
    encode_entry,
    entry_identity,
)
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.storage.errors import ObjectNotFoundError

DEFAULT_CONTENT_TYPE = "application/octet-stream"
_BLOCKSTORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "local": "local"}


@dataclass(frozen=True)
class Found:
    """An entry at a path, in a repository."""

    repository: Repository
    path: str
    entry: Entry

    @property
    def physical_address(self) -> str:
        """The full physical address of an object."""
        if self.entry.address_type is AddressType.RELATIVE:
            return self.repository.address(self.entry.address)
        return self.entry.address


def upload(
    lake: Lake,
    repository: str,
    branch: str,
    path: str,
    data: bytes,
    *,
    content_type: str = "",
    metadata: Mapping[str, str] | None = None,
    if_absent: bool = False,
    mtime: float | None = None,
    force: bool = False,
) -> Found:
    """Write an object and stage it; ``force`` does so in a read-only repository, too.

    With ``if_absent``, 412 when the path exists. ``mtime`` is the time of the write, for trials and
    tests on local files.
    """
    require_path(path)
    repo = require_target(lake, repository, branch, path, if_absent=if_absent, force=force)
    moment = lake.now() if mtime is None else mtime
    address = lake.slices.new_address(repo.id, moment, backdated=mtime is not None)
    lake.stores.write(repo, address, data, moment, dated=mtime is not None)
    entry = Entry(
        address=address,
        last_modified=timestamp(moment),
        size=len(data),
        e_tag=hashlib.md5(data, usedforsecurity=False).hexdigest(),
        metadata=dict(metadata or {}),
        content_type=content_type or DEFAULT_CONTENT_TYPE,
    )
    return stage_entry(
        lake,
        repository,
        branch,
        path,
        entry,
        if_absent=if_absent,
        force=force,
        namespace=repo.namespace,
    )


def require_target(
    lake: Lake, repository: str, branch: str, path: str, *, if_absent: bool, force: bool = False
) -> Repository:
    """The repository of a write, before its object is written: 404 without the branch.

    With ``if_absent``, 412 when the path exists; ``stage_entry`` finds one that comes meanwhile.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        target = catalog.find_branch(db, repo, branch)
        if target is None:
            raise errors.ApiError(404, f"branch '{branch}' not found")
        if if_absent:
            _refuse_existing(lake, db, repo, target, path)
    return repo


def stage_entry(
    lake: Lake,
    repository: str,
    branch: str,
    path: str,
    entry: Entry,
    *,
    if_absent: bool = False,
    force: bool = False,
    namespace: str | None = None,
    first: Callable[[sqlite3.Connection, Repository, Branch], None] | None = None,
) -> Found:
    """Stage an entry for an existing object, as ``upload``.

    ``namespace`` is that of the object: 404 if the repository of this name now has another one.
    ``first`` is called in the same transaction before anything is staged, and may refuse.
    """
    require_path(path)
    key = path.encode()
    with lake.writing(repository, force=force) as (db, repo):
        if namespace not in {None, repo.namespace}:
            raise errors.not_found("repository")
        catalog.require_writable(db, repo, branch)
        target = catalog.branch(db, repo, branch)
        if if_absent:
            _refuse_existing(lake, db, repo, target, path)
        if first is not None:
            first(db, repo, target)
        record = Record(key, entry_identity(entry), encode_entry(entry))
        staging.stage(db, target, (key, record))
    return Found(repo, path, entry)


def get_entry(lake: Lake, repository: str, ref: str, path: str) -> Found:
    """The entry at a path of a reference; 404 if there is none."""
    with lake.reading(repository) as (db, repo):
        at = resolve(db, repo, ref)
        record = staging.find(db, lake.stores.trees(repo), at, path.encode())
    if record is None:
        raise errors.ApiError(404, "not found")
    return Found(repo, path, decode_entry(record.value))


def locate(lake: Lake, found: Found) -> tuple[str, str]:
    """The location of an object: the URL of a namespace or a bucket, and the key there.

    Raises:
        ApiError: 400 for an address of another kind than the server's block store.
    """
    if found.entry.address_type is AddressType.RELATIVE:
        return found.repository.namespace, found.entry.address
    address = found.entry.address
    scheme = address.partition("://")[0].lower()
    if _BLOCKSTORES.get(scheme) != lake.settings.blockstore_type:
        raise errors.bad_request(f"invalid blockstore type: the server cannot read {address!r}")
    return bucket_and_key(address)


def bucket_and_key(address: str) -> tuple[str, str]:
    """The URL of the bucket of a full address, and the key there."""
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def content(lake: Lake, found: Found) -> bytes:
    """The content of an object; 410 if the store no longer has it."""
    base, key = locate(lake, found)
    try:
        return lake.stores.open(base).get(key)
    except ObjectNotFoundError:
        raise errors.gone() from None


def require_content(lake: Lake, found: Found) -> None:
    """410 if the store no longer has an object of the namespace; no collector sweeps others."""
    inside = found.repository.address("")
    if not found.physical_address.startswith(inside):
        return
    try:
        lake.stores.open(found.repository.namespace).head(found.physical_address[len(inside) :])
    except ObjectNotFoundError:
        raise errors.gone() from None


def delete(
    lake: Lake, repository: str, branch: str, paths: Sequence[str], *, force: bool = False
) -> None:
    """Delete paths from a branch; missing paths are no error, as in lakeFS.

    A staged path becomes a tombstone even if HEAD lacks it: a commit in preparation may add it
    there.
    """
    with lake.writing(repository, force=force) as (db, repo):
        catalog.require_writable(db, repo, branch)
        target = catalog.branch(db, repo, branch)
        head = Resolved(catalog.commit(db, repo, target.commit_id), None)
        trees = lake.stores.trees(repo)
        for key in (path.encode() for path in paths):
            staged = staging.staged_change(db, target, key)
            if staged is None and staging.find(db, trees, head, key) is None:
                continue
            if staged is None or staged[1] is not None:
                staging.stage(db, target, (key, None))


def list_objects(
    lake: Lake, repository: str, ref: str, wanted: Paging
) -> tuple[list[Found | str], bool]:
    """A page of the objects at a reference: entries, and common prefixes as strings."""
    with lake.reading(repository) as (db, repo):
        at = resolve(db, repo, ref)
        trees = lake.stores.trees(repo)

        def read(start: bytes) -> Iterator[tuple[bytes, Found]]:
            for key, record in staging.scan(db, trees, at, start):
                yield key, Found(repo, key.decode(), decode_entry(record.value))

        return page(read, wanted)


def _refuse_existing(
    lake: Lake, db: sqlite3.Connection, repo: Repository, branch: Branch, path: str
) -> None:
    at = Resolved(catalog.commit(db, repo, branch.commit_id), branch)
    if staging.find(db, lake.stores.trees(repo), at, path.encode()) is not None:
        raise errors.ApiError(412, "path already exists")


def require_path(path: str) -> None:
    """400 for an empty path."""
    if not path:
        raise errors.bad_request("path: required value: validation error")


def timestamp(seconds: float) -> Timestamp:
    """Epoch seconds in the form of entries."""
    return Timestamp(int(seconds), int(seconds % 1 * 1e9))
