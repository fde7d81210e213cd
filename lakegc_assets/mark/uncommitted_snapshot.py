"""Stage 2, ``uncommitted_snapshot``: the addresses that are staged on any branch.

Answers of ``prepare_uncommited`` are verified. Every page counts. A page without a location counts
only if its branches have staged nothing, or only objects outside of the namespace: lakeFS does not
list those. If a branch disappears while the pages are made, or the server answers 404 in the
middle, the snapshot starts again. It keeps the files of earlier tries: extra staged addresses are
safe, a missing one is not. A deleted branch takes rows of other branches only from a page that is
left without a location (lakeFS's ``gc_write_uncommitted.go``, 1.74 and newer; older ones answer
404). So where branches come and go all the time, the last try counts in spite of that.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.engine.datasets import Part, PartWriter, table_of, write_part
from lakegc_assets.engine.progress import report_progress
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import UncommittedPage
from lakegc_assets.mark.addresses import UNUSUAL, just_before, live_spellings
from lakegc_assets.mark.branch_diffs import is_deleted
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.live_hashes import HashWriter
from lakegc_assets.mark.lookups import Page
from lakegc_assets.mark.refs import (
    LOOKED_ELSEWHERE,
    WRITTEN_OUTSIDE,
    listed_heads,
    read_heads,
)
from lakegc_assets.retention.commits import FIRST_SECOND, LAST_SECOND
from lakegc_assets.run.artifacts import UNCOMMITTED
from lakegc_assets.run.connections import Connections, reads_tables
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, address_hashes, key_digest
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.storage.base import ObjectStore

ASSET: Final = "uncommitted_snapshot"
#: Seconds of one core to read a byte of lakeFS's lists.
_BYTE_S: Final = 2e-8


@dataclass
class UncommittedFiles:
    """The Parquet files of a snapshot."""

    #: Keys relative to the namespace, of all tries.
    keys: list[str] = field(default_factory=list)
    #: lakeFS's run id of each try.
    run_ids: list[str] = field(default_factory=list)
    #: Pages of the last try, and the number of them without a location.
    pages: int = 0
    empty_pages: int = 0
    tries: int = 0


@dataclass(frozen=True)
class Staged:
    """Staged addresses of lakeFS's lists."""

    #: Rows of ``UNCOMMITTED``.
    parts: Sequence[Part] = ()
    #: Files of the hashes of their addresses.
    hashes: Sequence[Part] = ()
    #: Last path components of full addresses that cannot be resolved.
    unresolved: AbstractSet[str] = frozenset()
    #: Number of rows in lakeFS's lists.
    listed: int = 0
    #: Digest of the addresses.
    digest: KeyDigest = field(default_factory=KeyDigest)

    def __add__(self, other: Staged) -> Staged:
        """The union of both."""
        return Staged(
            [*self.parts, *other.parts],
            [*self.hashes, *other.hashes],
            self.unresolved | other.unresolved,
            self.listed + other.listed,
            self.digest + other.digest,
        )


def listed_once(listed: int, tries: int) -> int:
    """The number of staged objects that lakeFS lists; 0 where several tries list them again."""
    return listed if tries == 1 else 0


def snapshot_uncommitted(ctx: RunContext) -> Manifest:
    """Write the ``uncommitted_snapshot`` asset.

    Raises:
        OtherServerError: the mark was begun with another server.
        IntegrityError: the server's answers do not add up, also after further tries.
        LakeFSError: the server did not answer.
    """
    started = ctx.clocks.now()
    ctx = ctx.connect()
    require_one_server(ctx.client, ctx.repository, ctx.connections.store())
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    previous = attempt.chain("store_listing", ctx.connections.namespace_url)["store_listing"]
    files = prepare_uncommitted(ctx)
    staged = read_staged(ctx, attempt.store(), f"{ASSET}/", files.keys)
    facts: dict[str, object] = {
        "lakefs_run_ids": files.run_ids,
        "files": files.keys,
        "listed": staged.listed,
        "pages": files.pages,
        "pages_without_location": files.empty_pages,
        "tries": files.tries,
    }
    parts = {
        "data": staged.parts,
        "hashes": staged.hashes,
        "unresolved": [write_last_parts(attempt.store(), ASSET, sorted(staged.unresolved))],
    }
    return ctx.finish(ASSET, previous, started, parts, facts, staged.digest)


def write_last_parts(artifacts: ObjectStore, asset: str, last_parts: Sequence[str]) -> Part:
    """Write the part ``unresolved`` of an asset: last components of addresses in doubt."""
    rows = pa.table({"last_part": pa.array(last_parts, pa.string())})
    return write_part(artifacts, f"{asset}/unresolved/", rows)


def prepare_uncommitted(ctx: RunContext) -> UncommittedFiles:
    """Let lakeFS write its lists of staged objects, until one try passes the checks.

    Raises:
        IntegrityError: none of ``settings.snapshot_attempts`` tries passed them.
    """
    files = UncommittedFiles()
    reason = lost = ""
    while files.tries < ctx.settings.snapshot_attempts:
        files.tries += 1
        seen = set(read_heads(ctx.client, ctx.repository))
        pages: list[UncommittedPage] = []
        suspect: list[str] = []
        lost = ""
        try:
            with report_progress(ctx.log, partial(_how_far, ctx.repository, pages)):
                for page in ctx.client.prepare_uncommitted(ctx.repository):
                    pages.append(page)
                    # A branch that is made and deleted in between can cost others their rows, too.
                    seen |= {branch.id for branch in ctx.client.branches(ctx.repository)}
            suspect = _changed_behind_empty_pages(ctx, pages)
        except NotFoundError as error:
            lost = f"the server answered 404 in the middle: {error}"
        collect_files(ctx.connections, pages, files)
        gone = seen - read_heads(ctx.client, ctx.repository, seen).keys()
        if lost:
            reason = lost
        elif suspect:
            reason = f"it lists nothing for branches that have changes: {', '.join(suspect[:5])}"
        elif gone and files.tries < ctx.settings.snapshot_attempts:
            reason = f"branches were deleted while it was made: {', '.join(sorted(gone)[:5])}"
        else:
            return files
        ctx.log.warning("uncommitted snapshot of %s starts again: %s", ctx.repository, reason)
    if lost:
        reason = _lost_head(ctx) or lost
    raise IntegrityError(
        f"the uncommitted snapshot of {ctx.repository!r} is not complete after {files.tries} "
        f"tries: {reason}. Run again when the repository is quieter",
    )


def _lost_head(ctx: RunContext) -> str:
    """The error for a branch whose HEAD the server does not find; empty if it finds all HEADs."""
    for head in set(listed_heads(ctx.client, ctx.repository).values()):
        try:
            next(ctx.client.log(ctx.repository, head))
        except NotFoundError as error:
            return str(error)
    return ""


def _how_far(repository: str, pages: Sequence[UncommittedPage]) -> str:
    return f"lakeFS lists the staged objects of {repository}: {len(pages):,} pages so far"


def collect_files(
    connections: Connections, pages: list[UncommittedPage], files: UncommittedFiles
) -> None:
    """Add the files at the locations of the pages of one try; its pages share one location."""
    namespace = connections.namespace()
    store = connections.store()
    locations = {page.gc_uncommitted_location for page in pages if page.gc_uncommitted_location}
    for location in sorted(locations):
        folder = namespace.relative(location)
        if folder is None:
            raise IntegrityError(
                f"prepare_uncommited wrote to {location}, outside of {connections.namespace_url}: "
                f"{WRITTEN_OUTSIDE}",
            )
        prefix = folder.rstrip("/") + "/"
        keys = [info.key for info in store.infos(prefix)]
        if not keys:
            raise IntegrityError(
                f"lakeFS wrote its lists of staged objects to {location}, and there are 0 files "
                f"where this process looks: {LOOKED_ELSEWHERE}"
            )
        wrote = sum(1 for page in pages if page.gc_uncommitted_location == location)
        if len(keys) < wrote:
            raise IntegrityError(
                f"prepare_uncommited says on {wrote} pages that it wrote to {location}, but there "
                f"are {len(keys)} files: run again",
            )
        files.keys.extend(keys)
    files.run_ids += [page.run_id for page in pages[:1]]
    files.pages = len(pages)
    files.empty_pages = sum(1 for page in pages if not page.gc_uncommitted_location)


def _changed_behind_empty_pages(ctx: RunContext, pages: list[UncommittedPage]) -> list[str]:
    """Branches with staged objects in the path ranges that pages without a location covered."""
    branches = listed_heads(ctx.client, ctx.repository)
    suspect: set[str] = set()
    low: tuple[str, str] = ("", "")
    for page in pages:
        high = _token_position(page.continuation_token)
        if not page.gc_uncommitted_location:
            suspect.update(b for b in branches if _has_staged(ctx, b, low, high))
        low = high or ("", "")
    return sorted(suspect)


def _token_position(token: str | None) -> tuple[str, str] | None:
    """Branch and path at which the next page begins; None at the end, or if the token is opaque."""
    try:
        values = json.loads(base64.b64decode(token or ""))
        branch, path = values["branch"], values["path"]
    except DAMAGE:
        return None
    return (branch, path) if isinstance(branch, str) and isinstance(path, str) else None


def _has_staged(
    ctx: RunContext, branch: str, low: tuple[str, str], high: tuple[str, str] | None
) -> bool:
    """True if a branch has staged objects that lakeFS lists, from ``low`` on and before ``high``.

    ``low`` and ``high`` are a branch and a path. A branch that was deleted meanwhile has none.

    Raises:
        NotFoundError: the branch exists although lakeFS answers 404, or the repository is gone.
    """
    if branch < low[0] or (high is not None and branch > high[0]):
        return False
    after = just_before(low[1]) if branch == low[0] else ""
    served, namespace = Page(ctx.client, ctx.repository), ctx.connections.namespace()
    try:
        for change in ctx.client.diff_branch(ctx.repository, branch, after=after):
            position = (branch, change.path)
            if high is not None and position >= high:
                return False
            if position < low or change.type == "removed":
                continue
            address = served.staged(branch, change.path)
            if served.is_deleted:
                return False
            if _may_be_inside(namespace, address):
                return True
    except NotFoundError:
        if not is_deleted(ctx.client, ctx.repository, branch):
            raise
    return False


def _may_be_inside(namespace: StorageNamespace, address: str | None) -> bool:
    """False if the address served at a path lies outside of the namespace in every reading."""
    try:
        return address is None or "://" not in address or bool(namespace.relatives(address))
    except UnresolvableAddressError:
        return True


def read_staged(
    ctx: RunContext, artifacts: ObjectStore, folder: str, keys: Sequence[str]
) -> Staged:
    """Read the staged addresses from lakeFS's Parquet files, in every spelling they may mean.

    Raises:
        IntegrityError: a file is not a list in lakeFS's form, or rows were lost.
    """
    store = ctx.connections.store()
    costs = [store.head(key).size * _BYTE_S for key in keys]
    task = partial(_read_lists, ctx.connections, artifacts.url, folder)
    orders = bin_pack(keys, costs, ctx.settings.address_num_partitions) or [[]]
    found = ctx.tasks.run("read staged addresses", task, orders, sum(costs))
    staged = sum(found, Staged())
    written = sum(part.rows for part in staged.parts)
    if not written == staged.digest.count >= staged.listed:
        # Every listed object has at least one row; otherwise a staged object would look dead.
        raise IntegrityError(
            f"{written} rows were written for {staged.listed} staged objects, so some are lost. "
            "This is a fault of lakegc: please report it, with the log of this run and the lists "
            f"of lakeFS, {', '.join(f'{store.url}/{key}' for key in keys[:3])}",
        )
    return staged


@reads_tables
def _read_lists(connections: Connections, url: str, folder: str, keys: Sequence[str]) -> Staged:
    artifacts, namespace = connections.open(url), connections.namespace()
    writer = PartWriter(artifacts, f"{folder}data/", UNCOMMITTED)
    hashes = HashWriter(artifacts, f"{folder}hashes/")
    unresolved: set[str] = set()
    digest, listed = KeyDigest(), 0
    for table in chain.from_iterable(_read_list(connections, key) for key in keys):
        listed += table.num_rows
        for rows in meanings(namespace, table):
            writer.add(rows)
            digest += key_digest(rows["address"])
            hashes.add(address_hashes(rows["address"]))
            last_parts = rows.filter(pc.invert(rows["resolved"]))["address"].to_pylist()
            unresolved.update(last_parts)
    return Staged(writer.finish(), hashes.finish(), frozenset(unresolved), listed, digest)


_ODD: Final = f"://|{UNUSUAL}"
_TRUE: Final = pa.scalar(True)
#: Columns of a list with their allowed types: a number could be cast to a text that is no object's
#: address, and then the staged object would look dead.
_COLUMNS: Final[Mapping[str, Sequence[Callable[[pa.DataType], bool]]]] = {
    "physical_address": (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    ),
    "creation_date": (pa.types.is_integer, pa.types.is_null),
}  # fmt: skip
#: Rows of a list in memory at a time: a small file can hold very many.
_ROWS: Final = 50_000


def _read_list(connections: Connections, key: str) -> Iterator[pa.Table]:
    """A list of staged objects, in batches: address and time of creation."""
    where, data = f"{connections.namespace_url}/{key}", connections.store().get(key)
    rows = 0
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            _require_columns(file.schema_arrow)
            for batch in file.iter_batches(_ROWS, columns=list(_COLUMNS)):
                batch.validate(full=True)
                rows += batch.num_rows
                yield _listed(batch)
            if rows != file.metadata.num_rows:
                raise ValueError("it lacks rows")  # noqa: TRY301 - it is damage
    except (pa.ArrowException, ValueError, OSError) as error:
        raise IntegrityError(
            f"{where} is no list of staged objects as lakeFS writes it ({error}): run again",
        ) from error


def _require_columns(schema: pa.Schema) -> None:
    """Refuse columns that could only be read as wrong addresses or dates."""
    for name, kinds in _COLUMNS.items():
        place = schema.get_field_index(name)
        if place < 0:
            raise ValueError(f"it has the columns {schema.names}, not {name} once")
        found = schema.field(place).type
        found = found.value_type if pa.types.is_dictionary(found) else found
        if not any(kind(found) for kind in kinds):
            raise ValueError(f"its column {name} is of the type {found}")


def _listed(batch: pa.RecordBatch) -> pa.Table:
    addresses = batch["physical_address"].cast(pa.string())
    created = batch["creation_date"].cast(pa.int64())
    if addresses.null_count:
        raise ValueError("it holds an empty address")
    # Clients may declare these dates, so they can be out of range.
    created = pc.min_element_wise(created, LAST_SECOND, skip_nulls=False)
    created = pc.max_element_wise(created, FIRST_SECOND, skip_nulls=False)
    moments = pc.multiply(created, 1_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.table({"address": addresses, "created": moments})


def meanings(namespace: StorageNamespace, listed: pa.Table) -> Iterator[pa.Table]:
    """Rows of ``UNCOMMITTED``: first the addresses with one meaning, then all others."""
    odd = pc.match_substring_regex(listed["address"], _ODD)
    some_odd = pc.any(odd).as_py()
    plain = listed.filter(pc.invert(odd)) if some_odd else listed
    resolved = pa.repeat(_TRUE, plain.num_rows)
    yield pa.table([*plain.columns, resolved], schema=UNCOMMITTED)
    if not some_odd:
        return
    rows = [
        (spelling, row["created"], known)
        for row in listed.filter(odd).to_pylist()
        for spelling, known in _spellings(namespace, row["address"])
    ]
    yield table_of(rows, UNCOMMITTED)


def _spellings(namespace: StorageNamespace, address: str) -> list[tuple[str, bool]]:
    try:
        return [(spelling, True) for spelling in live_spellings(namespace, address)]
    except UnresolvableAddressError as error:
        return [(address, True), *((part, False) for part in sorted(error.last_components))]
