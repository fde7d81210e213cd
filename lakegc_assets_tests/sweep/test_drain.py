"""The last look of a sweep waits for requests that the store may yet carry out, and no others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import FREED, DeleteOutcome
from lakegc_assets.sweep import rate_limit
from lakegc_assets.sweep.batch_guard import CHECK_LIFETIME
from lakegc_assets.sweep.delete_answers import (
    TRIES,
    SortedAnswers,
    hopeless,
    is_refused_with_others,
    sort_answers,
)
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.rate_limit import Limits, RateLimiter, round_folder, settle
from lakegc_assets.sweep.store_comparison import REWRITTEN, Marked
from lakegc_assets_tests.clocks import StubClocks

_MARKED = Marked("data/a", 7, datetime(2026, 1, 1, tzinfo=timezone.utc), "etag")


def _pace(store: LocalStore, sweep: str = "mine", number: int = 1) -> RateLimiter:
    return RateLimiter(store, round_folder(sweep, number), 0, Limits(1e9, 1e9))


def _begun(store: LocalStore) -> None:
    assert not _pace(store).begin()


def _ended(store: LocalStore) -> None:
    pace = _pace(store)
    assert not pace.begin()
    pace.end("it failed")


def _unanswered(store: LocalStore) -> None:
    pace = _pace(store)
    assert not pace.begin()
    pace.unanswered()
    pace.end()


def _earlier_round(store: LocalStore) -> None:
    assert not _pace(store, number=1).begin()
    later = _pace(store, number=2)
    assert not later.begin()
    later.end()


def _of_another_sweep(store: LocalStore) -> None:
    _pace(store, "theirs").unanswered()


@pytest.mark.parametrize(
    ("left", "waits"),
    [
        (lambda _: None, False),
        (_ended, False),
        (_of_another_sweep, False),
        (_begun, True),
        (_unanswered, True),
        (_earlier_round, True),
    ],
)
def test_it_waits_as_long_as_a_request_may_take(
    tmp_path: Path,
    left: Callable[[LocalStore], None],
    *,
    waits: bool,
) -> None:
    store = LocalStore(tmp_path, tmp_path.as_uri())
    left(store)
    clock = [100.0]

    def pause(seconds: float) -> None:
        # A sleep may end early.
        clock[0] += min(seconds, 45.0)

    settle(store, "mine", StubClocks(pause, lambda: clock[0]))
    assert clock[0] == 100.0 + (CHECK_LIFETIME if waits else 0.0)


def test_it_waits_where_nobody_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path, tmp_path.as_uri())
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    def in_flight(*_: object) -> bool:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(rate_limit, "in_flight", in_flight)
    settle(store, "mine", StubClocks(pause, lambda: clock[0]))
    assert clock[0] == CHECK_LIFETIME


def _freed(_marked: Marked, _answer: DeleteOutcome) -> str:
    return FREED


@pytest.mark.parametrize(
    ("code", "unanswered"),
    [
        ("Timeout", True),
        ("NoAnswer", True),
        ("ConnectionFailed", True),
        ("InternalError", True),
        ("503", True),
        ("SlowDown", False),
        ("Expired", False),
        ("AccessDenied", False),
    ],
)
def test_what_the_store_may_yet_carry_out(code: str, *, unanswered: bool) -> None:
    answer = DeleteOutcome("data/a", "failed", code, "told")
    assert sort_answers([_MARKED], [answer], _freed).unanswered is unanswered


def test_what_was_done_is_answered() -> None:
    deleted = DeleteOutcome("data/a", "deleted")
    assert not sort_answers([_MARKED], [deleted], _freed).unanswered


@pytest.mark.parametrize(
    ("code", "tries", "again", "slow"),
    [
        ("SlowDown", 0, True, True),
        ("SlowDown", TRIES - 2, True, True),
        # The failure of the last try is recorded.
        ("SlowDown", TRIES - 1, False, True),
        ("Timeout", 0, True, True),
        ("504", 0, True, True),
        ("NoAnswer", 0, True, False),
        ("ConditionalRequestConflict", 0, True, False),
        ("Expired", 0, True, False),
        ("NotSent", 0, True, False),
    ],
)
def test_what_is_sent_again(code: str, tries: int, *, again: bool, slow: bool) -> None:
    marked = _MARKED._replace(tries=tries)
    answer = DeleteOutcome("data/a", "failed", code, "told")
    found = sort_answers([marked], [answer], _freed)
    assert found.again == ([marked._replace(tries=tries + 1)] if again else [])
    assert [o.outcome for o in found.outcomes] == ([] if again else ["failed"])
    assert (found.failed, found.slow) == ([answer], slow)


def test_what_is_final_is_recorded_and_what_was_not_answered_is_sent_again() -> None:
    """Each outcome with its reason; a key without an answer was not tried."""
    answers = [
        DeleteOutcome("data/gone", "deleted", version="v"),
        DeleteOutcome("data/other", "spared", None, "another etag"),
        DeleteOutcome("data/denied", "failed", "AccessDenied", "no"),
        DeleteOutcome("data/locked", "locked", "ObjectLocked", "a hold"),
    ]
    batch = [_MARKED._replace(address=one.key) for one in answers]
    unanswered = _MARKED._replace(address="data/unanswered")
    found = sort_answers([*batch, unanswered], answers, _freed)
    assert found == SortedAnswers(
        [
            Outcome("data/gone", 7, "deleted", None, FREED, "v"),
            Outcome("data/other", 7, "spared", None, f"{REWRITTEN}: another etag"),
            Outcome("data/denied", 7, "failed", "AccessDenied", "no"),
            Outcome("data/locked", 7, "locked", "ObjectLocked", "a hold"),
        ],
        again=[unanswered],
        failed=[],
        slow=False,
    )


def test_the_rate_follows_those_failures_that_ask_for_less() -> None:
    """Failures beside them say nothing about the store's rate."""
    answers = [
        DeleteOutcome("data/a", "failed", "NoAnswer", "told"),
        DeleteOutcome("data/b", "failed", "SlowDown", "told"),
    ]
    batch = [_MARKED._replace(address=one.key) for one in answers]
    found = sort_answers(batch, answers, _freed)
    assert (found.failed, found.slow) == (answers[1:], True)


def test_failures_that_every_batch_would_meet_end_all_tasks() -> None:
    def failed(code: str) -> Outcome:
        return Outcome("data/x", 1, "failed", code, "told")

    deleted = Outcome("data/a", 1, "deleted")
    for code in ("AccessDenied", "NoSuchBucket", "SlowDown", "NoAnswer"):
        assert hopeless([deleted, failed(code)]) == failed(code)
    # One object of many may be special; when all are, so is the next batch.
    assert hopeless([deleted, failed("InvalidArgument")]) is None
    assert hopeless([failed("InvalidArgument")]) is None
    assert hopeless([failed("InvalidArgument")] * 2) == failed("InvalidArgument")
    assert hopeless([]) is None


def test_a_key_that_is_refused_with_others_is_one_whose_request_met_a_lock() -> None:
    def failed(code: str) -> DeleteOutcome:
        return DeleteOutcome("data/a", "failed", code, "told")

    assert is_refused_with_others(failed("ObjectLocked"))
    assert not is_refused_with_others(failed("AccessDenied"))
    assert not is_refused_with_others(DeleteOutcome("data/a", "locked", "ObjectLocked", "a hold"))
