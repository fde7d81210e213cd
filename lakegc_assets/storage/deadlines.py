"""Deletes that the store itself refuses once they are late, and a probe that a store does so.

Between the last look at what is alive and the moment at which a store carries out a delete, a
process may be suspended and a network may hold a request back. So the signature of the request ends
at a moment by the store's own clock. Where that is counted from a time that the store gave before
the last look, nothing that happens here, and no clock but the store's own, makes it later.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    EXPIRED,
    AccessDeniedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.http import HttpFailure, seconds
from lakegc_assets.storage.values import DeleteOutcome

# How stores say so, where their clock is ahead of ours.
_LATE: Final = re.compile(
    r"request (has|signature) expired|not valid in the specified time frame", re.IGNORECASE
)
#: How long before, and after, the end of a signature a store is tried, in seconds. A store whose
#: servers' clocks differ by more among each other keeps no deadlines.
_MARGIN_S: Final = 30.0


@dataclass(frozen=True)
class Deadline:
    """The moment until which the store may carry out what was asked for by one call.

    Attributes:
        expires_s: after ``since``; in the past from the beginning if it is negative, so that a
            store can be tried with it.
        since: by the store's clock, UTC; None for ``called``.
        called: on a clock that nobody sets and that counts suspension, in seconds.
    """

    expires_s: float
    since: datetime | None
    called: float

    @classmethod
    def after(cls, expires_s: float, since: datetime | None = None) -> Deadline:
        """So many seconds after a time by the store's clock, or from now on."""
        return cls(expires_s, since and since.astimezone(timezone.utc), seconds())

    @property
    def passed(self) -> bool:
        """True if it is over without doubt, whatever time it is counted from."""
        return seconds() >= self.called + self.expires_s

    def window(self) -> tuple[datetime, int]:
        """From when on (UTC), and for how many whole seconds, a signature made now is to hold.

        Raises:
            HttpFailure: less than a second is left, so that there is nothing to send.
        """
        gone = seconds() - self.called
        if 0 < self.expires_s < gone + 1:
            raise HttpFailure(EXPIRED, "nothing was sent: it took too long to get there")
        begin, length = self.since, self.expires_s
        if begin is None:
            begin, length = datetime.now(timezone.utc), self.expires_s - gone
        if length < 1:
            return begin + timedelta(seconds=length - 1), 1
        return begin, int(length)

    def read(self, failure: HttpFailure) -> HttpFailure:
        """A failure, as what it is if the deadline explains it.

        Stores say that the signature is bad, each in its own words or in none; who asks again in
        time hears whether it is anything else.
        """
        denied = error_class(failure.code) is AccessDeniedError
        if denied and (self.passed or _LATE.search(str(failure.message))):
            return HttpFailure(EXPIRED, f"{failure.code}: {failure.message}", failure.status)
        return failure


def probe_deadlines(store: ObjectStore, folder: str, *, conditional: bool = False) -> bool:
    """Find out whether a store refuses deletes that are late, and takes those that are not.

    Args:
        store: to be tried, with objects of our own that are gone afterwards.
        folder: key prefix of these objects, ending in ``/``.
        conditional: whether deletes name an etag, which some stores refuse, or sign badly.

    Raises:
        StorageError: the store did not answer, so that nothing is known.
    """
    if not store.delete_deadlines():
        return False
    keys = [f"{folder}deadline-{secrets.token_hex(8)}-{number}" for number in range(2)]
    try:
        return all(
            _is_kept_by(store, keys, conditional=conditional, singly=singly)
            for singly in (False, True)
        )
    finally:
        store.delete_many(keys)


def _is_kept_by(store: ObjectStore, keys: list[str], *, conditional: bool, singly: bool) -> bool:
    """True if objects survive a delete that is late, and do not survive one in time."""

    def delete(expires_s: float) -> Sequence[DeleteOutcome]:
        outcomes = store.delete_many(
            keys, etags, singly=singly, expires_s=expires_s, since=store.server_time()
        )
        for outcome in outcomes:
            _require_answer(store, outcome)
        return outcomes

    written = {key: store.put(key, b"tried") for key in keys}
    etags = written if conditional else None
    late = delete(-_MARGIN_S)
    if not all(outcome.error_code in {EXPIRED, "NotSent"} for outcome in late):
        return False
    if not all(map(store.exists, keys)):
        return False
    return all(outcome.outcome == "deleted" for outcome in delete(_MARGIN_S))


def _require_answer(store: ObjectStore, outcome: DeleteOutcome) -> None:
    code = outcome.error_code or ""
    silent = error_class(code) in {StoreThrottledError, StoreUnavailableError}
    if silent and code != EXPIRED:
        raise StorageError(
            f"{store.url}: whether deletes can have a deadline cannot be found out: {code} "
            f"({outcome.detail}). Sweep again later"
        )
