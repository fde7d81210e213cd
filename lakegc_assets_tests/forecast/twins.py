"""The relations of the forecast in plain Python: what each of them is to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

NEVER = FOREVER = 2**40
NOT_SEEN = "uploaded in parts, and not seen before the cutoff"


def spared_by_lakefs(spared: Rows) -> list[Row]:
    served = "lakeFS serves it", "more paths at branch HEADs look like it than may be asked"
    return [{**row} for row in spared if row["why"] in served]


def held_below(entries: Rows, ranges: Rows) -> list[Row]:
    return [
        {"hash": entry["hash"], "days": one["days"], "left": one["left"]}
        for entry in entries
        for one in ranges
        if one["range_id"] == entry["range_id"] and entry["folder"].startswith(one["prefix"])
    ]


def outlook(judged: Rows, entries: Rows, ranges: Rows, doubtful: Rows, *below: Rows) -> list[Row]:
    found = []
    for row in judged:
        ids = {one["range_id"] for one in entries if one["hash"] == row["hash"]}
        last_part = row["address"].rpartition("/")[2]
        holders = [one for one in ranges if one["range_id"] in ids]
        holders += [one for one in doubtful if one["last_part"] == last_part]
        holders += [one for some in below for one in some if one["hash"] == row["hash"]]
        days = min((one["days"] for one in holders), default=NEVER)
        left = max((one["left"] for one in holders), default=0)
        if row["why"] in (None, NOT_SEEN) and (days > 0 or left < FOREVER):
            known = {name: row[name] for name in ("address", "size", "last_modified")}
            found.append({**known, "days": days, "left": left, "unseen": row["why"] is not None})
    return found


def totals_by_days(outlook: Rows, cutoff: datetime) -> list[Row]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in outlook:
        if not row["unseen"] and row["last_modified"] < cutoff:
            found.setdefault(row["days"], []).append(row)
    return [
        {
            "days": days,
            "objects": len(rows),
            "bytes": sum(row["size"] for row in rows),
            "new_objects": sum(row["left"] > 0 for row in rows),
            "new_bytes": sum(row["size"] for row in rows if row["left"] > 0),
        }
        for days, rows in found.items()
    ]


def total_later(outlook: Rows, cutoff: datetime, days: int) -> list[Row]:
    sizes = [
        row["size"]
        for row in outlook
        if row["left"] <= days and row["last_modified"] < cutoff and (days or not row["unseen"])
    ]
    return [{"objects": len(sizes), "bytes": sum(sizes) if sizes else None}]
