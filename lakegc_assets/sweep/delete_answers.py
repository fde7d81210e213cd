"""Sorts a store's answers to a delete request: outcomes to record, and keys to send again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage.errors import (
    EXPIRED,
    AccessDeniedError,
    ObjectLockedError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.store_comparison import REWRITTEN, Marked

#: Most requests for a key whose failures are temporary, before the failure is recorded.
TRIES: Final = 8
#: Code of a key that was not sent, since an earlier call failed as a whole.
NOT_SENT: Final = "NotSent"
#: Codes after which a key is sent again although the store did not ask for a lower rate.
_SENT_AGAIN: Final = frozenset({"409", "ConditionalRequestConflict", EXPIRED, NOT_SENT})
#: Codes that imply a lower rate without asking for it.
_SLOW_CODES: Final = frozenset(
    {"408", "504", "GatewayTimeout", "OperationTimedOut", "RequestTimeout", "Timeout"}
)
#: Code of a 503 without a code of the store. A proxy answers so, too, if it has lost the connection
#: to the store after it sent the request.
_OF_PROXY: Final = "503"
#: Errors that stop all tasks, since each task would meet them.
_FATAL: Final = {
    AccessDeniedError,
    ConfigurationError,
    StoreThrottledError,
    StoreUnavailableError,
}


class SortedAnswers(NamedTuple):
    """The sorted answers to the request of a batch.

    Attributes:
        failed: temporary failures; only those that ask for a lower rate, if there are any.
        slow: True if the store asks for a lower rate.
        unanswered: True if the store may carry out the request later.
    """

    outcomes: list[Outcome]
    again: list[Marked]
    failed: list[DeleteOutcome]
    slow: bool
    unanswered: bool = False


def sort_answers(
    batch: Sequence[Marked],
    answers: Sequence[DeleteOutcome],
    space_of: Callable[[Marked, DeleteOutcome], str],
) -> SortedAnswers:
    """Separate final outcomes from objects to send again.

    ``answers``: answers for the batch, or for a part of it if the rest was not sent. ``space_of``:
    returns the state of the space of a deleted object, in words.
    """
    by_key = {answer.key: answer for answer in answers}
    outcomes: list[Outcome] = []
    again: list[Marked] = []
    for marked in batch:
        answer = by_key.get(marked.address)
        if answer is None:
            again.append(marked)
            continue
        if marked.tries + 1 < TRIES and _worth_another_try(answer):
            again.append(marked._replace(tries=marked.tries + 1))
        else:
            outcomes.append(_outcome(marked, answer, space_of))
    failed = [answer for answer in answers if _worth_another_try(answer)]
    slow = [answer for answer in failed if _asks_for_less(answer)]
    unanswered = any(map(_may_be_carried_out, answers))
    return SortedAnswers(outcomes, again, slow or failed, bool(slow), unanswered)


def is_refused_with_others(answer: DeleteOutcome) -> bool:
    """True for a key in a request that the store refused as a whole, since one key is locked."""
    return answer.outcome == "failed" and _error_of(answer) is ObjectLockedError


def hopeless(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the first failure that every other batch would meet, too (never a locked object)."""
    failed = [outcome for outcome in outcomes if outcome.outcome == "failed"]
    if len(failed) == len(outcomes) > 1:
        return failed[0]
    return next((outcome for outcome in failed if _error_of(outcome) in _FATAL), None)


def _outcome(
    marked: Marked, answer: DeleteOutcome, space_of: Callable[[Marked, DeleteOutcome], str]
) -> Outcome:
    detail = answer.detail
    if answer.outcome == "spared":
        detail = f"{REWRITTEN}: {detail}"
    elif answer.outcome == "deleted":
        detail = space_of(marked, answer)
    return Outcome(
        marked.address, marked.size, answer.outcome, answer.error_code, detail, answer.version
    )


def _error_of(answer: DeleteOutcome | Outcome) -> type[LakegcError] | None:
    return error_class(answer.error_code) if answer.error_code else None


def _worth_another_try(answer: DeleteOutcome) -> bool:
    return answer.outcome == "failed" and (
        _error_of(answer) in {StoreThrottledError, StoreUnavailableError}
        or answer.error_code in _SENT_AGAIN
    )


def _may_be_carried_out(answer: DeleteOutcome) -> bool:
    """Return True if the store may have got the request, and may carry it out later."""
    if answer.error_code == EXPIRED:
        return False
    return answer.error_code == _OF_PROXY or _error_of(answer) is StoreUnavailableError


def _asks_for_less(answer: DeleteOutcome) -> bool:
    return _error_of(answer) is StoreThrottledError or answer.error_code in _SLOW_CODES
