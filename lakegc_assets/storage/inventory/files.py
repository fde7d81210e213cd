"""Reads the files of a report: fetched and verified as a whole, decoded batch by batch."""

from __future__ import annotations

import csv
import hashlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from pyarrow import orc

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.inventory.report import Report, ReportFile, damaged

#: Rows that are decoded at a time, and bytes of a CSV file.
_ROWS: Final = 65_536
_BLOCK: Final = 8 << 20
#: Bytes in which the header of a CSV file is.
_HEADER: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"


def plain_name(column: str) -> str:
    """The name of a column without case and punctuation: services write it in several ways."""
    return re.sub(r"[^a-z0-9]", "", column.lower())


def batches(
    place: ObjectStore, report: Report, file: ReportFile, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one file, of which no more than a batch is in memory.

    Args:
        place: of the reports.
        report: that the file is of.
        file: to read.
        columns: plain names of those that are wanted.

    Yields:
        Those of the columns that the file has, by their plain names. Values of CSV files are
        strings, null where they are empty.

    Raises:
        IntegrityError: the file is missing, not what the manifest says, or cannot be decoded.
    """
    url = f"{place.url}/{file.key}"
    with _fetched(place, report, file) as path:
        try:
            for batch in _decoded(path, report):
                names = [plain_name(name) for name in batch.schema.names]
                if len(set(names)) < len(names):
                    raise damaged(url, f"two of its columns have one name: {batch.schema.names}")
                renamed = batch.rename_columns(names)
                yield renamed.select([name for name in columns if name in names])
        except (pa.ArrowException, OSError) as error:
            raise damaged(url, f"it cannot be decoded ({error})") from error


@contextmanager
def _fetched(place: ObjectStore, report: Report, file: ReportFile) -> Iterator[Path]:
    """A file on this machine, once all of it was compared with the manifest."""
    url = f"{place.url}/{file.key}"
    with tempfile.NamedTemporaryFile(prefix="lakegc-inventory-") as copy:
        size, digest = 0, hashlib.md5(usedforsecurity=False)
        try:
            with place.stream(file.key) as pieces:
                for piece in pieces:
                    size += len(piece)
                    digest.update(piece)
                    copy.write(piece)
        except ObjectNotFoundError as error:
            raise damaged(report.url, f"its file {url} is gone") from error
        copy.flush()
        if file.size is not None and size != file.size:
            raise damaged(url, f"it has {size} bytes, and {report.url} says {file.size}")
        if file.md5 is not None and digest.hexdigest() != file.md5:
            raise damaged(url, f"its MD5 is {digest.hexdigest()}, and {report.url} says {file.md5}")
        yield Path(copy.name)


def _decoded(path: Path, report: Report) -> Iterator[pa.RecordBatch]:
    if report.encoding == "csv":
        yield from _csv(path, report)
    elif report.encoding == "parquet":
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield from file.iter_batches(_ROWS)
    else:
        stripes = orc.ORCFile(path)
        for number in range(stripes.nstripes):
            yield stripes.read_stripe(number)


def _csv(path: Path, report: Report) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    compression = "gzip" if packed else None
    with pa.input_stream(path, compression=compression) as stream:
        begin = stream.read(_HEADER)
        if not begin:
            return
        # Without names Arrow would guess types: a key may look like a number.
        header = _first_line(begin, report.delimiter)
    with pa.input_stream(path, compression=compression) as stream:
        names = list(report.columns) or header
        options = pc_csv.ConvertOptions(
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=True,
            column_types=dict.fromkeys(names, pa.string()),
        )
        with pc_csv.open_csv(
            stream,
            read_options=pc_csv.ReadOptions(
                column_names=names,
                skip_rows=0 if report.columns else 1,
                block_size=_BLOCK,
                use_threads=False,
            ),
            parse_options=pc_csv.ParseOptions(
                delimiter=report.delimiter, newlines_in_values=True, double_quote=True
            ),
            convert_options=options,
        ) as reader:
            yield from reader


def _first_line(content: bytes, delimiter: str) -> list[str]:
    """The values in the first line of a CSV file."""
    line = content.split(b"\n", 1)[0].rstrip(b"\r").decode("utf-8-sig", "replace")
    return next(csv.reader([line], delimiter=delimiter), [])
