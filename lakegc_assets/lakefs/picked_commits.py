"""Original commits, for the answers in which lakeFS shows a commit changed by a cherry-pick.

``graveler.CherryPick`` adds its keys to the metadata of the picked commit, in the server's cache.
Until the server reads that commit again (by default after ten minutes), logs show the commit with
these keys. A read by its id fails with 404 or returns the new commit, because the server computes
the id anew from the content. Children, branches and tags keep the original id, which is the id of
the original content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lakegc_assets.graveler.ident import commit_id as content_id
from lakegc_assets.lakefs.models import Commit

_ORIGIN: Final = "cherry-pick-origin"
_COMMITTER: Final = "cherry-pick-committer"


def as_made(told: Commit, commit_id: str) -> Commit:
    """A commit without the keys of a cherry-pick; unchanged if its id does not prove the result.

    ``commit_id``: the id that was asked for, that a child names, or that the server returned.
    """
    if told.metadata.get(_ORIGIN) != commit_id:
        return told
    own = {name: v for name, v in told.metadata.items() if name not in {_ORIGIN, _COMMITTER}}
    made = _with(told, commit_id, own)
    return made if is_proven(made) else told


def is_changed(told: Commit) -> bool:
    """True if a commit names itself as its origin: it is a cherry-pick that was picked again."""
    return told.metadata.get(_ORIGIN) == told.id


def as_picked(told: Commit, origins: Iterable[tuple[str, str]]) -> Commit | None:
    """The original of a commit that ``is_changed``; None if no origin fits.

    ``origins``: ids of commits that it may be picked from, each with a possible committer.
    """
    for origin, committer in origins:
        metadata = {**told.metadata, _ORIGIN: origin, _COMMITTER: committer}
        made = _with(told, told.id, metadata)
        if is_proven(made):
            return made
    return None


def is_proven(told: Commit) -> bool:
    """True if a commit's id is the id of its content."""
    content = (told.committer, told.message, told.meta_range_id, told.creation_date)
    return content_id(*content, told.metadata, told.parents) == told.id


def _with(told: Commit, commit_id: str, metadata: Mapping[str, str]) -> Commit:
    return told.model_copy(update={"id": commit_id, "metadata": metadata})
