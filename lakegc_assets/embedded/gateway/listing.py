"""The gateway's ListObjects, both versions: branches first, and the paths below a branch."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from starlette.responses import Response

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.calls import Call, Key, require_bucket
from lakegc_assets.embedded.gateway.documents import Value, document, time_of
from lakegc_assets.embedded.gateway.objects import quoted
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.objects import objects
from lakegc_assets.embedded.objects.objects import Found
from lakegc_assets.embedded.paging import Paging

_MOST_KEYS = 1000


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
