"""The mark in the repository's own namespace, where lakeFS's tools and rclone look for it.

``_lakefs/retention/gc/unified/<id>/deleted/*.parquet`` (one column ``address``),
``deleted.text/*.txt`` (one relative address a line) and, last, ``summary.json``: a mark without its
summary never happened. The forms are those that lakeFS's Spark collector writes and sweeps from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.hashing import key_digest
from lakegc_assets.run.context import Connections, RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, PreconditionFailedError

_ROWS_PER_FILE = 200_000
_MARKS = "_lakefs/retention/gc/unified/"


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


def publish(
    ctx: RunContext, connections: Connections, candidates: DataFrame, digest: str, summary: Summary
) -> list[str]:
    """Write the lists of a mark, read them back, then write its summary. May be repeated.

    Args:
        ctx: the run.
        connections: how tasks reach the store.
        candidates: the addresses of the mark (column ``address``), verified.
        digest: the ``KeyDigest`` of these, as their manifest has it.
        summary: what ``summary.json`` shall say.

    Returns:
        Keys of the files, relative to the namespace, the summary last.

    Raises:
        IntegrityError: what was written does not read back as it should.
        RefusedError: another mark has this id.
    """
    store = connections.store()
    folder = mark_folder(ctx.run)
    existing = read_summary(store, ctx.run)
    if existing is None:
        # A try that was killed may have left lists of other candidates: no one may ever sweep them.
        leftovers = [key for batch in store.list(folder) for key in batch["key"].to_pylist()]
        failed = [o for o in store.delete_many(leftovers) if o.outcome == "failed"]
        if failed:
            raise IntegrityError(
                f"{store.url}/{failed[0].key} is left from an earlier try and cannot be removed "
                f"({failed[0].error_code}): the mark was not published",
            )
        files = max(1, -(-summary.num_deleted_objects // _ROWS_PER_FILE))
        (
            candidates.select("address")
            .repartitionByRange(files, "address")
            .mapInArrow(partial(_write_lists, connections, folder), "rows long")
            .agg({"rows": "sum"})
            .collect()
        )
    elif existing != summary:
        raise RefusedError(f"mark id {ctx.run!r} is in use in {store.url}/{folder} by another mark")
    keys = [key for batch in store.list(folder) for key in batch["key"].to_pylist()]
    parquet = [key for key in keys if key.endswith(".parquet")]
    _verify(ctx, connections, parquet, digest)
    if existing is None:
        try:
            store.put_if_absent(folder + "summary.json", summary.to_bytes())
        except PreconditionFailedError as error:
            raise RefusedError(f"another process published mark id {ctx.run!r}") from error
    return [*(key for key in keys if not key.endswith("summary.json")), folder + "summary.json"]


def _verify(ctx: RunContext, connections: Connections, keys: list[str], digest: str) -> None:
    """Read the published addresses back."""
    published = (
        ctx.spark.createDataFrame([(key,) for key in keys], "key string")
        .repartition(max(1, min(50, len(keys))))
        .mapInArrow(partial(_read_list, connections), "address string")
    )
    found = str(key_digest(published))
    if found != digest:
        raise IntegrityError(
            f"the lists in {connections.namespace_url}/{mark_folder(ctx.run)} hold {found}, but "
            f"the candidates are {digest}: the mark is not published. Mark again under a new id",
        )


def _write_lists(
    connections: Connections, folder: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    part = f"part-{task.partitionId() if task else 0:05d}"
    addresses = [a for batch in batches for a in batch["address"].to_pylist()]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"address": pa.array(addresses, pa.string())}), sink)
    store = connections.store()
    store.put(f"{folder}deleted/{part}.snappy.parquet", sink.getvalue().to_pybytes())
    text = "".join(f"{address}\n" for address in addresses)
    store.put(f"{folder}deleted.text/{part}.txt", text.encode())
    yield pa.RecordBatch.from_arrays([pa.array([len(addresses)], pa.int64())], names=["rows"])


def _read_list(
    connections: Connections, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    store = connections.store()
    for batch in batches:
        for key in batch["key"].to_pylist():
            table = pq.read_table(pa.BufferReader(store.get(key)))
            yield from table.select(["address"]).to_batches()
