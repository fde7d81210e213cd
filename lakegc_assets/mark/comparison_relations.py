"""Two marks beside each other, and why a run keeps what another list names, as relations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame

from lakegc_assets.engine.relation import F, Window, relation

#: Which of two marks name an object.
BOTH: Final = "both"
FIRST: Final = "first"
SECOND: Final = "second"
#: Why a run keeps an object.
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
#: What a run says of each kind; ``spared`` and ``elsewhere`` have reasons of their own.
WHY: Final = {
    COMMITTED: "an active commit holds it",
    STAGED: "it is staged on a branch",
    REFERENCED: "another repository names it by its full address",
    TOO_YOUNG: "it was written after the cutoff",
    OUTSIDE: "it is neither at the root nor in the folders of data/ where lakeFS writes objects",
    MISSING: "the store does not hold it",
    NOT_LOOKED_AT: "it was not looked at by name, or the store does not hold it",
    NOT_REPORTED: "the inventory report does not name it",
    ELSEWHERE: "it is not in the namespace",
    NOT_ADOPTED: "the mark that the run adopted does not name it",
    OTHER: "the run keeps it",
}
#: Why everything stays that any range names.
ANY_RANGE: Final = "a range below _lakefs/ holds it, and each counts as live"
#: Why everything stays that is committed, where rules of `paths` keep a part of other commits.
OR_A_PATH: Final = f"{WHY[COMMITTED]}, or a rule of `paths` keeps it"
#: What is said besides of what is needed, and a listing of the whole store lacks.
LACKED: Final = ", and it is not in the run's listing of the store"
_OF_EACH: Final = (
    *("hash", "address", "in_place", "elsewhere"),
    *("reason", "commit_id", "branch"),
)


@relation
def each_once(named: DataFrame) -> DataFrame:
    """Objects of several lists, each once.

    An address that only has the hash of another one is left out: nobody deletes it then.
    """
    of_one_hash = Window.partitionBy("hash").orderBy("address")
    return named.withColumn("n", F.row_number().over(of_one_hash)).where("n = 1").drop("n")


@relation
def as_named(candidates: DataFrame) -> DataFrame:
    """The candidates of a run as a list of objects, none of which is elsewhere."""
    return candidates.withColumn("elsewhere", F.lit(None).cast("string"))


@relation
def by_list(candidates: DataFrame, named: DataFrame) -> DataFrame:
    """Candidates with one column more, is_named: whether a list, with each hash once, has it."""
    also = named.select("hash", F.lit(True).alias("also"))
    joined = candidates.join(also, "hash", "left")
    return joined.withColumn("is_named", F.col("also").isNotNull()).drop("also")


@relation
def beside(first: DataFrame, second: DataFrame) -> DataFrame:
    """Two marks beside each other: which of them names each object.

    Args:
        first: hash, address, size, in_place, elsewhere, reason, commit_id, branch; each hash once.
        second: the same of the other mark.

    Returns:
        The same columns, of the first mark where both name an object, but the size of the one that
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
    """Live hashes (hash, kind, turn) with the kind of reason; the strongest has the lowest turn.

    Args:
        committed: hash: Committed DF.
        staged: hash: Uncommitted DF.
        referenced: hash: what other repositories name.
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
    """Why a run would not delete what a list names: of several reasons the first of the chain.

    Args:
        named: hash, address, in_place, elsewhere: the list, each hash once.
        candidates: hash, ...: what the run would delete.
        listing: hash, size, last_modified: Store DF of the run, without what was deleted since.
        live: hash, kind, turn: as ``live_by_kind`` gives it.
        spared: address, why: what the run spared.
        skipped: folder: slices that were not listed, since they are too young.
        swept: address, outcome: of the sweep of the list, if there was one.
        cutoff: what was written since then is too young.
        committed_why: the sentence of the kind ``committed``.
        missing: the kind of what the listing lacks: ``missing`` where it is one of the store.
        deleted_why: the sentence of what the listing lacks, since that sweep has deleted it.
        otherwise: the kind of what stays for none of these reasons.

    Returns:
        hash, address, size, kind, why: of what is named and no candidate; ``size`` is null for what
        the store does not hold.
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
        survivors: hash, size, kind, why, commit_id, branch: of ``survivors``, and who holds them.

    Returns:
        The columns of ``objects``, with the size that is known, and kept_size, kind, why,
        kept_commit, kept_branch.
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
    """Objects and their bytes in groups; how many have a size, since nobody knows all of them.

    ``by``: columns of ``objects``. The result has these, objects, sized, bytes.
    """
    return objects.groupBy(*by).agg(
        F.count(F.lit(1)).alias("objects"),
        F.count("size").alias("sized"),
        F.sum("size").cast("bigint").alias("bytes"),
    )


@relation
def largest(objects: DataFrame, count: int) -> DataFrame:
    """The largest objects, those of one size by their addresses; those without a size come last."""
    return objects.orderBy(F.col("size").desc_nulls_last(), F.col("address").asc()).limit(count)
