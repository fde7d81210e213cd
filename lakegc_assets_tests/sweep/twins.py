"""The relations of the sweep in plain Python: what each of them is to give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from lakegc_assets_tests.recovery.twins import Row, Rows, in_order, without

DONE = {"deleted", "already_missing", "spared", "locked", "put_back"}
GONE = {"deleted", "already_missing"}


def remaining(marked: Rows, ledger: Rows) -> list[Row]:
    return without(marked, [row for row in ledger if row["outcome"] in DONE])


def outcomes(ledger: Rows) -> list[Row]:
    def worth(row: Mapping[str, Any]) -> tuple[int, Any]:
        rank = {"put_back": 3, "deleted": 2}.get(row["outcome"], int(row["outcome"] in DONE))
        return rank, row["at"]

    best: dict[str, Mapping[str, Any]] = {}
    for row in ledger:
        known = best.get(row["address"])
        if known is None or worth(row) > worth(known):
            best[row["address"]] = row
    return in_order(list(best.values()))


def compared(ledger: Rows, marked: Rows) -> list[Row]:
    told, known = ({row["address"] for row in rows} for rows in (ledger, marked))
    strangers, untold = len(told - known), len(known - told)
    return [{"recorded": len(told), "strangers": strangers, "untold": untold}]


def totals(outcomes: Rows) -> list[Row]:
    groups: dict[tuple[str, bool, str | None], list[Mapping[str, Any]]] = defaultdict(list)
    for row in outcomes:
        space = row["detail"] if row["outcome"] == "deleted" else None
        groups[row["outcome"], row["version"] is not None, space].append(row)
    return [
        {
            "outcome": outcome,
            "kept": kept,
            "space": space,
            "objects": len(rows),
            "bytes": sum(row["size"] for row in rows),
            "first": min(row["at"] for row in rows),
        }
        for (outcome, kept, space), rows in groups.items()
    ]


def put_back(outcomes: Rows, most: int) -> list[Row]:
    back = in_order([row for row in outcomes if row["outcome"] == "put_back"])
    return [{"address": row["address"], "detail": row["detail"]} for row in back[:most]]


def thought_gone(outcomes: Rows, alive: Rows, missing: Rows) -> list[Row]:
    gone = {row["address"] for row in outcomes if row["outcome"] in GONE}
    gone -= {row["address"] for row in missing}
    return [{**row} for row in alive if row["certain"] and row["address"] in gone]


def backed_up(objects: Rows, held: Rows) -> list[Row]:
    wanted = {(row["address"], row["size"], row["etag"]) for row in objects}
    copies = [(row["address"], row["size"], row["etag"]) for row in held]
    return [{"objects": sum(copy in wanted for copy in copies)}]


def not_backed_up(marked: Rows, held: Rows, told: Rows) -> list[Row]:
    whole = {(row["address"], row["size"], row["etag"]) for row in held}
    said = {row["address"]: row for row in told}

    def why(address: str) -> str:
        one = said.get(address, {"outcome": "no outcome is recorded", "error_code": None})
        copied = one["outcome"] == "copied"
        outcome = "the copy is gone or another" if copied else one["outcome"]
        return f"not in the backup: {outcome} {one['error_code'] or ''}".strip(" ")

    return [
        {"address": row["address"], "size": row["size"], "why": why(row["address"])}
        for row in marked
        if (row["address"], row["size"], row["etag"]) not in whole
    ]
