"""The snapshot of a delta mark, from which tasks extend it."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, write_part
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.retain import NO_RETAIN, Retain
from lakegc_assets.retention.rules import Rules
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.delta_extension import Known

_COMMITS: Final = pa.schema(
    [
        ("commit_id", pa.string()),
        ("parents", pa.list_(pa.string())),
        ("creation_date", pa.int64()),
        ("metarange_id", pa.string()),
        ("version", pa.int64()),
        ("active", pa.bool_()),
        # The patterns of paths below which it keeps what it has.
        ("paths", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True)
class KnownFiles:
    """Files of the snapshot; keys are relative to the attempt.

    Attributes:
        commits: the commits, with which of them are active.
        heads: HEAD of each branch.
        ranges: ids of the ranges whose entries were looked at.
        rules: the retention rules, as JSON; None where there are none.
        now: the moment against which ages are taken.
        retain: rules that keep more than lakeFS's.
    """

    commits: Part
    heads: Part
    ranges: Part
    rules: str | None
    now: datetime
    retain: Retain = NO_RETAIN


def write_known(
    artifacts: ObjectStore, folder: str, known: Known, ranges: AbstractSet[str]
) -> KnownFiles:
    """Write what is known.

    Args:
        artifacts: the store rooted at the attempt.
        folder: relative to it, with a slash at its end.
        known: of the commits.
        ranges: ids of the ranges whose entries were looked at.
    """
    commits = list(known.commits.values())
    columns = [
        [commit.id for commit in commits],
        [list(commit.parents) for commit in commits],
        [commit.creation_date for commit in commits],
        [commit.metarange_id for commit in commits],
        [commit.version for commit in commits],
        [commit.id in known.active for commit in commits],
        [[name for name, kept in known.paths.items() if commit.id in kept] for commit in commits],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _COMMITS, strict=True)]
    names = list(known.heads)
    heads = {
        "branch": pa.array(names, pa.string()),
        "commit_id": pa.array([known.heads[name] for name in names], pa.string()),
    }
    range_ids = pa.table({"range_id": pa.array(sorted(ranges), pa.string())})
    return KnownFiles(
        commits=write_part(artifacts, folder, pa.Table.from_arrays(arrays, schema=_COMMITS)),
        heads=write_part(artifacts, folder, pa.table(heads)),
        ranges=write_part(artifacts, folder, range_ids),
        rules=None if known.rules is None else json.dumps(known.rules.to_json()),
        now=known.now,
        retain=known.retain,
    )


def read_known(artifacts: ObjectStore, files: KnownFiles) -> tuple[Known, AbstractSet[str]]:
    """Read the known commits, and the ranges whose entries were read.

    Raises:
        IntegrityError: a file is not what was written.
    """
    table = read_part(artifacts, files.commits)
    columns = (table[name].to_pylist() for name in _COMMITS.names[:5])
    commits = [
        Commit(commit, tuple(parents), date, metarange, version)
        for commit, parents, date, metarange, version in zip(*columns, strict=True)
    ]
    paths: dict[str, set[str]] = {pattern: set() for pattern in files.retain.paths}
    if paths:
        named = zip(table["commit_id"].to_pylist(), table["paths"].to_pylist(), strict=True)
        for commit_id, patterns in named:
            for pattern in patterns:
                paths[pattern].add(commit_id)
    heads = read_part(artifacts, files.heads)
    known = Known(
        rules=None if files.rules is None else Rules.parse(json.loads(files.rules)),
        now=files.now,
        heads=dict(zip(*(heads[n].to_pylist() for n in ("branch", "commit_id")), strict=True)),
        commits={commit.id: commit for commit in commits},
        # What a commit of these stays for in its metadata, it is active for already.
        active=set(table.filter(table["active"])["commit_id"].to_pylist()),
        retain=files.retain,
        paths=paths,
    )
    return known, set(read_part(artifacts, files.ranges)["range_id"].to_pylist())
