"""Deletes of many keys over plain HTTP, with exactly one outcome for each key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakegc_assets.storage.base import DeleteOutcome
from lakegc_assets.storage.codes import error_class, explained
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.http import HttpFailure

MAX_KEY_BYTES: Final = 1024
# What proxies and servers rewrite in URLs.
_DOTS: Final = re.compile(r"(^|/)\.{1,2}(/|$)")
#: What says nothing about any other key.
_OF_ONE_KEY: Final = frozenset({StorageError, ObjectNotFoundError, PreconditionFailedError})


def key_problem(full_key: str) -> str | None:
    """Why no URL can carry a key, or None."""
    try:
        size = len(full_key.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if not full_key:
        return "it is empty"
    if size > MAX_KEY_BYTES:
        return f"it has {size} bytes, {MAX_KEY_BYTES} are allowed"
    if _DOTS.search(full_key):
        return "it has a '.' or '..' path component, which servers and proxies rewrite in URLs"
    return None


@dataclass(frozen=True)
class Bulk:
    """How one store deletes.

    Attributes:
        where: URL of the store, for messages.
        keys_per_call: the most that ``send`` takes.
        problem: why a key cannot be sent, or None.
        send: deletes keys that must still have these etags, where there are any. Returns for each
            key None, or what went wrong; raises HttpFailure where the call failed as a whole.
        look: the etag that an object has. Raises HttpFailure.
    """

    where: str
    keys_per_call: int
    problem: Callable[[str], str | None]
    send: Callable[[Sequence[str], Mapping[str, str] | None], Mapping[str, HttpFailure | None]]
    look: Callable[[str], str]

    def delete(
        self, keys: Iterable[str], etags: Mapping[str, str] | None
    ) -> Sequence[DeleteOutcome]:
        """Delete keys; after a call that failed as a whole send no other."""
        outcomes: dict[str, DeleteOutcome | None] = {}
        for key in keys:
            problem = self.problem(key)
            refused = DeleteOutcome(key, "failed", "InvalidKey", problem)
            outcomes[key] = refused if problem else None
        if etags is not None:
            etags = {key: etags[key] for key in outcomes}
        waiting = [key for key, outcome in outcomes.items() if outcome is None]
        failure: str | None = None
        for start in range(0, len(waiting), self.keys_per_call):
            batch = waiting[start : start + self.keys_per_call]
            if failure is not None:
                detail = f"an earlier call failed: {failure}"
                outcomes |= {key: DeleteOutcome(key, "failed", "NotSent", detail) for key in batch}
                continue
            try:
                answers = self.send(batch, etags)
            except HttpFailure as error:
                answers = dict.fromkeys(batch, error)
                if len(batch) > 1 or error_class(error.code) not in _OF_ONE_KEY:
                    failure = str(explained(error.code, error.told, self.where))
            unnamed = HttpFailure("NoAnswer", "the store's answer does not name this key")
            for key in batch:
                outcomes[key] = self._outcome(key, answers.get(key, unnamed), etags)
        return [outcome for outcome in outcomes.values() if outcome is not None]

    def _outcome(
        self, key: str, answer: HttpFailure | None, etags: Mapping[str, str] | None
    ) -> DeleteOutcome:
        if answer is None:
            return DeleteOutcome(key, "deleted")
        detail = str(explained(answer.code, answer.told, self.where))
        kind = error_class(answer.code)
        if kind is ObjectNotFoundError:
            return DeleteOutcome(key, "already_missing", None, detail)
        if kind is PreconditionFailedError and etags is not None:
            return self._looked(key, answer.code, etags[key])
        return DeleteOutcome(key, "failed", answer.code, detail)

    def _looked(self, key: str, code: str, expected: str) -> DeleteOutcome:
        """What is there instead of the object with an etag."""
        try:
            present = self.look(key)
        except HttpFailure as error:
            detail = str(explained(error.code, error.told, self.where))
            if error_class(error.code) is ObjectNotFoundError:
                return DeleteOutcome(key, "already_missing", None, detail)
            return DeleteOutcome(key, "failed", error.code, detail)
        if present == expected:
            detail = f"the store says that its etag is not {present}, and then that it is"
            return DeleteOutcome(key, "failed", code, detail)
        detail = f"it has the etag {present}, {expected} was expected"
        return DeleteOutcome(key, "spared", None, detail)
