"""The invariant that the listing is of the right place: it holds what the branch HEADs hold.

A listing of the wrong prefix, scheme or account, or one that ended early, shows here: objects that
a HEAD names are not in it. What a collector deleted before is left out of the comparison, and so is
what the operator has looked at and accepted once.

In the mode ``committed`` nothing is listed, and what a look at single objects lacks is no
candidate. What remains is whether this is the right place: the store is asked for some of what
HEADs hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.checks import kept, missing
from lakegc_assets.checks.case import Case, CheckResult
from lakegc_assets.checks.hashing import Hashes, digest_of
from lakegc_assets.checks.listed import either
from lakegc_assets.checks.scratch import one_of
from lakegc_assets.engine.datasets import read_part
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.wording import counted

NAME: Final = "listing_holds_heads"
_ACCEPTED: Final = "_accepted_missing"
#: Where lakeFS's collectors, and ours, write the addresses of a mark.
_MARKS: Final = re.compile(
    r"_lakefs/retention/gc/(?:(?:unified|uncommitted)/(?P<run>[^/]+)/deleted/|"
    r"addresses/(?:mark|run)_id=(?P<mark>[^/]+)/)[^/]+\.parquet"
)
#: How many missing objects are asked for one by one before the check gives its verdict.
_CONFIRM: Final = 1000
#: For how many objects of HEADs the store is asked where it was not listed: if one in a hundred is
#: missing, all of these are there once in 20,000 times.
_SAMPLE: Final = 1000
_EXAMPLES: Final = 5
_THREADS: Final = 8
#: Outcomes of a sweep after which an object is not there.
_GONE: Final = ("deleted", "already_missing")


def listing_holds_heads(case: Case) -> CheckResult:
    """Every object that a branch HEAD names, and that is old enough to be listed, is listed."""
    lost = _missing_of_sample(case) if case.by_name else _missing(case)
    if not len(lost):
        summary = "the listing holds every object that a branch HEAD names"
        if case.by_name:
            summary = f"the store holds what branch HEADs name, by {_SAMPLE} of it at most"
        return CheckResult(NAME, passed=True, blocking=True, summary=summary)
    for known in _known(case, lost):
        lost = lost.filter(pc.invert(pc.is_in(lost, known)))
    return _judge(case, lost)


def _missing(case: Case) -> pa.Array:
    """The addresses that should be listed and are not, each once and in order."""
    hashes = []
    for at, part in enumerate(case.witnessed.expected):
        found = either([compared.expected[at] for compared in case.compared], part.rows)
        if not found.all():
            hashes.append(case.scratch.read(part)[~found])
    return _named(case, hashes)


def _missing_of_sample(case: Case) -> pa.Array:
    """Of some of what HEADs hold, which is the same while they do, what the store lacks."""
    # Hashes are in no order that anything else has: the least of them are as good as any.
    least = [case.scratch.read(part)[:_SAMPLE] for part in case.witnessed.expected]
    addresses = _named(case, [one_of(least)[:_SAMPLE]])
    there = thread_map(case.connections.store().exists, addresses.to_pylist(), _THREADS)
    return addresses.filter(pc.invert(pa.array(there, pa.bool_())))


def _named(case: Case, hashes: Sequence[Hashes]) -> pa.Array:
    """The addresses behind hashes of what HEADs hold, each once and in order."""
    files = case.scratch.write(hashes)
    if not files:
        return pa.array([], pa.string())
    entries = {i: n for c in case.heads.values() for i, n in case.told.ranges[c].items()}
    ranges = kept.wanted(case.connections, entries)
    orders = [
        missing.Find(case.scratch, group, files, case.before, case.unlisted)
        for group in kept.spread_wanted(ranges, case.ctx.settings.address_num_partitions)
    ]
    cost = sum(map(kept.seconds, ranges)) * 2
    parts = case.ctx.tasks.run("find what is not listed", missing.find, orders, cost)
    found = pa.chunked_array([c for p in parts for c in case.addresses(p).chunks], pa.string())
    addresses = pc.unique(found)
    return addresses.take(pc.sort_indices(addresses))


def _judge(case: Case, lost: pa.Array) -> CheckResult:
    count = len(lost)
    if count == 0:
        summary = "what branch HEADs name and the listing lacks was deleted or accepted before"
        return CheckResult(NAME, passed=True, blocking=True, summary=summary)
    digest = digest_of(lost)
    objects = counted(
        count, "object that branch HEADs name is", "objects that branch HEADs name are"
    )
    examples = lost.slice(0, _CONFIRM).to_pylist()
    there = thread_map(case.connections.store().exists, examples, _THREADS)
    present = [address for address, found in zip(examples, there, strict=True) if found]
    facts = {"missing": count, "digest": digest, "examples": examples[:_EXAMPLES]}
    if present:
        summary = (
            f"{objects} not in the listing of "
            f"{case.connections.namespace_url}, but the store has them, for example "
            f"{present[:_EXAMPLES]}: the listing is not complete. Run again"
        )
        if case.chain["store_listing"].facts.get("carried"):
            summary += (
                ", with --clean (setting `clean`): most of this listing was carried forward from "
                "an earlier run"
            )
        return CheckResult(NAME, passed=False, blocking=True, summary=summary, facts=facts)
    if case.ctx.settings.accept_missing == digest:
        _accept(case, lost, digest)
        summary = f"{counted(count, 'object')} of branch HEADs missing; the operator accepts that"
        return CheckResult(NAME, passed=True, blocking=True, summary=summary, facts=facts)
    summary = (
        f"{objects} neither in the listing nor in the "
        f"store at {case.connections.namespace_url}, for example {examples[:_EXAMPLES]}. If this "
        "is the wrong place, correct the connection. If they are known to be lost, accept them "
        f"once: --accept-missing {digest} (setting accept_missing)"
    )
    return CheckResult(NAME, passed=False, blocking=True, summary=summary, facts=facts)


def _accept(case: Case, lost: pa.Array, digest: str) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"address": lost}), sink)
    store = case.ctx.root.open(case.ctx.repository)
    store.put(f"{_ACCEPTED}/{digest}.parquet", sink.getvalue().to_pybytes())


def _known(case: Case, lost: pa.Array) -> Iterator[pa.Array]:
    """The lost addresses that a collector deleted, or whose loss was accepted."""
    namespace, root = case.connections.store(), case.ctx.root.open(case.ctx.repository)
    marked = [
        key
        for batch in namespace.list("_lakefs/retention/gc/")
        for key in batch["key"].to_pylist()
        if (match := _MARKS.fullmatch(key)) and case.ctx.run not in match.groups()
    ]
    accepted = [k for batch in root.list(f"{_ACCEPTED}/") for k in batch["key"].to_pylist()]

    def among(file: tuple[ObjectStore, str]) -> pa.Array:
        store, key = file
        table = pq.read_table(pa.BufferReader(store.get(key)), columns=["address"])
        addresses = table["address"].cast(pa.string())
        return addresses.filter(pc.is_in(addresses, lost)).combine_chunks()

    files = [(namespace, key) for key in marked] + [(root, key) for key in accepted]
    for at in range(0, len(files), _THREADS):
        yield from thread_map(among, files[at : at + _THREADS], _THREADS)
    for run in case.ctx.root.runs(case.ctx.repository):
        try:
            attempt = case.ctx.root.attempt(case.ctx.repository, run)
            swept = attempt.manifest("swept_set").parts["data"]
        except LakegcError:
            continue
        for part in swept:
            rows = read_part(attempt.store(), part, ["address", "outcome"])
            gone = rows.filter(pc.is_in(rows["outcome"], pa.array(_GONE)))["address"]
            yield gone.filter(pc.is_in(gone, lost)).combine_chunks()
