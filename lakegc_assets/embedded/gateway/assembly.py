"""Writes one object of the store from many parts.

S3 receives the same parts, so that the store's ETag of the object equals the one in lakeFS's entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.lake.catalog import Repository

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

SMALLEST_ON_S3 = 5 * 1024 * 1024
PartReader = Callable[[], bytes]


def check_sizes(lake: Lake, sizes: Sequence[int]) -> None:
    """Refuse parts that S3 would not accept: all but the last need 5 MiB.

    Raises:
        S3Error: EntityTooSmall; local files allow parts of any size.
    """
    if lake.settings.store and any(size < SMALLEST_ON_S3 for size in sizes[:-1]):
        raise S3Error(
            400,
            "EntityTooSmall",
            "Your proposed upload is smaller than the minimum allowed object size.",
        )


def write_parts(
    lake: Lake, repo: Repository, address: str, parts: Sequence[PartReader], moment: float
) -> None:
    """Write an object, which is at its relative address only once it is complete.

    ``moment`` is the time of the write, in epoch seconds.
    """
    if not lake.settings.store:
        lake.stores.write(repo, address, b"".join(part() for part in parts), moment)
        return
    # Loading boto3 takes longer than most work on local files.
    from lakegc_assets.storage.s3.client import clients, translated  # noqa: PLC0415

    place = repo.place
    with translated(repo.address(address)):
        client = clients(lake.settings.store_config).usual
        _upload(client, place.authority, place.key(address), parts)


def _upload(client: S3Client, bucket: str, key: str, parts: Sequence[PartReader]) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    try:
        done: list[CompletedPartTypeDef] = []
        for number, part in enumerate(parts, 1):
            answer = client.upload_part(
                Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=part()
            )
            done.append({"PartNumber": number, "ETag": answer["ETag"]})
        client.complete_multipart_upload(
            Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": done}
        )
    except BaseException:
        with suppress(Exception):
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
        raise
