"""Listings through a network that fails: exact, or an error, but where nobody could tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.http_server import Answer, Asked
from lakegc_assets_tests.reliability.places import Place, cut, unanswered
from lakegc_assets_tests.reliability.proxy import Ask
from lakegc_assets_tests.reliability.recorder import AZURE, S3, shows

pytestmark = pytest.mark.stores

BOTH = (S3, AZURE)
KEYS = [f"data/slice é/{number:03d} %41+" for number in range(70)]


def fill(place: Place, keys: Iterable[str] = KEYS) -> None:
    store = open_store(place.url, place.direct)
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


@shows("SlowDown, 503", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_slow_down_in_a_listing(filled: Place) -> None:
    met_once(filled, "busy")


@shows("SlowDown, 503", "a listing, always", BOTH, "StoreThrottledError")
def test_slow_downs_without_end_in_a_listing(filled: Place) -> None:
    met_always(filled, "busy", StoreThrottledError)


@shows("Timeout", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_page_that_does_not_come(filled: Place) -> None:
    met_once(replace(filled, config=replace(filled.config, read_timeout_s=5.0)), "timeout")


@shows("Connection reset", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_reset_in_a_listing(filled: Place) -> None:
    met_once(filled, "reset")


@shows("Connection reset", "a listing, always", BOTH, "StoreUnavailableError")
def test_resets_without_end_in_a_listing(filled: Place) -> None:
    met_always(filled, "reset", StoreUnavailableError)


@shows("Answer cut in the middle", "a listing, once", BOTH, "the page is asked for again; exact")
def test_a_cut_page(filled: Place) -> None:
    met_once(filled, "cut")


@shows("Answer cut in the middle", "a listing, always", BOTH, "StoreUnavailableError")
def test_cut_pages_without_end(filled: Place) -> None:
    met_always(filled, "cut", StoreUnavailableError)


@shows("Error inside a 200", "a listing, once", [S3], "the page is asked for again; exact")
def test_an_error_in_place_of_a_page(s3_place: Place) -> None:
    fill(s3_place)
    met_once(s3_place, "error in a 200")


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


@shows("Page repeated", "a listing", BOTH, "StorageError: such a listing cannot be trusted")
def test_a_repeated_page(filled: Place) -> None:
    refused(filled, (0, 0, 1, 2, 3))


@shows("Page repeated", "a listing, later", BOTH, "StorageError: such a listing cannot be trusted")
def test_a_page_that_comes_again_later(filled: Place) -> None:
    refused(filled, (0, 1, 0, 2, 3))


@shows("Pages out of order", "a listing", BOTH, "StorageError: such a listing cannot be trusted")
def test_pages_in_another_order(filled: Place) -> None:
    refused(filled, (0, 2, 1, 3))


@shows(
    "Listing ends early", "the ranges of a repository without retention rules", [S3],
    "asked for again behind the last key until none follows; exact",
)  # fmt: skip
def test_a_list_of_ranges_that_ends_early(s3_place: Place) -> None:
    """What this listing lacks would be taken for dead."""
    keys = [f"_lakefs/{number:064x}" for number in range(70)]
    fill(s3_place, keys)
    s3_place.meddle(s3_place.says.lists, lambda ask: s3_place.says.ended(ask()))
    store = s3_place.store
    assert [k for batch in store.list("_lakefs/") for k in batch["key"].to_pylist()] == keys[:20]
    pages = store.list_to_the_end("_lakefs/")
    assert [k for batch in pages for k in batch["key"].to_pylist()] == keys


@shows(
    "Connection reset", "a conditional write, after it is carried out", BOTH,
    "not sent again; StoreUnavailableError: it is not known whether it was written",
)  # fmt: skip
def test_a_write_that_is_not_answered(place: Place) -> None:
    place.meddle(lambda asked: asked.method == "PUT", unanswered)
    with pytest.raises(StoreUnavailableError, match="not known whether it was written"):
        place.store.put_if_absent("data/x", b"once")
    assert place.truth().keys() == {"data/x"}
    with pytest.raises(PreconditionFailedError):
        open_store(place.url, place.direct).put_if_absent("data/x", b"twice")


@shows("Answer cut in the middle", "a read, once", BOTH, "asked for again; exact")
def test_a_cut_object(place: Place) -> None:
    content = bytes(range(256)) * 40
    store = open_store(place.url, place.direct)
    store.put("data/x", content)
    place.meddle(lambda asked: asked.method == "GET", cut, times=1)
    assert place.store.get("data/x") == content


@shows("Answer cut in the middle", "a read, always", BOTH, "StoreUnavailableError")
def test_an_object_that_is_always_cut(place: Place) -> None:
    open_store(place.url, place.direct).put("data/x", b"x" * 1000)
    place.meddle(lambda asked: asked.method == "GET", cut)
    with pytest.raises(StoreUnavailableError):
        place.store.get("data/x")


@shows(
    "Eventual disappearance: listed, but gone",
    "a read",
    BOTH,
    "ObjectNotFoundError",
)
def test_an_object_that_is_listed_and_gone(filled: Place) -> None:
    place = filled
    assert listed(place) == KEYS
    place.meddle(lambda asked: not place.says.lists(asked), lambda _ask: place.says.gone)
    with pytest.raises(ObjectNotFoundError):
        place.store.get(KEYS[0])
