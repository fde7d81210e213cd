"""Finds the copies in a backup or the trash, and the objects that the store no longer holds.

Tasks find them as rows of files in a folder of the artifacts, so this process holds the names of
the files only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import IntegrityError
from lakegc_assets.mark.marked_objects import Stretch, read_stretches
from lakegc_assets.recovery import journal, relations
from lakegc_assets.recovery.backups import FOLDER, OUTCOMES, UNTRUSTED, Backup
from lakegc_assets.recovery.workspace import LACKING, Workspace
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.object_lookup import missing
from lakegc_assets.run.scratch import NEEDED, Folder
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.wording import counted

#: The columns of a copy in a listing of a backup.
SHOWN: Final = pa.schema([OUTCOMES.field(name) for name in ("address", "size", "copy_etag")])
#: A verified copy.
COPIES: Final = pa.schema(
    [OUTCOMES.field(name) for name in ("address", "size", "etag", "copy_etag")]
)
#: An object with a copy in a backup or in the trash.
OBJECTS: Final = pa.schema([("address", pa.string()), ("size", pa.int64())])
_OBJECT: Final = ("address", "size")
#: Seconds of one core to read the row of a copy, and to look up an object.
_ROW_S: Final = 2e-6
_LOOK_S: Final = 1e-5
#: Copies that are looked up by name after an empty listing.
_ASKED: Final = 100


def shown_copies(space: Workspace, backup: ObjectStore, objects: Dataset) -> Dataset:
    """List the copies of given objects, recorded or not (``SHOWN``).

    ``objects``: ordered by address.

    Raises:
        IntegrityError: a file is missing or changed.
    """
    task = partial(_shown_copies, space.below("shown"), backup.url)
    found = space.in_pieces("list the copies", task, objects, _ROW_S)
    return space.dataset(chain(*found), SHOWN)


def _shown_copies(folder: Folder, backup_url: str, piece: Sequence[Stretch]) -> list[Part]:
    addresses = read_stretches(folder.store(), piece, ["address"])["address"]
    return folder.write(SHOWN, _listed(folder.connections.open(backup_url), addresses))


def verified_copies(space: Workspace, backup: Backup, *, listed: bool) -> Dataset:
    """Return the copies of a finished backup, by its manifest (``COPIES``).

    ``listed``: only the copies that a listing shows now, unchanged.

    Raises:
        IntegrityError: a file of outcomes is missing or changed.
    """
    task = partial(_verified_copies, space.below("copies"), backup.store.url, listed=listed)
    found = space.in_pieces("read what the backup holds", task, backup.outcomes, _ROW_S)
    backup.require_digest(sum((digest for _, digest in found), KeyDigest()))
    return space.dataset(chain(*(parts for parts, _ in found)), COPIES)


def _verified_copies(
    folder: Folder, backup_url: str, piece: Sequence[Stretch], *, listed: bool
) -> tuple[list[Part], KeyDigest]:
    store = folder.connections.open(backup_url)
    try:
        rows = read_stretches(store, piece, [*COPIES.names, "outcome"])
    except IntegrityError as error:
        raise IntegrityError(
            f"the backup {store.url} is damaged: the files below {FOLDER} differ from its "
            f"manifest ({error}), so {UNTRUSTED}"
        ) from error
    copied = rows.filter(pc.equal(rows["outcome"], "copied")).select(COPIES.names)
    digest = key_digest(copied["address"])
    if listed and copied.num_rows:
        there = pa.concat_tables(_listed(store, copied["address"]))
        keys = ["address", "size", "copy_etag"]
        copied = copied.join(there, keys, join_type="left semi").select(COPIES.names)
    return folder.write(COPIES, [copied]), digest


def _listed(store: ObjectStore, addresses: pa.ChunkedArray) -> list[pa.Table]:
    """List the key range that covers given addresses, and return their rows (``SHOWN``)."""
    ordered = strings.in_order(pa.table([addresses], names=["address"]), "address")["address"]
    first, last = ordered[0].as_py(), ordered[-1].as_py()
    tables = [SHOWN.empty_table()]
    # ``start_after`` is exclusive. The extra keys share this prefix; the filter drops them.
    for page in store.list(start_after=first[:-1] or None, end_before=f"{last}\0"):
        rows = page.filter(strings.among(page["key"], addresses))
        tables.append(pa.table([rows["key"], rows["size"], rows["etag"]], schema=SHOWN))
    return tables


def scratch_space(ctx: RunContext) -> Workspace:
    """Return a new folder of the artifacts, to be used within ``with``."""
    folder = AttemptArtifacts(ctx.root, ctx.repository, NEEDED, secrets.token_hex(8))
    return Workspace(ctx, folder, "")


def recorded_copies(space: Workspace, found: Backup) -> Dataset:
    """Return the copies that a backup has recorded (``COPIES``); an address may occur twice.

    Raises IntegrityError: the backup is damaged.
    """
    if found.record.finished is not None:
        return verified_copies(space, found, listed=False)
    # Only the journal of an unfinished backup has them, and it may name an object twice.
    recorded = journal.gather(space, found.store)
    return space.derive("copied", COPIES, "find what was copied", relations.claimed, recorded)


def held_objects(space: Workspace, found: Backup) -> Dataset:
    """Return the objects that a backup can restore (``OBJECTS``).

    An unfinished backup has the copies that a listing shows, a finished one its recorded copies as
    well. An unrecorded copy counts: it may be the only copy.
    """
    finished = found.state == "finished"
    listed = space.write_tables("listed", OBJECTS, list_copies(found.store))
    try:
        copied = recorded_copies(space, found)
    except IntegrityError:
        if finished or listed.rows:
            raise
        # A prune removes the records only after all copies.
        return listed
    if not finished and not listed.rows:
        _require_gone(space, found.store, copied)
    held = _held(space, copied, listed, finished=finished)
    require_none_left_out(space, held, listed, *([copied] if finished else []))
    return held


def _held(space: Workspace, copied: Dataset, listed: Dataset, *, finished: bool) -> Dataset:
    held, inputs = partial(relations.held, finished=finished), (copied.select(*_OBJECT), listed)
    return space.derive("held", OBJECTS, "find what the backup holds", held, *inputs)


def require_none_left_out(space: Workspace, found: Dataset, *sources: Dataset) -> None:
    """Verify, by another kind of join, that the found rows have each address of the sources.

    Nobody would ask whether an object is needed whose rows the engine has lost.

    Raises:
        IntegrityError: the engine has lost rows.
    """
    for rows in sources:
        with space.frames() as frames:
            gone = relations.lacking(frames.read(rows), frames.read(found))
            (lost,) = frames.collect_rows(gone, LACKING, "look for objects that were left out")
        if lost["objects"]:
            objects = counted(lost["objects"], "object was", "objects were")
            raise space.ctx.lost_rows(f"{objects} left out, for example {lost['first']!r}")


def list_copies(store: ObjectStore) -> Iterator[pa.Table]:
    """Yield key and size of each copy in a backup: a prune also removes a copy this misses."""
    for page in store.list_to_the_end():
        rows = page.filter(pc.invert(pc.starts_with(page["key"], FOLDER)))
        yield pa.table([rows["key"], rows["size"]], schema=OBJECTS)


def _require_gone(space: Workspace, store: ObjectStore, copied: Dataset) -> None:
    """Look up a sample of recorded copies after an empty listing, which may have been wrong.

    Raises StorageError: a copy is there.
    """
    step = max(1, copied.rows // _ASKED)
    for rows in space.tables(copied.select("address")):
        for address in rows["address"].to_pylist()[::step]:
            if store.exists(address):
                raise StorageError(
                    f"a listing of {store.url} shows no copy, but {address!r} exists, so the "
                    "listing was wrong: prune again"
                )


def missing_objects(space: Workspace, objects: Dataset) -> Dataset:
    """Return the objects that the store lacks, or holds with another size, ordered by address.

    ``objects``: ``OBJECTS``, ordered by address, each address once.
    """
    task = partial(_missing, space.below("missing"))
    found = space.in_pieces("look objects up", task, objects, _LOOK_S)
    return space.dataset(chain(*found), OBJECTS)


def _missing(folder: Folder, piece: Sequence[Stretch]) -> list[Part]:
    rows = read_stretches(folder.store(), piece, OBJECTS.names)
    gone = missing(folder.connections.store(), rows, 1)
    return folder.write(OBJECTS, [rows.filter(strings.among(rows["address"], gone))])


def only_copies(space: Workspace, found: Backup) -> Dataset:
    """Return the objects of a backup that the store no longer holds (``OBJECTS``), ordered.

    Raises:
        IntegrityError: the backup is damaged.
        StorageError: a store did not answer.
    """
    copied = recorded_copies(space, found)
    return missing_objects(space, _held(space, copied, space.dataset((), OBJECTS), finished=True))
