"""Pins in the namespace: restored objects that must stay until a time.

The next mark would find restored objects dead again. So each restore first writes
``_lakefs/retention/gc/lakegc/pins/<id>.parquet`` with all of its addresses. No mark or sweep
takes a pinned object until the pin ends, by the store's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run import strings
from lakegc_assets.storage import parquet
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.storage.removal import PRUNE_AGAIN
from lakegc_assets.storage.values import require_removed

#: Folder of pins below the namespace; no mark names an object in it.
PINS: Final = "_lakefs/retention/gc/lakegc/pins/"
#: Prefix of the reason of an object that a pin spares.
PINNED: Final = "pinned until "
REASONS: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
_NOTHING: Final = REASONS.empty_table()
_SUFFIX: Final = ".parquet"
#: Pins that are read in parallel.
THREADS: Final = 8
#: Tries to read all pins, if one is removed meanwhile.
_TRIES: Final = 3


class _RemovedError(IntegrityError):
    """A listed pin was removed before it was read."""


@dataclass(frozen=True)
class Pin:
    """Objects that stay until a time."""

    #: The id of the restore, which is the name of the pin.
    id: str
    #: The end of the pin by the store's clock, UTC.
    until: datetime
    #: The run of the mark that named the objects.
    run: str
    why: str
    objects: int
    #: Key (relative to the namespace) and etag of a pin that was read.
    key: str = ""
    etag: str = ""

    @property
    def reason(self) -> str:
        """The reason why a pinned object stays."""
        return f"{PINNED}{self.until:%Y-%m-%d %H:%M} UTC: {self.why}"


def write_pin(store: ObjectStore, pin: Pin, addresses: pa.Array | pa.ChunkedArray) -> None:
    """Pin objects; replaces an earlier pin of the same id.

    ``addresses`` are relative to the namespace; key, etag and count of ``pin`` are ignored.

    Raises:
        StorageError: the write is not confirmed.
    """
    metadata = {"until": pin.until.isoformat(), "run": pin.run, "why": pin.why}
    table = pa.table({"address": addresses.cast(pa.string())}).replace_schema_metadata(metadata)
    store.put(f"{PINS}{pin.id}{_SUFFIX}", parquet.encode(table))


def read_pins(store: ObjectStore) -> list[tuple[Pin, pa.ChunkedArray]]:
    """Return all pins with their addresses, ordered by id; ended pins too.

    Raises:
        IntegrityError: a pin is damaged, so that the pinned objects are unknown.
        StorageError: the store did not answer.
    """
    for _ in range(_TRIES - 1):
        # A prune removes pins without a lease, but only pins that have ended.
        with suppress(_RemovedError):
            return thread_map(partial(_read, store), _listed(store), THREADS)
    return thread_map(partial(_read, store), _listed(store), THREADS)


def _listed(store: ObjectStore) -> list[tuple[str, str]]:
    """Return key and etag of each pin. A missing pin would not protect: read to the end."""
    return [(info.key, info.etag) for info in store.infos_to_the_end(PINS)]


def _read(store: ObjectStore, listed: tuple[str, str]) -> tuple[Pin, pa.ChunkedArray]:
    key, etag = listed
    try:
        table = parquet.decode(store.get(key), verify=True)
        metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
        run, why, until = (metadata[name].decode() for name in (b"run", b"why", b"until"))
        ends = datetime.fromisoformat(until)
        if ends.tzinfo is None or table.column_names != ["address"] or not key.endswith(_SUFFIX):
            raise ValueError("it is not a pin")  # noqa: TRY301 - it is damage
        name = key.removeprefix(PINS).removesuffix(_SUFFIX)
        return Pin(name, ends, run, why, table.num_rows, key, etag), table["address"]
    except ObjectNotFoundError as error:
        raise _RemovedError(
            f"{store.url}/{key} was removed while it was read: run again"
        ) from error
    except StorageError:
        raise
    except (ValueError, KeyError, OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{store.url}/{key} is damaged ({error}), so the restored objects that it protects are "
            "not known. Restore them again (`lakegc restore`), then remove the file. If none of "
            "them must stay, only remove the file"
        ) from error


def pinned(store: ObjectStore) -> pa.Table:
    """Return the addresses pinned now (``REASONS``), each once, by the pin that ends last.

    Raises:
        IntegrityError: a pin is damaged.
        StorageError: the store did not answer.
    """
    found = read_pins(store)
    if not found:
        return _NOTHING
    now = store.server_time()
    lasting = sorted((p for p in found if p[0].until > now), key=lambda p: p[0].until, reverse=True)
    rows = _NOTHING
    for pin, addresses in lasting:
        new = pc.unique(addresses)
        new = new.filter(pc.invert(strings.among(new, rows["address"])))
        why = pa.repeat(pa.scalar(pin.reason), len(new))
        rows = pa.concat_tables([rows, pa.table([new, why], schema=REASONS)])
    return rows


def among(pins: pa.Table, addresses: pa.ChunkedArray) -> pa.Table:
    """Return the pinned objects (``REASONS``) with given addresses."""
    if not pins.num_rows:
        return pins
    return pins.filter(strings.among(pins["address"], addresses))


def prune_pins(store: ObjectStore, now: datetime) -> list[Pin]:
    """Remove the pins that have ended, and return them.

    ``now``: the earliest of all clocks (``Clocks.readings``), UTC: a store with a wrong clock must
        not end pins, since marks would take their objects once the clock is right again.

    Raises:
        IntegrityError: a pin is damaged; nothing was removed.
        StorageError: the store did not remove one of them.
    """
    ended = [pin for pin, _ in read_pins(store) if pin.until <= now]
    # On a store with conditional deletes, a pin that was written again meanwhile stays.
    etags = {pin.key: pin.etag for pin in ended}
    outcomes = store.delete_many(list(etags), etags)
    require_removed(outcomes, f"pins of {store.url}", PRUNE_AGAIN)
    gone = {one.key for one in outcomes if one.outcome != "spared"}
    return [pin for pin in ended if pin.key in gone]
