"""The paths of the entries of a range, of which callers need few, and the folders of all paths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakegc_assets.graveler import decode_kernels as kernels

#: The most folders of a path that are returned, the outermost first.
FOLDER_DEPTH: Final = 4


class Paths:
    """The paths of the entries of a range, of which callers need few.

    ``parts``: for each chunk, the stream that holds the keys, and their positions in it.
    """

    def __init__(self, parts: Sequence[tuple[Any, kernels.Columns]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([0, *(len(columns.sizes) for _, columns in parts)])

    def take(self, rows: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the paths of some rows, whose numbers are ascending."""
        found: list[bytes] = []
        cuts = np.searchsorted(rows, self._ends)
        for (stream, columns), base, low, high in zip(
            self._parts, self._ends, cuts, cuts[1:], strict=False
        ):
            mine = rows[low:high] - base
            starts, lengths = columns.key_starts[mine], columns.key_lengths[mine]
            places = zip(starts.tolist(), lengths.tolist(), strict=True)
            found += [bytes(stream[at : at + length]) for at, length in places]
        return found

    def folders(self, depth: int) -> pa.DictionaryArray:
        """Return at most ``depth`` folders at the start of each path, with slashes at their ends.

        Paths are in order, so the paths of a folder follow each other, and few strings are made.
        """
        texts = [pa.array([], pa.string())]
        numbers = [np.empty(0, np.int32)]
        known = 0
        for stream, columns in self._parts:
            count = len(columns.key_starts)
            runs, lengths = np.empty(count, np.int32), np.empty(count, np.int64)
            first = np.empty(count, np.int64)
            found = kernels.folder_runs(
                stream, columns.key_starts, columns.key_lengths, depth, runs, first, lengths
            )
            texts.append(_cut_out(stream, first[:found], lengths[:found]))
            numbers.append(runs + np.int32(known))
            known += found
        encoded = pa.concat_arrays(texts).dictionary_encode()
        rows = encoded.indices.take(pa.array(np.concatenate(numbers)))
        return pa.DictionaryArray.from_arrays(rows, encoded.dictionary)


def _cut_out(
    stream: Any,  # noqa: ANN401 - a numpy array
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> pa.StringArray:
    """Return pieces of a stream as strings; bytes that are not UTF-8 are replaced."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    content = np.empty(int(ends[-1]), np.uint8)
    kernels.copy_pieces(stream, starts, ends, content)
    texts = pa.StringArray.from_buffers(len(starts), pa.py_buffer(ends), pa.py_buffer(content))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        pieces = (content[a:b].tobytes() for a, b in itertools.pairwise(ends))
        return pa.array([piece.decode("utf-8", "replace") for piece in pieces], pa.string())
    return texts
