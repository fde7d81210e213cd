"""Marked DF ∩ live: objects that are alive although somebody may take them for dead, and why.

Live sets are known by their hashes: two addresses with one hash make a dead object look alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame

from lakegc_assets.engine.relation import F, Window, relation
from lakegc_assets.mark.references import SAME_HASH
from lakegc_assets.mark.relations import AMBIGUOUS
from lakegc_assets.mark.served import UNVERIFIED
from lakegc_assets.run.pins import PINNED

#: From here on a reason does not tell that an object is needed.
_DOUBTED: Final = 2


@relation
def came_back(
    marked: DataFrame,
    live: Sequence[tuple[DataFrame, str]],
    unresolved: Sequence[DataFrame],
    named: Sequence[DataFrame],
) -> DataFrame:
    """Marked DF ∩ live: what came back to life since it was marked, and why.

    Args:
        marked: some of what the mark names.
        live: hashes of addresses that are alive now, and why they are; several of these.
        unresolved: last path components (last_part) of live addresses that nobody can place.
        named: address and why of what is to stay by its very name.

    Returns:
        address, size and why, each address once, and whether it is certain that it is alive: that
        comes before a doubt, or a pin, which may name what is not there.
    """
    objects = marked.select("address", "hash", "size")
    found = [
        objects.join(hashes, "hash", "left_semi").select("address", "size", F.lit(why).alias("why"))
        for hashes, why in live
    ]
    ends = objects.withColumn("last_part", F.element_at(F.split("address", "/"), -1))
    found += [
        ends.join(names, "last_part", "left_semi").select(
            "address", "size", F.lit(AMBIGUOUS).alias("why")
        )
        for names in unresolved
    ]
    found += [
        objects.join(some.select("address", "why"), "address").select("address", "size", "why")
        for some in named
    ]
    every = found[0]
    for one in found[1:]:
        every = every.unionByName(one)
    order = Window.partitionBy("address").orderBy("doubt", "why")
    ranked = every.withColumn("doubt", _doubt(F.col("why")))
    first = ranked.withColumn("place", F.row_number().over(order)).where("place = 1")
    return first.select("address", "size", "why", (F.col("doubt") < _DOUBTED).alias("certain"))


def _doubt(why: Column) -> Column:
    """The rank of a reason: the lower, the surer it tells that and by whom an object is needed."""
    doubtful = why.isin(AMBIGUOUS, UNVERIFIED) | why.startswith(PINNED)
    return F.when(doubtful, F.lit(_DOUBTED)).when(why == SAME_HASH, F.lit(1)).otherwise(F.lit(0))
