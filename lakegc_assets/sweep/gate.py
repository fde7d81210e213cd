"""What must hold before a sweep looks at a single object: a mark that was not swept, backed up."""

from __future__ import annotations

from collections.abc import Mapping

from lakegc_assets.errors import RefusedError
from lakegc_assets.mark.published import published_mark
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.ending import finished
from lakegc_assets.sweep.ledger import ASSET


def unswept_mark(
    ctx: RunContext, connections: Connections
) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """The frozen mark of a run and its manifests, with its summary in the namespace compared.

    Raises:
        RefusedError: the mark is unknown, failed, not published or swept already.
        IntegrityError: it is not what its manifests, or its summary, say.
    """
    attempt, chain = published_mark(ctx, connections)
    if attempt.has(ASSET):
        raise RefusedError(
            f"mark {ctx.run!r} of {ctx.repository!r} was swept already. {finished(attempt)}: "
            "nothing is left to do"
        )
    return attempt, chain
