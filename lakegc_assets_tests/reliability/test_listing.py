"""Listings through a network that fails: exact, or an error, but where nobody could tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakegc_assets.storage.errors import (
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets_tests.reliability.places import Place
from lakegc_assets_tests.reliability.proxy import Answer, Ask, Asked
from lakegc_assets_tests.reliability.recorder import AZURE, S3, shows

BOTH = (S3, AZURE)
KEYS = [f"data/slice é/{number:03d} %41+" for number in range(70)]


def fill(place: Place, keys: Iterable[str] = KEYS) -> None:
    store = place.direct.open(place.url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))


def listed(place: Place) -> list[str]:
    return [key for batch in place.store.list("data/") for key in batch["key"].to_pylist()]


@pytest.fixture
def filled(place: Place) -> Place:
    fill(place)
    return place


def met_once(place: Place, fault: str) -> None:
    """A listing whose second page meets a fault once is exact."""
    pages: list[Asked] = []

    def second(asked: Asked) -> bool:
        if place.says.lists(asked):
            pages.append(asked)
        return len(pages) == 2

    place.meddle(second, place.listing_faults()[fault], times=1)
    assert listed(place) == KEYS
    assert len(pages) == 5


def met_always(place: Place, fault: str, error: type[StorageError]) -> None:
    place.meddle(place.says.lists, place.listing_faults()[fault])
    with pytest.raises(error, match="listing"):
        listed(place)


@pytest.mark.stores
@shows("SlowDown, 503", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_slow_down_in_a_listing(filled: Place) -> None:
    met_once(filled, "busy")


@pytest.mark.stores
@shows("SlowDown, 503", "a listing, always", BOTH, "StoreThrottledError")
def test_slow_downs_without_end_in_a_listing(filled: Place) -> None:
    met_always(filled, "busy", StoreThrottledError)


@pytest.mark.stores
@shows("Timeout", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_page_that_does_not_come(filled: Place) -> None:
    met_once(filled, "timeout")


@pytest.mark.stores
@shows("Connection reset", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_reset_in_a_listing(filled: Place) -> None:
    met_once(filled, "reset")


@pytest.mark.stores
@shows("Connection reset", "a listing, always", BOTH, "StoreUnavailableError")
def test_resets_without_end_in_a_listing(filled: Place) -> None:
    met_always(filled, "reset", StoreUnavailableError)


@pytest.mark.stores
@shows("Answer cut in the middle", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_cut_page(filled: Place) -> None:
    met_once(filled, "cut")


@pytest.mark.stores
@shows("Answer cut in the middle", "a listing, always", BOTH, "StoreUnavailableError")
def test_cut_pages_without_end(filled: Place) -> None:
    met_always(filled, "cut", StoreUnavailableError)


@pytest.mark.stores
@shows("Error inside a 200", "a listing, once", [S3], "the page is asked for again; exact")
def test_an_error_in_place_of_a_page(s3_place: Place) -> None:
    fill(s3_place)
    met_once(s3_place, "error in a 200")


@pytest.mark.stores
@shows("Error inside a 200", "a listing, always", BOTH, "StorageError")
def test_errors_in_place_of_pages(filled: Place) -> None:
    met_always(filled, "error in a 200", StorageError)


def refused(place: Place, order: Sequence[int]) -> None:
    """A listing whose pages come in another order is refused."""
    pages: list[Answer] = []

    def note(asked: Asked, ask: Ask) -> Answer:
        answer = ask()
        if place.says.lists(asked):
            pages.append(answer)
        return answer

    place.proxy.meddle = note
    assert listed(place) == KEYS
    assert len(pages) == 4
    answers = iter([pages[number] for number in order])
    place.meddle(place.says.lists, lambda _ask: next(answers))
    with pytest.raises(StorageError, match=r"out of order|twice"):
        listed(place)


@pytest.mark.stores
@shows("Page repeated", "a listing", BOTH, "StorageError: such a listing cannot be trusted")
def test_a_repeated_page(filled: Place) -> None:
    refused(filled, (0, 0, 1, 2, 3))


@pytest.mark.stores
@shows("Page repeated", "a listing, later", BOTH, "StorageError: such a listing cannot be trusted")
def test_a_page_that_comes_again_later(filled: Place) -> None:
    refused(filled, (0, 1, 0, 2, 3))


@pytest.mark.stores
@shows("Pages out of order", "a listing", BOTH, "StorageError: such a listing cannot be trusted")
def test_pages_in_another_order(filled: Place) -> None:
    refused(filled, (0, 2, 1, 3))
