"""URLs with which a client reads and writes objects on S3 without credentials, for a limited time.

They are signed with version 4, like lakeFS's; boto3 does not use it by default in all regions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.config import StoreConfig

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


class PresignedUrl(NamedTuple):
    """A URL, and its expiry in epoch seconds by the server's clock."""

    url: str
    expires: int


def is_supported(lake: Lake) -> bool:
    """Return whether the block store supports such URLs: local files do not."""
    return bool(lake.settings.store)


def require_support(lake: Lake) -> None:
    """400 if the block store does not support such URLs, as lakeFS answers for local files."""
    if not is_supported(lake):
        raise errors.bad_request(
            f"{lake.settings.blockstore_type} adapter: operation not supported"
        )


def presigned_url(
    lake: Lake, operation: Literal["get_object", "put_object"], base: str, key: str
) -> PresignedUrl:
    """A URL for one request; the key is relative to the URL ``base`` of a bucket or a prefix.

    Raises:
        ApiError: 400 if the block store does not support such URLs.
    """
    require_support(lake)
    # Loading boto3 takes longer than most work on local files.
    from lakegc_assets.storage.s3.client import clients, translated  # noqa: PLC0415

    place = StorageNamespace.parse(base)
    config, seconds = lake.settings.store_config, lake.settings.presign_seconds
    where = {"Bucket": place.authority, "Key": place.key(key)}
    with translated(f"{base}: signing a URL for {key!r}"):
        client = _signing_client(config, clients(config).usual)
        url = client.generate_presigned_url(operation, Params=where, ExpiresIn=seconds)
    return PresignedUrl(url, int(lake.now()) + seconds)


@lru_cache(maxsize=4)
def _signing_client(config: StoreConfig, usual: S3Client) -> S3Client:
    """A client like the store's, except for the version of the signature."""
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    from lakegc_assets.storage.s3.client import open_session  # noqa: PLC0415

    session = boto3.Session(botocore_session=open_session(config.profile, config.credentials_file))
    return session.client(
        "s3",
        endpoint_url=usual.meta.endpoint_url,
        region_name=usual.meta.region_name,
        config=usual.meta.config.merge(Config(signature_version="s3v4")),
    )
