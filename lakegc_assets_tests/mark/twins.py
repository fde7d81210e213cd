"""The relations of the mark in plain Python: what each of them is to give."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

AMBIGUOUS = "a full address that cannot be resolved ends like it"
CONTROL = "its name has a line break or another control character"
UNVERIFIED = "more paths at branch HEADs look like it than may be asked"
SAME_HASH = "its hash is that of an address that another repository names"
NOT_SEEN = "uploaded in parts, and not seen before the cutoff"
TWICE = "the inventory report names it more than once"
UPLOADING = "named like a part of an upload, which may still go on"
OF_TABLE = "named like a file of an Iceberg table, which no entry has to name"
_TABLE_FILE = re.compile(
    r"\.metadata\.json(\.gz)?\Z|"
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/]*\.(avro|orc|parquet|puffin|stats)\Z"
)
_PART_NAME = re.compile(r"\.(multipart|part_[0-9]+(_[0-9]+)*)\Z|\A[0-9a-f]{32}-[0-9]{5,}\Z")
_IN_PARTS = re.compile("[0-9a-fA-F]{32}-[0-9]+")
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f-\x9f\ufffd-\uffff]")


def dead_hashes(store: Rows, committed: Rows, uncommitted: Rows, cutoff: datetime) -> list[Row]:
    live = {row["hash"] for row in (*committed, *uncommitted)}
    return [{"hash": row["hash"]} for row in _old(store, cutoff) if row["hash"] not in live]


def candidates(store: Rows, dead: Rows, cutoff: datetime) -> list[Row]:
    hashes = {row["hash"] for row in dead}
    return [row for row in _old(store, cutoff) if row["hash"] in hashes]


def still_live(
    objects: Rows,
    live: Sequence[Rows],
    unresolved: Sequence[Rows],
    named: Sequence[Rows],
    most: int,
) -> list[Row]:
    names = {row[key] for row in objects for key in ("hash", "address")}
    ends = {row["address"].rpartition("/")[2] for row in objects}
    found = [row["hash"] for rows in live for row in rows if row["hash"] in names]
    found += [row["last_part"] for rows in unresolved for row in rows if row["last_part"] in ends]
    found += [row["address"] for rows in named for row in rows if row["address"] in names]
    return [{"name": str(name)} for name in found][:most]


def _old(store: Rows, cutoff: datetime) -> list[Row]:
    return [{**row} for row in store if row["in_place"] and row["last_modified"] < cutoff]


def without_swept(store: Rows, swept: Sequence[Rows]) -> list[Row]:
    done = [row for rows in swept for row in rows]
    gone = {r["address"] for r in done if r["outcome"] in {"deleted", "already_missing"}}
    return [{**row} for row in store if row["address"] not in gone]


def judged(
    unreferenced: Rows,
    unresolved: Rows,
    seen: Sequence[Rows],
    pins: Rows,
    uploading_since: datetime,
    twice: Rows | None = None,
) -> list[Row]:
    doubled = {row["hash"] for row in twice or ()}
    doubtful = {row["last_part"] for row in unresolved}
    known = {(row["address"], row["etag"]) for rows in seen for row in rows}
    pinned = {row["address"]: row["why"] for row in pins}

    def why(row: Mapping[str, Any]) -> str | None:
        if row["hash"] in doubled:
            return TWICE
        if row["address"].rpartition("/")[2] in doubtful:
            return AMBIGUOUS
        if _UNNAMEABLE.search(row["address"]):
            return CONTROL
        if _IN_PARTS.fullmatch(row["etag"]) and (row["address"], row["etag"]) not in known:
            return NOT_SEEN
        return by_name(row) or pinned.get(row["address"])

    def by_name(row: Mapping[str, Any]) -> str | None:
        if _PART_NAME.search(row["address"]) and row["last_modified"] >= uploading_since:
            return UPLOADING
        return OF_TABLE if _TABLE_FILE.search(row["address"]) else None

    return [{**row, "why": why(row)} for row in unreferenced]


def not_spared(judged: Rows) -> list[Row]:
    return [{**row} for row in judged if row["why"] is None]


def spared(judged: Rows) -> list[Row]:
    found = {(row["address"], row["why"]) for row in judged if row["why"] is not None}
    return [{"address": address, "why": why} for address, why in found]


def without_spared(objects: Rows, spared: Rows) -> list[Row]:
    out = {row["address"] for row in spared}
    return [{**row} for row in objects if row["address"] not in out]


def listing_totals(store: Rows, cutoff: datetime) -> list[Row]:
    young = [row for row in store if row["in_place"] and row["last_modified"] >= cutoff]
    sizes = [row["size"] for row in store]
    return [
        {
            "listed": len(store),
            "listed_bytes": sum(sizes) if sizes else None,
            "outside_data": sum(not row["in_place"] for row in store) if sizes else None,
            "too_young": len(young) if sizes else None,
            "too_young_bytes": sum(row["size"] for row in young) if sizes else None,
        }
    ]


def counts_by_reason(rows: Rows) -> list[Row]:
    counts = Counter(row["why"] for row in rows)
    return [{"why": why, "objects": objects} for why, objects in counts.items()]


def duplicates(rows: Rows, most: int) -> list[Row]:
    counts = Counter(row["address"] for row in rows)
    return [{"address": address, "times": n} for address, n in counts.items() if n > 1][:most]


def listed_twice(candidates: Rows, spared: Rows, most: int) -> list[Row]:
    each = [{"address": address} for address in {row["address"] for row in spared}]
    return duplicates([*candidates, *each], most)


def named_twice(rows: Rows) -> list[Row]:
    times = Counter(row["hash"] for row in rows)
    return [{"hash": one} for one, count in times.items() if count > 1]


def lacked(rows: Rows, others: Rows, before: datetime) -> list[Row]:
    there = {row["address"] for row in others}
    found = [r for r in rows if r["last_modified"] < before and r["address"] not in there]
    example = min((row["address"] for row in found), key=str.encode, default=None)
    return [{"objects": len(found), "bytes": sum(r["size"] for r in found), "example": example}]


def in_order(marked: Rows) -> list[Row]:
    return sorted(({**row} for row in marked), key=lambda row: row["address"].encode())


def referenced(references: Rows) -> list[Row]:
    where = {"committed": "a commit", "staged": "what it has staged"}
    return [
        {
            "address": row["address"],
            "why": f"repository '{row['repository']}' names it by its full address, in "
            f"{where[row['held']]}",
        }
        for row in references
    ]


def came_back(
    marked: Rows,
    live: Sequence[tuple[Rows, str]],
    unresolved: Sequence[Rows],
    named: Sequence[Rows],
) -> list[Row]:
    whys: dict[str, set[str]] = defaultdict(set)
    sizes = {row["address"]: row["size"] for row in marked}
    for hashes, why in live:
        known = {row["hash"] for row in hashes}
        for row in marked:
            if row["hash"] in known:
                whys[row["address"]].add(why)
    ends = {row["last_part"] for rows in unresolved for row in rows}
    for address in sizes:
        if address.rpartition("/")[2] in ends:
            whys[address].add(AMBIGUOUS)
    for row in (row for rows in named for row in rows):
        if row["address"] in sizes:
            whys[row["address"]].add(row["why"])
    first = {
        address: min(some, key=lambda why: (_doubt(why), why)) for address, some in whys.items()
    }
    return [
        {"address": address, "size": sizes[address], "why": why, "certain": _doubt(why) < 2}
        for address, why in first.items()
    ]


def _doubt(why: str) -> int:
    if why in {AMBIGUOUS, UNVERIFIED} or why.startswith("pinned until "):
        return 2
    return int(why == SAME_HASH)


# Who holds objects


def hashes_of(rows: Rows) -> set[int]:
    return {row["hash"] for row in rows}


def last_holders(objects: Rows, entries: Rows, ranges: Rows, commits: Rows) -> list[Row]:
    ranks = {row["range_id"]: row["rank"] for row in ranges}
    of_rank = {row["rank"]: row for row in commits}
    asked = hashes_of(objects)
    last: dict[int, int] = {}
    for entry in entries:
        if entry["range_id"] in ranks and entry["hash"] in asked:
            rank = ranks[entry["range_id"]]
            last[entry["hash"]] = max(rank, last.get(entry["hash"], rank))
    return [
        {"hash": hash_, **{n: of_rank[rank][n] for n in ("commit_id", "branch")}}
        for hash_, rank in last.items()
    ]


def with_holders(objects: Rows, holders: Rows) -> list[Row]:
    of = {row["hash"]: row for row in holders}
    return [
        {**row, **{name: of.get(row["hash"], {}).get(name) for name in ("commit_id", "branch")}}
        for row in objects
    ]


def with_reasons(dead: Rows, holders: Rows) -> list[Row]:
    held = sorted(with_holders(dead, holders), key=lambda row: str(row["address"]))
    return [{**row, "reason": "expired" if row["commit_id"] else "unreferenced"} for row in held]


def held_by_expired(entries: Rows, active: Rows) -> list[Row]:
    a = {row["range_id"] for row in active}
    live = {row["hash"] for row in entries if row["range_id"] in a}
    found: dict[int, str] = {}
    for row in entries:
        if row["range_id"] not in a and row["hash"] not in live:
            found[row["hash"]] = min(row["range_id"], found.get(row["hash"], row["range_id"]))
    return [{"hash": hash_, "range_id": range_id} for hash_, range_id in found.items()]


def with_hashes(rows: Rows, objects: Rows) -> list[Row]:
    return [dict(row) for row in rows if row["hash"] in hashes_of(objects)]


def ranges_with_hashes(entries: Rows, objects: Rows) -> list[Row]:
    found = {row["range_id"] for row in with_hashes(entries, objects)}
    return [{"range_id": range_id} for range_id in sorted(found)]


def named_by_expired(named: Rows, held: Rows) -> list[Row]:
    only_b = {row["address"] for row in named if row["hash"] in hashes_of(held)}
    return [{"address": address} for address in sorted(only_b)]
