"""Reads a sample of the chosen objects through lakeFS, before and after the restore.

The answers show that lakeFS reads a missing object again once it is restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.session import Dataset
from lakegc_assets.lakefs.errors import GoneError, LakeFSError
from lakegc_assets.lakefs.transport import LARGEST_ANSWER
from lakegc_assets.mark.holders import paths_in, ranges_naming
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.restore_record import RESTORED
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest

#: Number of objects in a sample.
MOST: Final = 20
_HELD: Final = pa.schema(
    [("address", pa.string()), ("size", pa.int64()), ("commit_id", pa.string())]
)
_ADDRESSES: Final = pa.schema([("address", pa.string())])


@dataclass(frozen=True)
class Sample:
    """An object that a commit names, and the answer of lakeFS before the restore.

    ``commit`` is the last commit that held the object, ``path`` its path there.
    """

    READS: ClassVar[str] = "reads"
    GONE: ClassVar[str] = "gone (410)"

    address: str
    commit: str
    path: str
    before: str


def choose_sample(space: Workspace, marked: Manifest, chosen: Dataset) -> list[Sample]:
    """Return the smallest chosen objects that a commit names, with lakeFS's answer now.

    An error is only logged, since it must not prevent the restore.

    ``marked``: manifest of ``deletion_candidates``.
    """
    ctx = space.ctx
    try:
        with space.frames() as frames:
            candidates = frames.read(space.dataset(marked.parts["data"], _HELD))
            rows = frames.read(chosen.select("address"))
            held = relations.smallest_held(candidates, rows, LARGEST_ANSWER, MOST)
            some = frames.collect(held, _HELD, "choose objects that are read")
        found = list(_places(ctx, space.attempt, some))
    except Exception as error:  # noqa: BLE001 - whatever it is, the objects can come back
        ctx.log.warning("no restored object is read through lakeFS as a sample: %s", error)
        return []
    return [
        Sample(address, commit, path, _answer(ctx, commit, path)) for address, commit, path in found
    ]


def _places(
    ctx: RunContext, attempt: AttemptArtifacts, some: pa.Table
) -> Iterator[tuple[str, str, str]]:
    """Yield address, commit and path of given objects."""
    commits = dict(zip(some["address"].to_pylist(), some["commit_id"].to_pylist(), strict=True))
    expired = attempt.read("active_commits", "expired", ["commit_id", "metarange_id"])
    expired = expired.filter(
        pc.is_in(expired["commit_id"], pa.array(sorted(set(commits.values())), pa.string()))
    )
    metaranges = dict(
        zip(expired["commit_id"].to_pylist(), expired["metarange_id"].to_pylist(), strict=True)
    )
    pairs = pairs_of(ctx, {m for m in metaranges.values() if m})
    names = [pairs[name].cast(pa.string()) for name in ("metarange_id", "range_id")]
    pairs = pa.table([*names, pairs["entries"]], names=pairs.column_names)
    for commit in sorted(metaranges):
        ranges = pairs.filter(pc.equal(pairs["metarange_id"], metaranges[commit]))
        wanted = [address for address, of in commits.items() if of == commit]
        paths: dict[str, str] = {}
        for one in ranges_naming(ctx, ranges.select(["range_id", "entries"]), wanted):
            paths |= paths_in(ctx.connections, one, wanted)
        yield from ((address, commit, path) for address, path in paths.items())


def read_sample(
    space: Workspace, sample: Sequence[Sample], outcomes: Dataset
) -> list[Mapping[str, Any]]:
    """Read the restored objects of a sample: address, commit, path, answers before and after.

    ``outcomes``: outcomes of the restore (``RESTORED``), one for each object.
    """
    if not sample:
        return []
    addresses = pa.table([[one.address for one in sample]], schema=_ADDRESSES)
    with space.frames() as frames:
        some = relations.chosen(frames.read(outcomes), frames.create(addresses))
        found = frames.collect(some, RESTORED, "look the sample up")
    restored = found.filter(pc.equal(found["outcome"], "restored"))["address"].to_pylist()
    wanted = {one.address: one for one in sample}
    return [
        asdict(one) | {"after": _answer(space.ctx, one.commit, one.path)}
        for address in restored
        if (one := wanted.get(address)) is not None
    ]


def _answer(ctx: RunContext, commit: str, path: str) -> str:
    try:
        ctx.client.get_object(ctx.repository, commit, path)
    except GoneError:
        return Sample.GONE
    except LakeFSError as error:
        return str(error)
    return Sample.READS
