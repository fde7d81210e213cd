"""Listings of Azure: pages, levels and directories in order, whatever cannot be trusted refused."""

from __future__ import annotations

from collections.abc import Callable
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.storage.azure.auth import VERSION
from lakegc_assets.storage.azure.service import VERSION_OF_START_FROM, read_page
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError, StoreThrottledError
from lakegc_assets_tests.storage.azure_answers import (
    FLAT,
    REAL_DIRECTORIES,
    blob,
    page,
    query_of,
    refusal,
)
from lakegc_assets_tests.storage.conftest import AZURE_URL, Answer, Script, listed


def test_a_listing_goes_on_until_there_is_no_marker(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    last = page(blob("ns/%EF%BF%BE", encoded=True))
    store = azure(FLAT, page(blob("ns/"), blob("ns/a"), marker="m 1"), page(marker="m2"), last)
    assert listed(store) == ["a", "\ufffe"]
    assert [query_of(r).get("marker") for r in script.requests[1:]] == [None, ["m 1"], ["m2"]]
    assert {query_of(r)["prefix"][0] for r in script.requests[1:]} == {"ns/"}
    assert all(h["authorization"].startswith("SharedKey acc:") for h in script.headers)


@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")),
        unique=True,
        max_size=6,
    ).map(lambda names: [f"ns/{name}" for name in names])
)
def test_every_name_is_read_as_it_is(names: list[str]) -> None:
    body = page(*(blob(escape(name), metadata="<a>b</a>") for name in names)).body.encode()
    assert read_page(body, "there").objects["key"].to_pylist() == names


def test_a_blob_in_another_form_is_not_lost_beside_usual_ones() -> None:
    odd = blob("ns/a").replace("<Blob>", '<Blob kind="odd">')
    found = read_page(page(odd, blob("ns/b"), blob("ns/c")).body.encode(), "there")
    assert found.objects["key"].to_pylist() == ["ns/a", "ns/b", "ns/c"]


def test_directories_are_no_objects(azure: Callable[..., ObjectStore]) -> None:
    marked = blob("ns/d", metadata="<hdi_isfolder>true</hdi_isfolder>")
    capital = blob("ns/e", metadata="<Hdi_isfolder>True</Hdi_isfolder>")
    real = blob("ns/f", properties="<ResourceType>directory</ResourceType>")
    file = blob("ns/g", properties="<ResourceType>file</ResourceType>", metadata="<a>b</a>")
    assert listed(azure(FLAT, page(marked, capital, real, file))) == ["g"]
    folder = Answer(headers={"x-ms-meta-hdi_isfolder": "true"})
    with pytest.raises(ObjectNotFoundError, match="directory"):
        azure(folder).head("d")
    with pytest.raises(ObjectNotFoundError, match="directory"):
        azure(folder).get("d")


def test_real_directories_are_listed_one_by_one_in_byte_order(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    """Such accounts give ``a/`` before ``a-b``, which comes first in byte order."""
    store = azure(
        REAL_DIRECTORIES,
        page("ns/a/", blob("ns/a-b"), marker="m"),
        page(blob("ns/a.b"), blob("ns/a0"), "ns/a0/"),
        page(blob("ns/a/2"), "ns/a/b/"),
        page(blob("ns/a/b/1")),
        page(blob("ns/a0/x")),
    )
    assert listed(store) == ["a-b", "a.b", "a/2", "a/b/1", "a0", "a0/x"]
    assert {query_of(request)["delimiter"][0] for request in script.requests[1:]} == {"/"}
    script.requests.clear()
    script.answers = [page(blob("ns/a/b/1"), blob("ns/a/b/2"), blob("ns/a/b/3"))]
    assert listed(store, "a/", "a/b/1", "a/b/3") == ["a/b/2"]
    assert [query_of(request)["prefix"] for request in script.requests] == [["ns/a/b/"]]


@pytest.mark.parametrize("within", [[], [blob("ns/b/d/e")]], ids=["empty", "not empty"])
def test_a_directory_that_lost_all_objects_is_no_prefix(
    azure: Callable[..., ObjectStore], script: Script, within: list[str]
) -> None:
    """It stays for ever, and would be taken for a run, or for a backup that is still there."""
    directory = blob("ns/b/d", properties="<ResourceType>directory</ResourceType>")
    level = page(blob("ns/a"), "ns/b/")
    store = azure(REAL_DIRECTORIES, level, page(directory, marker="1"), page(*within))
    found = store.list_prefixes()
    assert found.prefixes == (["b/"] if within else [])
    assert [info.key for info in found.objects] == ["a"]
    assert query_of(script.requests[-1])["prefix"] == ["ns/b/"]


@pytest.mark.parametrize("account", [FLAT, REAL_DIRECTORIES], ids=["flat", "hierarchical"])
def test_a_level_goes_over_pages_and_names_nothing_twice(
    azure: Callable[..., ObjectStore], account: Answer
) -> None:
    """A prefix that the end of a page cuts comes again, and is one."""
    first, empty = page(blob("ns/a"), "ns/b/", marker="1"), page(marker="2")
    last, below = page("ns/b/", blob("ns/c")), page(blob("ns/b/d"))
    found = azure(account, first, empty, last, below).list_prefixes()
    assert (found.prefixes, [info.key for info in found.objects]) == (["b/"], ["a", "c"])
    for late in (page(blob("ns/a")), page(blob("ns/c"), "ns/b/", "ns/b/")):
        with pytest.raises(StorageError, match="out of order"):
            azure(first, empty, late).list_prefixes()
    with pytest.raises(StorageError, match="twice"):
        azure(first, empty, page(marker="1")).list_prefixes()
    for other in (page("ns/"), page("ns/c/d/"), page(blob("ns/c/d"))):
        with pytest.raises(StorageError, match="not requested"):
            azure(first, other).list_prefixes()


def test_a_level_of_a_flat_account_is_in_order(azure: Callable[..., ObjectStore]) -> None:
    with pytest.raises(StorageError, match="out of order"):
        azure(FLAT, page(blob("ns/b"), marker="1"), page("ns/a/")).list_prefixes()


def test_a_directory_that_comes_twice_is_refused(azure: Callable[..., ObjectStore]) -> None:
    level = [page("ns/a/", marker="1"), page("ns/b/", marker="2"), page("ns/a/")]
    with pytest.raises(StorageError, match="out of order"):
        listed(azure(REAL_DIRECTORIES, *level, page()))


def test_the_first_blob_shows_what_kind_of_account_it_is(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    """Who comes with an identity gets no other answer about the account."""
    script.answers = []
    assert listed(azure(page(), page())) == []
    assert listed(azure(page(), page(blob("ns/a"), blob("ns/b")))) == ["a", "b"]
    directory = blob("ns/a", properties="<ResourceType>directory</ResourceType>")
    store = azure(
        page(marker="1"), page(directory), page("ns/a/", blob("ns/a-b")), page(blob("ns/a/b"))
    )
    assert listed(store) == ["a-b", "a/b"]
    asked = [query_of(request) for request in script.requests[-4:]]
    assert [query.get("maxresults") for query in asked[:2]] == [["1"], ["1"]]
    assert {query["delimiter"][0] for query in asked[2:]} == {"/"}


def test_a_flat_account_gives_names_in_order(azure: Callable[..., ObjectStore]) -> None:
    with pytest.raises(StorageError, match="out of order"):
        listed(azure(FLAT, page(blob("ns/a/b"), blob("ns/a-b"))))
    with pytest.raises(StoreThrottledError, match="kind of account"):
        listed(azure(refusal(503, "ServerBusy"), url=AZURE_URL.replace("acc", "busy")))


@pytest.mark.parametrize("behind", ["", "ns/data/"], ids=["absolute", "relative"])
@pytest.mark.parametrize("slice_id", ["b", "x"])
def test_a_listing_starts_at_a_name_where_the_service_can(
    azure: Callable[..., ObjectStore], script: Script, slice_id: str, behind: str
) -> None:
    """It cannot if it reads the name behind the prefix, and begins after or before that blob."""
    names = [f"ns/data/{slice_id}/{end}" for end in ("1", "2-1", "2-2")]

    def begins_at(start: str) -> Answer:
        return page(*map(blob, [name for name in names if name >= behind + start]))

    tries = names[:1] if behind and slice_id < "ns" else names[:2]
    store = azure(FLAT, page(*map(blob, names[:2])), *map(begins_at, tries), begins_at(""))
    wanted = ("data/", f"data/{slice_id}/2-1")
    assert listed(store, *wanted) == [f"data/{slice_id}/2-2"]
    starts = [query_of(request).get("startFrom") for request in script.requests]
    last = None if behind else [f"ns/data/{slice_id}/2"]
    assert starts == [None, None, *([name] for name in tries), last]
    assert script.headers[-1]["x-ms-version"] == (VERSION if behind else VERSION_OF_START_FROM)
    asked = len(script.requests)
    assert listed(store, *wanted) == [f"data/{slice_id}/2-2"]
    assert len(script.requests) == asked + 1


def test_a_listing_starts_at_the_beginning_where_the_service_cannot_skip(
    azure: Callable[..., ObjectStore], script: Script
) -> None:
    names = page(blob("ns/data/b"), blob("ns/data/c"))
    store = azure(FLAT, names, refusal(400, "InvalidHeaderValue"), names)
    assert listed(store, "data/", "data/b") == ["data/c"]
    assert "startFrom" not in query_of(script.requests[-1])
    assert script.headers[-1]["x-ms-version"] == VERSION
    assert listed(store, "data/", "data/b") == ["data/c"]
    assert len(script.requests) == 5


@pytest.mark.parametrize(
    "damaged",
    [
        Answer(body="<EnumerationResults><Blobs></Blobs>"),
        Answer(body="<html/>"),
        Answer(body="<EnumerationResults><Blobs/></EnumerationResults>"),
        page(blob("")),
        page(blob("ns/a").replace("7</Content-Length>", "many</Content-Length>")),
        page(blob("ns/a").replace("<Content-Length>7</Content-Length>", "")),
        page(blob("ns/a").replace("Fri, 02 Jan", "yesterday")),
        page(blob("ns/%FF", encoded=True)),
        page(blob("ns/a\r\nb")),
        page(blob("elsewhere")),
        page(blob("ns/b"), blob("ns/a")),
        page(blob("ns/a"), blob("ns/a")),
        page(blob("ns/a"), marker="again"),
        page("ns/d/"),
        page(blob("ns/a").replace("<Etag>0x8D</Etag>", "")),
        page(blob("ns/a").replace("<Etag>0x8D</Etag>", "<Etag></Etag>")),
    ],
)
def test_pages_that_cannot_be_trusted_are_refused(
    azure: Callable[..., ObjectStore], damaged: Answer
) -> None:
    with pytest.raises(StorageError, match=r"acc\.blob"):
        listed(azure(FLAT, damaged, damaged))
