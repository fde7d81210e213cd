"""The relations of holders and comparisons in plain Python: what they have to give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from lakegc_assets.mark.comparison_relations import COMMITTED, REFERENCED, STAGED, WHY

Row = Mapping[str, Any]
Rows = Sequence[Row]


def _hashes(rows: Rows) -> set[int]:
    return {row["hash"] for row in rows}


# Who holds objects


def last_holders(objects: Rows, entries: Rows, ranges: Rows, commits: Rows) -> list[dict[str, Any]]:
    ranks = {row["range_id"]: row["rank"] for row in ranges}
    of_rank = {row["rank"]: row for row in commits}
    asked = _hashes(objects)
    last: dict[int, int] = {}
    for entry in entries:
        if entry["range_id"] in ranks and entry["hash"] in asked:
            rank = ranks[entry["range_id"]]
            last[entry["hash"]] = max(rank, last.get(entry["hash"], rank))
    return [
        {"hash": hash_, **{n: of_rank[rank][n] for n in ("commit_id", "branch")}}
        for hash_, rank in last.items()
    ]


def with_holders(objects: Rows, holders: Rows) -> list[dict[str, Any]]:
    of = {row["hash"]: row for row in holders}
    return [
        {**row, **{name: of.get(row["hash"], {}).get(name) for name in ("commit_id", "branch")}}
        for row in objects
    ]


def with_reasons(dead: Rows, holders: Rows) -> list[dict[str, Any]]:
    held = sorted(with_holders(dead, holders), key=lambda row: str(row["address"]))
    return [{**row, "reason": "expired" if row["commit_id"] else "unreferenced"} for row in held]


def totals_by_reason(candidates: Rows) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in ("reason", "branch", "objects", "bytes")}
        for row in totals(candidates, ["reason", "branch"])
    ]


def held_by_expired(entries: Rows, active: Rows) -> list[dict[str, Any]]:
    a = {row["range_id"] for row in active}
    live = {row["hash"] for row in entries if row["range_id"] in a}
    found: dict[int, str] = {}
    for row in entries:
        if row["range_id"] not in a and row["hash"] not in live:
            found[row["hash"]] = min(row["range_id"], found.get(row["hash"], row["range_id"]))
    return [{"hash": hash_, "range_id": range_id} for hash_, range_id in found.items()]


def with_hashes(rows: Rows, objects: Rows) -> list[dict[str, Any]]:
    return [dict(row) for row in rows if row["hash"] in _hashes(objects)]


def ranges_of_held(held: Rows) -> list[dict[str, Any]]:
    return [{"range_id": range_id} for range_id in {row["range_id"] for row in held}]


def named_by_expired(named: Rows, held: Rows) -> list[dict[str, Any]]:
    only_b = {row["address"] for row in named if row["hash"] in _hashes(held)}
    return [{"address": address} for address in sorted(only_b)]


# Two marks


def each_once(named: Rows) -> list[dict[str, Any]]:
    found: dict[int, Row] = {}
    for row in named:
        known = found.get(row["hash"], row)
        found[row["hash"]] = min(known, row, key=lambda one: str(one["address"]))
    return [dict(row) for row in found.values()]


def as_named(candidates: Rows) -> list[dict[str, Any]]:
    return [{**row, "elsewhere": None} for row in candidates]


def by_list(candidates: Rows, named: Rows) -> list[dict[str, Any]]:
    return [{**row, "is_named": row["hash"] in _hashes(named)} for row in candidates]


def named(candidates: Rows) -> list[dict[str, Any]]:
    return [dict(row) for row in candidates if row["is_named"]]


def beside(first: Rows, second: Rows) -> list[dict[str, Any]]:
    one, other = ({row["hash"]: row for row in rows} for rows in (first, second))
    found = []
    for hash_ in one.keys() | other.keys():
        named_by = "both" if hash_ in one and hash_ in other else "first"
        named_by = "second" if hash_ not in one else named_by
        rows = [side[hash_] for side in (one, other) if hash_ in side]
        size = next((row["size"] for row in rows if row["size"] is not None), None)
        found.append({**rows[0], "size": size, "named_by": named_by})
    return found


def live_by_kind(committed: Rows, staged: Rows, referenced: Rows) -> list[dict[str, Any]]:
    kinds = ((COMMITTED, committed), (STAGED, staged), (REFERENCED, referenced))
    return [
        {"hash": row["hash"], "kind": kind, "turn": turn}
        for turn, (kind, rows) in enumerate(kinds)
        for row in rows
    ]


def survivors(
    named: Rows,
    candidates: Rows,
    listing: Rows,
    live: Rows,
    spared: Rows,
    skipped: Rows,
    cutoff: datetime,
    otherwise: str,
) -> list[dict[str, Any]]:
    there = {row["hash"]: row for row in listing}
    live_as = {row["hash"]: row for row in sorted(live, key=lambda row: -row["turn"])}
    whys = {row["address"]: row["why"] for row in sorted(spared, key=lambda r: r["why"])[::-1]}
    folders = {row["folder"] for row in skipped}

    def judge(row: Row) -> tuple[str, str]:
        found = there.get(row["hash"])
        if row["elsewhere"] is not None:
            return "elsewhere", row["elsewhere"]
        if not row["in_place"]:
            kind = "outside data"
        elif found and found["last_modified"] >= cutoff:
            kind = "too young"
        elif row["hash"] in live_as:
            kind = live_as[row["hash"]]["kind"]
        elif not found:
            kind = "too young" if _folder(row["address"]) in folders else "missing"
        elif row["address"] in whys:
            return "spared", whys[row["address"]]
        else:
            kind = otherwise
        return kind, WHY[kind]

    return [
        {
            "hash": row["hash"],
            "address": row["address"],
            "size": there[row["hash"]]["size"] if row["hash"] in there else None,
            **dict(zip(("kind", "why"), judge(row), strict=True)),
        }
        for row in named
        if row["hash"] not in _hashes(candidates)
    ]


def _folder(address: str) -> str:
    parts = address.split("/")
    return "/".join(parts[:2]) + "/" if len(parts) > 2 else ""


def of_kind(survivors: Rows, kind: str) -> list[dict[str, Any]]:
    return [dict(row) for row in survivors if row["kind"] == kind]


def not_of_kind(survivors: Rows, kind: str) -> list[dict[str, Any]]:
    return [dict(row) for row in survivors if row["kind"] != kind]


def only_in(compared: Rows, mark: str) -> list[dict[str, Any]]:
    return [dict(row) for row in compared if row["named_by"] == mark]


def with_survivors(objects: Rows, survivors: Rows) -> list[dict[str, Any]]:
    of = {row["hash"]: row for row in survivors}
    names = {"kind": "kind", "why": "why", "kept_size": "size"}
    names |= {"kept_commit": "commit_id", "kept_branch": "branch"}
    found = []
    for row in objects:
        because = of.get(row["hash"], {})
        size = because.get("size") if row["size"] is None else row["size"]
        found.append({**row, "size": size, **{n: because.get(k) for n, k in names.items()}})
    return found


def totals(objects: Rows, by: Collection[str]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[int | None]] = defaultdict(list)
    for row in objects:
        groups[tuple(row[name] for name in by)].append(row["size"])
    found = []
    for key, sizes in groups.items():
        known = [size for size in sizes if size is not None]
        counts = {
            "objects": len(sizes),
            "sized": len(known),
            "bytes": sum(known) if known else None,
        }
        found.append({**dict(zip(by, key, strict=True)), **counts})
    return found


def largest(objects: Rows, count: int) -> list[dict[str, Any]]:
    def place(row: Row) -> tuple[bool, int, str]:
        return row["size"] is None, -(row["size"] or 0), row["address"]

    return [dict(row) for row in sorted(objects, key=place)[:count]]
