"""Schemas in the words of DDL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakegc_assets.engine.ddl import schema


def test_pieces_give_their_columns_in_order() -> None:
    base = [pa.field("hash", pa.int64(), nullable=False)]
    wanted = [
        *base,
        pa.field("address", pa.string(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("parents", pa.list_(pa.string())),
    ]
    found = schema(base, "address string not null, at timestamp, parents array<string>")
    assert found.equals(pa.schema(wanted))


@pytest.mark.parametrize("ddl", ["", "address", "address text", "address string,", "a string null"])
def test_what_is_no_column_is_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match="is no column"):
        schema(ddl)
