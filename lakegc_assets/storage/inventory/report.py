"""An inventory report of any service: its manifest, and its files as listings of one namespace.

Each file is fetched and compared with its manifest as a whole, then decoded batch by batch.
"""

from __future__ import annotations

import csv
import hashlib
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from pyarrow import orc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.pages import objects_of
from lakegc_assets.storage.values import LISTING_SCHEMA

if TYPE_CHECKING:
    from typing_extensions import Self

#: Formats of the files of a report.
Encoding = Literal["csv", "parquet", "orc"]
ENCODINGS: Final[Mapping[str, Encoding]] = {"csv": "csv", "parquet": "parquet", "orc": "orc"}
#: Rows decoded at a time, and bytes of a CSV file read at a time.
_ROWS: Final = 65_536
_BLOCK: Final = 8 << 20
#: Bytes at the start of a CSV file that contain its header.
_HEADER: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"
_TIME: Final = LISTING_SCHEMA.field("last_modified").type
Text = Annotated[str, Field(min_length=1)]
_Manifest = TypeVar("_Manifest", bound="Manifest")


@dataclass(frozen=True)
class ReportFile:
    """One file of a report, by its key at the place; size and MD5 (in hex) may be unknown."""

    key: str
    size: int | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Report:
    """A report that is complete, according to its manifest. Picklable.

    Attributes:
        url: of its manifest, for messages.
        started: the time at which the service began to read the bucket, UTC: later objects may be
            missing.
        source: name of its bucket or container.
        columns: names of the columns of files without a header, in their order.
        rows: in all files together; None if the manifest does not say.
        delimiter: between the values of a CSV file.
    """

    url: str
    started: datetime
    source: str
    encoding: Encoding
    columns: Sequence[str]
    files: Sequence[ReportFile]
    rows: int | None = None
    delimiter: str = ","


class Manifest(BaseModel):
    """A manifest of a report, or a part of it; a subclass has the required fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    #: URL of the manifest, for messages.
    url: str = ""

    @classmethod
    def read(cls, url: str, content: bytes) -> Self:
        """The manifest in a file. Raises IntegrityError: a field is missing or invalid."""
        try:
            return cls.model_validate_json(content).model_copy(update={"url": url})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise damaged(url, f"{field or 'the manifest'}: {first['msg']}") from error


def damaged(url: str, problem: str) -> IntegrityError:
    """The error for a report that is not reliable."""
    return IntegrityError(
        f"the inventory report {url} is damaged: {problem}. Nothing of it is used: wait for the "
        "next one, name an older one (inventory_place), or list the store (listing: store)"
    )


def read_manifest(
    form: type[_Manifest], place: ObjectStore, key: str, checksum_key: str
) -> _Manifest | None:
    """A manifest with the MD5 in the file next to it; None if one of the two is missing."""
    try:
        wanted = place.get(checksum_key)
        content = place.get(key)
    except ObjectNotFoundError:
        return None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    url = f"{place.url}/{key}"
    if wanted.decode("ascii", "replace").strip().lower() != found:
        raise damaged(url, f"its MD5 is {found}, and {checksum_key} says {wanted[:64]!r}")
    return form.read(url, content)


def key_below(place: ObjectStore, key: str, url: str) -> str:
    """A key that the manifest at ``url`` names, relative to ``place``. Raises IntegrityError."""
    at = StorageNamespace.parse(place.url)
    folders = at.prefix.split("/") if at.prefix else []
    if not folders:
        return key
    # A folder of this machine has more folders around it than the bucket that it replaces.
    first = [0] if at.scheme in {"s3", "azure", "gs"} else range(len(folders))
    for begin in first:
        prefix = "/".join(folders[begin:]) + "/"
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    raise damaged(url, f"it names {key!r}, which does not lie at {place.url}")


class ReportForm(ABC):
    """The reports of one service; fields are named as in the configuration of its reports.

    Attributes:
        listed: fields with the key, the size, the time and the etag of an object.
        others: further fields that are read.
        add_to: the place in which to add fields.
    """

    listed: ClassVar[tuple[str, str, str, str]]
    others: ClassVar[tuple[str, ...]]
    add_to: ClassVar[str]

    @abstractmethod
    def split(self, url: str) -> tuple[str, str | None]:
        """The place of the reports in a URL, and the one report that the URL names, or None."""

    @abstractmethod
    def newest(self, place: ObjectStore, source: str, only: str | None = None) -> Report:
        """The newest complete report at a place about a bucket or container, or the ``only`` one.

        Raises RefusedError: there is none, or several, or it lacks a column according to its
        manifest; and IntegrityError: its manifest is damaged.
        """

    @abstractmethod
    def objects_in(
        self, batch: pa.RecordBatch, report: Report, url: str
    ) -> tuple[pa.RecordBatch, pa.Array]:
        """The rows of a batch that are objects now, and their keys. Raises as ``rows``."""

    def rows(
        self, place: ObjectStore, report: Report, file: ReportFile, prefix: str
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """The rows of one file that are objects of a namespace, by its prefix with a slash.

        Yields the number of rows read, and their objects: a batch of ``LISTING_SCHEMA`` in the
        order of its keys, or None.

        Raises:
            RefusedError: the report lacks a required column.
            IntegrityError: the file does not match the manifest, or a row is incomplete.
        """
        url = f"{place.url}/{file.key}"
        wanted = [plain_name(field) for field in (*self.listed, *self.others)]
        for batch in _batches(place, report, file, wanted):
            objects, keys = self.objects_in(batch, report, url)
            yield batch.num_rows, _listing_batch(objects, wanted[1:4], keys, prefix, url)

    def require_fields(self, names: Iterable[str], url: str, *others: str) -> None:
        """Raise RefusedError if the report at ``url`` lacks one of ``listed`` or ``others``."""
        there = set(map(plain_name, names))
        missing = [one for one in (*self.listed, *others) if plain_name(one) not in there]
        if missing:
            raise RefusedError(
                f"the inventory report {url} lacks {', '.join(missing)}: without these an object "
                f"cannot be compared with the store before it is deleted. Add them to "
                f"{self.add_to}, and wait for its next report"
            )


def require_bucket(batch: pa.RecordBatch, report: Report, url: str) -> None:
    """Raise IntegrityError if a row (with ``bucket``) is about another bucket."""
    others = pc.fill_null(pc.not_equal(batch["bucket"], report.source), True)
    if pc.any(others).as_py():
        bucket = batch["bucket"].filter(others)[0].as_py()
        raise damaged(url, f"a row is about the bucket {bucket!r}, not {report.source!r}")


def plain_name(column: str) -> str:
    """The name of a column without case and punctuation: services spell it in several ways."""
    return re.sub(r"[^a-z0-9]", "", column.lower())


def _batches(
    place: ObjectStore, report: Report, file: ReportFile, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one file, batch by batch, by plain names. Values of CSV are strings or null."""
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
    """A file on this machine, after a comparison of all of it with the manifest."""
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
        reading = pc_csv.ReadOptions(
            column_names=names, skip_rows=0 if report.columns else 1, block_size=_BLOCK,
            use_threads=False,
        )  # fmt: skip
        parsing = pc_csv.ParseOptions(
            delimiter=report.delimiter, newlines_in_values=True, double_quote=True
        )
        converting = pc_csv.ConvertOptions(
            strings_can_be_null=True, null_values=[""], quoted_strings_can_be_null=True,
            column_types=dict.fromkeys(names, pa.string()),
        )  # fmt: skip
        with pc_csv.open_csv(stream, reading, parsing, converting) as reader:
            yield from reader


def _first_line(content: bytes, delimiter: str) -> list[str]:
    """The values in the first line of a CSV file."""
    line = content.split(b"\n", 1)[0].rstrip(b"\r").decode("utf-8-sig", "replace")
    return next(csv.reader([line], delimiter=delimiter), [])


def _listing_batch(
    rows: pa.RecordBatch, columns: Sequence[str], keys: pa.Array, prefix: str, url: str
) -> pa.RecordBatch | None:
    """Rows of objects as a sorted listing of a namespace, or None. Raises IntegrityError."""
    # The marker of the namespace's own directory is no object.
    below = pc.and_(pc.starts_with(keys, prefix), pc.not_equal(keys, prefix))
    mine = pc.fill_null(below, True)
    rows, keys = rows.filter(mine), keys.filter(mine)
    if not rows.num_rows:
        return None
    try:
        sizes, times, etags = (rows[name] for name in columns)
        own = pc.utf8_slice_codeunits(keys, len(prefix))
        return objects_of(own, sizes, _times(times), etags.cast(pa.string())).sort_by("key")
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise damaged(url, f"a value is missing, or makes no sense ({error})") from error


def truth(values: pa.Array) -> pa.Array:
    """Values as booleans, in any case; null if they are neither true nor false."""
    if pa.types.is_boolean(values.type):
        return values
    lower = pc.utf8_lower(values.cast(pa.string()))
    known = pc.is_in(lower, pa.array(["true", "false"]))
    return pc.if_else(known, pc.equal(lower, "true"), pa.scalar(None, pa.bool_()))


def _times(values: pa.Array) -> pa.Array:
    """Times in whole seconds, UTC, which is also the zone of typed times without one.

    Services round the times in reports, so a time in whole seconds is compared as such.
    """
    if pa.types.is_timestamp(values.type):
        zoned = values if values.type.tz else values.cast(pa.timestamp(values.type.unit, "UTC"))
    else:
        texts = pc.replace_substring_regex(values.cast(pa.string()), " UTC$", "Z")
        # Arrow cannot parse digits below microseconds, and they are cut below in any case.
        texts = pc.replace_substring_regex(texts, r"(:\d{2})\.\d+", r"\1")
        zoned = texts.cast(_TIME)
    return pc.floor_temporal(zoned, unit="second").cast(_TIME, safe=False)
