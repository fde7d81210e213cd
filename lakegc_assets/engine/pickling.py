"""Pickles inputs and answers of tasks, with the rows of Arrow tables and not the buffers below.

Arrow pickles a slice with all of the buffers that it is cut from: a task that returned a thousand
slices of one file would send that file a thousand times. Its IPC format holds the rows alone.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import pyarrow as pa


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
