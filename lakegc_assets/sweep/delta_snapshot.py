"""The snapshot of a delta mark, from which tasks extend it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_values, write_values
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
_HEADS: Final = pa.schema([("branch", pa.string()), ("commit_id", pa.string())])
_RANGES: Final = pa.schema([("range_id", pa.string())])


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
    commits = [
        (
            *(commit.id, list(commit.parents), commit.creation_date, commit.metarange_id),
            *(commit.version, commit.id in known.active),
            [pattern for pattern, kept in known.paths.items() if commit.id in kept],
        )
        for commit in known.commits.values()
    ]
    return KnownFiles(
        commits=write_values(artifacts, folder, commits, _COMMITS),
        heads=write_values(artifacts, folder, list(known.heads.items()), _HEADS),
        ranges=write_values(artifacts, folder, [(one,) for one in sorted(ranges)], _RANGES),
        rules=None if known.rules is None else json.dumps(known.rules.to_json()),
        now=known.now,
        retain=known.retain,
    )


def read_known(artifacts: ObjectStore, files: KnownFiles) -> tuple[Known, AbstractSet[str]]:
    """Read the known commits, and the ranges whose entries were read.

    Raises:
        IntegrityError: a file is not what was written.
    """
    rows = read_values(artifacts, files.commits)
    paths: dict[str, set[str]] = {pattern: set() for pattern in files.retain.paths}
    for row in rows:
        for pattern in row["paths"]:
            paths[pattern].add(row["commit_id"])
    heads = read_values(artifacts, files.heads)
    known = Known(
        rules=None if files.rules is None else Rules.parse(json.loads(files.rules)),
        now=files.now,
        heads={row["branch"]: row["commit_id"] for row in heads},
        commits={row["commit_id"]: _commit(row) for row in rows},
        # What a commit of these stays for in its metadata, it is active for already.
        active={row["commit_id"] for row in rows if row["active"]},
        retain=files.retain,
        paths=paths,
    )
    return known, {row["range_id"] for row in read_values(artifacts, files.ranges)}


def _commit(row: Mapping[str, Any]) -> Commit:
    commit_id, parents, date, metarange, version = (row[name] for name in _COMMITS.names[:5])
    return Commit(commit_id, tuple(parents), date, metarange, version)
