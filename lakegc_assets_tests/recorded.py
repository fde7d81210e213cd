"""Load a recorded repository into an S3 server, as a real lakeFS left it there."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import boto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakegc_assets_tests.replay import GOLDEN

BUCKET = "lab"


@dataclass(frozen=True)
class FixedClocks:
    """All three clocks stand at one moment."""

    moment: datetime

    def now(self) -> datetime:
        return self.moment

    def of_lakefs(self, client: Any) -> datetime:  # noqa: ARG002
        return self.moment

    def of_store(self, store: Any) -> datetime:  # noqa: ARG002
        return self.moment


def load(repository: str, endpoint: str, prepare: str = "prepare") -> None:
    """Put every recorded object into the bucket, with its recorded time and etag."""
    client = boto3.client("s3", endpoint_url=endpoint)
    try:
        client.head_bucket(Bucket=BUCKET)
    except client.exceptions.ClientError:
        client.create_bucket(Bucket=BUCKET)
    clear(repository, endpoint)
    folder = GOLDEN / repository
    with (folder / "listing_before.tsv").open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    for row in rows:
        relative = row["key"].removeprefix(f"{repository}/")
        raw = folder / "raw" / relative
        body = raw.read_bytes() if raw.is_file() else b"x" * int(row["size"])
        client.put_object(Bucket=BUCKET, Key=row["key"], Body=body)
    prepared = folder / prepare / "files"
    for path in sorted(p for p in prepared.rglob("*") if p.is_file()):
        key = f"{repository}/{path.relative_to(prepared)}"
        client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
    keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys
    for row in rows:
        stored = keys[row["key"]]
        written = datetime.fromisoformat(row["last_modified"].replace("Z", "+00:00"))
        stored.last_modified = written.replace(tzinfo=timezone.utc)
        stored._etag = row["etag"].strip('"')  # noqa: SLF001


def clear(repository: str, endpoint: str) -> None:
    """Remove what an earlier test left of a repository."""
    client = boto3.client("s3", endpoint_url=endpoint)
    for key in keys(repository, endpoint):
        client.delete_object(Bucket=BUCKET, Key=f"{repository}/{key}")


def keys(repository: str, endpoint: str) -> list[str]:
    """The keys of a repository, relative to its namespace."""
    client = boto3.client("s3", endpoint_url=endpoint)
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=BUCKET, Prefix=f"{repository}/"
    )
    found = [item["Key"] for page in pages for item in page.get("Contents", [])]
    return [key.removeprefix(f"{repository}/") for key in found]


def expected(repository: str) -> set[str]:
    """The addresses that may be deleted, by the definition."""
    return set((GOLDEN / repository / "expected_deleted.txt").read_text().splitlines())


def mark_time(repository: str) -> datetime:
    """When lakeFS's own collector began its mark; for the others, just after the recording."""
    summaries = sorted(Path(GOLDEN / repository).glob("peer_mark/files/**/summary.json"))
    if summaries:
        import json  # noqa: PLC0415

        text = json.loads(summaries[0].read_text())["start_time"]
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")
    return datetime(2026, 11, 21, 4, 45, tzinfo=timezone.utc)
