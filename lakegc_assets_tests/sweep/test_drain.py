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
from lakegc_assets.sweep.delete_answers import sort_answers
from lakegc_assets.sweep.rate_limit import Limits, RateLimiter, round_folder, settle
from lakegc_assets.sweep.store_comparison import Marked
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
