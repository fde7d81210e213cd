"""Every meaning that an address may have keeps an object alive."""

from __future__ import annotations

import re
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakegc_assets.checks.live_set import as_paths
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.mark.addresses import (
    UNUSUAL,
    entry_spellings,
    in_data,
    just_before,
    live_spellings,
    plain_paths,
)

NAMESPACE = StorageNamespace.parse("s3://lab/repo")
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
# Segments that no store reads as anything but themselves.
SEGMENT = st.text("abcxyz019-_=+ ,é", min_size=1, max_size=8)
KEYS = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)


@given(TEXT, TEXT)
def test_just_before_is_before_and_skips_nothing_shorter(path: str, other: str) -> None:
    before = just_before(path)
    if not path:
        assert before == ""
        return
    assert before.encode() < path.encode()
    # Of the paths in between all start with what is named: no page has to be read for nothing.
    if before.encode() < other.encode() < path.encode():
        assert other.startswith(before)


@given(TEXT.filter(bool))
def test_a_listing_after_just_before_finds_the_path_itself(path: str) -> None:
    neighbours = sorted({path, path[:-1], path + "\0", path + "a", just_before(path)} - {""})
    after = [name for name in neighbours if name > just_before(path)]
    assert after[0] == path


@given(st.from_regex(r"data/[0-9a-w./]{19,21}/[0-9a-w./]{19,21}\n?", fullmatch=True))
@example(f"data/{'0' * 20}/{'v' * 20}")
def test_an_address_is_marked_by_itself_as_it_is_beside_unusual_ones(address: str) -> None:
    assert in_data(pa.array([address]))[0] == in_data(pa.array([address, "x"]))[0]


@given(KEYS, st.sampled_from(["s3", "s3a", "s3n", "S3"]))
def test_full_addresses_inside_count_in_every_spelling(key: str, scheme: str) -> None:
    full = f"{scheme}://lab/repo/{key}"
    assert set(live_spellings(NAMESPACE, full)) >= {full, key}
    found, resolved = entry_spellings(NAMESPACE, full, AddressType.FULL)
    assert resolved
    assert key in found
    quoted = f"{scheme}://lab/repo/{quote(key)}"
    assert key in live_spellings(NAMESPACE, quoted)
    assert key in entry_spellings(NAMESPACE, quoted, AddressType.FULL)[0]
    assert key in entry_spellings(NAMESPACE, quoted, AddressType.BY_PREFIX_DEPRECATED)[0]


@given(KEYS)
def test_relative_addresses_are_taken_literally(key: str) -> None:
    assert live_spellings(NAMESPACE, key) == [key]
    for kind in (AddressType.RELATIVE, AddressType.BY_PREFIX_DEPRECATED):
        assert entry_spellings(NAMESPACE, key, kind) == ([key], True)
    odd = f"s3://elsewhere/{key}"
    assert odd in entry_spellings(NAMESPACE, odd, AddressType.RELATIVE)[0]


UNUSUAL_ADDRESSES = {
    "/data/s/x": "data/s/x",
    "data//s/x": "data/s/x",
    "./data/s/./x": "data/s/x",
    "data/t/../s/x": "data/s/x",
    "../data/s/x": "data/s/x",
    "data/s/x/": "data/s/x",
    "data\\s\\x": "data/s/x",
    "data/s/..": "data",
    "data/s/.": "data/s",
    "data/s/x.": "data/s/x",
    "data/s/x...": "data/s/x",
    "data/s/...": "data/s",
}


@pytest.mark.parametrize("address", UNUSUAL_ADDRESSES)
def test_an_unusual_address_keeps_the_path_alive_that_some_stores_take_it_for(address: str) -> None:
    both = {address, UNUSUAL_ADDRESSES[address]}
    assert set(live_spellings(NAMESPACE, address)) == both
    assert set(as_paths([address])) == both
    for kind in (AddressType.RELATIVE, AddressType.BY_PREFIX_DEPRECATED):
        assert entry_spellings(NAMESPACE, address, kind) == (sorted(both), True)
    assert re.search(UNUSUAL, address)


def test_dots_at_the_end_of_folders_are_dropped_or_not() -> None:
    """Azure drops those at the end of a name; whether others too, its reference leaves open."""
    meant = {"data/s./x.", "data/s./x", "data/s/x"}
    assert set(live_spellings(NAMESPACE, "data/s./x.")) == meant
    assert set(as_paths(["data/s./x."])) == meant
    assert entry_spellings(NAMESPACE, "data/s./x.", AddressType.RELATIVE) == (sorted(meant), True)


@given(TEXT)
@example("://")
@example("a/.../b.")
def test_both_opinions_take_an_address_for_the_same_path(address: str) -> None:
    if "://" not in address:
        assert set(live_spellings(NAMESPACE, address)) >= set(as_paths([address]))
    if not re.search(UNUSUAL, address):
        assert set(plain_paths(address)) == {address}


@given(
    KEYS, st.sampled_from(["s3://lab/repository/", "s3://lab/", "s3://other/repo/", "gs://lab/"])
)
def test_full_addresses_outside_keep_nothing_alive_here(key: str, prefix: str) -> None:
    if prefix == "s3://lab/" and key.partition("/")[0] == "repo":
        return
    assert live_spellings(NAMESPACE, prefix + key) == [prefix + key]
    assert entry_spellings(NAMESPACE, prefix + key, AddressType.FULL) == ([], True)


UNCLEAR = [
    ("mystery://x/y/last", "last"),
    ("s3://lab/repo/a/../last", "last"),
    ("https://example.com/c/la%73t", "last"),
]


@pytest.mark.parametrize(("address", "last"), UNCLEAR)
def test_what_cannot_be_resolved_keeps_its_last_part_alive(address: str, last: str) -> None:
    found, resolved = entry_spellings(NAMESPACE, address, AddressType.FULL)
    assert not resolved
    assert last in found
    with pytest.raises(UnresolvableAddressError):
        live_spellings(NAMESPACE, address)
