"""Relations that compare two marks, and give the reason why a run keeps a named object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, Window, relation

#: The marks that name an object.
BOTH: Final = "both"
FIRST: Final = "first"
SECOND: Final = "second"
#: Kinds of reasons why a run keeps an object.
COMMITTED: Final = "committed"
STAGED: Final = "staged"
REFERENCED: Final = "referenced"
SPARED_BY_MARK: Final = "spared"
TOO_YOUNG: Final = "too young"
OUTSIDE: Final = "outside data"
MISSING: Final = "missing"
NOT_LOOKED_AT: Final = "not looked at"
NOT_REPORTED: Final = "not reported"
ELSEWHERE: Final = "elsewhere"
NOT_ADOPTED: Final = "not adopted"
OTHER: Final = "other"
#: Sentence for each kind; ``spared`` and ``elsewhere`` objects have their own reasons.
WHY: Final = {
    COMMITTED: "an active commit holds it",
    STAGED: "it is staged on a branch",
    REFERENCED: "another repository names it by its full address",
    TOO_YOUNG: "it was written after the cutoff",
    OUTSIDE: "it is neither at the root nor in the folders of data/ where lakeFS writes objects",
    MISSING: "the store does not hold it",
    NOT_LOOKED_AT: "it was not requested by name, or the store does not hold it",
    NOT_REPORTED: "the inventory report does not name it",
    ELSEWHERE: "it is not in the namespace",
    NOT_ADOPTED: "the mark that the run adopted does not name it",
    OTHER: "the run keeps it",
}
#: Reason for committed objects if every range counts as live.
ANY_RANGE: Final = "a range below _lakefs/ holds it, and each counts as live"
#: Reason for committed objects if rules of `paths` keep parts of other commits.
OR_A_PATH: Final = f"{WHY[COMMITTED]}, or a rule of `paths` keeps it"
#: Addition for a needed object that a listing of the whole store lacks.
LACKED: Final = ", and it is not in the run's listing of the store"
_OF_EACH: Final = (
    *("hash", "address", "in_place", "elsewhere"),
    *("reason", "commit_id", "branch"),
)


@relation
def each_once(named: DataFrame) -> DataFrame:
    """Objects of several lists, each once.

    Of addresses that share a hash only one remains: the others are then not deleted.
    """
    of_one_hash = Window.partitionBy("hash").orderBy("address")
    return named.withColumn("n", F.row_number().over(of_one_hash)).where("n = 1").drop("n")


@relation
def as_named(candidates: DataFrame) -> DataFrame:
    """The candidates of a run in the form of a list of objects (``NAMED``)."""
    return candidates.withColumn("elsewhere", F.lit(None).cast("string"))


@relation
def by_list(candidates: DataFrame, named: DataFrame) -> DataFrame:
    """Candidates with the column is_named: true if ``named``, with each hash once, has it."""
    also = named.select("hash", F.lit(True).alias("also"))
    joined = candidates.join(also, "hash", "left")
    return joined.withColumn("is_named", F.col("also").isNotNull()).drop("also")


@relation
def beside(first: DataFrame, second: DataFrame) -> DataFrame:
    """Full outer join of two marks, with the marks that name each object.

    Args:
        first: hash, address, size, in_place, elsewhere, reason, commit_id, branch; each hash once.
        second: the same columns of the other mark.

    Returns:
        The same columns, of the first mark if both name an object, with the size from the mark that
        knows it; and named_by: both, first or second.
    """
    columns = ("size", *_OF_EACH)
    one = first.select(*(F.col(name).alias(f"first_{name}") for name in columns))
    other = second.select(*(F.col(name).alias(f"second_{name}") for name in columns))
    in_one, in_other = F.col("first_hash").isNotNull(), F.col("second_hash").isNotNull()
    named_by = (
        F.when(in_one & in_other, F.lit(BOTH)).when(in_one, F.lit(FIRST)).otherwise(F.lit(SECOND))
    )
    joined = one.join(other, F.col("first_hash") == F.col("second_hash"), "full_outer")
    return joined.select(
        named_by.alias("named_by"),
        F.coalesce("first_size", "second_size").alias("size"),
        *(
            F.when(in_one, F.col(f"first_{name}")).otherwise(F.col(f"second_{name}")).alias(name)
            for name in _OF_EACH
        ),
    )


@relation
def live_by_kind(committed: DataFrame, staged: DataFrame, referenced: DataFrame) -> DataFrame:
    """Live hashes (hash, kind, turn) with their kind of reason; the strongest has the lowest turn.

    Args:
        committed: hash: Committed DF.
        staged: hash: Uncommitted DF.
        referenced: hash: objects that other repositories name.
    """

    def of(frame: DataFrame, kind: str, turn: int) -> DataFrame:
        return frame.select("hash", F.lit(kind).alias("kind"), F.lit(turn).alias("turn"))

    found = of(committed, COMMITTED, 0).unionAll(of(staged, STAGED, 1))
    return found.unionAll(of(referenced, REFERENCED, 2))


@relation
def survivors(
    named: DataFrame,
    candidates: DataFrame,
    listing: DataFrame,
    live: DataFrame,
    spared: DataFrame,
    skipped: DataFrame,
    swept: DataFrame,
    cutoff: datetime,
    committed_why: str,
    missing: str,
    deleted_why: str,
    otherwise: str,
) -> DataFrame:
    """The first reason of the chain why a run would not delete an object that a list names.

    Args:
        named: hash, address, in_place, elsewhere: the list, each hash once.
        candidates: hash, ...: objects that the run would delete.
        listing: hash, size, last_modified: Store DF of the run, without objects deleted since.
        live: hash, kind, turn: from ``live_by_kind``.
        spared: address, why: objects that the run spared.
        skipped: folder: slices that were not listed, since they are too young.
        swept: address, outcome: of the sweep of the list; empty without one.
        cutoff: objects written at this time or later are too young.
        committed_why: the sentence for the kind ``committed``.
        missing: the kind of objects that the listing lacks; ``missing`` for a whole listing.
        deleted_why: the sentence for objects that the listing lacks and that sweep has deleted.
        otherwise: the kind of objects to which no other reason applies.

    Returns:
        hash, address, size, kind, why: of named objects that are no candidates; ``size`` is null
        for an object that the store does not hold.
    """
    asked = named.join(candidates.select("hash"), "hash", "left_anti").select(
        *("hash", "address", "in_place", "elsewhere"),
        F.regexp_extract("address", "^([^/]*/[^/]*/)", 1).alias("folder"),
    )
    there = listing.select("hash", "size", "last_modified")
    named_live = live.join(asked.select("hash"), "hash", "left_semi")
    strongest = named_live.groupBy("hash").agg(F.min_by("kind", "turn").alias("live_as"))
    spared_once = spared.groupBy("address").agg(F.min("why").alias("spared_why"))
    too_young = skipped.select("folder", F.lit(True).alias("is_skipped"))
    looked_at = asked.join(there, "hash", "left").join(strongest, "hash", "left")
    looked_at = looked_at.join(spared_once, "address", "left").join(too_young, "folder", "left")
    of_sweep = swept.where("outcome = 'deleted'").groupBy("address")
    deleted = of_sweep.agg(F.count(F.lit(1)).alias("deletions"))
    looked_at = looked_at.join(deleted, "address", "left")
    is_missing = F.col("last_modified").isNull()
    kind = (
        F.when(F.col("elsewhere").isNotNull(), F.lit(ELSEWHERE))
        .when(~F.col("in_place"), F.lit(OUTSIDE))
        .when(F.col("last_modified") >= F.lit(cutoff), F.lit(TOO_YOUNG))
        .when(F.col("live_as").isNotNull(), F.col("live_as"))
        .when(is_missing & F.col("is_skipped"), F.lit(TOO_YOUNG))
        .when(is_missing, F.lit(missing))
        .when(F.col("spared_why").isNotNull(), F.lit(SPARED_BY_MARK))
        .otherwise(F.lit(otherwise))
    )
    why = F.when(F.col("kind") == F.lit(ELSEWHERE), F.col("elsewhere")).when(
        F.col("kind") == F.lit(SPARED_BY_MARK), F.col("spared_why")
    )
    is_deleted = (F.col("kind") == F.lit(missing)) & F.col("deletions").isNotNull()
    why = why.when(is_deleted, F.lit(deleted_why))
    for name, sentence in {**WHY, COMMITTED: committed_why}.items():
        if name in {COMMITTED, STAGED} and missing == MISSING:
            is_lacked = is_missing & F.col("is_skipped").isNull()
            needed = F.when(is_lacked, F.lit(f"{sentence}{LACKED}")).otherwise(F.lit(sentence))
            why = why.when(F.col("kind") == F.lit(name), needed)
        elif name != ELSEWHERE:
            why = why.when(F.col("kind") == F.lit(name), F.lit(sentence))
    judged = looked_at.withColumn("kind", kind).withColumn("why", why)
    return judged.select("hash", "address", "size", "kind", "why")


@relation
def with_survivors(objects: DataFrame, survivors: DataFrame) -> DataFrame:
    """Objects that only one mark names, with the reason of the other run to keep them, or null.

    Args:
        objects: hash, address, size, reason, commit_id, branch.
        survivors: hash, size, kind, why, commit_id, branch: ``survivors`` with their holders.

    Returns:
        The columns of ``objects`` with the known size, and kept_size, kind, why, kept_commit,
        kept_branch.
    """
    columns = {"size": "kept_size", "commit_id": "kept_commit", "branch": "kept_branch"}
    because = survivors.select(
        *("hash", "kind", "why"), *(F.col(name).alias(alias) for name, alias in columns.items())
    )
    return objects.join(because, "hash", "left").select(
        *("hash", "address", "reason", "commit_id", "branch"),
        F.coalesce("size", "kept_size").alias("size"),
        *("kind", "why", *columns.values()),
    )


@relation
def totals(objects: DataFrame, by: Sequence[str]) -> DataFrame:
    """Number, known sizes and bytes of objects in groups; not every object has a known size.

    ``by``: columns of ``objects``. The result has these, objects, sized, bytes.
    """
    return objects.groupBy(*by).agg(
        F.count(F.lit(1)).alias("objects"),
        F.count("size").alias("sized"),
        F.sum("size").cast("bigint").alias("bytes"),
    )


@relation
def largest(objects: DataFrame, count: int) -> DataFrame:
    """The largest objects, then by address; objects without a size come last."""
    return objects.orderBy(F.col("size").desc_nulls_last(), F.col("address").asc()).limit(count)
