"""Verifies, with its own sums, that the rows of a ``storage_attribution`` add up to the mark."""

from __future__ import annotations

from collections import Counter

import pyarrow.compute as pc

from lakegc_assets.attribution.relations import GARBAGE, NOT_LISTED, UNEXPLAINED
from lakegc_assets.engine.datasets import read_parts
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.wording import counted


def problems(attempt: AttemptArtifacts, attribution: Manifest) -> list[str]:
    """One sentence for each sum that differs from the manifests of listing and candidates.

    The rows are read from their files and added up here, without the relations that made them.
    """
    objects: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    columns = ["class", "objects", "bytes"]
    for rows in read_parts(attempt.store(), attribution.parts["data"], columns):
        for name in rows["class"].unique().to_pylist():
            mine = rows.filter(pc.equal(rows["class"], name))
            objects[name] += pc.sum(mine["objects"]).as_py()
            sizes[name] += pc.sum(mine["bytes"]).as_py()
    listing, candidates = map(attempt.manifest, ("store_listing", "deletion_candidates"))
    reasons = candidates.facts["by_reason"].values()
    found = {
        "objects that are listed": (objects.total() - objects[NOT_LISTED], listing.rows),
        "bytes that are listed": (sizes.total() - sizes[NOT_LISTED], listing.facts["bytes"]),
        "candidates": (objects[GARBAGE], candidates.rows),
        "bytes of candidates": (sizes[GARBAGE], sum(one["bytes"] for one in reasons)),
    }
    sentences = [
        f"{what}: the classes have {ours:,}, and the mark has {theirs:,}"
        for what, (ours, theirs) in found.items()
        if ours != theirs
    ]
    if unexplained := objects[UNEXPLAINED]:
        sentences.append(
            f"{counted(unexplained, 'object')} that the mark keeps for no recorded reason"
        )
    return sentences
