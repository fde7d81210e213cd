"""Rows as the bytes of a Parquet file."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.storage import parquet

_SCHEMA = pa.schema(
    [
        ("address", pa.string()),
        ("size", pa.int64()),
        ("why", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_TIMES = st.datetimes(timezones=st.just(timezone.utc))
_ROWS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.just("wanted"),
        _TIMES,
    )
)


@given(_ROWS)
def test_plain_values_are_read_as_they_were_written(
    rows: list[tuple[str, int, str | None, datetime]],
) -> None:
    found = parquet.decode(parquet.encode_values(rows, _SCHEMA), verify=True)
    assert found.schema.equals(_SCHEMA)
    assert [tuple(row.values()) for row in found.to_pylist()] == rows


def test_a_flipped_bit_is_found_by_the_checksums_of_pages() -> None:
    table = pa.table({"address": [f"data/{number}" for number in range(100)]})
    data = bytearray(parquet.encode(table, "none"))
    data[data.index(b"data/50")] ^= 1
    with pytest.raises((OSError, pa.ArrowException)):
        parquet.decode(bytes(data), verify=True)


@pytest.mark.parametrize("plain", [True, False])
def test_rows_keep_their_metadata(*, plain: bool) -> None:
    table = pa.table({"hash": [1, 2], "address": ["a", "b"]}).replace_schema_metadata({"a": "b"})
    found = parquet.decode(parquet.encode(table, plain=plain))
    assert found.schema.metadata == {b"a": b"b"}
    assert found.equals(table)


@pytest.mark.parametrize(("plain", "numbers"), [(False, [True, False]), (True, [False, False])])
def test_dictionaries_are_of_columns_whose_values_repeat(
    *, plain: bool, numbers: list[bool]
) -> None:
    many = range(2_000)
    columns = {
        "few": ["a" if number % 2 else "b" for number in many],
        "each": [f"data/{number}" for number in many],
        "encoded": pa.array([f"data/{number}" for number in many]).dictionary_encode(),
        "none": pa.nulls(len(many), pa.string()),
        "lists": [[number] for number in many],
        "same": [7 for _ in many],
        "other": list(many),
    }
    data = parquet.encode(pa.table(columns), plain=plain)
    assert parquet.decode(data).select(["few", "each", "lists"]).to_pydict() == {
        name: columns[name] for name in ("few", "each", "lists")
    }
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    encoded = [group.column(n).has_dictionary_page for n in range(group.num_columns)]
    assert encoded[:3] + encoded[5:] == [True, False, True, *numbers]
