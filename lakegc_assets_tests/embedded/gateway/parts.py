"""Multipart uploads in the words of the tests: their steps, and what is left of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.gateway.s3 import S3

KEY = "main/odd +%é"
PATH = "odd +%é"


def begin(s3: S3, key: str = KEY, **options: Any) -> dict[str, Any]:
    """The arguments that name a new upload."""
    upload = s3.create_multipart_upload(Bucket="repo", Key=key, **options)["UploadId"]
    return {"Bucket": "repo", "Key": key, "UploadId": upload}


def add(s3: S3, where: dict[str, Any], number: int, data: bytes) -> dict[str, Any]:
    """Upload a part; gives what completing asks for."""
    etag = s3.upload_part(**where, PartNumber=number, Body=data)["ETag"]
    return {"PartNumber": number, "ETag": etag}


def complete(s3: S3, where: dict[str, Any], *parts: dict[str, Any], **options: Any) -> str:
    """The object's ETag."""
    answer = s3.complete_multipart_upload(
        **where, MultipartUpload={"Parts": list(parts)}, **options
    )
    return str(answer["ETag"])


def etag_of(*parts: bytes) -> str:
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    return f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"


def files_of(server: EmbeddedLakeFS) -> list[Path]:
    """What is kept of uploads."""
    return [p for p in (server.lake.settings.data_dir / "uploads").rglob("*") if p.is_file()]


def objects_of(server: EmbeddedLakeFS) -> list[Path]:
    return [p for p in (server.objects_dir / "repo" / "data").rglob("*") if p.is_file()]
