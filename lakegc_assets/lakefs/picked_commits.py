"""Commits as they were made, where lakeFS shows what it has made of them by a cherry-pick.

``graveler.CherryPick`` adds its keys to the metadata of the commit that it picks, in the server's
cache. Until the server reads that commit again (after ten minutes, by default), histories show it
with these keys; and who asks for it by its id gets, since the server makes that id again from the
content, 404 or the commit that was made of it. What was made is known by its id, which children,
branches and tags have.
"""

from __future__ import annotations

from typing import Final

from lakegc_assets.graveler.ident import commit_id as content_id
from lakegc_assets.lakefs.errors import UnexpectedAnswerError
from lakegc_assets.lakefs.models import Commit

_ORIGIN: Final = "cherry-pick-origin"
_ADDED: Final = (_ORIGIN, "cherry-pick-committer")


def as_made(told: Commit, commit_id: str) -> Commit:
    """A commit as it was made.

    Args:
        told: what the server tells of it.
        commit_id: the id that was asked for, or that a child names, or that the server tells.

    Raises:
        UnexpectedAnswerError: it had the keys of a cherry-pick before, which are lost.
    """
    if told.metadata.get(_ORIGIN) != commit_id:
        return told
    metadata = {name: value for name, value in told.metadata.items() if name not in _ADDED}
    made = told.model_copy(update={"id": commit_id, "metadata": metadata})
    content = (made.committer, made.message, made.meta_range_id, made.creation_date)
    if content_id(*content, metadata, made.parents) != commit_id:
        raise UnexpectedAnswerError(
            f"commit {commit_id} was cherry-picked, and until lakeFS reads it again it tells it as "
            "what it has made of it: run again in ten minutes"
        )
    return made
