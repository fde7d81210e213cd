"""What branches have staged according to their diffs: a second witness beside lakeFS's own list.

``prepare_uncommited`` can lose rows without a word: the scan of a branch ends early, or a branch is
deleted meanwhile. A diff names paths and no addresses, so lakeFS is asked what it serves at those
where a candidate could lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.run.hashing import Hashes
from lakegc_assets.run.sets import members_of

#: Changes that are held at a time: a branch may have staged millions.
_AT_ONCE: Final = 50_000


def staged_paths(
    client: LakeFSClient, repository: str, branch: str, sizes: Sequence[Hashes]
) -> set[str]:
    """Where a branch has staged what may be a candidate, by the sizes of these.

    Args:
        client: of lakeFS.
        repository: lakeFS repository.
        branch: to ask.
        sizes: sorted arrays of the candidates' sizes, in bytes.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    found: set[str] = set()
    changes = _diff(client, repository, branch)
    while some := list(islice(changes, _AT_ONCE)):
        told = np.array([-1 if size is None else size for _, size in some], np.int64)
        # The size of what replaces something may be that of either: it is null and does not count.
        alike = (told < 0) | members_of(sizes, told.view(np.uint64))
        found.update(path for (path, _), asked in zip(some, alike, strict=True) if asked)
    return found


def changed_paths(client: LakeFSClient, repository: str, branch: str) -> Iterator[str]:
    """Where a branch has staged anything but a removal; nothing where the branch is gone.

    Raises:
        IntegrityError: the branch exists, and lakeFS says that it does not.
    """
    return (path for path, _ in _diff(client, repository, branch))


def _diff(client: LakeFSClient, repository: str, branch: str) -> Iterator[tuple[str, int | None]]:
    """The paths that a branch has staged, with the size of what is new there."""
    try:
        for change in client.diff_branch(repository, branch):
            if change.type != "removed":
                yield change.path, change.size_bytes if change.type == "added" else None
    except NotFoundError as error:
        if branch in {found.id for found in client.branches(repository)}:
            raise IntegrityError(
                f"branch {branch!r} of {repository!r} exists, but its diff says not found "
                f"({error}): run again",
            ) from error
