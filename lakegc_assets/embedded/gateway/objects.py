"""The gateway's operations on one object: read, write, copy, delete."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime

from starlette.responses import Response

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.calls import (
    Call,
    Key,
    check_target,
    copy_source,
    metadata_headers,
    require_bucket,
    user_metadata,
)
from lakegc_assets.embedded.gateway.documents import document, time_of
from lakegc_assets.embedded.objects import copies, objects
from lakegc_assets.embedded.objects.objects import DEFAULT_CONTENT_TYPE, Found
from lakegc_assets.graveler.entry import Entry

OVERRIDES = {
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
    "response-content-language": "Content-Language",
    "response-content-type": "Content-Type",
    "response-expires": "Expires",
}
_SOURCE_CONDITION = "x-amz-copy-source-if-"
# A client that deletes only what it has read must not delete another object.
_DELETE_CONDITIONS = ("if-match", "x-amz-if-match-")
_NO_BYTES = hashlib.md5(b"", usedforsecurity=False).hexdigest()
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def get(call: Call) -> Response:
    """An object's content, or a range of it; 410 if it was swept."""
    found = find(call, call.bucket, call.key)
    headers = _headers(call, found)
    if _is_unmodified(call.headers, found.entry):
        return _not_modified(headers)
    data = content(call, found)
    bounds = _range(call.headers.get("range", ""), len(data))
    if bounds is None:
        return Response(data, headers=headers)
    first, end = bounds
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
    return Response(data[first:end], 206, headers)


def head(call: Call) -> Response:
    """Headers of an object, swept or not."""
    found = find(call, call.bucket, call.key)
    headers = _headers(call, found)
    if _is_unmodified(call.headers, found.entry):
        return _not_modified(headers)
    size = found.entry.size
    bounds = _range(call.headers.get("range", ""), size)
    if bounds is None:
        return Response(headers={**headers, "Content-Length": str(size)})
    first, end = bounds
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    return Response(status_code=206, headers={**headers, "Content-Length": str(end - first)})


def put(call: Call) -> Response:
    """Write an object and stage it."""
    if "x-amz-copy-source" in call.headers:
        return _copy(call)
    if _is_branch_itself(call):
        return Response(headers={"ETag": quoted(_NO_BYTES)})
    key = call.target()
    found = objects.upload(
        call.lake,
        call.bucket,
        key.ref,
        key.path,
        call.body,
        content_type=call.headers.get("content-type", ""),
        metadata=user_metadata(call.headers),
        if_absent=if_absent(call),
    )
    return Response(headers={"ETag": quoted(found.entry.e_tag), **call.checksums})


def delete(call: Call) -> Response:
    """Delete a path from a branch; a missing path is no error, and conditions are refused."""
    if any(name.startswith(_DELETE_CONDITIONS) for name in call.headers):
        raise errors.not_implemented("conditions on deletes")
    key = Key.of(call.name)
    check_target(call.lake, call.bucket, key.ref)
    if key.path:
        objects.delete(call.lake, call.bucket, key.ref, [key.path])
    return Response(status_code=204)


def tagging(call: Call) -> Response:
    """No tags, as lakeFS answers."""
    find(call, call.bucket, call.key)
    return document("Tagging", [("TagSet", [])])


def find(call: Call, bucket: str, key: Key) -> Found:
    """The entry at a key; NoSuchBucket or NoSuchKey if there is none."""
    require_bucket(call.lake, bucket)
    try:
        return objects.get_entry(call.lake, bucket, key.ref, key.path)
    except ApiError as error:
        raise errors.of_api(error) from None


def content(call: Call, found: Found) -> bytes:
    """An object's bytes; 410 when it was swept."""
    try:
        return objects.content(call.lake, found)
    except ApiError as error:
        raise errors.of_api(error) from None


def source(call: Call) -> tuple[str, Key, Found]:
    """The source of ``x-amz-copy-source``, with its conditions evaluated."""
    bucket, key = copy_source(call.headers["x-amz-copy-source"])
    found = find(call, bucket, key)
    if _is_unmodified(call.headers, found.entry, "x-amz-copy-source-"):
        raise errors.precondition_failed()
    return bucket, key, found


def if_absent(call: Call) -> bool:
    """Return whether a write requires a path without object; other conditions are refused."""
    wanted = call.headers.get("if-none-match")
    if wanted not in {None, "*"} or "if-match" in call.headers:
        raise errors.not_implemented("conditions other than If-None-Match: *")
    return wanted == "*"


def quoted(e_tag: str) -> str:
    """An ETag in the form of a header."""
    return f'"{_sendable(e_tag)}"'


def _is_branch_itself(call: Call) -> bool:
    """Return whether a client marks a branch as a directory, as some do for all parents of a path.

    The branch exists already, and an empty path cannot be written.
    """
    ref, slash, path = call.name.partition("/")
    if not slash or path or call.body:
        return False
    check_target(call.lake, call.bucket, ref)
    return True


def _copy(call: Call) -> Response:
    target = call.target()
    directive = call.headers.get("x-amz-metadata-directive", "COPY")
    if directive not in {"COPY", "REPLACE"}:
        raise errors.invalid_argument("Unknown metadata directive.")
    if if_absent(call):
        raise errors.not_implemented("conditions on the target of a copy")
    bucket, key, found = source(call)
    conditional = any(name.startswith(_SOURCE_CONDITION) for name in call.headers)
    replaces = directive == "REPLACE"
    if not replaces and (bucket, key) == (call.bucket, target):
        raise errors.S3Error(
            400,
            "InvalidRequest",
            "This copy request is illegal because it is trying to copy an object to itself "
            "without changing the object's metadata.",
        )
    made = copies.copy(
        call.lake,
        call.bucket,
        target.ref,
        target.path,
        source_ref=key.ref,
        source_path=key.path,
        source_repository=bucket,
        metadata=user_metadata(call.headers) if replaces else None,
        content_type=call.headers.get("content-type", DEFAULT_CONTENT_TYPE) if replaces else None,
        expected=found.entry if conditional else None,
    )
    return document(
        "CopyObjectResult",
        [
            ("LastModified", time_of(made.entry.last_modified.seconds)),
            ("ETag", quoted(made.entry.e_tag)),
        ],
    )


def _headers(call: Call, found: Found) -> dict[str, str]:
    entry = found.entry
    headers = {
        "ETag": quoted(entry.e_tag),
        "Last-Modified": formatdate(entry.last_modified.seconds, usegmt=True),
        "Content-Type": _sendable(entry.content_type) or DEFAULT_CONTENT_TYPE,
        "Accept-Ranges": "bytes",
        **metadata_headers(entry.metadata),
    }
    for name, header in OVERRIDES.items():
        if name in call.query:
            headers[header] = _sendable(call.query[name])
    return headers


def _sendable(text: str) -> str:
    """Text in the form of a header: UTF-8 on one line, which Starlette expects as Latin-1."""
    line = re.sub(r"[\x00-\x1f\x7f]", "", text).strip()
    return line.encode().decode("latin-1")


def _is_unmodified(headers: Mapping[str, str], entry: Entry, prefix: str = "") -> bool:
    """Return whether the client has the object already.

    The order is HTTP's: a condition on the ETag takes precedence over one on the time.

    Raises:
        S3Error: PreconditionFailed, if another condition does not hold.
    """
    seconds = entry.last_modified.seconds
    match, none_match = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-none-match")
    if match is not None:
        holds = _names(match, entry)
    else:
        limit = _seconds(headers.get(f"{prefix}if-unmodified-since"))
        holds = limit is None or seconds <= limit
    if not holds:
        raise errors.precondition_failed()
    if none_match is not None:
        return _names(none_match, entry)
    since = _seconds(headers.get(f"{prefix}if-modified-since"))
    return since is not None and seconds <= since


def _names(tags: str, entry: Entry) -> bool:
    listed = [tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")]
    return "*" in listed or _sendable(entry.e_tag) in listed


def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (IndexError, OSError, OverflowError, TypeError, ValueError):
        return None


def _not_modified(headers: Mapping[str, str]) -> Response:
    kept = {name: headers[name] for name in ("ETag", "Last-Modified")}
    return Response(status_code=304, headers=kept)


def _range(header: str, size: int) -> tuple[int, int] | None:
    """First byte and end of a Range header; None for everything.

    Raises:
        S3Error: 416 if the object has none of these bytes.
    """
    wanted = _RANGE.fullmatch(header)
    if not wanted or not any(wanted.groups()):
        return None
    first, last = wanted.groups()
    if first and last and int(first) > int(last):
        return None
    begin = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if begin >= end:
        raise errors.S3Error(
            416,
            "InvalidRange",
            "The requested range is not satisfiable",
            {"Content-Range": f"bytes */{size}"},
        )
    return begin, end
