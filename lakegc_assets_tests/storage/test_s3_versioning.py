"""Prefixes that MinIO excludes from the versioning of a bucket: an undo promises nothing there."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_recovery
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import SPACE
from lakegc_assets_tests.storage.servers import Server
from lakegc_assets_tests.storage.test_s3_versions import Bucket
from lakegc_assets_tests.storage.test_undelete import versioned


def _configuration(*excluded: str, status: str = "Enabled") -> str:
    prefixes = "".join(
        f"<ExcludedPrefixes><Prefix>{one}</Prefix></ExcludedPrefixes>" for one in excluded
    )
    return (
        f"<VersioningConfiguration {SPACE}><Status>{status}</Status>{prefixes}"
        "<ExcludeFolders>true</ExcludeFolders></VersioningConfiguration>"
    )


@pytest.mark.parametrize(
    ("excluded", "kind"),
    [
        ([], "versions"),
        (["other/", "nsx/"], "versions"),
        (["*/_temporary/", "ns/*/_tmp/"], "versions"),
        (["*/_temporary/", "*/temporary/"], "nothing"),
        (["*/_temporary"], "nothing"),
        (["other/", "ns/data/"], "nothing"),
        (["*/_lakefs/"], "nothing"),
        (["n"], "nothing"),
        ([""], "nothing"),
    ],
)
def test_a_namespace_with_an_excluded_prefix_promises_no_undo(
    script: Script, excluded: list[str], kind: str
) -> None:
    rules = Answer(body=f"<LifecycleConfiguration {SPACE}/>")
    script.answers = [Answer(body=_configuration(*excluded)), rules]
    found = open_store("s3://bkt/ns", script.config()).recovery()
    assert found.kind == kind
    assert ("are excluded from the versioning" in found.notice) == (kind == "nothing")


def test_a_namespace_below_a_folder_of_spark_promises_no_undo(script: Script) -> None:
    rules = Answer(body=f"<LifecycleConfiguration {SPACE}/>")
    script.answers = [Answer(body=_configuration("*/_temporary/")), rules]
    assert open_store("s3://bkt/a/_temporary/ns", script.config()).recovery().kind == "nothing"


def test_a_bucket_with_a_status_that_s3_does_not_have_keeps_nothing(script: Script) -> None:
    script.answers = [Answer(body=_configuration(status="Disabled"))]
    found = open_store("s3://bkt/ns", script.config()).recovery()
    assert (found.kind, found.notice.partition(": ")[2]) == (
        "nothing",
        "the bucket keeps nothing of what is deleted",
    )


def test_a_suspended_bucket_is_suspended_whatever_it_excludes(script: Script) -> None:
    script.answers = [Answer(body=_configuration("ns/", status="Suspended"))]
    found = open_store("s3://bkt/ns", script.config()).recovery()
    assert found.kind == "nothing"
    assert "versioning is suspended" in found.notice


@pytest.mark.stores
@pytest.mark.parametrize("excluded", ["{}data/", "{}", "{}*/gone", "other/", "*/_temporary/"])
def test_minio_keeps_nothing_of_what_is_deleted_below_an_excluded_prefix(
    minio_server: Server, excluded: str
) -> None:
    bucket = Bucket(minio_server.endpoint, versioned(minio_server.endpoint))
    _put_versioning(bucket, _configuration(excluded.format(bucket.prefix)))
    lost = bucket.lose("data/slice/gone")
    comes_back = excluded in {"other/", "*/_temporary/"}
    assert bucket.store.recovery().kind == ("versions" if comes_back else "nothing")
    assert probe_recovery(bucket.store, "_lakefs/probe-", None) == bucket.store.recovery()
    assert bucket.store.data_protection().held is (True if comes_back else None)
    ((outcome, _),) = bucket.undelete(lost)
    assert outcome == ("restored" if comes_back else "not_kept")


def _put_versioning(bucket: Bucket, configuration: str) -> None:
    """Send a configuration with elements that boto3 does not know."""
    client: Any = boto3.client("s3", endpoint_url=bucket.client.meta.endpoint_url)

    def replace(params: dict[str, Any], **_: object) -> None:
        params["body"] = configuration.encode()

    client.meta.events.register("before-call.s3.PutBucketVersioning", replace)
    client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
