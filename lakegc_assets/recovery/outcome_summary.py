"""Counts and digests of the outcomes of a backup, file by file; those of several files add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.hashing import KeyDigest, key_digest


@dataclass(frozen=True)
class Summary:
    """Outcomes of marked objects.

    Attributes:
        all: digest of their addresses.
        copied: digest of the addresses of those that were copied.
        outcomes: objects and bytes by outcome.
        verified: copies by what was compared.
        denied: objects to which the store denied access.
        detail: of one object that was not copied; empty for none.
    """

    all: KeyDigest = field(default_factory=KeyDigest)
    copied: KeyDigest = field(default_factory=KeyDigest)
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    denied: int = 0
    detail: str = ""

    def __add__(self, other: Summary) -> Summary:
        """The summary of both."""
        names = {**self.outcomes, **other.outcomes}
        zero = {"objects": 0, "bytes": 0}
        return Summary(
            self.all + other.all,
            self.copied + other.copied,
            {
                name: {
                    of: self.outcomes.get(name, zero)[of] + other.outcomes.get(name, zero)[of]
                    for of in zero
                }
                for name in names
            },
            dict(Counter(self.verified) + Counter(other.verified)),
            self.denied + other.denied,
            self.detail or other.detail,
        )


def summarized(connections: Connections, url: str, part: Part) -> Summary:
    """The summary of one file of outcomes (``OUTCOMES``) in the store at ``url``.

    Raises:
        IntegrityError: it is missing or changed.
    """
    rows = read_part(connections.open(url), part)
    copied = rows.filter(pc.equal(rows["outcome"], "copied"))
    others = rows.filter(pc.invert(pc.equal(rows["outcome"], "copied")))
    totals = rows.group_by("outcome").aggregate([("size", "count"), ("size", "sum")])
    return Summary(
        key_digest(rows["address"]),
        key_digest(copied["address"]),
        {
            row["outcome"]: {"objects": row["size_count"], "bytes": row["size_sum"]}
            for row in totals.to_pylist()
        },
        {r["values"]: r["counts"] for r in pc.value_counts(copied["verified_by"]).to_pylist()},
        pc.sum(pc.equal(others["error_code"], "AccessDenied")).as_py() or 0,
        str(others["detail"][0].as_py()) if others.num_rows else "",
    )
