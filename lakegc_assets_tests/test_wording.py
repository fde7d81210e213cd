"""Numbers in messages agree with their nouns, and times have units that people use."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lakegc_assets.wording import aligned, counted, duration


def test_one_is_singular_and_all_else_plural() -> None:
    assert [counted(n, "object") for n in (0, 1, 2000)] == [
        "0 objects",
        "1 object",
        "2,000 objects",
    ]
    assert counted(1, "commit is", "commits are") == "1 commit is"
    assert counted(3, "commit is", "commits are") == "3 commits are"


def test_columns_stay_aligned() -> None:
    assert len(aligned(1)) == len(aligned(20_000_000))
    assert aligned(1).split() == ["1", "object"]


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (timedelta(seconds=0.1), "0.1 seconds"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(minutes=90), "1.5 hours"),
        (timedelta(days=1), "1 day"),
        (timedelta(days=7), "7 days"),
        (timedelta(days=36_500), "36500 days"),
        (timedelta(seconds=59.998), "1 minute"),
        (timedelta(seconds=3599.9), "1 hour"),
        (timedelta(0), "0 seconds"),
    ],
)
def test_a_time_is_said_in_its_largest_unit(time: timedelta, said: str) -> None:
    assert duration(time) == said
