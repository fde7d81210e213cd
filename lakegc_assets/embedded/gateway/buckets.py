"""The gateway's operations on repositories as buckets, and their listings.

A listing of a bucket has its branches first, and then the paths below one.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from starlette.responses import Response

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.calls import Call, Key, check_target, require_bucket
from lakegc_assets.embedded.gateway.documents import Element, Value, document, parse, time_of
from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.objects import quoted
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.objects import objects
from lakegc_assets.embedded.objects.objects import Found
from lakegc_assets.embedded.paging import Paging

_REGION = "us-east-1"
_MOST_DELETES = 1000
_CONDITIONS = ("ETag", "LastModifiedTime", "Size")
_MOST_KEYS = 1000


def list_buckets(call: Call) -> Response:
    """All repositories."""
    with call.lake.state.read() as db:
        found = catalog.repositories(db, "", "", -1)
    buckets: list[tuple[str, Value]] = [
        ("Bucket", [("Name", repo.id), ("CreationDate", time_of(repo.creation_date))])
        for repo in found
    ]
    owner: list[tuple[str, Value]] = [("ID", "lakefs"), ("DisplayName", "lakefs")]
    return document("ListAllMyBucketsResult", [("Owner", owner), ("Buckets", buckets)])


def head(call: Call) -> Response:
    """Answer that the repository exists."""
    require_bucket(call.lake, call.bucket)
    return Response(headers={"x-amz-bucket-region": _REGION})


def location(call: Call) -> Response:
    """The default region, which has no name in S3."""
    require_bucket(call.lake, call.bucket)
    return document("LocationConstraint", [])


def versioning(call: Call) -> Response:
    """Answer that objects have no versions."""
    require_bucket(call.lake, call.bucket)
    return document("VersioningConfiguration", [])


def delete_objects(call: Call) -> Response:
    """Delete up to 1,000 keys, with an answer for each, or only for errors on request."""
    require_bucket(call.lake, call.bucket)
    wanted = parse(call.body, "Delete")
    listed = wanted.all("Object")
    if not 0 < len(listed) <= _MOST_DELETES:
        raise errors.malformed_xml()
    quiet = wanted.text("Quiet", "false").strip().lower() == "true"
    names = [item.text("Key") for item in listed]
    refused = {
        name: error
        for name, item in zip(names, listed, strict=True)
        if (error := _unsupported(item)) is not None
    }
    by_ref: dict[str, list[str]] = {}
    for name in names:
        if name not in refused:
            by_ref.setdefault(Key.of(name).ref, []).append(name)
    for ref, deleted in by_ref.items():
        if error := _delete(call, ref, deleted):
            refused.update(dict.fromkeys(deleted, error))
    answers: list[tuple[str, Value]] = []
    for name in names:
        if name in refused:
            error = refused[name]
            answers.append(
                ("Error", [("Key", name), ("Code", error.code), ("Message", error.message)])
            )
        elif not quiet:
            answers.append(("Deleted", [("Key", name)]))
    return document("DeleteResult", answers)


def _unsupported(item: Element) -> S3Error | None:
    """The error for a key to delete with a version or a condition; None for a plain key."""
    if item.all("VersionId"):
        return errors.not_implemented("versions of objects")
    if any(item.all(name) for name in _CONDITIONS):
        return errors.not_implemented("conditions on deletes")
    return None


def _delete(call: Call, ref: str, names: list[str]) -> S3Error | None:
    """Delete keys of one branch in one transaction; its error applies to each of them."""
    try:
        check_target(call.lake, call.bucket, ref)
        paths = [path for path in (Key.of(name).path for name in names) if path]
        objects.delete(call.lake, call.bucket, ref, paths)
    except S3Error as error:
        return error
    except ApiError as error:
        return errors.of_api(error)
    return None


@dataclass(frozen=True)
class _Page:
    """Part of a listing: keys and common prefixes in order, and whether more follow."""

    keys: list[tuple[str, Found]]
    prefixes: list[str]
    last: str
    has_more: bool


def list_v2(call: Call) -> Response:
    """ListObjectsV2."""
    if call.query["list-type"] != "2":
        raise errors.invalid_argument("Argument list-type must be 2")
    start_after = call.query.get("start-after", "")
    token = call.query.get("continuation-token")
    after = start_after if token is None else _decoded(token)
    found = _page(call, after)
    fields: list[tuple[str, Value]] = [
        ("KeyCount", len(found.keys) + len(found.prefixes)),
        *([("StartAfter", call.shown(start_after))] if start_after else []),
        *([("ContinuationToken", token)] if token is not None else []),
        *([("NextContinuationToken", _encoded(found.last))] if found.has_more else []),
    ]
    return _answer(call, found, fields)


def list_v1(call: Call) -> Response:
    """ListObjects; ``NextMarker`` is set where the last entry of the page may be no key."""
    marker = call.query.get("marker", "")
    found = _page(call, marker)
    fields: list[tuple[str, Value]] = [("Marker", call.shown(marker))]
    # Without a delimiter the client uses the last key as marker; branches are always prefixes.
    if found.has_more and (call.query.get("delimiter") or found.prefixes):
        fields.append(("NextMarker", call.shown(found.last)))
    return _answer(call, found, fields)


def _answer(call: Call, found: _Page, fields: list[tuple[str, Value]]) -> Response:
    delimiter = call.query.get("delimiter", "")
    encoding = call.query.get("encoding-type")
    contents: list[tuple[str, Value]] = [
        (
            "Contents",
            [
                ("Key", call.shown(key)),
                ("LastModified", time_of(item.entry.last_modified.seconds)),
                ("ETag", quoted(item.entry.e_tag).encode("latin-1").decode()),
                ("Size", item.entry.size),
                ("StorageClass", "STANDARD"),
            ],
        )
        for key, item in found.keys
    ]
    prefixes: list[tuple[str, Value]] = [
        ("CommonPrefixes", [("Prefix", call.shown(prefix))]) for prefix in found.prefixes
    ]
    return document(
        "ListBucketResult",
        [
            ("Name", call.bucket),
            ("Prefix", call.shown(call.query.get("prefix", ""))),
            *([("Delimiter", call.shown(delimiter))] if delimiter else []),
            ("MaxKeys", _amount(call)),
            *([("EncodingType", encoding)] if encoding else []),
            ("IsTruncated", found.has_more),
            *fields,
            *contents,
            *prefixes,
        ],
    )


def _page(call: Call, after: str) -> _Page:
    """The page after a key. A prefix without a slash lists branches, as lakeFS does."""
    repo = require_bucket(call.lake, call.bucket)
    prefix = call.query.get("prefix", "")
    amount = _amount(call)
    if amount == 0:
        return _Page([], [], "", has_more=False)
    if "/" in prefix:
        return _paths(call, Key.of(prefix), after, amount)
    with call.lake.state.read() as db:
        found = catalog.branches(
            db,
            repo,
            prefix=prefix,
            after=Key.of(after).ref,
            amount=amount + 1,
            show_hidden=False,
        )
    names = [f"{branch.name}/" for branch in found[:amount]]
    return _Page([], names, names[-1] if names else "", has_more=len(found) > amount)


def _paths(call: Call, prefix: Key, after: str, amount: int) -> _Page:
    """The paths at one reference; none if it does not exist."""
    below = f"{prefix.ref}/"
    if after and not after.startswith(below):
        if after > below:
            return _Page([], [], "", has_more=False)
        after = below
    wanted = Paging(
        prefix=prefix.path,
        after=after[len(below) :],
        amount=amount,
        delimiter=call.query.get("delimiter", ""),
    )
    try:
        found, has_more = objects.list_objects(call.lake, call.bucket, prefix.ref, wanted)
    except ApiError as error:
        if error.status != 404:  # noqa: PLR2004 - HTTP
            raise
        found, has_more = [], False
    keys = [(below + item.path, item) for item in found if isinstance(item, Found)]
    prefixes = [below + item for item in found if isinstance(item, str)]
    last = found[-1] if found else ""
    return _Page(keys, prefixes, below + (last if isinstance(last, str) else last.path), has_more)


def _amount(call: Call) -> int:
    return call.number("max-keys", _MOST_KEYS, _MOST_KEYS)


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise errors.invalid_argument("The continuation token provided is incorrect") from None
