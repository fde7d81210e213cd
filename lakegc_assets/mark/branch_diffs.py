"""Diffs of branches: the paths that are staged on a branch, and the proof that a branch is gone.

The diffs are a second witness next to ``prepare_uncommited``, which can lose rows without an error:
the scan of a branch ends early, or a branch is deleted in between. A diff names paths, not
addresses. So lakeFS is asked which address it serves at each path that may show a candidate. These
paths are selected by declared sizes, unless sizes are wrong or the diffs show more than the list.
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

#: Changes in memory at a time; a branch may have staged millions.
CHANGES_AT_ONCE: Final = 50_000


class StagedPaths(NamedTuple):
    """The paths at which a branch has staged possible candidates."""

    paths: set[str]
    #: Number of all additions and changes that the branch has staged.
    changes: int


def staged_paths(
    client: LakeFSClient,
    repository: str,
    branch: str,
    sizes: pa.Array | pa.ChunkedArray | None,
) -> StagedPaths:
    """Paths at which a branch has staged possible candidates, by their sizes.

    ``sizes``: of the candidates, in bytes; None if declared sizes cannot be trusted.

    Raises:
        IntegrityError: lakeFS answers 404 for a branch that exists.
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
    """The changes in batches of several pages: comparing few takes as long as comparing many."""
    held: list[Change] = []
    for page in pages:
        held += page
        if len(held) >= CHANGES_AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def _size(change: Change) -> int | None:
    """The size of an added object, in bytes; None for a change, whose size may be the old one's."""
    size = change.get("size_bytes")
    return size if size is not None and size >= 0 and change["type"] == "added" else None


def changed_paths(client: LakeFSClient, repository: str, branch: str) -> Iterator[str]:
    """Paths at which a branch has staged an addition or change; none if the branch is gone.

    Raises:
        IntegrityError: lakeFS answers 404 for a branch that exists.
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
    """Require that a branch is gone, after lakeFS has answered 404 for it.

    Raises:
        IntegrityError: the branch exists.
        NotFoundError: the repository is not found.
    """
    if not is_deleted(client, repository, branch):
        raise IntegrityError(
            f"branch {branch!r} of {repository!r} exists, but {but}: the answers of lakeFS differ. "
            "Run again; if the message stays, check the log of the lakeFS server"
        )


def is_deleted(client: LakeFSClient, repository: str, branch: str) -> bool:
    """Return whether a branch is gone; raises NotFoundError if its repository is not found."""
    try:
        client.branch(repository, branch)
    except EndpointNotFoundError:
        raise
    except NotFoundError:
        # If the repository is not found, the state of its branches is unknown.
        client.repository(repository)
        return True
    return False
