"""Inputs and answers of tasks in other processes: pickled values, and errors of their own kind.

Arrow pickles a slice with the whole buffers below it: a task that returns a thousand slices of a
file would send the file a thousand times. Arrow's IPC format holds only the rows.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PythonException

from lakegc_assets import traffic
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError

#: Returns unused memory, which allocators do late or never. Only GNU's C library has it.
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
_OURS = re.compile(r"^(lakegc_assets(?:\.\w+)+)\.(\w+): ", re.MULTILINE)
_CHAINED = re.compile(
    r"^(?:The above exception was|During handling of the above).*:$", re.MULTILINE
)
_JAVA = "\n\nJVM stacktrace:\n"


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
    the memory of the task to the system: otherwise a process that has decoded ranges keeps some
    200 MB. That takes some milliseconds.
    """
    before = traffic.by_kind()
    answer = dumps((task(pickle.loads(order)), traffic.since(before)))  # noqa: S301 - our own
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
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


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise an error of this package from a Spark task as if it had been raised here.

    Raises:
        LakegcError: of the task's kind (configuration, refused, integrity) and with its message,
            which Spark wraps into traces of both languages.
    """
    try:
        yield
    except PythonException as error:
        text = str(error)
        # Causes come first. With some settings Java's stack trace comes last.
        text = _CHAINED.split(text.partition(_JAVA)[0])[-1]
        raised = list(_OURS.finditer(text))
        if not raised:
            raise
        last = raised[-1]
        raised_type = getattr(import_module(last[1]), last[2], None)
        if not (isinstance(raised_type, type) and issubclass(raised_type, LakegcError)):
            raise
        raise _kind(raised_type)(text[last.end() :].strip()) from error


def plain_error(error: LakegcError) -> LakegcError:
    """Return an error of the same kind and message that any process can unpickle."""
    return _kind(type(error))(str(error))


def _kind(raised: type[LakegcError]) -> type[LakegcError]:
    """Return the kind of an error of this package, a class that takes only a message."""
    for kind in (ConfigurationError, RefusedError, IntegrityError):
        if issubclass(raised, kind):
            return kind
    return LakegcError
