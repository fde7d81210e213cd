"""The durable record of what became of each marked object.

Every batch of a sweep is one parquet file below ``swept_set/ledger/``, written atomically before
the next batch of its task starts. A killed sweep reads it and goes on where it was. What a task did
and could not record any more is asked of the store again by the next sweep. So an address may be
recorded more than once; what was done counts before what failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.storage.base import ObjectStore

ASSET = "swept_set"
SWEPT = "address string, size long, outcome string, error_code string, detail string, at timestamp"
DONE = ("deleted", "already_missing", "spared")

_SCHEMA = pa.schema(
    [
        ("address", pa.string()),
        ("size", pa.int64()),
        ("outcome", pa.string()),
        ("error_code", pa.string()),
        ("detail", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ],
)


@dataclass(frozen=True)
class Outcome:
    """What became of one marked object.

    Attributes:
        address: relative to the namespace.
        size: bytes, as listed.
        outcome: deleted, already_missing, spared or failed.
        error_code: the store's, when failed.
        detail: the store's message, or why the object was spared.
    """

    address: str
    size: int
    outcome: str
    error_code: str | None = None
    detail: str | None = None


def record(artifacts: ObjectStore, name: str, outcomes: Sequence[Outcome]) -> None:
    """Make outcomes durable: they are all in the ledger when this returns, or none is.

    Args:
        artifacts: the store rooted at the attempt.
        name: of the batch, which no other has.
        outcomes: of that batch.
    """
    now = datetime.now(timezone.utc)
    rows = [(o.address, o.size, o.outcome, o.error_code, o.detail, now) for o in outcomes]
    columns = [
        pa.array([row[index] for row in rows], kind) for index, kind in enumerate(_SCHEMA.types)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), sink)
    artifacts.put(f"{ASSET}/ledger/{name}.parquet", sink.getvalue().to_pybytes())


def read(spark: SparkSession, attempt: AttemptArtifacts) -> DataFrame:
    """One outcome for each recorded address (``SWEPT``): what was done, else what failed last."""
    if not any(key.startswith("ledger/") for key in attempt.files(ASSET)):
        return spark.createDataFrame([], SWEPT)
    rows = attempt.read(spark, ASSET, "ledger")
    best = Window.partitionBy("address").orderBy(
        F.col("outcome").isin(*DONE).desc(),
        (F.col("outcome") == "deleted").desc(),
        F.col("at").desc(),
    )
    ranked = rows.withColumn("rank", F.row_number().over(best))
    return ranked.where("rank = 1").drop("rank")
