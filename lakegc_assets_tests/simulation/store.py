"""An object store in memory: S3's promises, and by switches weaker ones."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from lakegc_assets.storage.values import (
    LISTING_SCHEMA,
    DeleteOutcome,
    Lost,
    ObjectInfo,
    Prefixes,
    Recovery,
    UndeleteOutcome,
)
from lakegc_assets_tests.simulation import row_files

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.world import World

#: A client that repeats its requests gives up one that deletes after so many seconds.
CLIENT_S: Final = 35.0
#: How old what a stale list shows is, in seconds.
STALE_S: Final = 30.0
#: How late a request may arrive that its client has given up, in seconds.
_LATE: Final = (1.0, 40.0, 50.0, 55.0, 90.0, 900.0)


@dataclass
class StorePromises:
    """What the store promises.

    Attributes:
        conditions: conditional puts are conditional.
        etags: deletes go by etags.
        deadlines: deletes that come late are refused.
        versions: what is deleted is kept, and can be had back.
        single: deletes of one key go by etags, where all of them do not.
        trash: what is deleted is moved, and can be had back until that is removed.
    """

    conditions: bool = True
    etags: bool = False
    deadlines: bool = True
    versions: bool = False
    single: bool = False
    trash: bool = False


class Kept(NamedTuple):
    """An object: its content, etag, time of writing and size."""

    data: bytes
    etag: str
    modified: datetime
    size: int

    def shown(self) -> dict[str, Any]:
        """What listings show of it."""
        return {"size": self.size, "last_modified": self.modified, "etag": self.etag}


@lru_cache(maxsize=4096)
def etag_of(data: bytes) -> str:
    """The etag of an object with this content."""
    return hashlib.md5(data).hexdigest()


class Bucket(dict[str, Kept]):
    """Objects by key, whose order is known once somebody has listed them."""

    _order: list[str] | None = None

    def __setitem__(self, key: str, kept: Kept) -> None:
        if self._order is not None and key not in self:
            insort(self._order, key)
        super().__setitem__(key, kept)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        if self._order is not None:
            del self._order[bisect_left(self._order, key)]

    def pop(self, key: str, *default: Any) -> Any:
        """As that of a dictionary."""
        if key not in self and default:
            return default[0]
        kept = self[key]
        del self[key]
        return kept

    def between(self, prefix: str, after: str | None, before: str | None) -> list[str]:
        """The keys with a prefix that come behind one and before another, in order."""
        if self._order is None:
            self._order = sorted(self)
        order = self._order
        start = bisect_left(order, prefix)
        if after is not None:
            start = max(start, bisect_right(order, after))
        end = bisect_left(order, f"{prefix}{_LAST}", start)
        return order[start : end if before is None else min(end, bisect_left(order, before))]

    def folders(self, prefix: str) -> list[str]:
        """What keys with a prefix have up to the next slash, in order."""
        if self._order is None:
            self._order = sorted(self)
        order, found = self._order, list[str]()
        at = bisect_left(order, prefix)
        while at < len(order) and order[at].startswith(prefix):
            slash = order[at].find("/", len(prefix))
            if slash < 0:
                at += 1
                continue
            found.append(order[at][: slash + 1])
            at = bisect_left(order, f"{found[-1]}{_LAST}", at)
        return found


_LAST: Final = "\U0010ffff"


@lru_cache(maxsize=16_384)
def _page(found: tuple[tuple[str, Kept], ...]) -> pa.RecordBatch:
    """A page of a listing; most are those of other interleavings, too."""
    rows = [{"key": key, **kept.shown()} for key, kept in found]
    return row_files.batch_of(rows, LISTING_SCHEMA)


@lru_cache(maxsize=16_384)
def _info(key: str, kept: Kept) -> ObjectInfo:
    return ObjectInfo(key, kept.size, kept.modified, kept.etag)


class SimStore(ObjectStore):
    """The store at a URL.

    Args:
        world: in which it is.
        bucket: its objects, by key.
        prefix: of the keys, with a slash at its end.
        url: in its canonical form.
        once: after how many seconds its client gives a request up that it sends once; None where
            it repeats them.
    """

    def __init__(
        self, world: World, bucket: Bucket, prefix: str, url: str, once: float | None
    ) -> None:
        self._world, self._bucket, self._prefix, self._url = world, bucket, prefix, url
        self._once = once

    @property
    def url(self) -> str:
        return self._url

    def _infos(
        self, prefix: str, after: str | None = None, before: str | None = None
    ) -> list[tuple[str, Kept]]:
        own, bucket = self._prefix, self._bucket
        length = len(own)
        keys = bucket.between(
            own + prefix,
            None if after is None else own + after,
            None if before is None else own + before,
        )
        return [(key[length:], bucket[key]) for key in keys]

    def _shown(self, fault: str, found: list[tuple[str, Kept]]) -> list[tuple[str, Kept]]:
        """What a list shows of what is there."""
        if fault == "cut page":
            return found[: (len(found) + 1) // 2]
        if fault == "stale list":
            stale = self._stale()
            self._world.unlisted(self, [key for key, kept in found if kept.modified >= stale])
            return [one for one in found if one[1].modified < stale]
        return found

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[Any]:
        begun = self._world.scheduler.now
        fault = self._world.ask("list", prefix or start_after or "")
        found = self._shown(fault, self._infos(prefix, start_after, end_before))
        if found:
            self._world.asks([key for key, _ in found], begun)
            yield _page(tuple(found))

    def infos(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        fault = self._world.ask("list", prefix or start_after or "")
        for key, kept in self._shown(fault, self._infos(prefix, start_after)):
            yield _info(key, kept)

    def infos_to_the_end(self, prefix: str = "") -> Iterator[ObjectInfo]:
        last: str | None = None
        while found := list(self.infos(prefix, start_after=last)):
            yield from found
            last = found[-1].key

    def list_prefixes(
        self,
        prefix: str = "",
        max_objects: int | None = None,  # noqa: ARG002 - the interface
    ) -> Prefixes:
        fault = self._world.ask("list", prefix)
        if fault != "stale list":
            own = len(self._prefix)
            return Prefixes([key[own:] for key in self._bucket.folders(self._prefix + prefix)], [])
        stale = self._stale()
        found = [key for key, kept in self._infos(prefix) if kept.modified < stale]
        folders = {prefix + k[len(prefix) :].split("/")[0] + "/" for k in found if "/" in k}
        return Prefixes(sorted(folders), [])

    def prefixes_to_the_end(self) -> Sequence[str]:
        # No list of folders is cut here.
        return self.list_prefixes().prefixes

    def _stale(self) -> datetime:
        """What was written since then is not in a stale list."""
        return self._world.store_time() - timedelta(seconds=STALE_S)

    def get(self, key: str) -> bytes:
        self._world.ask("get", key)
        kept = self._bucket.get(self._prefix + key) or self._find(key)
        return kept.data

    def head(self, key: str) -> ObjectInfo:
        begun = self._world.scheduler.now
        self._world.ask("head", key)
        kept = self._find(key)
        self._world.asks([key], begun)
        return _info(key, kept)

    def _find(self, key: str) -> Kept:
        try:
            return self._bucket[self._prefix + key]
        except KeyError:
            raise ObjectNotFoundError(f"{self._url}/{key} does not exist") from None

    def put(self, key: str, data: bytes) -> str:
        return self._put(key, data, None)

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._put(key, data, lambda kept: kept is None)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._put(key, data, lambda kept: kept is not None and kept.etag == etag)

    def _put(self, key: str, data: bytes, allowed: Callable[[Kept | None], bool] | None) -> str:
        world = self._world
        fault = world.ask("put", key)
        full = self._prefix + key
        if allowed and not allowed(self._bucket.get(full)) and world.promises.conditions:
            raise PreconditionFailedError(f"{self._url}/{key} is another")
        kept = Kept(data, etag_of(data), world.store_time(), len(data))
        self._bucket[full] = kept
        world.written(self, key, data)
        if fault == "lost answer":
            raise StoreUnavailableError(f"{self._url}/{key}: the answer was lost")
        return kept.etag

    def server_time(self) -> datetime:
        self._world.ask("time", "")
        return self._world.store_time()

    def delete_deadlines(self) -> bool:
        return True

    def delete_many(
        self,
        keys: Iterable[str],
        etags: Mapping[str, str] | None = None,
        *,
        singly: bool = False,
        expires_s: float | None = None,
        since: datetime | None = None,
        trash: str | None = None,
    ) -> Sequence[DeleteOutcome]:
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return []
        world = self._world
        sent = world.sent(self, wanted)
        fault = world.ask("delete", wanted[0])
        limit = None
        if expires_s is not None:
            limit = (since or world.store_time()) + timedelta(seconds=expires_s)

        if not world.promises.etags and not (singly and world.promises.single):
            etags = None

        def carry_out(some: Sequence[str], sent: object = sent) -> list[DeleteOutcome]:
            return [self._delete(key, etags, limit, sent, trash) for key in some]

        if fault == "SlowDown":
            return [DeleteOutcome(key, "failed", "SlowDown", "reduce your rate") for key in wanted]
        if fault == "lost answer":
            carry_out(wanted)
            return [DeleteOutcome(key, "failed", "NoAnswer", "it was lost") for key in wanted]
        if fault == "partial":
            head, tail = wanted[:1], wanted[1:]
            failed = [DeleteOutcome(k, "failed", "InternalError", "try again") for k in head]
            return [*failed, *carry_out(tail)]
        if fault == "late":
            return self._late(wanted, carry_out)
        return carry_out(wanted)

    def _late(self, wanted: Sequence[str], carry_out: object) -> Sequence[DeleteOutcome]:
        """The network holds the request back; its client gives up before it arrives, or not."""
        world = self._world
        delay = _LATE[world.scheduler.choices.pick(len(_LATE))]
        assert callable(carry_out)
        world.scheduler.meanwhile()
        patience = CLIENT_S if self._once is None else self._once
        if delay < patience:
            world.scheduler.sleep(delay)
            done: Sequence[DeleteOutcome] = carry_out(wanted)
            return done
        world.later(delay, lambda: carry_out(wanted))
        world.scheduler.sleep(patience)
        if self._once is not None and world.retries_off:
            return [DeleteOutcome(key, "failed", "Timeout", "no answer") for key in wanted]
        # A client that repeats requests sends them again, whatever has come to pass meanwhile.
        world.scheduler.sleep(patience)
        again: Sequence[DeleteOutcome] = carry_out(wanted, world.sent(self, wanted))
        return again

    def _delete(
        self,
        key: str,
        etags: Mapping[str, str] | None,
        limit: datetime | None,
        sent: object,
        trash: str | None,
    ) -> DeleteOutcome:
        world = self._world
        if limit is not None and world.promises.deadlines and world.store_time() > limit:
            return DeleteOutcome(key, "failed", "Expired", "Request has expired")
        full = self._prefix + key
        kept = self._bucket.get(full)
        if kept is None:
            return DeleteOutcome(key, "deleted")
        if etags is not None and kept.etag != etags[key]:
            return DeleteOutcome(key, "spared", detail="it has another etag")
        del self._bucket[full]
        version = world.keep(full, kept, trash)
        world.deleted(self, key, sent)
        return DeleteOutcome(key, "deleted", version=version)

    def recovery(self) -> Recovery:
        if self._world.promises.trash:
            return Recovery("trash", None, f"{self._url} moves what is deleted")
        if not self._world.promises.versions:
            return super().recovery()
        return Recovery("versions", None, f"{self._url} keeps versions")

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        if not self._world.promises.versions and not self._world.promises.trash:
            return super().undelete_many(objects)
        return [self._undelete(one) for one in objects]

    def _undelete(self, one: Lost) -> UndeleteOutcome:
        """As a delete marker is removed: the object is what it was, its time of writing, too."""
        try:
            fault = self._world.ask("undelete", one.key)
        except StoreUnavailableError as error:
            return UndeleteOutcome(one.key, "failed", "NoAnswer", str(error))
        full = self._prefix + one.key
        if full in self._bucket:
            return UndeleteOutcome(one.key, "already_there")
        if not self._world.bring_back(full, one.etag, one.version):
            return UndeleteOutcome(one.key, "not_kept")
        if fault == "lost answer":
            return UndeleteOutcome(one.key, "failed", "NoAnswer", "it was lost")
        return UndeleteOutcome(one.key, "restored")
