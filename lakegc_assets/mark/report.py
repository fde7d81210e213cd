"""Stage 6, ``gc_report``: publishes the mark, with the reasons and bytes of its objects."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks.invariants import read_results, requests_of, require_passed
from lakegc_assets.engine.datasets import Part, read_part, table_of, write_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.comparison import compare_with_newest
from lakegc_assets.mark.holders import paths_of
from lakegc_assets.mark.publication import (
    Summary,
    begin,
    files_of,
    finish,
    forms,
    instant,
    write_lists,
)
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.retention.retained_commits import lengthen
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.manifest import Manifest, require_protection
from lakegc_assets.run.undo import whether_undone, with_trash
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.wording import counted

ASSET: Final = "gc_report"
_LARGEST: Final = 20
_DAY: Final = 86_400
#: Seconds of one core to count and publish a candidate.
_ROW_S: Final = 3e-6
BREAKDOWN: Final = schema("dimension string, key string, objects bigint, bytes bigint")

#: Address, size, reason, and the last commit that held it, or None.
Largest = tuple[str, int, str, str | None]
_TOP: Final = ["address", "size", "reason", "commit_id"]
#: Result of one task: rows of ``BREAKDOWN`` with raw keys in place of labels, the largest
#: candidates, and the digest of all candidates.
_Counted = tuple[pa.Table, list[Largest], KeyDigest]


def report(ctx: RunContext) -> Manifest:
    """Publish the mark and write the ``gc_report`` asset: rows of ``BREAKDOWN``.

    Raises:
        RefusedError: a blocking check failed or was not run, the mark id is in use, or another
            version found the candidates, and spares other objects.
        IntegrityError: the candidates differ from their manifest.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("deletion_candidates", ctx.connections.namespace_url)
    manifest, listing = chain["deletion_candidates"], chain["store_listing"]
    require_protection(manifest)
    results = read_results(attempt, manifest)
    require_passed(results)

    start = listing.start
    summary = Summary(
        run_id=ctx.run,
        success=True,
        first_slice=str(listing.facts["first_slice"]),
        start_time=instant(start),
        cutoff_time=instant(manifest.cutoff),
        num_deleted_objects=manifest.rows,
    )
    publish = begin(ctx.connections.store(), summary, ctx.settings.publish)
    written_to = forms(ctx.run, listing.mode, ctx.settings.publish)
    rules = _longest_rules(attempt, chain["active_commits"])
    texts = written_to.texts if publish else None
    task = partial(_count_parts, ctx.connections, attempt.url, ctx.run, texts, start)
    counted = _count(ctx, task, manifest.parts["data"])
    digest = sum((one for _, _, one in counted), KeyDigest())
    if str(digest) != manifest.digest:
        raise IntegrityError(
            f"{attempt.url}/deletion_candidates holds {digest}, and its manifest says "
            f"{manifest.digest}: the mark is not published. Mark again under a new id"
        )
    keys = finish(ctx, manifest.digest, summary, written_to, written=publish)

    rows = _breakdown([totals for totals, _, _ in counted], start, rules)
    largest = _largest(row for _, some, _ in counted for row in some)
    others = chain["committed_addresses"].facts
    facts: dict[str, object] = {
        "objects": manifest.rows,
        "bytes": sum(row[3] for row in rows if row[0] == "reason"),
        "breakdown": [list(row) for row in rows],
        "largest": [list(row[:3]) for row in largest],
        "largest_paths": _paths(ctx, attempt, largest),
        "files": [f"{ctx.connections.namespace_url}/{key}" for key in keys],
        "checks": {r.name: r.summary for r in results},
        "warnings": [
            *(r.summary for r in results if not r.passed),
            *_ignored(others),
            # Both stages look below _lakefs/ in the mode committed, where there are no rules.
            *dict.fromkeys([*listing.facts.get("passed_over", ()), *others.get("passed_over", ())]),
        ],
        "references": others.get("references", {}),
        "ignored_repositories": others.get("ignored_repositories", []),
        "undo": _undo(ctx, ctx.connections.store()),
        "server_known_by": listing.facts.get("server_known_by", ""),
        "compared": compare_with_newest(ctx),
        "figures": _figures(ctx, chain, requests_of(attempt)),
    }
    parts = {"data": [write_part(attempt.store(), f"{ASSET}/data/", table_of(rows, BREAKDOWN))]}
    # The digest by which a person approves the mark.
    return ctx.finish(ASSET, manifest, started, parts, facts, digest)


def _paths(
    ctx: RunContext, attempt: AttemptArtifacts, largest: Sequence[Largest]
) -> dict[str, str]:
    try:
        commits = {address: commit for address, _, _, commit in largest if commit}
        return paths_of(ctx, attempt, commits)
    except LakegcError as error:
        # The report is complete without the paths.
        ctx.log.warning("the largest objects are shown without their paths: %s", error)
        return {}


def _undo(ctx: RunContext, store: ObjectStore) -> str:
    """The ways to undo a sweep, from the settings; the sweep itself probes the store."""
    recovery = with_trash(store.recovery(), ctx.settings.trash_lifetime)
    return whether_undone(recovery, ctx.settings.backup_url)


def _ignored(others: Mapping[str, Any]) -> list[str]:
    """A sentence about the other repositories that were not read."""
    names: Sequence[str] = others.get("ignored_repositories", [])
    if not names:
        return []
    ignored = f"not read, since ignored_repositories names them: {', '.join(names)}"
    return [f"{ignored}. Objects that only they name may be among the candidates"]


def _figures(
    ctx: RunContext, chain: Mapping[str, Manifest], requests: int
) -> dict[str, int | float]:
    """Figures of the whole mark; their names never change.

    ``chain``: manifests of the stages before this one.
    ``requests``: number of requests that the checks have sent.
    """
    candidates = chain["deletion_candidates"].facts
    seconds = ctx.clocks.now() - chain["store_listing"].started
    before = sum(manifest.facts.get("requests", 0) for manifest in chain.values())
    return {
        "listed": candidates["listed"],
        "listed_bytes": candidates["listed_bytes"],
        "spared": sum(candidates["spared"].values()),
        "ranges_decoded": chain["committed_addresses"].facts.get("ranges_decoded", 0),
        "seconds": round(seconds.total_seconds(), 2),
        "requests": before + requests + ctx.requests_sent,
    }


def _count(
    ctx: RunContext, task: Callable[[list[tuple[int, Part]]], _Counted], parts: Sequence[Part]
) -> list[_Counted]:
    first = accumulate((files_of(part.rows) for part in parts), initial=0)
    numbered = list(zip(first, parts, strict=False))
    costs, most = [part.rows * _ROW_S for part in parts], ctx.settings.address_num_partitions
    return ctx.tasks.run_grouped("count and publish candidates", task, numbered, costs, most)


def _count_parts(
    connections: Connections,
    url: str,
    run: str,
    texts: Sequence[str] | None,
    start: datetime,
    parts: Sequence[tuple[int, Part]],
) -> _Counted:
    """Count candidates and write their lists; lists in text to ``texts``, or no lists for None."""
    artifacts, store = connections.open(url), connections.store()
    totals = [BREAKDOWN.empty_table()]
    largest: list[Largest] = []
    digest = KeyDigest()
    for number, part in parts:
        rows = read_part(artifacts, part)
        addresses = rows["address"].combine_chunks()
        if texts is not None:
            write_lists(store, run, texts, number, addresses)
        digest += key_digest(addresses)
        for dimension, keys in dimensions_of(rows, start).items():
            ones = pa.array(np.ones(rows.num_rows, np.int64))
            columns = [pa.repeat(dimension, rows.num_rows), keys, ones, rows["size"]]
            totals = [_summed([*totals, pa.table(columns, schema=BREAKDOWN)])]
        top = rows.select(_TOP).sort_by([("size", "descending"), ("address", "ascending")])
        values = (column.to_pylist() for column in top.slice(0, _LARGEST).columns)
        largest = _largest([*largest, *zip(*values, strict=True)])
    return totals[0], largest, digest


def _largest(rows: Iterable[Largest]) -> list[Largest]:
    return heapq.nsmallest(_LARGEST, rows, key=lambda row: (-row[1], row[0]))


# Groups


def dimensions_of(rows: pa.Table, start: datetime) -> dict[str, pa.Array | pa.ChunkedArray]:
    """The key of each candidate in each dimension, as text, by dimension."""
    # All candidates are older than the run, so the division rounds down.
    seconds = pc.divide(rows["last_modified"].cast(pa.int64()), 1_000_000)
    days = pc.divide(pc.subtract(int(start.timestamp()), seconds), _DAY)
    slices = pc.extract_regex(rows["address"].combine_chunks(), r"^data/(?P<slice>[^/]+)/")
    return {
        "reason": rows["reason"],
        "branch rule": _held(rows),
        "slice age": pc.struct_field(slices, "slice"),
        "age in days": days.cast(pa.string()),
    }


def _held(rows: pa.Table) -> pa.ChunkedArray:
    """A slash and the branch that held each candidate last; ``unreferenced`` for none."""
    branch = pc.binary_join_element_wise("", pc.fill_null(rows["branch"], ""), "/")
    return pc.if_else(pc.equal(rows["reason"], "unreferenced"), "unreferenced", branch)


def _longest_rules(attempt: AttemptArtifacts, active: Manifest) -> Mapping[str, Any] | None:
    """The rules of lakeFS, with the days of branches from ``retain``, as JSON."""
    rules: Mapping[str, Any] | None = active.facts["rules"]
    retain = Retain.parse(active.facts.get("retain"))
    if rules is None or not retain.branches:
        return rules
    branches = attempt.rows(active, "heads", ["branch"])["branch"].to_pylist()
    return lengthen(Rules.parse(rules), retain, branches).to_json()


def rule_in_words(rules: Mapping[str, Any] | None, held: str | None) -> str:
    """The rule by which a candidate expired, in words."""
    if held is None or not held.startswith("/"):
        return "unreferenced"
    if rules is None:
        return "no rules"
    days = {r["branch_id"]: r["retention_days"] for r in rules["branches"]}
    branch = held[1:]
    if branch in days:
        return f"{branch}, {counted(days[branch], 'day')}"
    return f"default, {counted(rules['default_retention_days'], 'day')}"


def _slice_age(start: datetime, name: str | None) -> int | None:
    """Whole days since a slice was begun; None for no slice."""
    begun = None if name is None else slice_time(name)
    return None if begun is None else max(0, int((start - begun).total_seconds() // _DAY))


def _summed(totals: Sequence[pa.Table]) -> pa.Table:
    """Totals added up (``BREAKDOWN``)."""
    grouped = pa.concat_tables(totals).group_by(["dimension", "key"])
    found = grouped.aggregate([("objects", "sum"), ("bytes", "sum")])
    columns = [found[name] for name in ("dimension", "key", "objects_sum", "bytes_sum")]
    return pa.table(columns, schema=BREAKDOWN)


def _breakdown(
    counted: Sequence[pa.Table], start: datetime, rules: Mapping[str, Any] | None
) -> list[tuple[str, str, int, int]]:
    """The totals with a readable label for each key, in the order of the dimensions."""
    meaning: dict[str, Callable[[Any], str | int | None]] = {
        "reason": str,
        "branch rule": partial(rule_in_words, rules),
        "slice age": partial(_slice_age, start),
        "age in days": int,
    }
    totals: dict[str, dict[str | int | None, tuple[int, int]]] = {name: {} for name in meaning}
    for row in _summed([BREAKDOWN.empty_table(), *counted]).to_pylist():
        of_dimension, key = totals[row["dimension"]], meaning[row["dimension"]](row["key"])
        objects, size = of_dimension.get(key, (0, 0))
        of_dimension[key] = objects + row["objects"], size + row["bytes"]
    return [
        (dimension, _label(dimension, key), *of_dimension[key])
        for dimension, of_dimension in totals.items()
        for key in sorted(of_dimension, key=_place)
    ]


def _place(key: str | int | None) -> tuple[int, str]:
    """The sort key of a value in its dimension: None first, numbers by value."""
    return (key, "") if isinstance(key, int) else (-1, key or "")


def _label(dimension: str, key: str | int | None) -> str:
    if dimension == "slice age":
        return "not in a slice" if key is None else f"{key} days"
    return str(key)
