"""Diffs of branches: the paths at which they have staged something, and whether they are gone.

The diffs are a second witness beside ``prepare_uncommited``, which can lose rows without a word:
the scan of a branch ends early, or a branch is deleted meanwhile. A diff names paths and no
addresses, so lakeFS is asked what it serves at those where a candidate could lie: by the sizes that
clients declared, as long as nothing speaks against these, and the diffs show no more than the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.lakefs.models import Change

#: Changes that are held at a time: a branch may have staged millions.
CHANGES_AT_ONCE: Final = 50_000


class StagedPaths(NamedTuple):
    """The paths at which a branch has staged possible candidates."""

    paths: set[str]
    #: How many additions and changes the branch has staged in all.
    changes: int


def staged_paths(
    client: LakeFSClient,
    repository: str,
    branch: str,
    sizes: pa.Array | pa.ChunkedArray | None,
) -> StagedPaths:
    """Paths at which a branch has staged possible candidates, by their sizes.

    ``sizes``: of the candidates, in bytes; None where what clients declare says nothing.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    found: set[str] = set()
    count = 0
    for changes in _many(_staged(client, repository, branch)):
        count += len(changes)
        if sizes is None:
            found.update(change["path"] for change in changes)
            continue
        known = pa.array(map(_size, changes), pa.int64())
        alike = pc.or_(pc.is_null(known), pc.is_in(known, sizes))
        found.update(change["path"] for change in compress(changes, alike.to_pylist()))
    return StagedPaths(found, count)


def _many(pages: Iterable[list[Change]]) -> Iterator[list[Change]]:
    """The changes of several pages together, since to compare a few takes as long as many."""
    held: list[Change] = []
    for page in pages:
        held += page
        if len(held) >= CHANGES_AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def _size(change: Change) -> int | None:
    """The size of what is new, in bytes. That of what replaces something may be of either: None."""
    size = change.get("size_bytes")
    return size if size is not None and size >= 0 and change["type"] == "added" else None


def changed_paths(client: LakeFSClient, repository: str, branch: str) -> Iterator[str]:
    """Paths at which a branch has staged an addition or change; none where the branch is gone.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    return (change["path"] for page in _staged(client, repository, branch) for change in page)


def _staged(client: LakeFSClient, repository: str, branch: str) -> Iterator[list[Change]]:
    """Staged additions and changes of a branch, in pages."""
    try:
        for page in client.changes(repository, branch):
            yield [change for change in page if change["type"] != "removed"]
    except NotFoundError as error:
        require_deleted(client, repository, branch, f"its diff says not found ({error})")


def require_deleted(client: LakeFSClient, repository: str, branch: str, but: str) -> None:
    """Make sure that a branch is gone, of which lakeFS has just said so.

    Raises:
        IntegrityError: it exists.
        NotFoundError: the repository is not found.
    """
    if not is_deleted(client, repository, branch):
        raise IntegrityError(f"branch {branch!r} of {repository!r} exists, but {but}: run again")


def is_deleted(client: LakeFSClient, repository: str, branch: str) -> bool:
    """Return whether a branch is gone; NotFoundError where its repository is."""
    try:
        client.branch(repository, branch)
    except EndpointNotFoundError:
        raise
    except NotFoundError:
        # Of a repository that is not found, nobody can say what its branches have.
        client.repository(repository)
        return True
    return False
