"""The invariant that the listing is of the right place: it contains the objects of branch HEADs.

If a listing is of the wrong prefix, scheme or account, or ended early, then objects that a HEAD
names are not in it. The comparison leaves out objects that a collector deleted before, and losses
that the operator accepted once: a branch that was made from an old commit looks like this. So may
an object that was deleted and is needed; therefore the result says how many were left out.

An inventory report may lack objects, which then stay. In the mode ``committed`` nothing is listed,
and an object that was not found is no candidate. In both cases the check is only of the right
place: the store must have a sample of the objects that HEADs hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from lakegc_assets.checks import relations
from lakegc_assets.checks.context import EXAMPLES, UNLIKE, Case, CheckResult
from lakegc_assets.checks.live_set import ADDRESSES, write_addresses
from lakegc_assets.engine.datasets import Part, read_part, read_parts
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.run.history import READERS
from lakegc_assets.run.scratch import Folder
from lakegc_assets.storage import parquet
from lakegc_assets.wording import counted

NAME: Final = "listing_holds_heads"
_ACCEPTED: Final = "_accepted_missing"
#: Keys of the addresses of a mark, as lakeFS's collectors and this one write them.
_MARKS: Final = re.compile(
    r"_lakefs/retention/gc/(?:(?:unified|uncommitted)/(?P<run>[^/]+)/deleted/|"
    r"addresses/(?:mark|run)_id=(?P<mark>[^/]+)/)[^/]+\.parquet"
)
#: Number of missing objects that the store is asked for before the check decides.
_CONFIRM: Final = 1000
#: Number of objects of HEADs that the store is asked for if it was not listed. If one object in a
#: hundred is missing, a sample of this size lacks none of them once in 20,000 times.
_SAMPLE: Final = 1000
_CHOOSE: Final = "choose what the store must have"
_THREADS: Final = 8
#: Outcomes of a sweep after which an object is not there.
_GONE: Final = ("deleted", "already_missing")
#: Addresses that are known to be gone, and the run that deleted them; null for accepted losses.
_KNOWN: Final = schema("address string, run string")
#: Number of objects deleted by earlier runs that a summary names.
_DELETED_EXAMPLES: Final = 3
#: Seconds of one core to read a file of addresses.
_FILE_S: Final = 0.2

#: URL of a store; key of a file of addresses, or a file of the outcomes of a sweep; run.
_File = tuple[str, str | Part, str | None]


def listing_holds_heads(case: Case) -> CheckResult:
    """The listing has every object that a branch HEAD names and that is old enough for it."""
    lacked = [] if case.by_name else _missing(case)
    lost = _missing_of_sample(case, lacked) if case.by_name or case.inventory else lacked
    if not lost:
        return _holds(case, lacked)
    files = _read_all(case, list(_files_of_gone(case)))
    if not files:
        return _result_of(case, lost)
    missing, known = case.dataset(lost), case.dataset(files, _KNOWN)
    frame = relations.without(missing, known)
    remaining = case.write(frame, ADDRESSES, "leave out what is known to be gone")
    result = _result_of(case, remaining)
    if sum(part.rows for part in remaining) == sum(part.rows for part in lost):
        return result
    return _with_deleted_before(case, result, relations.deleted_before(missing, known))


def _with_deleted_before(case: Case, result: CheckResult, deleted: DataFrame) -> CheckResult:
    """Add to a result the objects that earlier runs deleted (address, run) and HEADs name."""
    count = case.total(deleted, "count what earlier runs deleted")
    if not count:
        return result
    first = relations.first(deleted, _DELETED_EXAMPLES)
    rows = case.frames.collect(first, _KNOWN, "find examples").to_pylist()
    examples = [f"{row['address']!r} (run {row['run']})" for row in rows]
    objects = counted(
        count, "object that branch HEADs name was", "objects that branch HEADs name were"
    )
    summary = (
        f"{result.summary}; {objects} deleted by earlier runs, for example "
        f"{', '.join(examples)}: restore the objects that a branch should still have"
    )
    facts = {**result.facts, "deleted_before": count, "deleted_examples": examples}
    return replace(result, summary=summary, facts=facts)


def _holds(case: Case, lacked: Sequence[Part]) -> CheckResult:
    """Return the result if no object that HEADs name is lost."""
    count = sum(part.rows for part in lacked)
    summary = "the listing holds every object that a branch HEAD names"
    if case.by_name or case.inventory:
        summary = f"the store holds all of a sample of at most {_SAMPLE} objects of branch HEADs"
    if count:
        examples = case.first(case.dataset(lacked))
        summary += (
            f"; the inventory report {case.inventory} lacks "
            f"{counted(count, 'object')} of it, for example {examples}: what it lacks stays"
        )
    facts = {"lacked": count} if count else {}
    return CheckResult(NAME, passed=True, summary=summary, facts=facts)


def _missing(case: Case) -> Sequence[Part]:
    """Write the distinct addresses that should be listed and are not to files."""
    if not case.unlike:
        return []
    lacking = case.dataset(case.unlike, UNLIKE).where("listed is null")
    return case.write(lacking, ADDRESSES, "find what is not listed")


def _missing_of_sample(case: Case, lacked: Sequence[Part]) -> Sequence[Part]:
    """Write the addresses that the store lacks, of a deterministic sample of HEADs, to files.

    ``lacked``: files of the addresses that an inventory report lacks; they get a sample, too.
    """
    if not case.head_ranges:
        return []

    def chosen() -> pa.Table:
        held = relations.distinct(case.expected())
        return case.frames.collect(relations.sample(held, _SAMPLE), ADDRESSES, _CHOOSE)

    addresses = set(case.from_cache(chosen)["address"].to_pylist())
    if lacked:
        frame = relations.sample(case.dataset(lacked), _CONFIRM)
        addresses |= set(case.frames.collect(frame, ADDRESSES, _CHOOSE)["address"].to_pylist())
    lost = sorted(addresses - _present(case, addresses))
    return write_addresses(case.scratch, [pa.array(lost, pa.string())])


def _present(case: Case, addresses: Collection[str]) -> set[str]:
    """Return the addresses of objects in the store, which is asked for each one."""
    there = thread_map(case.ctx.connections.store().exists, list(addresses), _THREADS)
    return {address for address, found in zip(addresses, there, strict=True) if found}


def carried_and_gone(case: Case) -> int:
    """Count the objects that were carried forward and that sweeps have deleted since.

    Raises:
        LakegcError: the record of a sweep cannot be read.
    """
    listing, files = case.chain["store_listing"], list[_File]()
    for run, _ in listing.facts["swept_since"]:
        attempt = case.ctx.root.attempt(case.ctx.repository, run)
        swept = attempt.manifest("swept_set").parts["data"]
        files += [(attempt.url, part, run) for part in swept]
    known = case.dataset(_read_all(case, files), _KNOWN)
    gone = relations.deleted_before(case.dataset(listing.parts["carried"]), known)
    return case.total(gone, "count what is gone since it was listed")


def _result_of(case: Case, lost: Sequence[Part]) -> CheckResult:
    count = sum(part.rows for part in lost)
    if count == 0:
        summary = (
            "objects that branch HEADs name and the listing lacks were deleted or accepted before"
        )
        return CheckResult(NAME, passed=True, summary=summary)
    digest = _digest(case, lost)
    objects = counted(
        count, "object that branch HEADs name is", "objects that branch HEADs name are"
    )
    examples = [address or "" for address in case.first(case.dataset(lost), _CONFIRM)]
    present = sorted(_present(case, examples))
    facts = {"missing": count, "digest": digest, "examples": examples[:EXAMPLES]}
    if present:
        summary = (
            f"{objects} not in the listing of "
            f"{case.ctx.connections.namespace_url}, but the store has them, for example "
            f"{present[:EXAMPLES]}: the listing is not complete. Run again"
        )
        if case.chain["store_listing"].facts.get("carried"):
            summary += (
                ", with --clean (setting `clean`): most of this listing was carried forward from "
                "an earlier run"
            )
        return CheckResult(NAME, passed=False, summary=summary, facts=facts)
    if case.ctx.settings.accept_missing == digest:
        _accept(case, lost, digest)
        summary = f"{counted(count, 'object')} of branch HEADs missing, and accepted as lost"
        return CheckResult(NAME, passed=True, summary=summary, facts=facts)
    summary = (
        f"{objects} neither in the listing nor in the store at "
        f"{case.ctx.connections.namespace_url}, for example {examples[:EXAMPLES]}. If this is "
        "the wrong place, correct the connection. If they are known to be lost, accept them "
        f"once: --accept-missing {digest} (setting accept_missing)"
    )
    return CheckResult(NAME, passed=False, summary=summary, facts=facts)


def _digest(case: Case, lost: Sequence[Part]) -> str:
    """Return a digest ``count-hex`` of addresses that does not depend on their order."""
    count, total = 0, 0
    for table in read_parts(case.attempt.store(), lost):
        for address in table["address"].to_pylist():
            count += 1
            total += int.from_bytes(hashlib.sha256(address.encode()).digest()[:16], "big")
    return f"{count}-{total % 2**128:032x}"


def _accept(case: Case, lost: Sequence[Part], digest: str) -> None:
    store = case.ctx.root.open(case.ctx.repository)
    for number, table in enumerate(read_parts(case.attempt.store(), lost)):
        name = f"{digest}-{number}" if number else digest
        store.put(f"{_ACCEPTED}/{name}.parquet", parquet.encode(table))


def _read_all(case: Case, files: Sequence[_File]) -> Sequence[Part]:
    """Read the addresses that are known to be gone (``_KNOWN``)."""
    costs = [_FILE_S] * len(files)
    task, most = partial(_read_gone, case.scratch), case.ctx.settings.address_num_partitions
    label = "read what is known to be gone"
    found = case.ctx.tasks.run_grouped(label, task, files, costs, most)
    return [part for parts in found for part in parts]


def _files_of_gone(case: Case) -> Iterator[_File]:
    """List files of the addresses of marks, of accepted losses, and of the outcomes of sweeps."""
    for batch in case.ctx.connections.store().list("_lakefs/retention/gc/"):
        for key in batch["key"].to_pylist():
            if (match := _MARKS.fullmatch(key)) and case.ctx.run not in match.groups():
                run = match["run"] or match["mark"]
                yield case.ctx.connections.namespace_url, key, run
    root = case.ctx.root.open(case.ctx.repository)
    for batch in root.list(f"{_ACCEPTED}/"):
        yield from ((root.url, key, None) for key in batch["key"].to_pylist())

    def swept(run: str) -> list[_File]:
        try:
            attempt = case.ctx.root.attempt(case.ctx.repository, run)
            parts = attempt.manifest("swept_set").parts["data"]
        except LakegcError:
            return []
        return [(attempt.url, part, run) for part in parts]

    yield from chain.from_iterable(
        thread_map(swept, case.ctx.root.runs(case.ctx.repository), READERS)
    )


def _read_gone(scratch: Folder, files: Sequence[_File]) -> list[Part]:
    """Read the addresses that are known to be gone; a task."""
    tables = (
        pa.table([addresses.cast(pa.string()), [run] * len(addresses)], schema=_KNOWN)
        for url, file, run in files
        for addresses in _gone_addresses(scratch, url, file)
    )
    return scratch.write(_KNOWN, tables)


def _gone_addresses(scratch: Folder, url: str, file: str | Part) -> Iterator[pa.Array]:
    store = scratch.connections.open(url)
    if isinstance(file, Part):
        rows = read_part(store, file, ["address", "outcome"])
        yield from rows.filter(pc.is_in(rows["outcome"], pa.array(_GONE)))["address"].chunks
        return
    content = pq.ParquetFile(pa.BufferReader(store.get(file)))
    for batch in content.iter_batches(columns=["address"]):
        yield batch["address"]
