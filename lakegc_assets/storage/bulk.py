"""Deletes of many keys, with exactly one outcome for each key, from the store's own answer.

A process may be suspended, or a network may delay a request, between the last check of what is
alive and the moment at which the store deletes. So a signature may end at a time by the store's own
clock, counted from a time that the store gave before that check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final, Literal

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.errors import (
    EXPIRED,
    AccessDeniedError,
    ArchivedError,
    ObjectLockedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.http import HttpFailure, seconds
from lakegc_assets.storage.values import DeleteOutcome

# Messages of stores about a late request: the only sign if their clock is ahead of ours.
_LATE: Final = re.compile(
    r"request (has|signature) expired|not valid in the specified time frame", re.IGNORECASE
)
#: Statuses of refused requests, and the kinds of errors that do not tell why.
_REFUSED: Final = frozenset({400, 403})
_UNCLEAR: Final = frozenset({StorageError, ConfigurationError})
#: Errors about one key that tell nothing about any other key.
_OF_ONE_KEY: Final = frozenset(
    {
        StorageError,
        ArchivedError,
        ObjectLockedError,
        ObjectNotFoundError,
        PreconditionFailedError,
    }
)
#: The answer for one key: the failure; or, after a delete, the name of the retained version, or
#: None.
Answer = HttpFailure | str | None
#: The failure for a key that the store's answer omits.
UNNAMED: Final = HttpFailure("NoAnswer", "the store's answer does not name this key")


@dataclass(frozen=True)
class Deadline:
    """The time until which the store may carry out one call.

    It is ``expires_s`` after ``since`` (by the store's clock, UTC; None for ``called``). A negative
    value is in the past from the start, which serves to probe a store. ``called`` is in seconds, on
    a clock that nobody sets and that counts suspension.
    """

    expires_s: float
    since: datetime | None
    called: float

    @classmethod
    def after(cls, expires_s: float, since: datetime | None = None) -> Deadline:
        """Make a deadline some seconds after a time by the store's clock, or after now."""
        return cls(expires_s, since and since.astimezone(timezone.utc), seconds())

    @property
    def passed(self) -> bool:
        """True if the deadline is certainly over, from whichever time it counts."""
        return seconds() >= self.called + self.expires_s

    def window(self) -> tuple[datetime, int]:
        """Begin (UTC) and whole seconds of a signature made now. Raises HttpFailure: too late."""
        gone = seconds() - self.called
        if 0 < self.expires_s < gone + 1:
            raise HttpFailure(EXPIRED, "nothing was sent: the deadline was too close")
        begin, length = self.since, self.expires_s
        if begin is None:
            begin, length = datetime.now(timezone.utc), self.expires_s - gone
        if length < 1:
            # As wide as one in time, so that its end is all that a store can refuse.
            wide = max(1, int(-length))
            return begin + timedelta(seconds=length - wide), wide
        return begin, int(length)

    def read(self, failure: HttpFailure) -> HttpFailure:
        """Return a failure, as ``Expired`` if the deadline explains it.

        Stores call an expired signature a bad one, each in its own words or without any; some call
        it a bad request (Garage) or a wrong clock (Scality). A retry before the deadline shows any
        other cause.
        """
        denied = failure.kind is AccessDeniedError
        refused = denied or (failure.status in _REFUSED and failure.kind in _UNCLEAR)
        if (refused and self.passed) or (denied and _LATE.search(str(failure.message))):
            return HttpFailure(EXPIRED, f"{failure.code}: {failure.message}", failure.status)
        return failure


def answer_of_one(send: Callable[[], str | None]) -> Answer:
    """The answer to a delete of one object. Raises HttpFailure: other keys would fail, too."""
    try:
        return send()
    except HttpFailure as failure:
        if failure.kind not in _OF_ONE_KEY:
            raise
        return failure


@dataclass(frozen=True)
class Bulk:
    """Deletes in one store: the parts in which stores differ, and ``delete``, which they share.

    Attributes:
        where: URL of the store, for messages.
        keys_per_call: the most keys that ``send`` takes.
        problem: the reason that a key cannot be sent, or None.
        send: deletes keys, which must have these etags, if any. Returns the store's answer for each
            key. Raises HttpFailure if the call failed as a whole, or the answer is about other
            keys.
        etag_at: the etag of the object at a key. Raises HttpFailure, or StorageError.
        alone: whether ``send`` takes a key only in a call of its own.
        deadline: the deadline that ``send`` signs.
        threads: calls that are sent at a time.
    """

    where: str
    keys_per_call: int
    problem: Callable[[str], str | None]
    send: Callable[[Sequence[str], Mapping[str, str] | None], Mapping[str, Answer]]
    etag_at: Callable[[str], str]
    alone: Callable[[str], bool] = lambda _key: False
    deadline: Deadline | None = None
    threads: int = 1

    def delete(
        self, keys: Iterable[str], etags: Mapping[str, str] | None
    ) -> Sequence[DeleteOutcome]:
        """Delete keys; after a call that failed as a whole, send no other call.

        No call is sent after this one has ended, however it ends.
        """
        outcomes: dict[str, DeleteOutcome | None] = dict.fromkeys(keys)
        if etags is not None:
            etags = {key: etags[key] for key in outcomes}
        for key in outcomes:
            problem = self.problem(key)
            if problem is None and etags is not None and not etags[key]:
                problem = "the etag that it must still have is not known: mark again"
            if problem is not None:
                outcomes[key] = DeleteOutcome(key, "failed", "InvalidKey", problem)
        failures: list[str] = []

        def call(batch: Sequence[str]) -> Mapping[str, DeleteOutcome]:
            if failures:
                detail = f"an earlier call failed: {failures[0]}"
                return {key: DeleteOutcome(key, "failed", "NotSent", detail) for key in batch}
            try:
                answers = self.send(batch, etags)
            except HttpFailure as raised:
                error = self._read(raised)
                if len(batch) == 1 and error.kind is ObjectLockedError:
                    # The lock is that of this object, and tells nothing about any other key.
                    return {batch[0]: self._outcome(batch[0], error, etags)}
                failure = str(error.explained(self.where))
                failures.append(failure)
                return {key: DeleteOutcome(key, "failed", error.code, failure) for key in batch}
            return {key: self._outcome(key, answers.get(key, UNNAMED), etags) for key in batch}

        batches = self._batches([key for key, outcome in outcomes.items() if outcome is None])
        with ThreadPoolExecutor(self.threads) as pool:
            for answered in map(call, batches) if self.threads == 1 else pool.map(call, batches):
                outcomes |= answered
        return [outcome for outcome in outcomes.values() if outcome is not None]

    def _batches(self, keys: Sequence[str]) -> Iterator[Sequence[str]]:
        together = [key for key in keys if not self.alone(key)]
        for start in range(0, len(together), self.keys_per_call):
            yield together[start : start + self.keys_per_call]
        yield from ([key] for key in keys if self.alone(key))

    def _outcome(self, key: str, answer: Answer, etags: Mapping[str, str] | None) -> DeleteOutcome:
        if not isinstance(answer, HttpFailure):
            return DeleteOutcome(key, "deleted", version=answer)
        answer = self._read(answer)
        kind = answer.kind
        if kind is PreconditionFailedError and etags is not None:
            return self._spared(key, answer.code, etags[key])
        detail = str(answer.explained(self.where))
        if kind is ObjectNotFoundError:
            return DeleteOutcome(key, "already_missing", None, detail)
        outcome: Literal["locked", "failed"] = "locked" if kind is ObjectLockedError else "failed"
        return DeleteOutcome(key, outcome, answer.code, detail)

    def _read(self, failure: HttpFailure) -> HttpFailure:
        return self.deadline.read(failure) if self.deadline else failure

    def _spared(self, key: str, code: str, expected: str) -> DeleteOutcome:
        """The outcome for a key after a failed condition, by the object that is there now."""
        try:
            present = self.etag_at(key)
        except HttpFailure as error:
            detail = str(error.explained(self.where))
            if error.kind is ObjectNotFoundError:
                return DeleteOutcome(key, "already_missing", None, detail)
            return DeleteOutcome(key, "failed", error.code, detail)
        except StorageError as error:
            return DeleteOutcome(key, "failed", "NoAnswer", str(error))
        if present == expected:
            detail = (
                f"the store denied that its etag is {present}, and then named this etag: run again"
            )
            return DeleteOutcome(key, "failed", code, detail)
        detail = f"it has the etag {present}, {expected} was expected"
        return DeleteOutcome(key, "spared", None, detail)
