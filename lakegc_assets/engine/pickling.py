"""Pickles inputs and answers of tasks, with the rows of Arrow tables but not their buffers.

Arrow pickles a slice with the whole buffers below it: a task that returns a thousand slices of a
file would send the file a thousand times. Arrow's IPC format holds only the rows.
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
    """Run a task for a pickled input; return the pickled answer and the requests it has sent.

    Afterwards the process only waits, maybe while another process runs a large query. So it returns
    the memory of the task to the system.
    """
    before = traffic.by_kind()
    answer = dumps((task(pickle.loads(order)), traffic.since(before)))  # noqa: S301 - our own
    give_memory_back()
    return answer


def read_answers(pickled: Iterable[bytes]) -> list[Any]:
    """Unpickle answers of ``answer_order``, and count their requests as this process's own."""
    found = [pickle.loads(one) for one in pickled]  # noqa: S301 - of our own tasks
    for _, requests in found:
        traffic.add_all(requests)
    return [answer for answer, _ in found]


def _table_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        # Each of many small chunks would add the framing of a batch.
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
