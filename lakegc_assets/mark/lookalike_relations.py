"""Which candidates look like entries at branch HEADs, and what etags say of that, as relations.

An *entry* is a row (range_id, hash, size, etag_hash): what a range at a branch HEAD holds. An
``etag_hash`` of 0 says nothing about the content.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, relation

#: Objects that may be read to know their checksum, in bytes.
SMALL: Final = 64 << 10


@relation
def etag_evidence(entries: DataFrame, store: Sequence[DataFrame]) -> DataFrame:
    """How the etags of entries compare with those of the listed objects at their addresses.

    Args:
        entries: those of some ranges.
        store: Store DF (hash, etag_hash, last_modified), in pieces.

    Returns:
        range_id; piece, the number of the piece; whether all etags agree there, as 1 or 0;
        newest, when the last of the objects compared was written; small_agree, whether an object
        that may be read has the etag of its entry, as 1 or 0. Where nothing was compared, agree and
        newest are null. Each range is in the answer: piece is null of what no piece lists.
    """
    pieces = [
        one.withColumnRenamed("etag_hash", "listed")
        .withColumn("piece", F.lit(number))
        .select("hash", "listed", "last_modified", "piece")
        for number, one in enumerate(store)
    ]
    listed = reduce(lambda some, more: some.unionByName(more), pieces)
    compared = F.col("piece").isNotNull() & (F.col("etag_hash") != 0)
    agrees = F.col("etag_hash") == F.col("listed")
    agree = F.when(compared, F.when(agrees, F.lit(1)).otherwise(F.lit(0)))
    small = compared & agrees & (F.col("size") <= SMALL)
    pairs = entries.join(listed, "hash", "left").select(
        "range_id", "piece", "size", "etag_hash", "listed", "last_modified"
    )
    return pairs.groupBy("range_id", "piece").agg(
        F.min(agree).alias("agree"),
        F.max(F.when(compared, F.col("last_modified"))).alias("newest"),
        F.max(F.when(small, F.lit(1)).otherwise(F.lit(0))).alias("small_agree"),
    )
