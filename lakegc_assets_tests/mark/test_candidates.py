"""Whatever cannot be proven dead is spared, and what lakeFS did not write is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets.graveler.ranges import read_range, write_range
from lakegc_assets.mark.listing import list_store
from lakegc_assets_tests import recorded
from lakegc_assets_tests.recorded import Marked
from lakegc_assets_tests.replay import GOLDEN, ReplayServer
from lakegc_assets_tests.sessions import Session

DEAD = {
    "data/s/dead.parquet",
    "data/flat",
    "flat",
    "data/s/outside",
    "data/s/parts-seen",
    "data/!ab/c/d/x",
}
LIVE = {"data/s/full inside", "data/s/full%20inside", "data/s/by-prefix", "data/s/relative"}
LIVE |= {"lost-part"}  # It may be this very object that the address means.
LIVE |= {"data/s/unusual"}  # As file systems and older servers read the address.
ALONE = {
    "dummy",
    "_lakefsish",
    "other/place",
    "data/",
    "data/s/../up",
    "data/./here",
    "data/s/s3://x",
    "data.txt/x",
    "data/table/data/00000-1.parquet",
    "data/!ab/c/d/deeper/x",
}
PARTS = "uploaded in parts, and not seen before the cutoff"
UPLOADING = "named like a part of an upload, which may still go on"
OF_TABLE = "named like a file of an Iceberg table, which no entry has to name"
UUID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
ENDS_LIKE = "a full address that cannot be resolved ends like it"
SPARED = {
    "data/s/lost-part": ENDS_LIKE,
    "data/s/line\nbreak": "its name has a line break or another control character",
    "data/s/c1\x85control": "its name has a line break or another control character",
    "data/s/no\uffffcharacter": "its name has a line break or another control character",
    "data/s/parts-new": PARTS,
    "data/s/parts-changed": PARTS,
    "data/s/going.multipart": UPLOADING,
    "data/s/going.part_00001_1": UPLOADING,
    "0123456789abcdef" * 2 + "-00002": UPLOADING,
    f"data/00000-1-{UUID}-00001.parquet": OF_TABLE,
    f"data/day=1/00000-1-{UUID}-00001-deletes.parquet": OF_TABLE,
    f"data/metadata/00001-{UUID}.metadata.json": OF_TABLE,
    f"data/metadata/snap-1-1-{UUID}.avro": OF_TABLE,
    f"{UUID}-m0.avro": OF_TABLE,
}
#: As lakeFS names parts in Google's store, and in local storage, where it makes one object of
#: whichever are there when the upload is completed.
ENDED = {"data/s/ended.part_00001", "fedcba9876543210" * 2 + "-00001"}


def etag_of_parts(digit: str) -> str:
    return digit * 32 + "-3"


def entry(address: str, kind: AddressType) -> Entry:
    return Entry(
        address=address,
        last_modified=Timestamp(1795000000, 0),
        size=7,
        e_tag="e" * 32,
        metadata={},
        address_type=kind,
        content_type="",
    )


def plant_ranges() -> str:
    """Ranges that no branch leads to: without rules they count. An address that one holds."""
    info, body = write_range(
        [
            ("1", entry("mystery://x/y/lost-part", AddressType.FULL)),
            ("2", entry("s3a://lab/norules/data/s/full%20inside", AddressType.FULL)),
            ("3", entry("data/s/by-prefix", AddressType.BY_PREFIX_DEPRECATED)),
            ("4", entry("data/s/relative", AddressType.RELATIVE)),
            ("5", entry("s3://elsewhere/data/s/outside", AddressType.FULL)),
            ("6", entry("/data/s//unusual", AddressType.RELATIVE)),
        ]
    )
    recorded.plant("norules", f"_lakefs/{info.id}", body)
    files = (p for p in (GOLDEN / "small" / "raw" / "_lakefs").iterdir() if len(p.name) == 64)
    path = next(p for p in sorted(files) if b"metaranges" not in p.read_bytes())
    recorded.plant("norules", f"_lakefs/{path.name}", path.read_bytes())
    address = read_range(path.read_bytes(), path.name)[0][1].address
    return recorded.plant("norules", address)


@pytest.fixture(scope="module")
def planted(
    spark: Session, s3_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Marked]:
    """A mark of a repository without rules, with all kinds of objects in it."""
    recorded.load("norules")
    # Stores tell whole milliseconds.
    now = recorded.mark_time("norules").replace(microsecond=0)
    for key in (DEAD | LIVE | ALONE | SPARED.keys()) - {"data/s/parts-new"}:
        recorded.plant("norules", key)
    recorded.plant("norules", "data/s/parts-seen", etag=etag_of_parts("1"))
    recorded.plant("norules", "data/s/parts-changed", etag=etag_of_parts("1"))
    with ReplayServer("norules") as server:
        folder = tmp_path_factory.mktemp("norules")
        ctx = recorded.context(server, s3_server, folder, spark)
        ctx = replace(ctx, clocks=recorded.FixedClocks(now))
        earlier = recorded.FixedClocks(now - timedelta(hours=1))
        list_store(replace(ctx, run="sighting", clocks=earlier))
        recorded.plant("norules", "data/s/parts-new", etag=etag_of_parts("1"))
        recorded.plant("norules", "data/s/parts-changed", etag=etag_of_parts("2"))
        # A sighting after the cutoff proves nothing.
        list_store(replace(ctx, run="too-late"))
        recorded.plant("norules", plant_ranges())
        recorded.plant(
            "norules", "data/s/as-young-as-the-cutoff", written=now - timedelta(seconds=1)
        )
        recorded.plant("norules", "data/s/younger", written=now)
        week = now - timedelta(seconds=1, days=7)
        for key in (key for key, why in SPARED.items() if why == UPLOADING):
            recorded.plant("norules", key, written=week)
        ended = week - timedelta(milliseconds=1)
        for key in ENDED:
            recorded.plant("norules", key, written=ended)
        recorded.plant(
            "norules", "data/s/just-older", written=now - timedelta(seconds=1, milliseconds=1)
        )
        yield recorded.mark(ctx, publish=True)


def test_only_what_is_proven_dead_is_a_candidate(planted: Marked) -> None:
    assert planted.candidates == DEAD | ENDED | {"data/s/just-older"}


def test_what_is_spared_is_reported_with_the_reason(planted: Marked) -> None:
    assert planted.spared == SPARED
    facts = planted.manifests["deletion_candidates"].facts
    assert facts["spared"] == {
        ENDS_LIKE: 1,
        PARTS: 2,
        UPLOADING: 3,
        OF_TABLE: 5,
        "its name has a line break or another control character": 3,
    }
    assert (facts["too_young"], facts["too_young_bytes"]) == (2, 14)


def test_unknown_places_are_reported_and_left_alone(planted: Marked) -> None:
    assert planted.manifests["deletion_candidates"].facts["outside_data"] == len(ALONE)
    listed = planted.addresses("store_listing")
    assert listed >= ALONE
    assert not any(address.startswith("_lakefs/") for address in listed)


def test_without_rules_every_range_is_live(planted: Marked) -> None:
    assert planted.commits_hold(set(LIVE))
    assert planted.addresses("uncommitted_snapshot")
    facts = planted.manifests["committed_addresses"].facts
    assert facts["ranges"] == 3, "one of main, and two that no branch leads to"
    assert planted.manifests["active_commits"].facts["rules"] is None
    assert planted.manifests["active_commits"].facts["expired"] == 0


def test_the_checks_agree(planted: Marked) -> None:
    assert [check.name for check in planted.checks if not check.passed] == []
