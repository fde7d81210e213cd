"""The gateway's multipart uploads: many parts, which become one object of the store."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from starlette.responses import Response

from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.calls import (
    Call,
    Key,
    check_target,
    require_bucket,
    user_metadata,
)
from lakegc_assets.embedded.gateway.documents import Value, document, parse, time_of
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.objects import content, if_absent, quoted, source
from lakegc_assets.embedded.gateway.payload import check_parts, object_checksums
from lakegc_assets.embedded.gateway.uploads import EndedError, Part, Upload, Uploads
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.lake.catalog import Branch, Repository
from lakegc_assets.embedded.objects import objects
from lakegc_assets.embedded.objects.objects import DEFAULT_CONTENT_TYPE
from lakegc_assets.graveler.entry import Entry

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


_MOST_PARTS = 10_000
_MOST_LISTED = 1000
_COPY_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
# All parts but the last need this size.
SMALLEST_ON_S3 = 5 * 1024 * 1024
_PartReader = Callable[[], bytes]


class Multipart:
    """The operations."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def create(self, call: Call) -> Response:
        """CreateMultipartUpload."""
        key = call.target()
        upload = self._uploads.start(
            check_target(call.lake, call.bucket, key.ref).uid,
            key.path,
            call.headers.get("content-type", ""),
            user_metadata(call.headers),
        )
        return document(
            "InitiateMultipartUploadResult",
            [("Bucket", call.bucket), ("Key", call.name), ("UploadId", upload)],
        )

    def upload_part(self, call: Call) -> Response:
        """UploadPart, and UploadPartCopy."""
        upload, _ = self._open(call)
        text = call.query.get("partNumber", "")
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= _MOST_PARTS:
            raise errors.invalid_argument(
                f"Part number must be an integer between 1 and {_MOST_PARTS}, inclusive"
            )
        copies = "x-amz-copy-source" in call.headers
        data = _copied(call) if copies else call.body
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        self._uploads.add(upload, int(text), data, etag)
        if copies:
            now = time_of(call.lake.now())
            return document("CopyPartResult", [("LastModified", now), ("ETag", quoted(etag))])
        return Response(headers={"ETag": quoted(etag), **call.checksums})

    def complete(self, call: Call) -> Response:
        """CompleteMultipartUpload; a repeated request returns the same object."""
        key = call.target()
        upload, parts = self._find(call, key)
        wanted = _listed(call)
        etag = upload.etag
        if etag is None:
            chosen = [_checked(parts, *item) for item in wanted]
            try:
                etag = self._assemble(call, key, upload, chosen)
                self._uploads.drop_files(upload.id)
            except EndedError:
                # Another request has aborted or completed the upload meanwhile.
                etag = self._find(call, key)[0].etag
        if etag is None:
            raise errors.no_such_upload()
        return document(
            "CompleteMultipartUploadResult",
            [
                ("Location", f"/{call.bucket}/{call.name}"),
                ("Bucket", call.bucket),
                ("Key", call.name),
                ("ETag", quoted(etag)),
            ],
        )

    def abort(self, call: Call) -> Response:
        """AbortMultipartUpload."""
        self._uploads.abort(self._open(call)[0])
        return Response(status_code=204)

    def list_uploads(self, call: Call) -> Response:
        """ListMultipartUploads, by key and then by id."""
        require_bucket(call.lake, call.bucket)
        prefix, marker = call.query.get("prefix", ""), call.query.get("key-marker", "")
        # S3 ignores the id of an upload without a key.
        id_marker = call.query.get("upload-id-marker", "") if marker else ""
        amount = call.number("max-uploads", _MOST_LISTED, _MOST_LISTED)
        after = [
            (key, upload)
            for key, upload in self._uploads.open_in(call.bucket)
            if key.startswith(prefix)
            and (key > marker or (id_marker and key == marker and upload.id > id_marker))
        ]
        listed = after[:amount]
        return document(
            "ListMultipartUploadsResult",
            [
                ("Bucket", call.bucket),
                ("KeyMarker", call.shown(marker)),
                ("UploadIdMarker", id_marker),
                ("NextKeyMarker", call.shown(listed[-1][0] if listed else "")),
                ("NextUploadIdMarker", listed[-1][1].id if listed else ""),
                ("Prefix", call.shown(prefix)),
                *([("EncodingType", "url")] if "encoding-type" in call.query else []),
                ("MaxUploads", amount),
                ("IsTruncated", bool(listed) and len(after) > amount),
                *(("Upload", _listed_upload(call, *each)) for each in listed),
            ],
        )

    def list_parts(self, call: Call) -> Response:
        """ListParts."""
        upload, parts = self._open(call)
        amount = call.number("max-parts", _MOST_LISTED, _MOST_LISTED)
        marker = call.number("part-number-marker", 0, _MOST_PARTS)
        after = [part for number, part in parts.items() if number > marker]
        listed: list[tuple[str, Value]] = [
            (
                "Part",
                [
                    ("PartNumber", part.number),
                    ("LastModified", time_of(part.written)),
                    ("ETag", quoted(part.etag)),
                    ("Size", part.size),
                ],
            )
            for part in after[:amount]
        ]
        return document(
            "ListPartsResult",
            [
                ("Bucket", call.bucket),
                ("Key", call.name),
                ("UploadId", upload.id),
                ("PartNumberMarker", marker),
                ("NextPartNumberMarker", after[:amount][-1].number if listed else marker),
                ("MaxParts", amount),
                ("IsTruncated", bool(listed) and len(after) > amount),
                *listed,
            ],
        )

    def _find(self, call: Call, key: Key) -> tuple[Upload, dict[int, Part]]:
        branch = check_target(call.lake, call.bucket, key.ref)
        return self._uploads.find(call.query["uploadId"], branch.uid, key.path)

    def _open(self, call: Call) -> tuple[Upload, dict[int, Part]]:
        upload, parts = self._find(call, call.target())
        if upload.etag is not None:
            raise errors.no_such_upload()
        return upload, parts

    def _assemble(self, call: Call, key: Key, upload: Upload, parts: list[Part]) -> str:
        """Write the object and stage it, and end the upload in the same transaction."""
        lake = call.lake
        limit = lake.settings.max_upload_bytes
        size = sum(part.size for part in parts)
        if size > limit:
            raise errors.entity_too_large(limit)
        _check_sizes(lake, [part.size for part in parts])
        if object_checksums(call.headers):
            check_parts([self._uploads.read(part) for part in parts], call.headers)
        absent = if_absent(call)
        repo = objects.require_target(lake, call.bucket, key.ref, key.path, if_absent=absent)
        moment = lake.now()
        address = lake.slices.new_address(repo.id, moment)
        etag = _etag(parts)
        _write_parts(lake, repo, address, [partial(self._uploads.read, p) for p in parts], moment)
        entry = Entry(
            address=address,
            last_modified=objects.timestamp(moment),
            size=size,
            e_tag=etag,
            metadata=dict(upload.metadata),
            content_type=upload.content_type or DEFAULT_CONTENT_TYPE,
        )

        def end(db: sqlite3.Connection, _: Repository, branch: Branch) -> None:
            if branch.uid != upload.branch:
                raise EndedError
            self._uploads.end(db, upload, etag)

        objects.stage_entry(
            lake,
            call.bucket,
            key.ref,
            key.path,
            entry,
            if_absent=absent,
            namespace=repo.namespace,
            first=end,
        )
        return etag


def _listed_upload(call: Call, key: str, upload: Upload) -> Value:
    owner: Value = [("ID", "lakefs"), ("DisplayName", "lakefs")]
    return [
        ("Key", call.shown(key)),
        ("UploadId", upload.id),
        ("Initiator", owner),
        ("Owner", owner),
        ("StorageClass", "STANDARD"),
        ("Initiated", time_of(upload.started)),
    ]


def _listed(call: Call) -> list[tuple[int, str]]:
    """Numbers and ETags of the parts of the object, in order."""
    found: list[tuple[int, str]] = []
    for part in parse(call.body, "CompleteMultipartUpload").all("Part"):
        text = part.text("PartNumber").strip()
        if not re.fullmatch(r"[0-9]{1,5}", text):
            raise errors.malformed_xml()
        found.append((int(text), part.text("ETag").strip().strip('"')))
    if not found:
        raise errors.malformed_xml()
    if any(this[0] >= following[0] for this, following in pairwise(found)):
        raise S3Error(
            400,
            "InvalidPartOrder",
            "The list of parts was not in ascending order. The parts list must be specified in "
            "order by part number.",
        )
    return found


def _checked(parts: Mapping[int, Part], number: int, etag: str) -> Part:
    part = parts.get(number)
    if part is None or part.etag != etag:
        raise errors.invalid_part(number)
    return part


def _etag(parts: Sequence[Part]) -> str:
    """The ETag as S3 computes it: the MD5 of the parts' MD5s, and the number of parts."""
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def _copied(call: Call) -> bytes:
    """The bytes of the source of UploadPartCopy."""
    data = content(call, source(call)[2])
    header = call.headers.get("x-amz-copy-source-range")
    if header is None:
        return data
    wanted = _COPY_RANGE.fullmatch(header)
    if not wanted or int(wanted[1]) > int(wanted[2]):
        raise errors.invalid_argument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first "
            "and last are the zero-based offsets of the first and last bytes to copy"
        )
    if int(wanted[2]) >= len(data):
        raise errors.invalid_argument("Range specified is not valid for source object")
    return data[int(wanted[1]) : int(wanted[2]) + 1]


def _check_sizes(lake: Lake, sizes: Sequence[int]) -> None:
    """Refuse parts that S3 would not accept; local files allow parts of any size."""
    if lake.settings.store and any(size < SMALLEST_ON_S3 for size in sizes[:-1]):
        raise S3Error(
            400,
            "EntityTooSmall",
            "Your proposed upload is smaller than the minimum allowed object size.",
        )


def _write_parts(
    lake: Lake, repo: Repository, address: str, parts: Sequence[_PartReader], moment: float
) -> None:
    """Write an object, which is at its relative address only once it is complete.

    S3 receives the same parts, so that the store's ETag of the object equals the one in lakeFS's
    entry.
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


def _upload(client: S3Client, bucket: str, key: str, parts: Sequence[_PartReader]) -> None:
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
