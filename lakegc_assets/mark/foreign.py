"""Marks that lakeFS's own collectors left in the namespace: found, proven whole, and read.

The unified collector writes ``unified/<id>/``, the two before it ``uncommitted/<id>/`` and
``addresses/mark_id=<id>/``, and the first of all ``addresses/run_id=<id>/``: lists of addresses in
Parquet, and the same in text beside them. What such a list says is never believed about an object;
but it must be whole, or a difference would say nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.mark.served import SPARED
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, KeyDigest, address_hashes, key_digest
from lakegc_assets.run.parts import Part, PartWriter, read_part, write_part
from lakegc_assets.run.sets import members_of, union, write_set
from lakegc_assets.run.tasks import spread
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

_GC: Final = "_lakefs/retention/gc/"
ADDRESSES: Final = pa.schema([pa.field("address", pa.string(), nullable=False)])
#: Work on one core, in seconds, to read a file, and a byte of it.
_FILE_S: Final = 0.02
_BYTE_S: Final = 2e-8
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Our own files; Spark's have a UUID in their names.
_OURS: Final = re.compile(r"part-\d{5,}\.(?:snappy\.parquet|txt)")
_UNPLACED: Final = "it is a full address, and nobody can tell which object it names"


@dataclass(frozen=True)
class _Form:
    """Where one of lakeFS's collectors wrote its marks.

    Attributes:
        prefix: before an id, to choose this form by hand.
        lists: folder of its lists in Parquet.
        texts: folder of its lists in text.
        summary: key of what it writes last; None for collectors that wrote none.
    """

    prefix: str
    lists: str
    texts: str
    summary: str | None


_FORMS: Final = {
    "unified": _Form(
        "unified/",
        f"{_GC}unified/{{}}/deleted/",
        f"{_GC}unified/{{}}/deleted.text/",
        f"{_GC}unified/{{}}/summary.json",
    ),
    "uncommitted": _Form(
        "uncommitted/",
        f"{_GC}uncommitted/{{}}/deleted/",
        f"{_GC}uncommitted/{{}}/deleted.text/",
        f"{_GC}uncommitted/{{}}/summary.json",
    ),
    "committed": _Form(
        "mark_id=", f"{_GC}addresses/mark_id={{}}/", f"{_GC}addresses.text/mark_id={{}}/", None
    ),
    "committed, before 0.4.0": _Form(
        "run_id=", f"{_GC}addresses/run_id={{}}/", f"{_GC}addresses.text/run_id={{}}/", None
    ),
}


@dataclass(frozen=True)
class ForeignMark:
    """A mark of lakeFS's, which says of itself that it is finished.

    Attributes:
        id: its mark id.
        form: which collector wrote it.
        url: of the folder of its lists.
        made: when it was begun, as its summary says; else when its last list was written.
        objects: how many it names by its summary; None without one.
        lists: size in bytes of each of its lists in Parquet, by key.
        texts: of those in text.
        ours: whether its files are of a mark of this program.
    """

    id: str
    form: str
    url: str
    made: datetime
    objects: int | None
    lists: Mapping[str, int]
    texts: Mapping[str, int]
    ours: bool


@dataclass(frozen=True)
class Named:
    """The objects that a list names, each once.

    Attributes:
        url: of the store of all files.
        parts: addresses relative to the namespace (``ADDRESSES``).
        hashes: runs of their hashes.
        elsewhere: what cannot be an object of the namespace, as it stands, and why (``SPARED``).
        objects: how many there are, those elsewhere included.
    """

    url: str
    parts: Sequence[Part]
    hashes: Sequence[Part]
    elsewhere: Sequence[Part]
    objects: int


# Finding


def find_mark(store: ObjectStore, mark_id: str) -> ForeignMark:
    """The mark of this id that is finished, by its own account.

    Args:
        store: rooted at the namespace.
        mark_id: an id; with ``unified/``, ``uncommitted/``, ``mark_id=`` or ``run_id=`` before it
            where several collectors used the same.

    Raises:
        ConfigurationError: it cannot be an id.
        RefusedError: there is no such mark, or it did not finish, or there are several.
        IntegrityError: it is damaged.
    """
    chosen = [name for name, form in _FORMS.items() if mark_id.startswith(form.prefix)]
    plain = mark_id.removeprefix(_FORMS[chosen[0]].prefix) if chosen else mark_id
    if not plain.isprintable() or "/" in plain or plain in {"", ".", ".."}:
        raise ConfigurationError(f"{mark_id!r} cannot be a mark id of lakeFS's collector")
    listed = {name: _listed(store, _FORMS[name], plain) for name in chosen or _FORMS}
    # Lists in text alone are a copy for people where the mark itself is elsewhere.
    found = [name for name, (lists, _) in listed.items() if lists]
    found = found or [name for name, (_, texts) in listed.items() if texts]
    if not found:
        raise _nothing_found(store, plain, list(listed))
    if len(found) > 1:
        names = " or ".join(f"{_FORMS[name].prefix}{plain}" for name in found)
        raise RefusedError(
            f"{store.url} has marks of several collectors with the id {plain!r}: name one of them, "
            f"{names}"
        )
    lists, texts = listed[found[0]]
    return _told(store, plain, found[0], lists, texts)


#: Keys with size and time of writing.
_Files = Mapping[str, tuple[int, datetime]]


def _listed(store: ObjectStore, form: _Form, mark_id: str) -> tuple[_Files, _Files]:
    lists, texts = form.lists.format(mark_id), form.texts.format(mark_id)
    return _files(store, lists, ".parquet"), _files(store, texts, ".txt")


def _files(store: ObjectStore, folder: str, ending: str) -> _Files:
    """The lists in a folder; what Spark itself does not read as data is none."""
    found: dict[str, tuple[int, datetime]] = {}
    for batch in store.list(folder):
        for row in batch.to_pylist():
            names = row["key"].removeprefix(folder).split("/")
            if row["key"] == folder or any(name.startswith(("_", ".")) for name in names):
                continue
            if not row["key"].endswith(ending):
                raise IntegrityError(
                    f"{store.url}/{row['key']} is no list of addresses that can be read here, so "
                    "the mark is not known in full"
                )
            found[row["key"]] = row["size"], row["last_modified"]
    return found


def _nothing_found(store: ObjectStore, mark_id: str, forms: Sequence[str]) -> RefusedError:
    keys = (s.format(mark_id) for name in forms if (s := _FORMS[name].summary))
    for key in keys:
        if store.exists(key):
            return RefusedError(f"{store.url}/{key} is there, but no list of addresses beside it")
    folders = ", ".join(_FORMS[name].lists.format(mark_id) for name in forms)
    return RefusedError(f"there is no mark {mark_id!r} in {store.url}: {folders} hold no list")


def _told(store: ObjectStore, mark_id: str, name: str, lists: _Files, texts: _Files) -> ForeignMark:
    form, files = _FORMS[name], lists or texts
    folder = (form.lists if lists else form.texts).format(mark_id)
    made = max(written for _, written in files.values())
    objects = None
    if form.summary:
        made, objects = _summary(store, form.summary.format(mark_id), mark_id)
    elif not _finished(store, folder, mark_id, made):
        raise RefusedError(
            f"mark {mark_id!r} did not finish: {store.url}/{folder} has neither {mark_id}.meta nor "
            "a _SUCCESS that is younger than its lists"
        )
    ours = all(_OURS.fullmatch(key.rpartition("/")[2]) for key in files)
    return ForeignMark(
        mark_id,
        name,
        f"{store.url}/{folder}",
        made,
        objects,
        {key: size for key, (size, _) in lists.items()},
        {key: size for key, (size, _) in texts.items()},
        ours and not store.exists(f"{folder}_SUCCESS"),
    )


def _summary(store: ObjectStore, key: str, mark_id: str) -> tuple[datetime, int]:
    """When a mark was begun, and how many objects it names.

    Raises:
        RefusedError: it did not finish, or failed.
        IntegrityError: its summary is damaged.
    """
    where = f"{store.url}/{key}"
    try:
        told: dict[str, Any] = json.loads(store.get(key))
        success, objects = told["success"], told["num_deleted_objects"]
        # lakeFS tells nanoseconds.
        begun = re.sub(r"(\.\d{6})\d+", r"\1", told["start_time"]).replace("Z", "+00:00")
        made = datetime.fromisoformat(begun)
        if told["run_id"] != mark_id or type(objects) is not int or made.tzinfo is None:
            raise ValueError(told)  # noqa: TRY301 - it is damage
    except ObjectNotFoundError as error:
        raise RefusedError(f"mark {mark_id!r} did not finish: there is no {where}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{where} is damaged, or of another mark: {error}") from error
    if success is not True:
        raise RefusedError(f"mark {mark_id!r} failed: {where} says so")
    return made, objects


def _finished(store: ObjectStore, folder: str, mark_id: str, written: datetime) -> bool:
    """Whether a collector without summaries came to its end: to what it, or Spark, writes last."""
    meta = f"{_GC}addresses/{mark_id}.meta/"
    for batch in store.list(meta):
        for key, size in zip(batch["key"].to_pylist(), batch["size"].to_pylist(), strict=True):
            if key.endswith(".json") and size:
                return True
    above = folder.rstrip("/").rpartition("/")[0]
    for key in (f"{folder}_SUCCESS", f"{above}/_SUCCESS"):
        try:
            if store.head(key).last_modified >= written:
                return True
        except ObjectNotFoundError:
            continue
    return False


# Reading


def read_mark(
    ctx: RunContext, connections: Connections, mark: ForeignMark, url: str, folder: str
) -> Named:
    """Read the lists of a mark.

    Args:
        ctx: the run.
        connections: how tasks reach the stores.
        mark: to read.
        url: of the store to write to.
        folder: relative to it, with a slash at its end.

    Raises:
        IntegrityError: a list is missing, damaged, or not of the length that the summary says, or
            the lists in text name other objects than those in Parquet.
    """
    read = partial(_read, ctx, connections, url, folder)
    found = read(mark.lists or mark.texts)
    if mark.objects not in {None, found.rows}:
        raise IntegrityError(
            f"{mark.url} names {found.rows} objects, and the summary of mark {mark.id!r} says "
            f"{mark.objects}: it is not whole"
        )
    if mark.lists and mark.texts and read(mark.texts).lines != found.lines:
        raise IntegrityError(
            f"the lists of mark {mark.id!r} in text do not name what those in {mark.url} do: one "
            "of them is not whole"
        )
    store = connections.open(url)
    parts, hashes = _each_once(store, folder, found)
    elsewhere = sum(part.rows for part in found.elsewhere)
    return Named(
        url,
        parts,
        write_set(store, f"{folder}hashes/", [hashes]),
        found.elsewhere,
        sum(part.rows for part in parts) + elsewhere,
    )


@dataclass(frozen=True)
class _Read:
    """What some lists hold.

    Attributes:
        parts: addresses inside the namespace, in each part once.
        hashes: of these, for each part.
        elsewhere: what is not inside it, and why.
        rows: how many lines or rows there were.
        lines: digest of the addresses as they stand, split at line breaks as lists in text are.
    """

    parts: Sequence[Part] = ()
    hashes: Sequence[Hashes] = ()
    elsewhere: Sequence[Part] = ()
    rows: int = 0
    lines: KeyDigest = field(default_factory=KeyDigest)

    def __add__(self, other: _Read) -> _Read:
        return _Read(
            [*self.parts, *other.parts],
            [*self.hashes, *other.hashes],
            [*self.elsewhere, *other.elsewhere],
            self.rows + other.rows,
            self.lines + other.lines,
        )


def _read(
    ctx: RunContext, connections: Connections, url: str, folder: str, files: Mapping[str, int]
) -> _Read:
    costs = [_FILE_S + size * _BYTE_S for size in files.values()]
    groups = spread(list(files), costs, ctx.settings.address_num_partitions)
    task = partial(_read_files, connections, url, folder)
    found = ctx.tasks.run("read a mark of lakeFS's collector", task, groups, sum(costs))
    return sum(found, _Read())


def _read_files(connections: Connections, url: str, folder: str, keys: Sequence[str]) -> _Read:
    store, namespace = connections.store(), connections.namespace()
    writer = PartWriter(connections.open(url), f"{folder}named/", ADDRESSES)
    outside = PartWriter(connections.open(url), f"{folder}elsewhere/", SPARED)
    rows, lines = 0, KeyDigest()
    for addresses in _lists(store, keys):
        rows += len(addresses)
        lines += key_digest(pc.list_flatten(pc.split_pattern(addresses, "\n")))
        inside, elsewhere = _placed(namespace, addresses)
        writer.add(pa.table([inside], schema=ADDRESSES))
        outside.add(elsewhere)
    artifacts = connections.open(url)
    parts = _unique(artifacts, folder, writer.finish())
    hashes = [address_hashes(read_part(artifacts, part)["address"]) for part in parts]
    return _Read(parts, hashes, [part for part in outside.finish() if part.rows], rows, lines)


def _lists(store: ObjectStore, keys: Sequence[str]) -> Iterator[pa.Array]:
    """The addresses in each of some files.

    Raises:
        IntegrityError: one is missing, or no list.
    """
    for key in keys:
        try:
            data = store.get(key)
            yield _lines(data) if key.endswith(".txt") else _column(data)
        except ObjectNotFoundError as error:
            raise IntegrityError(f"{store.url}/{key} is missing: something removed it") from error
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise IntegrityError(f"{store.url}/{key} is no list of addresses: {error}") from error


def _column(data: bytes) -> pa.Array:
    column = pq.ParquetFile(pa.BufferReader(data)).read()["address"].combine_chunks()
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


def _placed(namespace: StorageNamespace, addresses: pa.Array) -> tuple[pa.Array, pa.Table]:
    """Addresses relative to the namespace, and those that cannot be, with the reason."""
    full = pc.match_substring_regex(addresses, f"^{_SCHEME.pattern}")
    inside, outside = [], []
    for address in addresses.filter(full).to_pylist():
        try:
            meant = namespace.relatives(address)
        except UnresolvableAddressError:
            outside.append((address, _UNPLACED))
            continue
        if meant:
            inside.append(_as_written(address, meant))
        else:
            outside.append((address, f"it is not below {namespace.url()}"))
    relative = pa.concat_arrays([addresses.filter(pc.invert(full)), pa.array(inside, pa.string())])
    columns = list(zip(*outside, strict=True)) or [(), ()]
    arrays = [pa.array(column, pa.string()) for column in columns]
    return relative, pa.table(arrays, schema=SPARED)


def _as_written(address: str, meant: AbstractSet[str]) -> str:
    """Of what a full address may mean: the key as it stands, which is how lists have them."""
    return min(meant, key=lambda one: (not address.endswith(one), -len(one), one))


def _unique(store: ObjectStore, folder: str, parts: Sequence[Part]) -> list[Part]:
    """Parts without repetitions inside one of them, and without empty ones."""
    found = []
    for part in parts:
        rows = read_part(store, part)
        unique = pc.unique(rows["address"])
        if len(unique) < len(rows):
            part = write_part(store, f"{folder}named/", pa.table([unique], schema=ADDRESSES))  # noqa: PLW2901
        if part.rows:
            found.append(part)
    return found


def _each_once(store: ObjectStore, folder: str, found: _Read) -> tuple[list[Part], Hashes]:
    """Parts that have no address in common, and the hashes of all their addresses.

    An address that only has the hash of another one is left out: nobody deletes it then.
    """
    seen = union(found.hashes)
    if len(seen) == sum(len(hashes) for hashes in found.hashes):
        return list(found.parts), seen
    parts: list[Part] = []
    seen = np.empty(0, np.uint64)
    for part, hashes in zip(found.parts, found.hashes, strict=True):
        new = ~members_of([seen], hashes)
        rows = read_part(store, part).filter(pa.array(new))
        if rows.num_rows:
            parts.append(write_part(store, f"{folder}named/", rows))
        seen = union([seen, hashes])
    return parts, seen
