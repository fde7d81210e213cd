"""The relations of comparisons in plain Python: what they have to give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from lakegc_assets.mark.comparison_relations import (
    COMMITTED,
    LACKED,
    REFERENCED,
    STAGED,
    WHY,
)
from lakegc_assets_tests.mark.twins import hashes_of

Row = Mapping[str, Any]
Rows = Sequence[Row]


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
    return [{**row, "is_named": row["hash"] in hashes_of(named)} for row in candidates]


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
    swept: Rows,
    cutoff: datetime,
    committed_why: str,
    missing: str,
    deleted_why: str,
    otherwise: str,
) -> list[dict[str, Any]]:
    there = {row["hash"]: row for row in listing}
    live_as = {row["hash"]: row for row in sorted(live, key=lambda row: -row["turn"])}
    whys = {row["address"]: row["why"] for row in sorted(spared, key=lambda r: r["why"])[::-1]}
    folders = {row["folder"] for row in skipped}
    sentences = {**WHY, COMMITTED: committed_why}
    deleted = {row["address"] for row in swept if row["outcome"] == "deleted"}

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
            known = found or _folder(row["address"]) in folders or missing != "missing"
            if kind in {COMMITTED, STAGED} and not known:
                return kind, sentences[kind] + LACKED
        elif not found:
            kind = "too young" if _folder(row["address"]) in folders else missing
            if kind == missing and row["address"] in deleted:
                return kind, deleted_why
        elif row["address"] in whys:
            return "spared", whys[row["address"]]
        else:
            kind = otherwise
        return kind, sentences[kind]

    return [
        {
            "hash": row["hash"],
            "address": row["address"],
            "size": there[row["hash"]]["size"] if row["hash"] in there else None,
            **dict(zip(("kind", "why"), judge(row), strict=True)),
        }
        for row in named
        if row["hash"] not in hashes_of(candidates)
    ]


def _folder(address: str) -> str:
    parts = address.split("/")
    return "/".join(parts[:2]) + "/" if len(parts) > 2 else ""


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
