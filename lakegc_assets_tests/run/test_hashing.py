"""Hashes of addresses are those of the definition, and digests depend on the keys alone."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.run.hashing import (
    KeyDigest,
    address_hashes,
    digest_of_hashes,
    key_digest,
    pair_hashes,
)

_MASK = 2**64 - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.lists(TEXT, unique=True, max_size=20)


def defined(text: str) -> int:
    """FNV-1a with the finalizer of SplitMix64, as plain as can be."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


@given(st.lists(TEXT), st.integers(0, 5))
def test_hashes_are_those_of_the_definition(texts: list[str], skip: int) -> None:
    whole = pa.array(texts, pa.string())
    expected = [defined(text) for text in texts]
    assert address_hashes(whole).tolist() == expected
    assert address_hashes(whole.slice(skip)).tolist() == expected[skip:]
    assert address_hashes(pa.chunked_array([whole, whole.slice(skip)])).tolist() == [
        *expected,
        *expected[skip:],
    ]
    assert address_hashes(whole.cast(pa.large_string())).tolist() == expected


def test_a_key_that_is_null_has_no_hash() -> None:
    with pytest.raises(ValueError, match="null"):
        address_hashes(pa.array(["a", None]))


@given(KEYS, st.randoms(use_true_random=False))
def test_a_digest_depends_on_the_keys_alone(keys: list[str], chance: random.Random) -> None:
    def digest(values: list[str]) -> KeyDigest:
        return key_digest(pa.array(values, pa.string()))

    expected = digest(keys)
    shuffled = chance.sample(keys, len(keys))
    half = len(keys) // 2
    assert digest(shuffled[:half]) + digest(shuffled[half:]) == expected
    assert expected.count == len(keys)
    if keys:
        assert digest(keys[1:]) != expected
        assert digest([*keys[1:], keys[0] + "x"]) != expected
        assert digest([*keys, keys[0]]) != expected


def test_a_digest_of_hashes_tells_sets_apart() -> None:
    hashes = address_hashes(pa.array([str(n) for n in range(100)]))
    reported = digest_of_hashes(hashes)
    assert reported == digest_of_hashes(hashes[::-1])
    assert reported != digest_of_hashes(hashes[1:])
    assert reported != digest_of_hashes(np.concatenate([hashes[1:], hashes[:1] ^ np.uint64(1)]))


def test_pairs_have_hashes_of_their_own() -> None:
    numbers = np.arange(100, dtype=np.uint64)
    pairs = {int(h) for n in numbers for h in pair_hashes(numbers, np.full(100, n))}
    assert len(pairs) == 10_000
