"""Preconditions of a sweep: a mark that is published, not swept, and backed up where required."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.mark.marked_objects import published_mark
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.restore_status import restored
from lakegc_assets.sweep.termination import finished


def unswept_mark(
    ctx: RunContext, connections: Connections
) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """The frozen mark of a run and its manifests, with its summary in the namespace compared.

    Raises:
        RefusedError: the mark is unknown, failed, not published or swept already.
        IntegrityError: it is not what its manifests, or its summary, say.
    """
    attempt, chain = published_mark(ctx, connections)
    require_unswept(attempt)
    return attempt, chain


def require_unswept(attempt: AttemptArtifacts) -> None:
    """Refuse a mark that was swept to the end, whatever of it was restored since.

    Raises:
        RefusedError: it was; when, by whom, and what was restored.
    """
    if not attempt.has(ASSET):
        return
    back = None
    with suppress(LakegcError):
        back = restored(attempt)
    since = f", and {back}" if back else ""
    then = "nothing is left to do"
    if back:
        pins = command_line("pins", attempt.repository)
        then = (
            "what is back is swept by a later mark, once its pin has ended and nothing needs it "
            f"(`{pins}`)"
        )
    raise RefusedError(
        f"mark {attempt.run!r} of {attempt.repository!r} was swept already{since}. "
        f"{finished(attempt)}: {then}"
    )
