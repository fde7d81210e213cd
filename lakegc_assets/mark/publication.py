"""The mark in the repository's own namespace, where lakeFS's tools and rclone look for it.

``_lakefs/retention/gc/unified/<id>/deleted/*.parquet`` (one column ``address``),
``deleted.text/*.txt`` (one relative address a line) and, last, ``summary.json``: a mark without its
summary never happened. The forms are those that lakeFS's Spark collector writes and sweeps from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.tasks import spread
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, PreconditionFailedError

_ROWS_PER_FILE = 200_000
#: Work on one core, in seconds, to read one of them.
_READ_S = 0.1
_MARKS = "_lakefs/retention/gc/unified/"
_UNCOMMITTED = "_lakefs/retention/gc/uncommitted/"


def mark_folder(run: str) -> str:
    """The folder of a mark, relative to the namespace, with a slash at its end."""
    return f"{_MARKS}{run}/"


@dataclass(frozen=True)
class Summary:
    """lakeFS's ``summary.json`` of a mark; times are ISO instants."""

    run_id: str
    success: bool
    first_slice: str
    start_time: str
    cutoff_time: str
    num_deleted_objects: int

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps(self.__dict__, separators=(",", ":")).encode()


def instant(moment: datetime) -> str:
    """An ISO instant as lakeFS writes it."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_summary(store: ObjectStore, run: str) -> Summary | None:
    """The summary of a mark; None where there is none.

    Raises:
        IntegrityError: it is damaged.
    """
    key = mark_folder(run) + "summary.json"
    try:
        values: dict[str, Any] = json.loads(store.get(key))
        return Summary(**{name: values[name] for name in Summary.__dataclass_fields__})
    except ObjectNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{store.url}/{key} is damaged ({error}): mark under a new id"
        ) from error


def require_unused(store: ObjectStore, run: str) -> None:
    """Refuse a mark id under which something was published, by us or by lakeFS's collector.

    Raises:
        RefusedError: it is in use.
    """
    if read_summary(store, run) is not None:
        raise RefusedError(
            f"mark id {run!r} exists already in {store.url}/{mark_folder(run)}: sweep that mark, "
            "or mark again under another id",
        )


def begin(store: ObjectStore, summary: Summary) -> bool:
    """Make room for the lists of a mark.

    Args:
        store: of the repository.
        summary: what ``summary.json`` shall say.

    Returns:
        Whether they are to be written; not if an earlier try published this very mark.

    Raises:
        IntegrityError: what a try left that was killed cannot be removed.
        RefusedError: another mark has this id.
    """
    folder = mark_folder(summary.run_id)
    existing = read_summary(store, summary.run_id)
    if existing is not None:
        if existing != summary:
            raise RefusedError(
                f"mark id {summary.run_id!r} is in use in {store.url}/{folder} by another mark"
            )
        return False
    # A try that was killed may have left lists of other candidates: no one may ever sweep them.
    failed = [o for o in store.delete_many(_keys(store, folder)) if o.outcome == "failed"]
    if failed:
        raise IntegrityError(
            f"{store.url}/{failed[0].key} is left from an earlier try and cannot be removed "
            f"({failed[0].error_code}): the mark was not published",
        )
    return True


def files_of(rows: int) -> int:
    """How many files the addresses of some candidates are written to; at least one."""
    return max(1, -(-rows // _ROWS_PER_FILE))


def write_lists(store: ObjectStore, run: str, number: int, addresses: pa.Array) -> None:
    """Write some addresses of a mark; writing them again changes nothing.

    Args:
        store: of the repository.
        run: id of the mark.
        number: of the first of their ``files_of`` files.
        addresses: relative to the namespace.
    """
    folder = mark_folder(run)
    for file in range(files_of(len(addresses))):
        some = addresses.slice(file * _ROWS_PER_FILE, _ROWS_PER_FILE)
        part = f"part-{number + file:05d}"
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"address": some}), sink)
        store.put(f"{folder}deleted/{part}.snappy.parquet", sink.getvalue().to_pybytes())
        text = "".join(f"{address}\n" for address in some.to_pylist())
        store.put(f"{folder}deleted.text/{part}.txt", text.encode())


def finish(
    ctx: RunContext, connections: Connections, digest: str, summary: Summary, *, written: bool
) -> list[str]:
    """Read the lists of a mark back, then write its summary.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        digest: the ``KeyDigest`` of the candidates, as their manifest has it.
        summary: what ``summary.json`` shall say.
        written: whether this try wrote the lists; else the summary is there.

    Returns:
        Keys of the files, relative to the namespace, the summary last.

    Raises:
        IntegrityError: what was written does not read back as it should.
        RefusedError: another process published a mark under this id.
    """
    store = connections.store()
    folder = mark_folder(ctx.run)
    keys = [key for key in _keys(store, folder) if not key.endswith("summary.json")]
    _verify(ctx, connections, [key for key in keys if key.endswith(".parquet")], digest)
    if written:
        try:
            # The run's start and its last read slice, in the form of lakeFS's own design.
            store.put(f"{_UNCOMMITTED}{ctx.run}/summary.json", summary.to_bytes())
            store.put_if_absent(folder + "summary.json", summary.to_bytes())
        except PreconditionFailedError as error:
            raise RefusedError(f"another process published mark id {ctx.run!r}") from error
    return [*keys, folder + "summary.json"]


def _keys(store: ObjectStore, folder: str) -> list[str]:
    return [key for batch in store.list(folder) for key in batch["key"].to_pylist()]


def _verify(ctx: RunContext, connections: Connections, keys: list[str], digest: str) -> None:
    """Read the published addresses back."""
    groups = spread(keys, [_READ_S] * len(keys), ctx.settings.address_num_partitions)
    task = partial(_digest_of, connections)
    seconds = _READ_S * len(keys)
    digests = ctx.tasks.run("read the published lists back", task, groups, seconds)
    found = str(sum(digests, KeyDigest()))
    if found != digest:
        raise IntegrityError(
            f"the lists in {connections.namespace_url}/{mark_folder(ctx.run)} hold {found}, but "
            f"the candidates are {digest}: the mark is not published. Mark again under a new id",
        )


def _digest_of(connections: Connections, keys: Sequence[str]) -> KeyDigest:
    store = connections.store()
    tables = (pq.read_table(pa.BufferReader(store.get(key)), columns=["address"]) for key in keys)
    return sum((key_digest(table["address"]) for table in tables), KeyDigest())
