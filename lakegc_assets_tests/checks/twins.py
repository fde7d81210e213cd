"""The relations of the checks in plain Python, which is their specification."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Row]
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(moment: datetime) -> int:
    """Microseconds since 1970, as entries have them."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _is_before(entry: Row, before: datetime | None) -> bool:
    return before is None or entry["modified"] < micros(before)


def addresses_of(rows: Rows) -> set[str]:
    return {row["address"] for row in rows if row["address"] is not None}


def only(rows: Rows) -> list[Row]:
    """Their addresses alone."""
    return [{"address": row["address"]} for row in rows]


def each_once(rows: Rows) -> list[Row]:
    return [dict(pairs) for pairs in {tuple(sorted(row.items())): None for row in rows}]


def remaining(marked: Rows, done: Rows) -> list[Row]:
    gone = addresses_of(done)
    return [row for row in marked if row["address"] not in gone]


def outside(candidates: Rows) -> list[Row]:
    def wrong(address: str | None) -> bool:
        if not address or "://" in address or {".", ".."} & set(address.split("/")):
            return True
        if address.count("/") > (4 if address.startswith("data/!") else 2):
            return True
        return "/" in address and not (address.startswith("data/") and address != "data/")

    return only([row for row in candidates if wrong(row["address"])])


def special(candidates: Rows) -> list[Row]:
    def wrong(address: str) -> bool:
        *folders, name = address.split("/")
        own = address.startswith("_lakefs") or "_lakefs" in folders or name == "dummy"
        return own or "\n" in address or "\r" in address

    return only([row for row in candidates if row["address"] is not None and wrong(row["address"])])


def not_old(candidates: Rows, store: Rows, cutoff: datetime) -> list[Row]:
    young = {row["address"] for row in store if row["last_modified"] >= cutoff}
    old = addresses_of(store) - young
    return each_once(only([row for row in candidates if row["address"] not in old]))


def within(entries: Rows, spans: Rows) -> list[Row]:
    return only(
        [
            entry
            for entry in entries
            for span in spans
            if entry["range_id"] == span["range_id"]
            and span["first"] <= entry["number"] < span["behind"]
        ]
    )


def of_tags(entries: Rows, ranges: Rows, tags: Rows) -> list[Row]:
    return [
        {"name": tag["name"], "address": entry["address"]}
        for tag in tags
        for one in ranges
        for entry in entries
        if tag["commit_id"] == one["commit_id"] and entry["range_id"] == one["range_id"]
    ]


def named(addresses: Rows, check: str) -> list[Row]:
    return [
        {"check": check, "name": row.get("name"), "address": row["address"]} for row in addresses
    ]


def found(addresses: Rows, candidates: Rows) -> list[Row]:
    among = addresses_of(candidates)
    return each_once([row for row in addresses if row["address"] in among])


def counts(wrong: Rows) -> list[Row]:
    times = Counter((row["check"], row["name"]) for row in wrong)
    return [{"check": check, "name": name, "objects": n} for (check, name), n in times.items()]


def first(addresses: Rows, most: int) -> list[Row]:
    order = sorted(({**row} for row in addresses), key=lambda row: (row["address"] or "").encode())
    return sorted(order, key=lambda row: row["address"] is not None)[:most]


def expected(entries: Rows, before: datetime | None) -> list[Row]:
    old = [entry for entry in entries if _is_before(entry, before)]
    return only([entry for entry in old if entry["address"] is not None])


def outside_slices(addresses: Rows, unlisted: Rows) -> list[Row]:
    folders = {row["folder"] for row in unlisted}

    def is_in(address: str) -> bool:
        found = re.match("data/[^/]*/", address)
        return found is not None and found[0] in folders

    return [row for row in addresses if not is_in(row["address"])]


def unlike(entries: Rows, store: Rows, before: datetime | None) -> list[Row]:
    found: list[Row] = []
    for entry in entries:
        address = entry["address"]
        listed = [row["size"] for row in store if row["address"] == address and address is not None]
        due = _is_before(entry, before)
        others = [size for size in listed if size != entry["size"]]
        if address is not None and not listed and due:
            others = [None]
        found += [{"address": address, "listed": size} for size in others]
    return each_once(found)


def still_there(anew: Rows, carried: Rows, swept: Rows) -> list[Row]:
    gone = addresses_of([row for row in swept if row["outcome"] in {"deleted", "already_missing"}])
    kept = [*anew, *(row for row in carried if row["address"] not in gone)]
    return [{name: row[name] for name in ("address", "size")} for row in kept]


def distinct(addresses: Rows) -> list[Row]:
    return each_once(only(addresses))


def without(addresses: Rows, others: Rows) -> list[Row]:
    return distinct(remaining(addresses, others))


def deleted_before(addresses: Rows, known: Rows) -> list[Row]:
    runs: dict[str, str] = {}
    for row in known:
        if row["run"] is not None and row["address"] in addresses_of(addresses):
            runs[row["address"]] = max(row["run"], runs.get(row["address"], ""))
    return [{"address": address, "run": run} for address, run in runs.items()]


def sample(addresses: Rows, most: int) -> list[Row]:
    def mixed(row: Row) -> str:
        return hashlib.md5(row["address"].encode(), usedforsecurity=False).hexdigest()

    return sorted(only(addresses), key=mixed)[:most]


def total(addresses: Rows) -> list[Row]:
    return [{"objects": len(addresses)}]


def questions(
    entries: Rows,
    candidates: Rows,
    ranges: Rows,
    heads: Rows,
    lost: Sequence[Rows],
    confirming: Sequence[Rows],
) -> list[Row]:
    def alike(entry: Row, candidate: Row) -> bool:
        known = re.fullmatch("[0-9a-f]{32}", candidate["etag"]) and entry["etag"] is not None
        return entry["size"] == candidate["size"] and (
            not known or entry["etag"] == candidate["etag"]
        )

    def unclear(entry: Row, store: Rows) -> bool:
        looks = (entry["address"], entry["size"])
        listed = [(row["address"], row["size"]) for row in store]
        return entry["address"] is None or looks not in listed

    asked = {
        (entry["range_id"], head["branch"], entry["number"])
        for entry in entries
        if any(alike(entry, candidate) for candidate in candidates)
        or any(entry["address"] in addresses_of(missing) for missing in lost)
        or any(unclear(entry, store) for store in confirming)
        for held in ranges
        if held["range_id"] == entry["range_id"]
        for head in heads
        if head["commit_id"] == held["commit_id"]
    }
    return [{"range_id": r, "branch": b, "number": n} for r, b, n in sorted(asked)]
