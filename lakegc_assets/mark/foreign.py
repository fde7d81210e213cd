"""Marks that lakeFS's own collectors left in the namespace: where they are, and whether finished.

The unified collector writes ``unified/<id>/``, the two before it ``uncommitted/<id>/`` and
``addresses/mark_id=<id>/``, and the first of all ``addresses/run_id=<id>/``: lists of addresses in
Parquet, and the same in text beside them. The standalone collector writes one list,
``reports/<id>/deleted.csv`` (one column, ``address``), in whose place its first versions had a
``deleted.parquet`` (lakeFS's page "Standalone Garbage Collection").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.mark.publication_layout import OURS
from lakegc_assets.run.settings import Publish
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

_GC: Final = "_lakefs/retention/gc/"


@dataclass(frozen=True)
class _Form:
    """The layout of the marks of one of lakeFS's collectors.

    Attributes:
        prefix: before an id, to choose this form by hand.
        lists: folder of its lists in Parquet.
        texts: folder of its lists in text; None for a collector that writes none.
        summary: key of what it writes last; None for collectors that wrote none.
        names: the list is the first of these in its folder; empty where lists are all files there.
    """

    prefix: str
    lists: str
    texts: str | None
    summary: str | None
    names: tuple[str, ...] = ()


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
    "standalone": _Form(
        "reports/",
        f"{_GC}reports/{{}}/",
        None,
        f"{_GC}reports/{{}}/summary.json",
        ("deleted.csv", "deleted.parquet"),
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
        lists: size in bytes of each of its lists in Parquet or CSV, by key.
        texts: of those in plain text.
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


def find_mark(store: ObjectStore, mark_id: str) -> ForeignMark:
    """The mark of this id that is finished, by its own account.

    Args:
        store: rooted at the namespace.
        mark_id: an id; with ``unified/``, ``uncommitted/``, ``reports/``, ``mark_id=`` or
            ``run_id=`` before it where several collectors used the same.

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
    # What this program writes in several forms is one mark.
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
    """The mark of a collector of lakeFS's that was begun last, of those that are finished.

    Args:
        store: rooted at the namespace.
        collector: ``unified`` for the one that runs on Spark, ``sgc`` for the standalone one.

    Returns:
        Its id, as ``find_mark`` takes it; None where there is none.

    Raises:
        IntegrityError: one is damaged.
    """
    form = _FORMS["unified" if collector == "unified" else "standalone"]
    folder = form.lists.partition("{}")[0]
    keys = [key for batch in store.list(folder) for key in batch["key"].to_pylist()]
    found: list[ForeignMark] = []
    for key in keys:
        mark_id = key.removeprefix(folder).partition("/")[0]
        if form.summary is None or key != form.summary.format(mark_id):
            continue
        # What did not finish, or failed, is none.
        with suppress(RefusedError):
            found.append(find_mark(store, f"{form.prefix}{mark_id}"))
    theirs = [mark for mark in found if not mark.ours]
    newest = max(theirs, key=lambda mark: mark.made, default=None)
    return None if newest is None else f"{form.prefix}{newest.id}"


#: Keys with size and time of writing.
_Files = Mapping[str, tuple[int, datetime]]


def _listed(store: ObjectStore, form: _Form, mark_id: str) -> tuple[_Files, _Files]:
    lists = form.lists.format(mark_id)
    if form.names:
        there = {
            row["key"]: (row["size"], row["last_modified"])
            for batch in store.list(lists)
            for row in batch.to_pylist()
        }
        keys = [f"{lists}{name}" for name in form.names if f"{lists}{name}" in there]
        return {key: there[key] for key in keys[:1]}, {}
    texts = {} if form.texts is None else _files(store, form.texts.format(mark_id), ".txt")
    return _files(store, lists, ".parquet"), texts


def _published(store: ObjectStore, mark_id: str) -> bool:
    """Return whether this program published a mark of this id, in whatever forms."""
    files = _files(store, _FORMS["unified"].lists.format(mark_id), ".parquet")
    return bool(files) and _are_ours(files)


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


def _mark_of(
    store: ObjectStore, mark_id: str, name: str, lists: _Files, texts: _Files
) -> ForeignMark:
    form, files = _FORMS[name], lists or texts
    folder = (form.lists if lists or form.texts is None else form.texts).format(mark_id)
    made = max(written for _, written in files.values())
    objects = None
    if form.summary:
        made, objects = _summary(store, form.summary.format(mark_id), mark_id)
    elif not _finished(store, folder, mark_id, made):
        raise RefusedError(
            f"mark {mark_id!r} did not finish: {store.url}/{folder} has neither {mark_id}.meta nor "
            "a _SUCCESS that is younger than its lists"
        )
    return ForeignMark(
        mark_id,
        name,
        f"{store.url}/{folder}",
        made,
        objects,
        {key: size for key, (size, _) in lists.items()},
        {key: size for key, (size, _) in texts.items()},
        _published(store, mark_id)
        if name == "standalone"
        else _are_ours(files) and not store.exists(f"{folder}_SUCCESS"),
    )


def _are_ours(files: _Files) -> bool:
    return all(map(OURS.fullmatch, files))


def _summary(store: ObjectStore, key: str, mark_id: str) -> tuple[datetime, int]:
    """Start time of a mark, and the number of objects that it names.

    Raises:
        RefusedError: it did not finish, or failed.
        IntegrityError: its summary is damaged.
    """
    where = f"{store.url}/{key}"
    try:
        values: dict[str, Any] = json.loads(store.get(key))
        success, objects = values["success"], values["num_deleted_objects"]
        # lakeFS tells nanoseconds.
        begun = re.sub(r"(\.\d{6})\d+", r"\1", values["start_time"]).replace("Z", "+00:00")
        made = datetime.fromisoformat(begun)
        if values["run_id"] != mark_id or type(objects) is not int or made.tzinfo is None:
            raise ValueError(values)  # noqa: TRY301 - it is damage
    except ObjectNotFoundError as error:
        raise RefusedError(f"mark {mark_id!r} did not finish: there is no {where}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{where} is damaged, or of another mark: {error}") from error
    if success is not True:
        raise RefusedError(f"mark {mark_id!r} failed: {where} says so")
    return made, objects


def _finished(store: ObjectStore, folder: str, mark_id: str, written: datetime) -> bool:
    """True if a collector without summaries came to its end: to what it, or Spark, writes last."""
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
