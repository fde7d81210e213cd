"""The relations of the attribution in plain Python: what each of them is to give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def _grouped(rows: Iterable[Mapping[str, Any]], *by: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append({**row})
    return found


def _least(rows: Rows, name: str, of: Callable[..., Any] = min) -> Any:
    return of((row[name] for row in rows if row[name] is not None), default=None)


_PRINTS = ("print_0", "print_1")


def range_groups(ranges: Rows, pairs: Rows, commits: Rows, words: Sequence[str]) -> list[Row]:
    having = {row["metarange_id"]: row for row in commits}
    nobody = {word: int(word == "word_0") for word in words}

    def of_range(range_id: str) -> Row:
        mine = [having[p["metarange_id"]] for p in pairs if p["range_id"] == range_id
                and p["metarange_id"] in having]  # fmt: skip
        bits = {word: reduce(or_, (c[word] for c in mine), 0) for word in words}
        return {"oldest": _least(mine, "age_rank"), **(bits if mine else nobody)}

    return [{**row, **of_range(row["range_id"])} for row in ranges]


def numbered_folders(entries: Rows) -> list[Row]:
    folders = sorted({row["folder"] for row in entries if row["folder"] is not None})
    return [{"folder": one, "place": place} for place, one in enumerate(folders, start=1)]


def named_objects(entries: Rows, ranges: Rows, folders: Rows) -> list[Row]:
    of = {row["range_id"]: row for row in ranges}
    places = {row["folder"]: row["place"] for row in folders}
    named = [
        {**of[row["range_id"]], **row, "place": places.get(row["folder"])}
        for row in entries
        if row["range_id"] in of
    ]
    return [
        {
            "hash": key,
            "entry_size": _least(rows, "size", max),
            "place": _least(rows, "place"),
            "oldest": _least(rows, "oldest"),
            **{name: sum(row[name] for row in rows) for name in _PRINTS},
        }
        for (key,), rows in _grouped(named, "hash").items()
    ]


def with_unread(named: Rows, committed: Rows) -> list[Row]:
    unread = {row["hash"] for row in committed} - {row["hash"] for row in named}
    nothing = dict.fromkeys(("entry_size", "place", "oldest", *_PRINTS))
    added = ({"hash": one, **nothing} for one in unread)
    return [*({**row} for row in named), *added]


def needs(staged: Rows, referenced: Rows) -> list[Row]:
    found = {row["hash"]: 0 for row in referenced} | {row["hash"]: 1 for row in staged}
    return [{"hash": key, "is_staged": is_staged} for key, is_staged in found.items()]


def exceptions(spared: Rows, *sweeps: Rows) -> list[Row]:
    why = {k: _least(rows, "why") for (k,), rows in _grouped(spared, "address").items()}
    told = [row for rows in sweeps for row in rows]
    gone = {r["address"] for r in told if r["outcome"] in {"deleted", "already_missing"}}
    return [
        {"address": one, "spared_why": why.get(one), "is_swept": True if one in gone else None}
        for one in {*why, *gone}
    ]


def classified(
    listing: Rows,
    named: Rows,
    needs: Rows,
    garbage: Rows,
    exceptions: Rows,
    moments: Rows,
    otherwise: str,
) -> list[Row]:
    held = {row["hash"]: {**row, "object": row["hash"]} for row in named}
    of_entry = ("object", "place", "oldest", *_PRINTS)
    kinds = ("named by other repositories", "staged")
    needed = {row["hash"]: kinds[row["is_staged"]] for row in needs}
    dead = {(row["address"], row["hash"]): row["reason"] for row in garbage}
    why = {row["address"]: row["spared_why"] for row in exceptions}
    gone = {row["address"] for row in exceptions if row["is_swept"]}
    (moment,) = moments

    def age(modified: datetime) -> int:
        days = (1, 7, 30, 90, 180, 365, 730)
        return next((d for d in days if modified >= moment[f"since_{d}"]), -1)

    def size_class(size: int) -> int:
        limits = (2**10, 2**16, 2**20, 2**24, 2**27, 2**30, 2**34)
        return next((most for most in limits if size <= most), -1)

    def of(row: Mapping[str, Any]) -> Row:
        address, key = row["address"], row["hash"]
        reason = dead.get((address, key))
        name = (
            "swept since" if address in gone
            else "live and committed" if key in held
            else needed[key] if key in needed
            else "garbage" if reason is not None
            else "spared" if why.get(address) is not None
            else "lakeFS's own" if address == "dummy"
            else "unknown" if not row["in_place"]
            else "too young" if row["last_modified"] >= moment["cutoff"]
            else otherwise
        )  # fmt: skip
        because = {"garbage": reason, "spared": why.get(address)}.get(name)
        live = name == "live and committed"
        return {
            "class": name,
            "why": because,
            "size": row["size"],
            "also_needed": live and key in needed,
            "age": age(row["last_modified"]),
            "size_class": size_class(row["size"]),
            **{name: held[key][name] if live else None for name in of_entry},
        }

    def not_listed(row: Mapping[str, Any]) -> Row:
        return {
            "class": "not listed",
            "why": None,
            "size": row["entry_size"] or 0,
            "also_needed": False,
            "age": None,
            "size_class": size_class(row["entry_size"] or 0),
            **{name: row[name] for name in of_entry},
        }

    there = {row["hash"] for row in listing}
    return [*map(of, listing), *(not_listed(r) for key, r in held.items() if key not in there)]


_CELL = ("class", "why", "also_needed", "age", "size_class", "oldest")


def cells(objects: Rows) -> list[Row]:
    columns = (*_CELL, "place", *_PRINTS)
    return [
        {
            **dict(zip(columns, key, strict=True)),
            "object": _least(of, "object"),
            "objects": len(of),
            "bytes": _bytes(of, "size"),
        }
        for key, of in _grouped(objects, *columns).items()
    ]


def holding_ranges(entries: Rows, cells: Rows) -> list[Row]:
    printed = [row for row in cells if row["print_0"] is not None]
    return [
        {**dict(zip(_PRINTS, key, strict=True)), "range_id": entry["range_id"]}
        for key, some in _grouped(printed, *_PRINTS).items()
        for entry in entries
        if entry["hash"] == _least(some, "object")
    ]


def holders(holding: Rows, ranges: Rows, words: Sequence[str]) -> list[Row]:
    of = {row["range_id"]: row for row in ranges}
    found = []
    for key, some in _grouped(holding, *_PRINTS).items():
        held = [of[row["range_id"]] for row in some if row["range_id"] in of]
        united = ",".join(str(reduce(or_, (row[word] for row in held), 0)) for word in words)
        if held:
            found.append({**dict(zip(_PRINTS, key, strict=True)), "holders": united})
    return found


def with_holders(cells: Rows, holders: Rows, folders: Rows) -> list[Row]:
    of = {tuple(row[name] for name in _PRINTS): row["holders"] for row in holders}
    folder_at = {row["place"]: row["folder"] for row in folders}
    held = [
        {
            **row,
            "holders": of.get(tuple(row[name] for name in _PRINTS)),
            "folder": folder_at.get(row["place"]),
        }
        for row in cells
    ]
    return totals(held, [*_CELL, "folder", "holders"])


def _bytes(rows: Rows, name: str = "bytes") -> int:
    return sum(row[name] for row in rows)


def _added(rows: Iterable[Mapping[str, Any]], *by: str) -> list[Row]:
    return [
        {
            **dict(zip(by, key, strict=True)),
            "objects": _bytes(of, "objects"),
            "bytes": _bytes(of, "bytes"),
        }
        for key, of in _grouped(rows, *by).items()
    ]


def totals(found: Rows, by: Sequence[str]) -> list[Row]:
    return _added(found, *by)


def by_folder(found: Rows, depth: int) -> list[Row]:
    def cut(folder: str | None) -> str | None:
        if folder is None:
            return None
        return "".join(f"{part}/" for part in folder.split("/")[:-1][:depth])

    return _added([{**row, "folder": cut(row["folder"])} for row in found], "folder")


def commit_sizes(pairs: Rows, entries: Rows) -> list[Row]:
    of = {
        key: {"objects": len(rows), "bytes": _bytes(rows, "size")}
        for (key,), rows in _grouped(entries, "range_id").items()
    }
    held = [
        {"metarange_id": row["metarange_id"], **of[row["range_id"]]}
        for row in pairs
        if row["range_id"] in of
    ]
    return _added(held, "metarange_id")
