"""REST: objects, and addresses for clients that write to the store themselves."""

from __future__ import annotations

import re
from contextlib import suppress
from email.utils import formatdate

from starlette.responses import Response

from lakegc_assets.embedded import copies, errors, linking, objects
from lakegc_assets.embedded.calls import Body, Call, Endpoint, answer, done, page_answer
from lakegc_assets.embedded.objects import DEFAULT_CONTENT_TYPE, Found
from lakegc_assets.graveler.entry import Entry, Timestamp

MTIME_HEADER = "X-Lakegc-Mtime"
_METADATA_HEADER = "x-lakefs-meta-"
# Names of objects and slices hold seconds in 32 bits.
_XID_END = 1 << 32
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The dates that HTTP can tell.
_FIRST_SECOND = -62_135_596_800
_LAST_SECOND = 253_402_300_799


def upload(call: Call) -> Response:
    """Write an object, from the body or from a form's ``content``."""
    data, content_type = call.upload or (call.body, _header_text(call, "content-type"))
    if_none_match = call.headers.get("if-none-match")
    if if_none_match not in {None, "*"}:
        raise errors.bad_request('Unsupported value for If-None-Match - Only "*" is supported')
    found = objects.upload(
        call.lake,
        call.repository,
        call.branch,
        call.required("path"),
        data,
        content_type=content_type,
        metadata={
            name.removeprefix(_METADATA_HEADER): _header_text(call, name)
            for name in call.headers
            if name.startswith(_METADATA_HEADER)
        },
        if_absent=if_none_match == "*",
        mtime=_mtime(call),
    )
    return answer(_stats(found), 201)


def stage(call: Call) -> Response:
    """Stage an object that lies outside the namespace."""
    body = call.json("ObjectStageCreation")
    mtime = body.number("mtime", int(call.lake.now()))
    if not _FIRST_SECOND <= mtime <= _LAST_SECOND:
        raise errors.bad_body("ObjectStageCreation", "mtime", "no date that HTTP can tell")
    entry = Entry(
        address=body.text("physical_address"),
        last_modified=Timestamp(mtime),
        size=body.number("size_bytes"),
        e_tag=body.text("checksum"),
        metadata=body.strings("metadata"),
        content_type=body.text("content_type", DEFAULT_CONTENT_TYPE),
    )
    found = objects.stage_outside(
        call.lake, call.repository, call.branch, call.required("path"), entry
    )
    return answer(_stats(found, with_metadata=False), 201)


def get(call: Call) -> Response:
    """An object's content, or a range of it; 410 when it was swept."""
    found = _entry(call)
    data = objects.content(call.lake, found)
    headers = _headers(found)
    wanted = _RANGE.fullmatch(call.headers.get("range", ""))
    if not wanted or not any(wanted.groups()):
        return Response(data, headers=headers, media_type=headers["Content-Type"])
    first, last = wanted.groups()
    begin = int(first) if first else max(len(data) - int(last), 0)
    end = min(int(last) + 1, len(data)) if first and last else len(data)
    if begin >= end:
        raise errors.ApiError(416, "Requested Range Not Satisfiable")
    headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
    return Response(data[begin:end], 206, headers, media_type=headers["Content-Type"])


def head(call: Call) -> Response:
    """What ``get`` would answer, without the content."""
    found = _entry(call)
    headers = {**_headers(found), "Content-Length": str(found.entry.size)}
    return Response(headers=headers, media_type=headers["Content-Type"])


def stat(call: Call) -> Response:
    """What is known of an object, swept or not."""
    with_metadata = call.query.get("user_metadata", "true").lower() == "true"
    return answer(_stats(_entry(call), with_metadata=with_metadata))


def delete(call: Call) -> Response:
    """Delete a path from a branch."""
    objects.delete(call.lake, call.repository, call.branch, [call.required("path")])
    return done()


def delete_many(call: Call) -> Response:
    """Delete paths from a branch."""
    paths = [str(path) for path in call.json("PathList").items("paths")]
    objects.delete(call.lake, call.repository, call.branch, paths)
    return answer({"errors": []})


def list_objects(call: Call) -> Response:
    """A page of what is at a reference."""
    found, has_more = objects.list_objects(
        call.lake, call.repository, call.names["ref"], call.paging()
    )
    with_metadata = call.query.get("user_metadata", "true").lower() == "true"
    shown = [
        _common_prefix(item)
        if isinstance(item, str)
        else _stats(item, with_metadata=with_metadata and bool(item.entry.metadata))
        for item in found
    ]
    return page_answer(shown, has_more=has_more, key="path")


def copy(call: Call) -> Response:
    """Copy an object to a path of a branch; the server decides whether that needs its data."""
    body = call.json("ObjectCopyCreation")
    for ignored in ("force", "shallow"):
        body.flag(ignored)
    found = copies.copy(
        call.lake,
        call.repository,
        call.branch,
        call.required("dest_path"),
        source_ref=body.text("src_ref", "") or call.branch,
        source_path=body.text("src_path"),
    )
    return answer(_stats(found), 201)


def get_physical_address(call: Call) -> Response:
    """An address to write to, and to link afterwards."""
    address = linking.new_link_address(
        call.lake, call.repository, call.branch, call.required("path")
    )
    return answer({"physical_address": address, "presigned_url": None})


def link_physical_address(call: Call) -> Response:
    """Stage what was written to an address."""
    body = call.json("StagingMetadata")
    if not isinstance(body.fields.get("staging"), dict):
        raise errors.bad_body("StagingMetadata", "staging", 'property "staging" is missing')
    staging = Body("StagingLocation", body.fields["staging"])
    entry = Entry(
        address=staging.text("physical_address"),
        size=body.number("size_bytes"),
        e_tag=body.text("checksum"),
        metadata=body.strings("user_metadata"),
        content_type=body.text("content_type", DEFAULT_CONTENT_TYPE),
    )
    found = linking.link(call.lake, call.repository, call.branch, call.required("path"), entry)
    return answer(_stats(found))


def _entry(call: Call) -> Found:
    path = call.required("path")
    return objects.get_entry(call.lake, call.repository, call.names["ref"], path)


def _mtime(call: Call) -> float | None:
    text = call.headers.get(MTIME_HEADER)
    if text is None:
        return None
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < _XID_END:
            return seconds
    raise errors.bad_request(f"{MTIME_HEADER} must be epoch seconds, not {text!r}")


def _headers(found: Found) -> dict[str, str]:
    entry = found.entry
    return {
        "ETag": f'"{_raw(entry.e_tag)}"',
        "Last-Modified": formatdate(entry.last_modified.seconds, usegmt=True),
        "Content-Type": _raw(entry.content_type),
        "Accept-Ranges": "bytes",
        **{
            _METADATA_HEADER + name: _raw(value)
            for name, value in entry.metadata.items()
            if _HEADER_NAME.fullmatch(name)
        },
    }


def _header_text(call: Call, name: str) -> str:
    """A header's value; Starlette reads Latin-1 where clients of lakeFS write UTF-8."""
    try:
        return call.headers.get(name, "").encode("latin-1").decode()
    except UnicodeDecodeError:
        raise errors.bad_request(f"the header {name} must be UTF-8") from None


def _raw(text: str) -> str:
    """Starlette writes headers in Latin-1, lakeFS in UTF-8; line breaks cannot be in them."""
    return _CONTROL.sub(" ", text).strip().encode().decode("latin-1")


def _stats(found: Found, *, with_metadata: bool = True) -> dict[str, object]:
    entry = found.entry
    stats: dict[str, object] = {
        "checksum": entry.e_tag,
        "content_type": entry.content_type,
        "mtime": entry.last_modified.seconds,
        "path": found.path,
        "path_type": "object",
        "physical_address": found.physical_address,
        "size_bytes": entry.size,
    }
    if with_metadata:
        stats["metadata"] = dict(entry.metadata)
    return stats


def _common_prefix(path: str) -> dict[str, object]:
    return {
        "checksum": "",
        "mtime": 0,
        "path": path,
        "path_type": "common_prefix",
        "physical_address": "",
        "size_bytes": 0,
    }


_REPO = "/repositories/{repository}"
_BRANCH = _REPO + "/branches/{branch}"
_REF = _REPO + "/refs/{ref}"
ENDPOINTS = (
    Endpoint("POST", _BRANCH + "/objects", upload),
    Endpoint("PUT", _BRANCH + "/objects", stage),
    Endpoint("DELETE", _BRANCH + "/objects", delete),
    Endpoint("POST", _BRANCH + "/objects/delete", delete_many),
    Endpoint("POST", _BRANCH + "/objects/copy", copy),
    Endpoint("GET", _BRANCH + "/staging/backing", get_physical_address),
    Endpoint("PUT", _BRANCH + "/staging/backing", link_physical_address),
    Endpoint("GET", _REF + "/objects", get),
    Endpoint("HEAD", _REF + "/objects", head),
    Endpoint("GET", _REF + "/objects/stat", stat),
    Endpoint("GET", _REF + "/objects/ls", list_objects),
)
