"""Deletes that the store itself refuses once they are late, and whether a store really does so.

Between the last look at what is alive and the moment at which a store carries out a delete, a
process may be suspended and a network may hold a request back. So the signature of the request ends
at a moment, by the store's own clock. The moment is set by this machine's clock: what the two
differ by adds to it, or takes from it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from lakegc_assets.storage.base import DeleteOutcome, ObjectStore
from lakegc_assets.storage.codes import EXPIRED, error_class
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.http import HttpFailure, seconds

# How stores say so, where their clock is ahead of ours.
_LATE: Final = re.compile(
    r"request (has|signature) expired|not valid in the specified time frame", re.IGNORECASE
)
#: How long before, and after, the end of a signature a store is tried, in seconds. Clocks that
#: differ by more make the trial fail.
_MARGIN_S: Final = 30.0


@dataclass(frozen=True)
class Deadline:
    """The moment at which what was asked for by one call must have reached the store.

    Attributes:
        ends: seconds, on a clock that nobody sets and that counts suspension.
        tried: it lay in the past from the beginning, so that the store can be tried with it.
    """

    ends: float
    tried: bool

    @classmethod
    def after(cls, expires_s: float) -> Deadline:
        """So many seconds from now on."""
        return cls(seconds() + expires_s, expires_s <= 0)

    @property
    def passed(self) -> bool:
        """Whether it is over by this machine's clock."""
        return seconds() >= self.ends

    def window(self) -> tuple[datetime, int]:
        """From when on (UTC), and for how many whole seconds, a signature made now is to hold.

        Raises:
            HttpFailure: less than a second is left, so that there is nothing to send.
        """
        now, left = datetime.now(timezone.utc), self.ends - seconds()
        if left >= 1:
            return now, int(left)
        if not self.tried:
            raise HttpFailure(EXPIRED, "nothing was sent: it took too long to get there")
        return now + timedelta(seconds=left - 1), 1

    def read(self, failure: HttpFailure) -> HttpFailure:
        """A failure, as what it is if the deadline explains it.

        Stores say that the signature is bad, each in its own words or in none; who asks again in
        time hears whether it is anything else.
        """
        denied = error_class(failure.code) is AccessDeniedError
        if denied and (self.passed or _LATE.search(str(failure.told))):
            return HttpFailure(EXPIRED, f"{failure.code}: {failure.told}", failure.status)
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
            _kept(store, keys, conditional=conditional, singly=singly) for singly in (False, True)
        )
    finally:
        store.delete_many(keys)


def _kept(store: ObjectStore, keys: list[str], *, conditional: bool, singly: bool) -> bool:
    """Whether objects survive a delete that is late, and do not survive one in time."""
    written = {key: store.put(key, b"tried") for key in keys}
    etags = written if conditional else None
    late = store.delete_many(keys, etags, singly=singly, expires_s=-_MARGIN_S)
    for outcome in late:
        _require_answer(store, outcome)
    if not all(outcome.error_code in {EXPIRED, "NotSent"} for outcome in late):
        return False
    if not all(map(store.exists, keys)):
        return False
    in_time = store.delete_many(keys, etags, singly=singly, expires_s=_MARGIN_S)
    for outcome in in_time:
        _require_answer(store, outcome)
    return all(outcome.outcome == "deleted" for outcome in in_time)


def _require_answer(store: ObjectStore, outcome: DeleteOutcome) -> None:
    code = outcome.error_code or ""
    silent = error_class(code) in {StoreThrottledError, StoreUnavailableError}
    if silent and code != EXPIRED:
        raise StorageError(
            f"{store.url}: whether deletes can have a deadline cannot be found out: {code} "
            f"({outcome.detail}). Sweep again later"
        )
