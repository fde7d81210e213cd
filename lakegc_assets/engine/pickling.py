"""Pickles inputs and answers of tasks, with the rows of Arrow tables and not the buffers below.

Arrow pickles a slice with all of the buffers that it is cut from: a task that returned a thousand
slices of one file would send that file a thousand times. Its IPC format holds the rows alone.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from lakegc_assets import traffic
from lakegc_assets.engine.memory import give_memory_back


class _Pickler(pickle.Pickler):
    """Writes Arrow values in Arrow's IPC format."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as pickle has it
        if isinstance(value, pa.Table):
            return _read_table, (_table_stream(value),)
        if isinstance(value, pa.ChunkedArray):
            return _read_column, (_table_stream(pa.table([value], ["column"])),)
        if isinstance(value, pa.RecordBatch):
            return _read_batch, (_batch_stream(value),)
        if isinstance(value, pa.Array):
            return _read_array, (_batch_stream(pa.record_batch([value], ["column"])),)
        return NotImplemented


def dumps(value: object) -> bytes:
    """Pickle a value; ``pickle.loads`` reads it."""
    out = io.BytesIO()
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def answer_order(task: Callable[[Any], object], order: bytes) -> bytes:
    """Run a task for a pickled input; its answer, pickled with the requests that it has sent.

    The process waits for others then, perhaps beside a large query: it gives back the memory that
    the task has held.
    """
    before = traffic.by_kind()
    answer = dumps((task(pickle.loads(order)), traffic.since(before)))  # noqa: S301 - our own
    give_memory_back()
    return answer


def read_answers(pickled: Iterable[bytes]) -> list[Any]:
    """The answers of ``answer_order``; the requests count as those of this process from now on."""
    found = [pickle.loads(one) for one in pickled]  # noqa: S301 - of our own tasks
    for _, requests in found:
        traffic.add_all(requests)
    return [answer for answer, _ in found]


def _table_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        # Each of many small chunks would bring the framing of a batch with it.
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def _batch_stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _read_table(stream: pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def _read_column(stream: pa.Buffer) -> pa.ChunkedArray:
    return _read_table(stream).column(0)


def _read_batch(stream: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_next_batch()


def _read_array(stream: pa.Buffer) -> pa.Array:
    return _read_batch(stream).column(0)
