"""The relations of backups and restores in plain Python: what each of them is to give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    return sorted(({**row} for row in rows), key=lambda row: row["address"].encode())


def addresses(*several: Rows) -> set[str]:
    return {row["address"] for rows in several for row in rows}


def newest(records: Rows) -> list[Row]:
    last: dict[str, Mapping[str, Any]] = {}
    for row in sorted(records, key=lambda row: row["at"]):
        last[row["address"]] = row
    return [{**row} for row in last.values()]


def verified(journal: Rows, marked: Rows, shown: Rows) -> list[Row]:
    named = {(row["address"], row["size"], row["etag"]) for row in marked}
    # An etag that nobody knows is like no other.
    told = (row for row in shown if row["copy_etag"] is not None)
    there = {(row["address"], row["size"], row["copy_etag"]) for row in told}
    return newest(
        [
            row
            for row in journal
            if row["outcome"] == "copied"
            and (row["address"], row["size"], row["etag"]) in named
            and (row["address"], row["size"], row["copy_etag"]) in there
        ]
    )


def without(marked: Rows, others: Rows) -> list[Row]:
    return in_order(row for row in marked if row["address"] not in addresses(others))


def lacking(rows: Rows, others: Rows) -> list[Row]:
    gone = addresses(rows) - addresses(others)
    return [{"objects": len(gone), "first": min(gone, key=str.encode, default=None)}]


def outcomes(copied: Rows, tried: Rows) -> list[Row]:
    others = newest([row for row in tried if row["outcome"] != "copied"])
    return in_order([*copied, *(o for o in others if o["address"] not in addresses(copied))])


def claimed(journal: Rows) -> list[Row]:
    return [{**row} for row in journal if row["outcome"] == "copied"]


def sizes(copied: Rows) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in copied:
        found.setdefault(row["address"], []).append(row["size"])
    return found


def held(copied: Rows, listed: Rows, *, finished: bool) -> list[Row]:
    recorded = {address: max(of) for address, of in sizes(copied).items()}
    shown = {row["address"]: row["size"] for row in listed}
    both = {**shown, **{a: size for a, size in recorded.items() if finished or a in shown}}
    return in_order({"address": address, "size": size} for address, size in both.items())


def with_recorded(needed: Rows, copied: Rows) -> list[Row]:
    of = sizes(copied)
    return in_order(
        {
            "address": row["address"],
            "why": row["why"],
            "recorded": max(of.get(row["address"], []), default=None),
        }
        for row in needed
    )


def each_once(found: Rows) -> list[Row]:
    return in_order(
        {"address": address, "size": of[0] if len(set(of)) == 1 else -1}
        for address, of in sizes(found).items()
    )


def chosen(marked: Rows, addresses: Rows) -> list[Row]:
    known = {row["address"] for row in addresses}
    return in_order(row for row in marked if row["address"] in known)


def lost_objects(chosen: Rows, swept: Rows, copies: Rows) -> list[Row]:
    versions = {row["address"]: row["version"] for row in swept}
    held = {(row["address"], row["etag"]): row["copy_etag"] for row in copies}
    return in_order(
        {
            **{name: row[name] for name in ("address", "size", "etag")},
            "version": versions.get(row["address"]),
            "copy_etag": held.get((row["address"], row["etag"])),
        }
        for row in chosen
    )


def same(row: Mapping[str, Any]) -> bool:
    return row["outcome"] == "already_there" and row["detail"] is None


def restored(ledger: Rows) -> list[Row]:
    best: dict[str, Mapping[str, Any]] = {}
    for row in sorted(ledger, key=lambda row: row["at"], reverse=True):
        rank = 0 if row["outcome"] == "restored" else 1 if same(row) else 2
        known = best.get(row["address"])
        if known is None or rank < known["rank"]:
            best[row["address"]] = {**row, "rank": rank}
    return in_order({k: v for k, v in row.items() if k != "rank"} for row in best.values())


def settled(outcomes: Rows) -> list[Row]:
    return in_order(row for row in outcomes if row["outcome"] == "restored" or same(row))


def totals(outcomes: Rows, another: str, archived: str) -> list[Row]:
    groups: dict[tuple[str, str | None, bool], list[int]] = {}
    for row in outcomes:
        key = row["outcome"], row["source"], (row["detail"] or "").startswith((another, archived))
        groups.setdefault(key, []).append(row["size"])
    names = ("outcome", "source", "noted")
    return [
        {**dict(zip(names, key, strict=True)), "objects": len(sizes), "bytes": sum(sizes)}
        for key, sizes in groups.items()
    ]


def examples(outcomes: Rows, outcome: str, begin: str, most: int) -> list[Row]:
    some = [row for row in outcomes if row["outcome"] == outcome]
    return in_order(row for row in some if (row["detail"] or "").startswith(begin))[:most]


def smallest_held(candidates: Rows, chosen: Rows, most_bytes: int, most: int) -> list[Row]:
    known = {row["address"] for row in chosen}
    held = [
        {name: row[name] for name in ("address", "size", "commit_id")}
        for row in candidates
        if row["commit_id"] is not None and row["size"] <= most_bytes and row["address"] in known
    ]
    return sorted(held, key=lambda row: (row["size"], row["address"].encode()))[:most]
