"""Staged changes of branches by their diffs: a second witness beside lakeFS's own list.

``prepare_uncommited`` can lose rows without a word: the scan of a branch ends early, or a branch is
deleted meanwhile. A diff names paths and no addresses, so lakeFS is asked what it serves at those
where a candidate could lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import Change
from lakegc_assets.run.hashing import Hashes
from lakegc_assets.run.sets import members_of

#: Changes that are held at a time: a branch may have staged millions.
_AT_ONCE: Final = 50_000
#: In place of a size that does not count.
_UNKNOWN: Final = -1


def staged_paths(
    client: LakeFSClient, repository: str, branch: str, sizes: Sequence[Hashes]
) -> set[str]:
    """Paths at which a branch has staged possible candidates, by their sizes.

    Args:
        client: of lakeFS.
        repository: lakeFS repository.
        branch: to ask.
        sizes: sorted arrays of the candidates' sizes, in bytes.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    found: set[str] = set()
    for changes in _many(_staged(client, repository, branch)):
        told = np.array(list(map(_size, changes)), np.int64)
        alike = (told == _UNKNOWN) | members_of(sizes, told.view(np.uint64))
        found.update(changes[at]["path"] for at in np.flatnonzero(alike))
    return found


def _many(pages: Iterable[list[Change]]) -> Iterator[list[Change]]:
    """The changes of several pages together, since to compare a few takes as long as many."""
    held: list[Change] = []
    for page in pages:
        held += page
        if len(held) >= _AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def _size(change: Change) -> int:
    """The size of what is new, in bytes. That of what replaces something may be of either."""
    size = change.get("size_bytes")
    return size if size is not None and size >= 0 and change["type"] == "added" else _UNKNOWN


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
        if branch in {found.id for found in client.branches(repository)}:
            raise IntegrityError(
                f"branch {branch!r} of {repository!r} exists, but its diff says not found "
                f"({error}): run again",
            ) from error
