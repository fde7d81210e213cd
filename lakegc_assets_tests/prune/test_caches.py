"""What is cached goes when none of the last marks reads it; all else of the artifacts stays."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lakegc_assets.mark.etags import KIND
from lakegc_assets.mark.metaranges import KIND as METARANGES
from lakegc_assets.mark.ranges import KIND as RANGES
from lakegc_assets.prune.prune import LEAST, Pruned, prune
from lakegc_assets.run.table_cache import Decoded, TableCache
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, SmallLake, mark
from lakegc_assets_tests.prune.estate import NoRecords
from lakegc_assets_tests.sessions import Session


def test_what_no_mark_reads_any_more_goes(lake: SmallLake, spark: Session) -> None:
    ctx = lake.context(spark)
    cache = ctx.connect().connections.cache()
    folder = Path(lake.root.url, REPOSITORY)
    ranges, metaranges = TableCache(cache, RANGES), TableCache(cache, METARANGES)
    metaranges.write([Decoded("0" * 64, pa.table({"range_id": ["1" * 64]}), {})])
    needed = ranges.slots()
    left = ("_cache/0123456789abcdef/ranges/v1/x.parquet", "_compared/ab/x.parquet", "_needed/a/x")
    stays = ("_accepted_missing/x.parquet", "_cache/of another kind/x", "_somebody's/x")
    for name in (*left, *stays):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")
    assert pruned(lake, spark).cached == 0
    # What was found of etags is of use for as long as a mark is not old.
    evidence = len([key for page in cache.list(f"{KIND}/") for key in page["key"].to_pylist()])
    assert evidence > 0
    age(folder, 90)
    dry = pruned(lake, spark, dry_run=True)
    assert (dry.cached, list(dry.notes)) == (5 + evidence, [])
    assert pruned(lake, spark).cached == 5 + evidence
    assert not any((folder / name).exists() for name in left)
    assert list(cache.list(f"{KIND}/")) == []
    assert all((folder / name).exists() for name in stays)
    assert ranges.slots().keys() == needed.keys()
    assert "0" * 64 not in metaranges.slots()
    assert pruned(lake, spark).cached == 0
    # All that the next mark reads is cached still.
    again = lake.context(spark, "mark-2")
    mark(again)
    facts = again.root.attempt(REPOSITORY, "mark-2").manifest("committed_addresses").facts
    assert (facts["ranges_decoded"], facts["metaranges_decoded"]) == (0, 0)


def test_without_a_mark_nobody_knows_what_is_wanted(lake: SmallLake, spark: Session) -> None:
    attempt = lake.root.attempt(REPOSITORY, "mark-1")
    attempt.store().delete_many(["gc_report/manifest.json"])
    age(Path(lake.root.url, REPOSITORY), 90)
    found = pruned(lake, spark)
    assert found.cached == 0
    (note,) = found.notes
    assert note.startswith("some cache files that nothing needs stay: there is no finished mark")


def pruned(lake: SmallLake, spark: Session, *, dry_run: bool = False) -> Pruned:
    return prune(lake.context(spark, "none"), LEAST, NoRecords(), dry_run=dry_run)
