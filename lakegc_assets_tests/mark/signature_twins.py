"""The relations of signature-alikes in plain Python: what each of them is to give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

SMALL = 65_536


def etag_evidence(entries: Rows, ranges: Rows, store: Sequence[Rows], _few: object) -> list[Row]:
    numbers = {row["range_id"]: row["number"] for row in ranges}
    listed = [(number, row) for number, rows in enumerate(store) for row in rows]
    pairs: dict[tuple[int, int | None], list[tuple[Any, Any]]] = {}
    for entry in entries:
        if entry["range_id"] not in numbers:
            continue
        beside = [(n, row) for n, row in listed if row["hash"] == entry["hash"]]
        nothing: list[tuple[Any, Any]] = [(None, None)]
        for number, row in beside or nothing:
            pairs.setdefault((numbers[entry["range_id"]], number), []).append((entry, row))
    found: list[Row] = []
    for (range_number, piece), some in pairs.items():
        compared = [(entry, row) for entry, row in some if row and entry["etag_hash"]]
        agree = [entry["etag_hash"] == row["etag_hash"] for entry, row in compared]
        small = [
            one["size"] <= SMALL for (one, _), same in zip(compared, agree, strict=True) if same
        ]
        found.append({
            "number": range_number,
            "piece": piece,
            "agree": int(all(agree)) if compared else None,
            "newest": max((row["last_modified"] for _, row in compared), default=None),
            "small_agree": int(any(small)),
            "sizes_agree": None if piece is None else int(
                all(entry["size"] == row["size"] for entry, row in some)
            ),
        })  # fmt: skip
    return found


def unclear_entries(entries: Rows, store: Rows) -> list[Row]:
    found: Counter[tuple[str, int, int]] = Counter()
    for entry in entries:
        listed = [row["size"] for row in store if row["hash"] == entry["hash"]]
        others = [size for size in listed or [None] if size != entry["size"]]
        if others:
            found[entry["range_id"], entry["size"], entry["etag_hash"]] += len(others)
    keys = ("range_id", "size", "etag_hash", "entries")
    return [dict(zip(keys, (*looks, count), strict=True)) for looks, count in found.items()]


def unclear_matches(unclear: Rows) -> list[Row]:
    found: Counter[str] = Counter()
    for row in unclear:
        found[row["range_id"]] += row["entries"]
    return [
        {"range_id": range_id, "size": ANY, "signature": ANY, "entries": count}
        for range_id, count in found.items()
    ]


ANY = 0x6E6F20657461670A
SERVED = "lakeFS serves it"
UNVERIFIED = "more paths at branch HEADs look like it than may be asked"


def _distinct(keys: tuple[str, ...], found: Any) -> list[Row]:
    return [dict(zip(keys, one, strict=True)) for one in dict.fromkeys(found)]


def possible_signatures(candidates: Rows, by_etag: bool) -> list[Row]:  # noqa: FBT001
    sizes = [(row["size"], ANY) for row in candidates]
    etags = [(row["size"], etag) for row in candidates for etag in (row["etag_hash"], 0)]
    return _distinct(("size", "signature"), sizes + etags if by_etag else sizes)


def matches(entries: Rows, signatures: Rows) -> list[Row]:
    wanted = {(row["size"], row["signature"]) for row in signatures}
    pairs = [(row, signature) for row in entries for signature in (row["etag_hash"], ANY)]
    found = Counter(
        (row["range_id"], row["size"], signature)
        for row, signature in pairs
        if (row["size"], signature) in wanted
    )
    keys = ("range_id", "size", "signature", "entries")
    return [dict(zip(keys, (*key, count), strict=True)) for key, count in found.items()]


def matches_in(known: Rows, ranges: Rows, signatures: Rows) -> list[Row]:
    ids = {row["range_id"] for row in ranges}
    wanted = {(row["size"], row["signature"]) for row in signatures}
    return [
        dict(row)
        for row in known
        if row["range_id"] in ids and (row["size"], row["signature"]) in wanted
    ]


def other_signatures(signatures: Rows, known: Rows) -> list[Row]:
    others = {(row["size"], row["signature"]) for row in known}
    found = [(row["size"], row["signature"]) for row in signatures]
    return _distinct(("size", "signature"), [one for one in found if one not in others])


def _comparable(row: Mapping[str, Any], until: datetime | None) -> bool:
    return until is not None and row["etag_hash"] != 0 and row["last_modified"] <= until


def signatures_of(
    candidates: Rows,
    until: datetime | None,
    contents: Rows,
    unclear: bool,  # noqa: FBT001
) -> list[Row]:
    read = {row["address"]: row["content"] for row in contents}
    found: list[Row] = []
    for row in candidates:
        signatures = [row["etag_hash"], 0] if _comparable(row, until) else [ANY]
        if row["address"] in read:
            signatures = [read[row["address"]], row["etag_hash"], 0]
        found += [
            {"address": row["address"], "size": row["size"], "signature": signature}
            for signature in signatures
        ]
        if unclear:
            found.append({"address": row["address"], "size": ANY, "signature": ANY})
    return found


def sample(candidates: Rows, most: int, newest: int, others: int) -> list[Row]:
    small = [row for row in candidates if row["etag_hash"] and row["size"] <= most]
    by_name = sorted(small, key=lambda row: row["address"].encode())
    last = sorted(by_name, key=lambda row: row["last_modified"], reverse=True)[:newest]
    rest = sorted(by_name, key=lambda row: row["hash"])[:others]
    keys = ("address", "size", "last_modified", "etag")
    return _distinct(keys, [tuple(row[key] for key in keys) for row in [*last, *rest]])


def doubtful_sizes(
    candidates: Rows, matches: Rows, ranges: Rows, until: datetime | None
) -> list[Row]:
    members = Counter(
        row["size"] for row in candidates if row["size"] <= SMALL and not _comparable(row, until)
    )
    held = [
        (row, of) for row in matches for of in ranges
        if row["signature"] == ANY and row["range_id"] == of["range_id"]
    ]  # fmt: skip
    return [
        {
            "size": size,
            "candidates": count,
            "paths": sum(r["entries"] * of["branches"] for r, of in mine),
            "pages": sum(min(r["entries"], of["pages"]) * of["branches"] for r, of in mine),
        }
        for size, count in members.items()
        if (mine := [(r, of) for r, of in held if r["size"] == size])
    ]


def to_read(candidates: Rows, sizes: Rows, until: datetime | None) -> list[Row]:
    found: list[Row] = []
    for of in sizes:
        mine = [r for r in candidates if r["size"] == of["size"] and not _comparable(r, until)]
        mine.sort(key=lambda row: row["address"].encode())
        found += [{"address": r["address"], "size": r["size"]} for r in mine[: of["most"]]]
    return found


def paths_of_signatures(matches: Rows, signatures: Rows, ranges: Rows) -> list[Row]:
    mine = {(row["size"], row["signature"]) for row in signatures}
    branches = {row["range_id"]: row["branches"] for row in ranges}
    found: Counter[tuple[int, int]] = Counter()
    for row in matches:
        if (row["size"], row["signature"]) in mine and row["range_id"] in branches:
            found[row["size"], row["signature"]] += row["entries"] * branches[row["range_id"]]
    return [
        {"size": size, "signature": signature, "paths": paths}
        for (size, signature), paths in found.items()
    ]


def signatures_by_paths(signatures: Rows, most: int, kinds: int) -> list[Row]:
    found = Counter(row["paths"] for row in signatures if row["paths"] <= most)
    return [{"paths": paths, "signatures": found[paths]} for paths in sorted(found)[:kinds]]


def asked_signatures(signatures: Rows, before: Rows, most: int, first: int) -> list[Row]:
    found: list[Row] = []
    for kind in before:
        mine = [row for row in signatures if row["paths"] == kind["paths"]]
        mine.sort(key=lambda row: (row["size"], row["signature"]))
        for number, row in enumerate(mine, 1):
            total = kind["before"] + number * row["paths"]
            turn = next(turn for turn in range(40) if total <= first * 2**turn)
            if total <= most:
                found.append({"size": row["size"], "signature": row["signature"], "turn": turn})
    return found


def ranges_with(matches: Rows, signatures: Rows) -> list[Row]:
    wanted = {(row["size"], row["signature"]) for row in signatures}
    held = [(row["range_id"],) for row in matches if (row["size"], row["signature"]) in wanted]
    return _distinct(("range_id",), held)


def sizes_of(candidates: Rows) -> list[Row]:
    return _distinct(("size",), [(row["size"],) for row in candidates])


def spared(candidates: Rows, served: Rows, signatures: Rows, doubtful: Rows) -> list[Row]:
    names = {row["name"] for row in served}
    unsure = {(row["size"], row["signature"]) for row in doubtful}
    found = {
        row["address"]: SERVED
        for row in candidates
        if row["address"] in names or row["address"].split("/")[-1] in names
    }
    for row in signatures:
        if (row["size"], row["signature"]) in unsure:
            found.setdefault(row["address"], UNVERIFIED)
    return [{"address": address, "why": why} for address, why in found.items()]


def etag_evidence_of_two(
    entries: Rows, ranges: Rows, first: Rows, second: Rows, few: object
) -> list[Row]:
    return etag_evidence(entries, ranges, [first, second], few)
