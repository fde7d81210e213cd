"""The relations of the attribution in plain Python: what each of them is to give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
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


def range_holders(ranges: Rows, pairs: Rows, commits: Rows, words: Sequence[str]) -> list[Row]:
    having = {row["metarange_id"]: row for row in commits}
    found = []
    for one in ranges:
        mine = [having[p["metarange_id"]] for p in pairs if p["range_id"] == one["range_id"]
                and p["metarange_id"] in having]  # fmt: skip
        bits = {word: reduce(or_, (c[word] for c in mine), 0) for word in words}
        bits = bits if mine else {word: int(word == "word_0") for word in words}
        found.append({"range_id": one["range_id"], "oldest": _least(mine, "age_rank"), **bits})
    return found


def object_holders(entries: Rows, ranges: Rows, words: Sequence[str]) -> list[Row]:
    of = {row["range_id"]: row for row in ranges}
    named = [{**row, **of[row["range_id"]]} for row in entries if row["range_id"] in of]
    return [
        {
            "hash": key,
            "entry_size": _least(rows, "size", max),
            "folder": _least(rows, "folder"),
            "oldest": _least(rows, "oldest"),
            "holders": ",".join(str(reduce(or_, (row[word] for row in rows))) for word in words),
        }
        for (key,), rows in _grouped(named, "hash").items()
    ]


def with_unread(holders: Rows, committed: Rows) -> list[Row]:
    unread = {row["hash"] for row in committed} - {row["hash"] for row in holders}
    nothing = dict.fromkeys(("entry_size", "folder", "oldest", "holders"))
    return [*({**row} for row in holders), *({"hash": one, **nothing} for one in unread)]


def classified(
    listing: Rows,
    holders: Rows,
    staged: Rows,
    referenced: Rows,
    garbage: Rows,
    spared: Rows,
    swept: Rows,
    cutoff: datetime,
    otherwise: str,
) -> list[Row]:
    held = {row["hash"]: row for row in holders}
    dead = {(row["address"], row["hash"]): row["reason"] for row in garbage}
    why = {k: _least(rows, "why") for (k,), rows in _grouped(spared, "address").items()}
    gone = {row["address"] for row in swept}
    on_branch, elsewhere = ({row["hash"] for row in rows} for rows in (staged, referenced))

    def of(row: Mapping[str, Any]) -> Row:
        address, key = row["address"], row["hash"]
        reason = dead.get((address, key))
        name = (
            "swept since" if address in gone
            else "live and committed" if key in held
            else "staged" if key in on_branch
            else "named by other repositories" if key in elsewhere
            else "garbage" if reason is not None
            else "spared" if why.get(address) is not None
            else "lakeFS's own" if address == "dummy"
            else "unknown" if not row["in_place"]
            else "too young" if row["last_modified"] >= cutoff
            else otherwise
        )  # fmt: skip
        because = {"garbage": reason, "spared": why.get(address)}.get(name)
        live = name == "live and committed"
        return {
            "class": name,
            "why": because,
            "size": row["size"],
            "last_modified": row["last_modified"],
            "also_needed": live and key in on_branch | elsewhere,
            **{n: held[key][n] if live else None for n in ("holders", "folder", "oldest")},
        }

    def not_listed(row: Mapping[str, Any]) -> Row:
        return {
            "class": "not listed",
            "why": None,
            "size": row["entry_size"] or 0,
            "last_modified": None,
            "also_needed": False,
            **{name: row[name] for name in ("holders", "folder", "oldest")},
        }

    there = {row["hash"] for row in listing}
    return [*map(of, listing), *(not_listed(r) for key, r in held.items() if key not in there)]


def gone(first: Rows, *others: Rows) -> list[Row]:
    told = [row for rows in (first, *others) for row in rows]
    missing = [row for row in told if row["outcome"] in {"deleted", "already_missing"}]
    return [{"address": row["address"]} for row in missing]


def cells(objects: Rows, start: datetime) -> list[Row]:
    def age(row: Mapping[str, Any]) -> int | None:
        if row["last_modified"] is None:
            return None
        days = (1, 7, 30, 90, 180, 365, 730)
        return next((d for d in days if row["last_modified"] >= start - timedelta(days=d)), -1)

    def size(row: Mapping[str, Any]) -> int:
        limits = (2**10, 2**16, 2**20, 2**24, 2**27, 2**30, 2**34)
        return next((most for most in limits if row["size"] <= most), -1)

    columns = ("class", "why", "holders", "also_needed", "folder", "age", "size_class", "oldest")
    rows = [{**row, "age": age(row), "size_class": size(row)} for row in objects]
    return [
        {**dict(zip(columns, key, strict=True)), "objects": len(of), "bytes": _bytes(of, "size")}
        for key, of in _grouped(rows, *columns).items()
    ]


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


def renamed(found: Rows, column: str, name: str) -> list[Row]:
    return [{name: row[column], **_added([row])[0]} for row in found]


def of_class(found: Rows, name: str) -> list[Row]:
    return [{**row} for row in found if row["class"] == name]


def by_folder(found: Rows, depth: int) -> list[Row]:
    def cut(folder: str | None) -> str | None:
        if folder is None:
            return None
        return "".join(f"{part}/" for part in folder.split("/")[:-1][:depth])

    return _added([{**row, "folder": cut(row["folder"])} for row in found], "folder")


def range_sizes(entries: Rows) -> list[Row]:
    return [
        {"range_id": key, "objects": len(rows), "bytes": _bytes(rows, "size")}
        for (key,), rows in _grouped(entries, "range_id").items()
    ]


def commit_sizes(pairs: Rows, sizes: Rows) -> list[Row]:
    of = {row["range_id"]: row for row in sizes}
    held = [
        {"metarange_id": row["metarange_id"], **of[row["range_id"]]}
        for row in pairs
        if row["range_id"] in of
    ]
    return _added(held, "metarange_id")
