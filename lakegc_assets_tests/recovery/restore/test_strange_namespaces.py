"""A repository in a namespace with percent signs, blanks and more is marked, swept and restored."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, candidates, mark, running
from lakegc_assets_tests.sessions import Session

NAMES = ("a", "%41", "\u00e9 +")


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        # lakeFS decodes no path of local storage, and each that it can on S3.
        ("local", "n s/%41%2541 \u00e9+"),
        pytest.param("s3", "n s/\u00e9+", marks=pytest.mark.conformance),
    ],
)
def test_what_is_dead_goes_and_comes_back(
    tmp_path: Path, spark: Session, request: pytest.FixtureRequest, kind: str, folder: str
) -> None:
    settings: dict[str, Any] = {}
    namespace = f"local://lake/{folder}"
    if kind == "s3":
        bucket, endpoint = map(request.getfixturevalue, ("s3_bucket", "s3_server"))
        client: Any = boto3.client("s3", endpoint_url=endpoint)
        versions = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=versions)
        namespace = f"s3://{bucket}/{folder}"
        settings = {"store": f"s3://{bucket}", "store_config": StoreConfig(endpoint_url=endpoint)}
    with running(tmp_path, **settings) as lake:
        lake.client.create_repository(REPOSITORY, namespace)
        lake.rules(20)
        for days_ago, order in ((90, "first"), (60, "second")):
            lake.calendar.days_ago = days_ago
            for name in NAMES:
                content = f"the {order} {name}".encode()
                lake.client.upload_object(REPOSITORY, "main", name, content)
            lake.commit("main")
        lake.calendar.days_ago = 0
        if kind == "s3":
            for one in recorded.backend().buckets[bucket].keys.values():
                one.last_modified -= timedelta(minutes=1)
        store = open_store(namespace, lake.server.store_config)

        def stored() -> dict[str, bytes]:
            return {one.key: store.get(one.key) for one in store.infos("data/")}

        before = stored()
        gone = candidates(mark(lake.context(spark)))
        assert {before[key] for key in gone} == {f"the first {name}".encode() for name in NAMES}
        sweep(lake.context(spark))
        assert stored() == {key: data for key, data in before.items() if key not in gone}
        restore(lake.context(spark), Choice(everything=True))
        assert stored() == before
        for name in NAMES:
            read = lake.client.get_object(REPOSITORY, "main", name)
            assert read == f"the second {name}".encode()
