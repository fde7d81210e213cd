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

#: How often a key is sent before its failure counts, where the store may yet take it.
TRIES: Final = 8
#: Another call before failed as a whole.
NOT_SENT: Final = "NotSent"
#: Answers after which a key is sent again although the store did not ask for less.
_AGAIN: Final = frozenset({"409", "ConditionalRequestConflict", EXPIRED, NOT_SENT})
#: Answers that ask for less without saying so.
_LATE: Final = frozenset(
    {"408", "504", "GatewayTimeout", "OperationTimedOut", "RequestTimeout", "Timeout"}
)
#: Failures that no other task gets past.
_HOPELESS: Final = {
    AccessDeniedError,
    ConfigurationError,
    StoreThrottledError,
    StoreUnavailableError,
}


class SortedAnswers(NamedTuple):
    """The answers to the request of a batch.

    Attributes:
        outcomes: to be recorded.
        again: to be sent again.
        failed: what the store could not take now; those that ask for less first.
        slow: whether it asks for less.
        unanswered: whether the store may yet carry out what it was asked for.
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
    """Tell what is done from what is to be sent again.

    ``answers``: for all of the batch, or for a part where the others were not sent. ``space_of``:
    what becomes of the space of an object that was deleted, in words.
    """
    told = {answer.key: answer for answer in answers}
    outcomes: list[Outcome] = []
    again: list[Marked] = []
    for marked in batch:
        answer = told.get(marked.address)
        if answer is None:
            again.append(marked)
            continue
        if marked.tries + 1 < TRIES and _worth_another_try(answer):
            again.append(marked._replace(tries=marked.tries + 1))
        else:
            outcomes.append(_outcome(marked, answer, space_of))
    failed = [answer for answer in answers if _worth_another_try(answer)]
    slow = [answer for answer in failed if _asks_for_less(answer)]
    unanswered = any(
        _kind(answer) is StoreUnavailableError and answer.error_code != EXPIRED
        for answer in answers
    )
    return SortedAnswers(outcomes, again, slow or failed, bool(slow), unanswered)


def is_refused_with_others(answer: DeleteOutcome) -> bool:
    """True of a key whose request a store has refused as a whole: something in it is locked."""
    return answer.outcome == "failed" and _kind(answer) is ObjectLockedError


def hopeless(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first failure that every other batch would meet, too (never a locked object), or None."""
    failed = [outcome for outcome in outcomes if outcome.outcome == "failed"]
    if len(failed) == len(outcomes) > 1:
        return failed[0]
    return next((outcome for outcome in failed if _kind(outcome) in _HOPELESS), None)


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


def _kind(answer: DeleteOutcome | Outcome) -> type[LakegcError] | None:
    return error_class(answer.error_code) if answer.error_code else None


def _worth_another_try(answer: DeleteOutcome) -> bool:
    return answer.outcome == "failed" and (
        _kind(answer) in {StoreThrottledError, StoreUnavailableError} or answer.error_code in _AGAIN
    )


def _asks_for_less(answer: DeleteOutcome) -> bool:
    return _kind(answer) is StoreThrottledError or answer.error_code in _LATE
