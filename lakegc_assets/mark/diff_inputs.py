"""The two sides of a comparison: a run of ours or a mark of lakeFS's collector, in one form."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.errors import RefusedError
from lakegc_assets.mark import comparison_relations
from lakegc_assets.mark.foreign import find_mark
from lakegc_assets.mark.foreign_mark_reader import NAMED, read_mark
from lakegc_assets.mark.reasons import CANDIDATES
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext

#: What a comparison reads of the candidates of a run.
_MARKED = pa.schema([f for f in CANDIDATES if f.name in NAMED.names])


@dataclass(frozen=True)
class Side:
    """One of the two marks.

    Attributes:
        id: as it was given.
        kind: run, or what wrote it.
        made: when it was begun.
        objects: how many it names.
        named: these (``NAMED``).
        attempt: of a run of ours.
    """

    id: str
    kind: str
    made: datetime
    objects: int
    named: DataFrame
    attempt: AttemptArtifacts | None = None

    def words(self) -> str:
        """As people call it."""
        return f"run {self.id!r}" if self.attempt else f"mark {self.id!r}"


def side_of(
    ctx: RunContext, connections: Connections, frames: Session, url: str, name: str, folder: str
) -> Side:
    """Read one side.

    Args:
        ctx: of the repository; its run is of no interest.
        connections: how tasks reach the stores.
        frames: the session.
        url: of the store to write to.
        name: id of a run, or of a foreign mark as ``find_mark`` takes it.
        folder: relative to the store, with a slash at its end.

    Raises:
        RefusedError: it is neither, or did not finish.
        IntegrityError: it is damaged.
    """
    try:
        attempt = ctx.root.attempt(ctx.repository, name)
    except RefusedError as no_run:
        try:
            mark = find_mark(connections.store(), name)
        except RefusedError as error:
            raise RefusedError(f"{no_run}; and {error}") from error
        named = read_mark(ctx, connections, frames, mark, url, folder)
        kind = f"{mark.form} mark of lakeFS's collector"
        return Side(mark.id, kind, mark.made, named.rows, frames.read(named))
    chain = attempt.chain("deletion_candidates", connections.namespace_url)
    candidates = chain["deletion_candidates"]
    marked = frames.read(Dataset(attempt.url, candidates.parts["data"], _MARKED))
    made = datetime.fromisoformat(str(chain["store_listing"].facts["start"]))
    as_named = comparison_relations.as_named(marked)
    return Side(name, "run", made, candidates.rows, as_named, attempt)
