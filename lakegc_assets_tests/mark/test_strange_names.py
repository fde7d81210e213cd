"""Whatever lies around in a bucket: names that differ by little, markers of folders, long ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake, running
from lakegc_assets_tests.sessions import Session

#: A live name, and dead ones that a server, a file system or a person may take for it.
_TWINS = {
    "data/case/report.csv": ["data/Case/report.csv", "data/case/REPORT.csv"],
    "data/form/caf\u00e9": ["data/form/cafe\u0301"],
    "data/%41": ["data/A", "data/%2541"],
    "data/blank/a": ["data/blank/a ", "data/blank/ a"],
    "data/plus+": ["data/plus ", "data/plus%2B"],
    "data/folder/a": ["data/folder/", "data/folder", "data/folder_$folder$"],
}
_LONGEST = 1024 - len(f"{REPOSITORY}/")
_ALONE = [
    "data/" + "\u00e9" * ((_LONGEST - 5) // 2) + "x" * ((_LONGEST - 5) % 2),
    "data/\U0001f600|#;,@=$!*()[]{}^`~?&<>\"'",
    "data/marker/",
]
#: They break lists with one address a line, or cannot be named in a request.
_UNNAMEABLE = ["data/tab\there", "data/new\nline", "data/\x85"]


@dataclass(frozen=True)
class Strange:
    """A bucket with strange names.

    Attributes:
        lake: the lakeFS server.
        bucket: its name.
    """

    lake: SmallLake
    bucket: str

    def stored(self) -> set[str]:
        keys = recorded._backend().buckets[self.bucket].keys
        found = {key.removeprefix(f"{REPOSITORY}/") for key in keys}
        return {key for key in found if not key.startswith("_lakefs/")}


@pytest.fixture
def strange(s3_server: str, s3_bucket: str, tmp_path: Path) -> Iterator[Strange]:
    where: dict[str, Any] = {
        "store": f"s3://{s3_bucket}",
        "store_config": StoreConfig(endpoint_url=s3_server),
    }
    with running(tmp_path, **where) as lake:
        lake.client.create_repository(REPOSITORY, f"s3://{s3_bucket}/{REPOSITORY}")
        lake.rules(20)
        lake.calendar.days_ago = 60
        twins = [name for some in _TWINS.values() for name in some]
        for number, key in enumerate([*_TWINS, *twins, *_ALONE, *_UNNAMEABLE]):
            body = f"content number {number}, with a size of its own{'.' * number}".encode()
            # The server's own front takes no line breaks.
            recorded._backend().put_object(s3_bucket, f"{REPOSITORY}/{key}", body)
            if key in _TWINS:
                lake.stage("main", f"path/{number}", key, size=len(body))
        lake.commit("main")
        lake.calendar.days_ago = 0
        written = datetime.now(timezone.utc) - timedelta(hours=1)
        for found in recorded._backend().buckets[s3_bucket].keys.values():
            found.last_modified = written
        yield Strange(lake, s3_bucket)


def test_what_is_dead_goes_to_the_letter_and_what_cannot_be_named_stays_and_is_told(
    strange: Strange, spark: Session
) -> None:
    ctx = strange.lake.context(spark)
    for stage in STAGES:
        stage(ctx)
    sweep(ctx)
    assert strange.stored() == {*_TWINS, *_UNNAMEABLE}
    spared = ctx.root.attempt(REPOSITORY, ctx.run).read("deletion_candidates", "spared")
    told = dict(zip(spared["address"].to_pylist(), spared["why"].to_pylist(), strict=True))
    assert set(told) == set(_UNNAMEABLE)
    assert all("control character" in why for why in told.values())
