"""Marks that lakeFS's own collectors left in the namespace: their places and their objects.

The unified collector writes ``unified/<id>/``, the two before it ``uncommitted/<id>/`` and
``addresses/mark_id=<id>/``, and the very first ``addresses/run_id=<id>/``: lists of addresses in
Parquet, and the same lists in text. The standalone collector writes one list,
``reports/<id>/deleted.csv`` (one column, ``address``); its first versions wrote a
``deleted.parquet`` instead (lakeFS's page "Standalone Garbage Collection").

No list is trusted as proof about an object. But a list must be complete, or a comparison with it
has no meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from lakegc_assets.engine.datasets import Part, PartWriter
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.mark import comparison_relations
from lakegc_assets.mark.addresses import in_data
from lakegc_assets.mark.publication import OURS
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES, KeyDigest, address_hashes, key_digest, signed
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.settings import Publish
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.values import ObjectInfo
from lakegc_assets.wording import counted

_GC: Final = "_lakefs/retention/gc/"
#: Remedy for a mark of another collector that is not complete.
_AGAIN: Final = "let the job that made the mark do so again"


@dataclass(frozen=True)
class _Form:
    """The layout of the marks of one collector: keys with a placeholder for the mark id."""

    #: Prefix before an id, with which a user chooses this form.
    prefix: str
    lists: str
    texts: str | None
    #: Key of the file that the collector writes last.
    summary: str | None
    #: The list is the first existing one of these files; if empty, every file in ``lists`` is one.
    names: tuple[str, ...] = ()


def _with_summary(name: str) -> _Form:
    folder = f"{_GC}{name}/{{}}"
    texts = f"{folder}/deleted.text/"
    return _Form(f"{name}/", f"{folder}/deleted/", texts, f"{folder}/summary.json")


def _without_summary(key: str) -> _Form:
    return _Form(f"{key}=", f"{_GC}addresses/{key}={{}}/", f"{_GC}addresses.text/{key}={{}}/", None)


_FORMS: Final = {
    "unified": _with_summary("unified"),
    "uncommitted": _with_summary("uncommitted"),
    "standalone": _Form(
        "reports/",
        f"{_GC}reports/{{}}/",
        None,
        f"{_GC}reports/{{}}/summary.json",
        ("deleted.csv", "deleted.parquet"),
    ),
    "committed": _without_summary("mark_id"),
    "committed, before 0.4.0": _without_summary("run_id"),
}


@dataclass(frozen=True)
class ForeignMark:
    """A mark of lakeFS's collectors that is finished, by its own account."""

    #: Its mark id.
    id: str
    #: The collector that wrote it: a key of ``_FORMS``.
    form: str
    #: URL of the folder of its lists.
    url: str
    #: Its start time from the summary; without one, the time of its last list.
    made: datetime
    #: Number of objects from the summary; None without one.
    objects: int | None
    #: Size in bytes of each list in Parquet or CSV, by key.
    lists: Mapping[str, int]
    #: Size in bytes of each list in text, by key.
    texts: Mapping[str, int]
    #: True if this program made the mark.
    ours: bool


def find_mark(store: ObjectStore, mark_id: str) -> ForeignMark:
    """The finished mark with an id.

    ``mark_id``: an id; if several collectors used it, with the prefix ``unified/``,
        ``uncommitted/``, ``reports/``, ``mark_id=`` or ``run_id=``.

    Raises:
        ConfigurationError: the text cannot be an id.
        RefusedError: there is no such mark, it did not finish, or there are several.
        IntegrityError: the mark is damaged.
    """
    chosen = [name for name, form in _FORMS.items() if mark_id.startswith(form.prefix)]
    plain = mark_id.removeprefix(_FORMS[chosen[0]].prefix) if chosen else mark_id
    if not plain.isprintable() or "/" in plain or plain in {"", ".", ".."}:
        raise ConfigurationError(
            f"{mark_id!r} cannot be a mark id of lakeFS's collector: give the name of a folder "
            f"below {store.url}/{_GC}unified/, uncommitted/, reports/ or addresses/"
        )
    listed = {name: _listed(store, _FORMS[name], plain) for name in chosen or _FORMS}
    # If lists in text exist alone, they are copies for people, and the mark itself is elsewhere.
    found = [name for name, (lists, _) in listed.items() if lists]
    found = found or [name for name, (_, texts) in listed.items() if texts]
    if not found:
        raise _nothing_found(store, plain, list(listed))
    # A mark that this program publishes in several forms is one mark.
    published = _published(store, plain)
    if len(found) > 1 and not all(
        _are_ours(listed[name][0]) or (published and name == "standalone") for name in found
    ):
        names = " or ".join(f"{_FORMS[name].prefix}{plain}" for name in found)
        raise RefusedError(
            f"{store.url} has marks of several collectors with the id {plain!r}: name one of them, "
            f"{names}"
        )
    lists, texts = listed[found[0]]
    return _mark_of(store, plain, found[0], lists, texts)


def newest_mark(store: ObjectStore, collector: Publish) -> str | None:
    """The finished mark of one of lakeFS's collectors that was begun last.

    ``collector``: ``unified`` for the collector on Spark, ``sgc`` for the standalone one.

    Returns:
        Its id in the form of ``find_mark``; None without a mark.

    Raises:
        IntegrityError: a mark is damaged.
    """
    form = _FORMS["unified" if collector == "unified" else "standalone"]
    folder = form.lists.partition("{}")[0]
    found: list[ForeignMark] = []
    for key in [info.key for info in store.infos(folder)]:
        mark_id = key.removeprefix(folder).partition("/")[0]
        if form.summary is None or key != form.summary.format(mark_id):
            continue
        # A mark that failed or did not finish does not count.
        with suppress(RefusedError):
            found.append(find_mark(store, f"{form.prefix}{mark_id}"))
    theirs = [mark for mark in found if not mark.ours]
    newest = max(theirs, key=lambda mark: mark.made, default=None)
    return None if newest is None else f"{form.prefix}{newest.id}"


#: Files by their keys.
_Files = Mapping[str, ObjectInfo]


def _listed(store: ObjectStore, form: _Form, mark_id: str) -> tuple[_Files, _Files]:
    lists = form.lists.format(mark_id)
    if form.names:
        there = {info.key: info for info in store.infos(lists)}
        keys = [f"{lists}{name}" for name in form.names if f"{lists}{name}" in there]
        return {key: there[key] for key in keys[:1]}, {}
    texts = {} if form.texts is None else _files(store, form.texts.format(mark_id), ".txt")
    return _files(store, lists, ".parquet"), texts


def _published(store: ObjectStore, mark_id: str) -> bool:
    """Return whether this program published a mark with this id, in any form."""
    files = _files(store, _FORMS["unified"].lists.format(mark_id), ".parquet")
    return bool(files) and _are_ours(files)


def _files(store: ObjectStore, folder: str, ending: str) -> _Files:
    """The lists in a folder, without files that Spark itself does not read as data."""
    found: dict[str, ObjectInfo] = {}
    for info in store.infos(folder):
        names = info.key.removeprefix(folder).split("/")
        if info.key == folder or any(name.startswith(("_", ".")) for name in names):
            continue
        if not info.key.endswith(ending):
            raise IntegrityError(
                f"{store.url}/{info.key} is no list of addresses that lakegc can read, so the mark "
                "is not known in full. If lakeFS did not write the file, move it away; else "
                f"{_AGAIN}"
            )
        found[info.key] = info
    return found


def _nothing_found(store: ObjectStore, mark_id: str, forms: Sequence[str]) -> RefusedError:
    keys = (s.format(mark_id) for name in forms if (s := _FORMS[name].summary))
    for key in keys:
        if store.exists(key):
            return RefusedError(
                f"{store.url}/{key} is there, but no list of addresses beside it: {_AGAIN}"
            )
    folders = ", ".join(_FORMS[name].lists.format(mark_id) for name in forms)
    return RefusedError(
        f"there is no mark {mark_id!r} in {store.url}: {folders} hold no list. Compare the id with "
        f"the folders below {_GC}"
    )


def _mark_of(
    store: ObjectStore, mark_id: str, name: str, lists: _Files, texts: _Files
) -> ForeignMark:
    form, files = _FORMS[name], lists or texts
    folder = (form.lists if lists or form.texts is None else form.texts).format(mark_id)
    made = max(info.last_modified for info in files.values())
    objects = None
    if form.summary:
        made, objects = _summary(store, form.summary.format(mark_id), mark_id)
    elif not _finished(store, folder, mark_id, made):
        raise RefusedError(
            f"mark {mark_id!r} did not finish: {store.url}/{folder} has neither {mark_id}.meta nor "
            f"a _SUCCESS that is younger than its lists. Wait until its job ends, or {_AGAIN}"
        )
    return ForeignMark(
        mark_id,
        name,
        f"{store.url}/{folder}",
        made,
        objects,
        {key: info.size for key, info in lists.items()},
        {key: info.size for key, info in texts.items()},
        _published(store, mark_id)
        if name == "standalone"
        else _are_ours(files) and not store.exists(f"{folder}_SUCCESS"),
    )


def _are_ours(files: _Files) -> bool:
    return all(map(OURS.fullmatch, files))


def _summary(store: ObjectStore, key: str, mark_id: str) -> tuple[datetime, int]:
    """Start time of a mark, and the number of objects that it names.

    Raises:
        RefusedError: the mark did not finish, or failed.
        IntegrityError: the summary is damaged.
    """
    where = f"{store.url}/{key}"
    try:
        values: dict[str, Any] = json.loads(store.get(key))
        success, objects = values["success"], values["num_deleted_objects"]
        # lakeFS writes nanoseconds.
        begun = re.sub(r"(\.\d{6})\d+", r"\1", values["start_time"]).replace("Z", "+00:00")
        made = datetime.fromisoformat(begun)
        if values["run_id"] != mark_id or type(objects) is not int or made.tzinfo is None:
            raise ValueError(values)
    except ObjectNotFoundError as error:
        raise RefusedError(
            f"mark {mark_id!r} did not finish: there is no {where}. Wait until its job ends, or "
            f"{_AGAIN}"
        ) from error
    except DAMAGE as error:
        raise IntegrityError(
            f"{where} is damaged, or of another mark ({error}): {_AGAIN}"
        ) from error
    if success is not True:
        raise RefusedError(f"mark {mark_id!r} failed, by {where}: {_AGAIN}")
    return made, objects


def _finished(store: ObjectStore, folder: str, mark_id: str, written: datetime) -> bool:
    """True if a collector without summaries finished: it or Spark wrote the last of its files."""
    meta = f"{_GC}addresses/{mark_id}.meta/"
    if any(info.key.endswith(".json") and info.size for info in store.infos(meta)):
        return True
    above = folder.rstrip("/").rpartition("/")[0]
    for key in (f"{folder}_SUCCESS", f"{above}/_SUCCESS"):
        try:
            if store.head(key).last_modified >= written:
                return True
        except ObjectNotFoundError:
            continue
    return False


T = TypeVar("T")

#: Objects that a list names. An address is relative to the namespace. If the object cannot be in
#: the namespace, ``elsewhere`` has the reason, and the address is as in the list; else it is null.
#: The columns from ``size`` on are only known for our own candidates.
NAMED: Final = schema(
    HASHES,
    "address string not null, in_place boolean not null, elsewhere string, size bigint, "
    "reason string, commit_id string, branch string",
)
#: Seconds of one core to read a file, and a byte of it.
_FILE_S: Final = 0.02
_BYTE_S: Final = 2e-8
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UNPLACED: Final = "it is a full address of which the object cannot be determined"


def read_mark(work: SessionFolder, mark: ForeignMark) -> Dataset:
    """Read the lists of a mark: the objects that it names, each once (``NAMED``).

    Raises:
        IntegrityError: a list is missing or damaged, the number of objects is not the summary's, or
            the lists in text name other objects than those in Parquet.
    """
    connections = work.connections
    read = partial(_read_files, connections, work.url, work.folder)
    found = _over(work.ctx, read, mark.lists or mark.texts)
    parts = [part for parts, _ in found for part in parts]
    rows = sum(part.rows for part in parts)
    if mark.objects not in {None, rows}:
        raise IntegrityError(
            f"{mark.url} names {counted(rows, 'object')}, and the summary of mark "
            f"{mark.id!r} says {mark.objects}: it is not whole; {_AGAIN}"
        )
    texts = sum(_over(work.ctx, partial(_lines_of, connections), mark.texts), KeyDigest())
    if mark.lists and mark.texts and texts != sum((lines for _, lines in found), KeyDigest()):
        raise IntegrityError(
            f"the lists of mark {mark.id!r} in text do not name what those in {mark.url} do: one "
            f"of them is not whole; {_AGAIN}"
        )
    if not rows:
        return Dataset(work.url, [], NAMED)
    once = comparison_relations.each_once(work.read(parts, NAMED))
    return work.written(once, "named", NAMED, "read a mark of lakeFS's collector")


def _over(ctx: RunContext, task: Callable[[Sequence[str]], T], files: Mapping[str, int]) -> list[T]:
    costs = [_FILE_S + size * _BYTE_S for size in files.values()]
    what, most = "read a mark of lakeFS's collector", ctx.settings.address_num_partitions
    return ctx.tasks.run_grouped(what, task, list(files), costs, most)


def _read_files(
    connections: Connections, url: str, folder: str, keys: Sequence[str]
) -> tuple[list[Part], KeyDigest]:
    """Files of ``NAMED``, with duplicates of the lists; and the digest of the lists' lines."""
    store, namespace = connections.store(), connections.namespace()
    writer = PartWriter(connections.open(url), f"{folder}listed/", NAMED)
    lines = KeyDigest()
    for addresses in _lists(store, keys):
        lines += _digest_of_lines(addresses)
        writer.add(_named(*_placed(namespace, addresses)))
    return [part for part in writer.finish() if part.rows], lines


def _named(addresses: pa.Array, elsewhere: pa.Array) -> pa.Table:
    known = {
        "hash": signed(address_hashes(addresses)),
        "address": addresses,
        "in_place": in_data(addresses),
        "elsewhere": elsewhere,
    }
    nothing = {f.name: pa.nulls(len(addresses), f.type) for f in NAMED if f.name not in known}
    return pa.table(known | nothing, schema=NAMED)


def _lines_of(connections: Connections, keys: Sequence[str]) -> KeyDigest:
    return sum(map(_digest_of_lines, _lists(connections.store(), keys)), KeyDigest())


def _digest_of_lines(addresses: pa.Array) -> KeyDigest:
    """The digest of addresses as lines of a list in text; a line break in one makes two lines."""
    return key_digest(pc.list_flatten(pc.split_pattern(addresses, "\n")))


def _lists(store: ObjectStore, keys: Sequence[str]) -> Iterator[pa.Array]:
    """The addresses in each file; raises IntegrityError for a missing or invalid list."""
    for key in keys:
        try:
            data = store.get(key)
        except ObjectNotFoundError as error:
            raise IntegrityError(
                f"{store.url}/{key} is missing, since something removed it: {_AGAIN}"
            ) from error
        try:
            yield _READERS[key.rpartition(".")[2]](data)
        # For data that it cannot decompress, Arrow raises OSError.
        except (pa.ArrowException, ValueError, KeyError, OSError) as error:
            raise IntegrityError(
                f"{store.url}/{key} is no list of addresses ({error}): {_AGAIN}"
            ) from error


def _column(data: bytes) -> pa.Array:
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    return _addresses(file.read(["address"]))


def _csv(data: bytes) -> pa.Array:
    # Arrow accepts a quote that is not closed before the end.
    if not data.endswith(b"\n") or data.count(b'"') % 2:
        raise ValueError("it does not end with a whole line")
    rows = pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(use_threads=False),
        pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pa_csv.ConvertOptions(column_types={"address": pa.string()}),
    )
    if rows.column_names != ["address"]:
        raise ValueError(f"its columns are {rows.column_names}")
    addresses = _addresses(rows)
    if pc.any(pc.equal(addresses, "")).as_py():
        raise ValueError("it has a row without an address")
    return addresses


def _addresses(rows: pa.Table) -> pa.Array:
    column = rows["address"].combine_chunks()
    column.validate(full=True)
    if column.null_count:
        raise ValueError("it has a row without an address")
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        raise ValueError(f"its column address is of the type {column.type}")
    return column.cast(pa.string())


def _lines(data: bytes) -> pa.Array:
    if data and not data.endswith(b"\n"):
        raise ValueError("it does not end with a whole line")
    return pa.array(data.decode().split("\n")[:-1], pa.string())


_READERS: Final[Mapping[str, Callable[[bytes], pa.Array]]] = {
    "txt": _lines,
    "csv": _csv,
    "parquet": _column,
}


def _placed(namespace: StorageNamespace, addresses: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Addresses relative to the namespace; and reasons for those outside of it, else null."""
    full = pc.match_substring_regex(addresses, f"^{_SCHEME.pattern}")
    found = addresses.filter(pc.invert(full)).to_pylist()
    reasons: list[str | None] = [None] * len(found)
    for address in addresses.filter(full).to_pylist():
        try:
            meant = namespace.relatives(address)
        except UnresolvableAddressError:
            found.append(address)
            reasons.append(_UNPLACED)
            continue
        found.append(_as_written(address, meant) if meant else address)
        reasons.append(None if meant else f"it is not below {namespace.url()}")
    return pa.array(found, pa.string()), pa.array(reasons, pa.string())


def _as_written(address: str, meant: AbstractSet[str]) -> str:
    """The relative key of a full address as written, without percent-decoding."""
    return min(meant, key=lambda one: (not address.endswith(one), -len(one), one))
