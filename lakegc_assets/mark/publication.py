"""Publishes the mark in the repository's namespace, where lakeFS's tools and rclone look for it.

The files are ``_lakefs/retention/gc/unified/<id>/deleted/*.parquet`` (one column ``address``),
lists in text (one relative address per line), and ``summary.json``. The summary is written after
all lists have been read back: a mark without a summary does not count. Only then follow the files
from which lakeFS's older collectors sweep. So a killed try leaves nothing that a tool could sweep.

Each of the two collectors before the unified one had its own folder, and users keep commands
(rclone's above all) that name these folders. So each mode writes lists in text to the folders where
its mark may be looked for. Those collectors sweep from lists in Parquet. So a mark of both kinds
has no Parquet lists there: it can be swept in one place only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.settings import Mode, Publish
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, PreconditionFailedError

_GC: Final = "_lakefs/retention/gc/"
#: Keys of files with names of our form; names of Spark's files contain a UUID.
OURS: Final = re.compile(r"(?:.*/)?(?:part-\d{5,}\.(?:snappy\.parquet|txt)|summary\.json)")


def mark_folder(run: str) -> str:
    """The folder of a mark, relative to the namespace, with a slash at its end."""
    return f"{_GC}unified/{run}/"


def reports_folder(run: str) -> str:
    """The folder of a mark in the form of the standalone collector."""
    return f"{_GC}reports/{run}/"


@dataclass(frozen=True)
class Forms:
    """Further files of a mark, besides the Parquet lists and the summary in its own folder."""

    #: Folders of lists in text, and of copies of the Parquet lists.
    texts: tuple[str, ...]
    copies: tuple[str, ...]
    #: Keys of copies of the summary, and of the list in CSV.
    summaries: tuple[str, ...]
    csv: str | None = None


def forms(run: str, mode: Mode, publish: Publish) -> Forms:
    """The further files of a mark, by its mode and the ``publish`` setting."""
    committed, uncommitted = mode != "uncommitted", mode != "committed"
    older = f"{_GC}uncommitted/{run}/"
    texts = [f"{mark_folder(run)}deleted.text/"]
    if committed:
        texts.append(f"{_GC}addresses.text/mark_id={run}/")
    if uncommitted:
        texts.append(f"{older}deleted.text/")
    copies = {
        "unified": (),
        "committed": (f"{_GC}addresses/mark_id={run}/",),
        "uncommitted": (f"{older}deleted/",),
    }
    # The summary has the start and the last read slice, as lakeFS's design of optimized runs asks.
    summaries = (f"{older}summary.json",) if uncommitted else ()
    if publish == "unified":
        return Forms(tuple(texts), copies[mode], summaries)
    reports = reports_folder(run)
    summaries = (*summaries, f"{reports}summary.json")
    return Forms(tuple(texts), copies[mode], summaries, f"{reports}deleted.csv")


def left_behind(store: ObjectStore, run: str, publish: Publish) -> list[str]:
    """Keys that an unfinished attempt wrote for a mark id, in any mode.

    Returns:
        Keys, relative to the namespace.

    Raises:
        RefusedError: another collector wrote a file under this id.
    """
    folders = (
        f"{_GC}addresses/mark_id={run}/",
        f"{_GC}addresses.text/mark_id={run}/",
        f"{_GC}uncommitted/{run}/",
        # Our own report is written after the summary, so an unfinished attempt has none.
        *([reports_folder(run)] if publish == "sgc" else []),
        mark_folder(run),
    )
    keys = [
        key
        for folder in folders
        for batch in store.list_to_the_end(folder)
        for key in batch["key"].to_pylist()
    ]
    for key in keys:
        if key.startswith(reports_folder(run)) or not OURS.fullmatch(key):
            raise RefusedError(
                f"mark id {run!r} is in use by another collector, which wrote {store.url}/{key}: "
                "mark under another id"
            )
    return keys


#: Maximum number of rows in a file of a published mark.
ROWS_PER_FILE = 200_000
_PARQUET = ".snappy.parquet"
#: Seconds of one core to read such a file.
_READ_S = 0.1


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
        """The summary as JSON, as it is stored."""
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
    except DAMAGE as error:
        raise IntegrityError(
            f"{store.url}/{key} is damaged ({error}): mark under a new id"
        ) from error


def require_unused(store: ObjectStore, run: str, publish: Publish) -> None:
    """Refuse a mark id under which we or lakeFS's collector published a mark.

    Raises:
        RefusedError: the id is in use.
    """
    if read_summary(store, run) is not None:
        raise RefusedError(
            f"mark id {run!r} exists already in {store.url}/{mark_folder(run)}: sweep that mark, "
            "or mark again under another id",
        )
    left_behind(store, run, publish)


def begin(store: ObjectStore, summary: Summary, publish: Publish) -> bool:
    """Remove the lists of unfinished tries, so that the lists of a mark can be written.

    Returns:
        True if the lists are to be written; False if an earlier try published this very mark.

    Raises:
        IntegrityError: a file of a killed try cannot be removed.
        RefusedError: another mark has this id.
    """
    folder = mark_folder(summary.run_id)
    existing = read_summary(store, summary.run_id)
    if existing is not None:
        if existing != summary:
            raise RefusedError(
                f"mark id {summary.run_id!r} is in use in {store.url}/{folder} by another mark: "
                "mark again under another id"
            )
        return False
    # A killed try may have left lists of other candidates: no tool may ever sweep them.
    leftovers = left_behind(store, summary.run_id, publish)
    failed = [o for o in store.delete_many(leftovers) if o.refused]
    if failed:
        raise IntegrityError(
            f"{store.url}/{failed[0].key} is left from an earlier try and cannot be removed "
            f"({failed[0].error_code}): the mark was not published. Give the credentials "
            f"permission to delete below {store.url}/{_GC}, or mark again under another id",
        )
    return True


def files_of(rows: int) -> int:
    """The number of files for the addresses of ``rows`` candidates; at least one."""
    return max(1, -(-rows // ROWS_PER_FILE))


def write_lists(
    store: ObjectStore, run: str, texts: Sequence[str], number: int, addresses: pa.Array
) -> None:
    """Write addresses of a mark; a repeated call writes the same files.

    ``store``: the store of the repository.
    ``texts``: folders of the lists in text.
    ``number``: number of the first of the ``files_of`` files.
    ``addresses``: relative to the namespace.
    """
    for file in range(files_of(len(addresses))):
        chunk = addresses.slice(file * ROWS_PER_FILE, ROWS_PER_FILE)
        part = f"part-{number + file:05d}"
        body = parquet.encode(pa.table({"address": chunk}), "snappy")
        store.put(f"{mark_folder(run)}deleted/{part}{_PARQUET}", body)
        text = _text(chunk)
        for folder in texts:
            store.put(f"{folder}{part}.txt", text)


def finish(
    ctx: RunContext, digest: str, summary: Summary, forms: Forms, *, written: bool
) -> list[str]:
    """Verify the lists of a mark, write its summary, then the files for older collectors.

    ``digest``: the ``KeyDigest`` of the candidates, from their manifest.
    ``written``: true if this try wrote the lists; else the summary exists already.

    Returns:
        Keys of the files, relative to the namespace, the summary last.

    Raises:
        IntegrityError: a list differs from the candidates, or a file from what was written.
        RefusedError: another process published a mark under this id.
    """
    store = ctx.connections.store()
    lists, key = f"{mark_folder(ctx.run)}deleted/", f"{mark_folder(ctx.run)}summary.json"
    parts = _parts(store, lists)
    _verify(ctx, forms, parts, digest)
    if written:
        try:
            store.create(key, summary.to_bytes())
        except PreconditionFailedError as error:
            raise RefusedError(
                f"another process has published a mark under the id {ctx.run!r} meanwhile, and its "
                "lists may be mixed with those of this one: mark again under another id"
            ) from error
    _copy(ctx, forms, parts)
    if forms.csv is not None:
        _write_csv(store, f"{lists}{{}}{_PARQUET}", parts, forms.csv)
    for copy in forms.summaries:
        store.put(copy, summary.to_bytes())
    copied = [f"{folder}{part}{_PARQUET}" for folder in (lists, *forms.copies) for part in parts]
    texts = [f"{folder}{part}.txt" for folder in forms.texts for part in parts]
    tables = [] if forms.csv is None else [forms.csv]
    return [*copied, *texts, *tables, *forms.summaries, key]


def _parts(store: ObjectStore, folder: str) -> list[str]:
    """The names of the lists in a folder, without the suffixes of their formats."""
    lists = [info.key for info in store.infos(folder) if info.key.endswith(_PARQUET)]
    return [key.removeprefix(folder).removesuffix(_PARQUET) for key in lists]


def _text(addresses: pa.Array) -> bytes:
    return "".join(f"{address}\n" for address in addresses.to_pylist()).encode()


def _read(body: bytes) -> pa.Array:
    return parquet.decode(body, ["address"])["address"].combine_chunks()


def _verify(ctx: RunContext, forms: Forms, parts: Sequence[str], digest: str) -> None:
    """Read the published lists, and compare their addresses with the digest of the candidates."""
    seconds = [_READ_S * (1 + len(forms.texts))] * len(parts)
    task = partial(_digest_of, ctx.connections, ctx.run, forms)
    what, most = "read the published lists back", ctx.settings.address_num_partitions
    digests = ctx.tasks.run_grouped(what, task, parts, seconds, most)
    found = str(sum(digests, KeyDigest()))
    if found != digest:
        raise IntegrityError(
            f"the lists in {ctx.connections.namespace_url}/{mark_folder(ctx.run)} hold {found}, "
            f"but the candidates are {digest}: the mark is not published. Mark again under a new "
            "id",
        )


def _digest_of(connections: Connections, run: str, forms: Forms, parts: Sequence[str]) -> KeyDigest:
    store = connections.store()
    digest = KeyDigest()
    for part in parts:
        addresses = _read(store.get(f"{mark_folder(run)}deleted/{part}{_PARQUET}"))
        text = _text(addresses)
        for folder in forms.texts:
            _require_same(store, f"{folder}{part}.txt", text)
        digest += key_digest(addresses)
    return digest


def _copy(ctx: RunContext, forms: Forms, parts: Sequence[str]) -> None:
    """Copy the Parquet lists of a published mark to the folders of older collectors."""
    if forms.copies:
        seconds = [_READ_S * len(forms.copies)] * len(parts)
        task = partial(_copy_parts, ctx.connections, ctx.run, forms)
        what, most = "copy the lists for older collectors", ctx.settings.address_num_partitions
        ctx.tasks.run_grouped(what, task, parts, seconds, most)


def _copy_parts(connections: Connections, run: str, forms: Forms, parts: Sequence[str]) -> None:
    store = connections.store()
    for part in parts:
        body = store.get(f"{mark_folder(run)}deleted/{part}{_PARQUET}")
        for folder in forms.copies:
            store.put(f"{folder}{part}{_PARQUET}", body)
            _require_same(store, f"{folder}{part}{_PARQUET}", body)


def _write_csv(store: ObjectStore, lists: str, parts: Sequence[str], key: str) -> None:
    """Write all addresses of a published mark to one list, in the standalone collector's form.

    Values are quoted, the column name is not; a quote in a value is doubled.
    """

    def pieces() -> Iterator[bytes]:
        yield b"address\n"
        for part in parts:
            quoted = pc.replace_substring(_read(store.get(lists.format(part))), '"', '""')
            yield "".join(f'"{address}"\n' for address in quoted.to_pylist()).encode()

    # The list may not fit into memory: it is generated once for its size, and once for the upload.
    size, digest = _measured(pieces())
    store.put_stream(key, pieces(), size)
    with suppress(ObjectNotFoundError), store.stream(key) as read:
        if _measured(read) == (size, digest):
            return
    raise _differs(store, key)


def _measured(pieces: Iterable[bytes]) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a sequence of pieces."""
    size, digest = 0, hashlib.sha256()
    for piece in pieces:
        size += len(piece)
        digest.update(piece)
    return size, digest.hexdigest()


def _require_same(store: ObjectStore, key: str, body: bytes) -> None:
    """Raise IntegrityError if an object differs from what was written."""
    try:
        same = store.get(key) == body
    except ObjectNotFoundError:
        same = False
    if not same:
        raise _differs(store, key)


def _differs(store: ObjectStore, key: str) -> IntegrityError:
    return IntegrityError(
        f"{store.url}/{key} does not read back as it was written: the store lost the write, or "
        "something changed the file. Mark again under a new id"
    )
