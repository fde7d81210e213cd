"""The relations of look-alikes in plain Python: what each of them is to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

SMALL = 65_536


def etag_evidence(entries: Rows, store: Sequence[Rows]) -> list[Row]:
    listed = [(number, row) for number, rows in enumerate(store) for row in rows]
    pairs: dict[tuple[str, int | None], list[tuple[Any, Any]]] = {}
    for entry in entries:
        beside = [(n, row) for n, row in listed if row["hash"] == entry["hash"]]
        nothing: list[tuple[Any, Any]] = [(None, None)]
        for number, row in beside or nothing:
            pairs.setdefault((entry["range_id"], number), []).append((entry, row))
    found: list[Row] = []
    for (range_id, piece), some in pairs.items():
        compared = [(entry, row) for entry, row in some if row and entry["etag_hash"]]
        agree = [entry["etag_hash"] == row["etag_hash"] for entry, row in compared]
        small = [
            one["size"] <= SMALL for (one, _), same in zip(compared, agree, strict=True) if same
        ]
        found.append({
            "range_id": range_id,
            "piece": piece,
            "agree": int(all(agree)) if compared else None,
            "newest": max((row["last_modified"] for _, row in compared), default=None),
            "small_agree": int(any(small)),
        })  # fmt: skip
    return found
