"""What is damaged is refused, or read again; it never changes what the checks find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.checks.invariants import check_candidates, evaluate
from lakegc_assets.checks.witness import NAMED
from lakegc_assets.errors import IntegrityError
from lakegc_assets.run.pins import PINS
from lakegc_assets.storage import parquet
from lakegc_assets_tests.checks.handmade import Lab


@pytest.mark.parametrize("asset", ["deletion_candidates", "store_listing"])
def test_changed_rows_are_not_checked(asset: str, lab: Lab) -> None:
    marked = lab.mark()
    (part,) = marked.manifest(asset).parts["data"]
    content = bytearray(marked.attempt.store().get(part.key))
    content[len(content) // 2] ^= 1
    marked.attempt.store().put(part.key, bytes(content))
    with pytest.raises(IntegrityError, match="is not what its manifest says"):
        check_candidates(marked.ctx)


def is_summary(path: Path) -> bool:
    return path.suffix == ".parquet" and pq.read_schema(path).names == list(NAMED)


def is_any(_: Path) -> bool:
    return True


@pytest.mark.parametrize("is_damaged", [is_any, is_summary])
def test_a_damaged_cache_changes_nothing(is_damaged: Callable[[Path], bool], lab: Lab) -> None:
    marked = lab.mark()
    results = evaluate(marked.ctx)
    folder = lab.folder / "artifacts" / "retention" / "_cache"
    files = sorted(path for path in folder.glob("*/witness/**/*") if path.is_file())
    damaged = [path for path in files if is_damaged(path)]
    assert damaged
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    assert evaluate(marked.ctx)[:-1] == results[:-1]


def test_a_range_that_is_missing_or_short_stops_the_run(lab: Lab) -> None:
    (range_id, *_) = lab.ranges(lab.heads["main"])
    whole = lab.file(range_id)
    lab.put(f"_lakefs/{range_id}", whole[:-1])
    with pytest.raises(IntegrityError, match=rf"^\w+://.*/_lakefs/{range_id}: at byte \d"):
        evaluate(lab.mark().ctx)
    lab.remove(f"_lakefs/{range_id}")
    with pytest.raises(IntegrityError, match="is missing"):
        evaluate(lab.mark("run2").ctx)


def test_a_damaged_pin_stops_the_run(lab: Lab) -> None:
    marked = lab.mark()
    for content in (b"torn", parquet.encode(pa.table({"address": ["data/a"]}))):
        lab.put(f"{PINS}torn.parquet", content)
        with pytest.raises(IntegrityError, match=r"torn\.parquet is damaged .*remove the file"):
            evaluate(marked.ctx)
    lab.remove(f"{PINS}torn.parquet")
    evaluate(marked.ctx)
