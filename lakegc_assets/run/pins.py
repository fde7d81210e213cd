"""Pins in the namespace: objects that were brought back, and that stay until a time.

The next mark would find what a restore brought back to be as dead as before. So each restore first
writes ``_lakefs/retention/gc/lakegc/pins/<id>.parquet`` with all addresses that it is about, and no
mark and no sweep takes these until the pin ends, by the store's own clock.
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

#: Below the namespace; no mark names what is there.
PINS: Final = "_lakefs/retention/gc/lakegc/pins/"
#: How the reason of what a pin spares begins.
PINNED: Final = "pinned until "
REASONS: Final = pa.schema([("address", pa.string()), ("why", pa.string())])
_NOTHING: Final = REASONS.empty_table()
_SUFFIX: Final = ".parquet"
#: Pins that are read at a time.
THREADS: Final = 8
#: How often pins are read anew of which one was removed meanwhile.
_TRIES: Final = 3


class _RemovedError(IntegrityError):
    """A pin that was listed is not there any more."""


@dataclass(frozen=True)
class Pin:
    """Objects that stay until a time."""

    #: Of the restore that they came back by, which is the name of the pin.
    id: str
    #: By the store's clock, UTC.
    until: datetime
    #: From whose mark they were restored.
    run: str
    why: str
    objects: int
    #: Of the pin as it was read; the key is relative to the namespace.
    key: str = ""
    etag: str = ""

    @property
    def reason(self) -> str:
        """Why an object stays that this pin names."""
        return f"{PINNED}{self.until:%Y-%m-%d %H:%M} UTC: {self.why}"


def write_pin(store: ObjectStore, pin: Pin, addresses: pa.Array | pa.ChunkedArray) -> None:
    """Pin objects; an earlier pin of the same id is replaced.

    ``addresses`` are relative to the namespace; key, etag and count are not taken from ``pin``.

    Raises:
        StorageError: it is not known to be written.
    """
    said = {"until": pin.until.isoformat(), "run": pin.run, "why": pin.why}
    table = pa.table({"address": addresses.cast(pa.string())}).replace_schema_metadata(said)
    store.put(f"{PINS}{pin.id}{_SUFFIX}", parquet.encode(table))


def read_pins(store: ObjectStore) -> list[tuple[Pin, pa.ChunkedArray]]:
    """All pins with their addresses, those that have ended, too; by their ids.

    Raises:
        IntegrityError: one is damaged, so that it is unknown what is pinned.
        StorageError: the store did not answer.
    """
    for _ in range(_TRIES - 1):
        # Whoever prunes them needs no lease: each that goes has ended.
        with suppress(_RemovedError):
            return thread_map(partial(_read, store), _listed(store), THREADS)
    return thread_map(partial(_read, store), _listed(store), THREADS)


def _listed(store: ObjectStore) -> list[tuple[str, str]]:
    """Key and etag of each pin: one that a listing lacks would protect nothing."""
    return [(info.key, info.etag) for info in store.infos_to_the_end(PINS)]


def _read(store: ObjectStore, listed: tuple[str, str]) -> tuple[Pin, pa.ChunkedArray]:
    key, etag = listed
    try:
        table = parquet.decode(store.get(key), verify=True)
        said: Mapping[bytes, bytes] = table.schema.metadata or {}
        run, why, until = (said[name].decode() for name in (b"run", b"why", b"until"))
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
            f"{store.url}/{key} is damaged ({error}): nobody can tell which objects were restored "
            "and are to stay. If none needs to, remove it; else restore them again and remove it"
        ) from error


def pinned(store: ObjectStore) -> pa.Table:
    """Addresses pinned now (``REASONS``), each once, by the pin that ends last.

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
    """Pinned objects (``REASONS``) that are among some addresses."""
    if not pins.num_rows:
        return pins
    return pins.filter(strings.among(pins["address"], addresses))


def prune_pins(store: ObjectStore) -> list[Pin]:
    """Remove the pins that have ended, and return them.

    Raises:
        IntegrityError: a pin is damaged; nothing was removed.
        StorageError: the store did not remove one of them.
    """
    now = store.server_time()
    ended = [pin for pin, _ in read_pins(store) if pin.until <= now]
    # Where the store honours it, a pin that was written again meanwhile stays.
    etags = {pin.key: pin.etag for pin in ended}
    outcomes = store.delete_many(list(etags), etags)
    require_removed(outcomes, f"pins of {store.url}", PRUNE_AGAIN)
    gone = {one.key for one in outcomes if one.outcome != "spared"}
    return [pin for pin in ended if pin.key in gone]
