"""The objects that a restore is about, with all that helps to bring them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.marked_objects import Candidates, digest_of, marked_in_order
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backups import Backup
from lakegc_assets.recovery.copies import COPIES, verified_copies
from lakegc_assets.recovery.restore.selection import Choice, select
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import LISTING, Manifest
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.records import RecordFiles
from lakegc_assets.sweep import relations as of_sweep
from lakegc_assets.sweep.ledger import ASSET, SWEPT
from lakegc_assets.sweep.lost_objects import LOST, other_backup, usable_backup

__all__ = ["LOST", "LostObjects", "find_objects"]

_VERSIONS: Final = pa.schema([SWEPT.field(name) for name in ("address", "version")])


@dataclass(frozen=True)
class LostObjects:
    """Objects that are to come back, whether they are gone or not.

    Attributes:
        chosen: as the mark has them.
        digest: of their addresses.
        parts: files of them with versions and copies (``LOST``), in the order of the addresses.
        backup: the backup that has the copies; None without one that can be used.
        problems: what is wrong with a backup, or with where it is looked for.
    """

    chosen: Candidates
    digest: KeyDigest
    parts: Sequence[Part]
    backup: Backup | None
    problems: Sequence[str]


def find_objects(
    client: LakeFSClient, space: Workspace, chain: Mapping[str, Manifest], choice: Choice
) -> LostObjects:
    """Find what is asked for, and from where it may come back.

    Args:
        client: of lakeFS.
        space: for the files.
        chain: the manifests of the mark.
        choice: what is asked for.

    Raises:
        RefusedError: the mark names nothing of what is asked for.
        IntegrityError: the mark is not what its manifests say.
        StorageError: a store did not answer.
    """
    ctx, connections, attempt = space.ctx, space.connections, space.attempt
    candidates, folder = chain["deletion_candidates"], f"{space.folder}marked/"
    marked = marked_in_order(ctx, connections, attempt, candidates, folder)
    chosen = select(client, space, marked, choice)
    copies: list[Part] = []

    def read(backup: Backup) -> None:
        finding = space.finding("copies", backup.store.url)
        copies.extend(verified_copies(ctx, finding, backup, listed=False))

    backup, problem = usable_backup(ctx, chain, read)
    # One that was moved is as good where it is now.
    elsewhere = "" if backup else other_backup(ctx, attempt)
    with space.frames() as frames:
        lost = relations.lost_objects(
            space.read(frames, chosen.parts, LISTING),
            space.read(frames, _versions(space), _VERSIONS),
            space.read(frames, copies, COPIES),
        )
        parts = space.write(frames, lost, "lost", LOST, "find versions and copies")
    digest = digest_of(ctx, connections, attempt.url, chosen.parts)
    return LostObjects(chosen, digest, parts, backup, [p for p in (problem, elsewhere) if p])


def _versions(space: Workspace) -> list[Part]:
    """Under which versions the store may have kept what a sweep deleted, each address once."""
    prefix = f"{ASSET}/ledger/"
    files = RecordFiles(space.connections, space.attempt.url, prefix, SWEPT, skip_damaged=False)
    try:
        ledger = files.gather(space.ctx.tasks, space.attempt.url, f"{space.folder}swept/")
        if not ledger:
            return []
        with space.frames() as frames:
            found = of_sweep.outcomes(space.read(frames, ledger, SWEPT))
            return space.write(frames, found, "versions", _VERSIONS, "find what was deleted")
    except (LakegcError, pa.ArrowException, ValueError, OSError):
        # It only says under which versions the store may have kept them: they are looked for.
        return []
