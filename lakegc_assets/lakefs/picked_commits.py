"""Commits as they were made, where lakeFS shows what it has made of them by a cherry-pick.

``graveler.CherryPick`` adds its keys to the metadata of the commit that it picks, in the server's
cache. Until the server reads that commit again (after ten minutes, by default), histories show it
with these keys; and who asks for it by its id gets, since the server makes that id again from the
content, 404 or the commit that was made of it. What was made is known by its id, which children,
branches and tags have: it is that of the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lakegc_assets.graveler.ident import commit_id as content_id
from lakegc_assets.lakefs.models import Commit

_ORIGIN: Final = "cherry-pick-origin"
_COMMITTER: Final = "cherry-pick-committer"


def as_made(told: Commit, commit_id: str) -> Commit:
    """A commit without the keys of a cherry-pick of it; as it is told where it is none without.

    ``commit_id``: that was asked for, or that a child names, or that the server tells.
    """
    if told.metadata.get(_ORIGIN) != commit_id:
        return told
    own = {name: v for name, v in told.metadata.items() if name not in {_ORIGIN, _COMMITTER}}
    made = _with(told, commit_id, own)
    return made if is_proven(made) else told


def is_changed(told: Commit) -> bool:
    """True if it is told as made of itself: it was made of another one, and then picked again."""
    return told.metadata.get(_ORIGIN) == told.id


def as_picked(told: Commit, origins: Iterable[tuple[str, str]]) -> Commit | None:
    """Such a commit as it was made, of one of some commits; None where it was of none of them.

    ``origins`` have the ids of the commits, each with its committer, or one that may be.
    """
    for origin, committer in origins:
        metadata = {**told.metadata, _ORIGIN: origin, _COMMITTER: committer}
        made = _with(told, told.id, metadata)
        if is_proven(made):
            return made
    return None


def is_proven(told: Commit) -> bool:
    """True if a commit has the id of its content."""
    content = (told.committer, told.message, told.meta_range_id, told.creation_date)
    return content_id(*content, told.metadata, told.parents) == told.id


def _with(told: Commit, commit_id: str, metadata: Mapping[str, str]) -> Commit:
    return told.model_copy(update={"id": commit_id, "metadata": metadata})
