"""REST: objects on branches and at references, and those that clients wrote to the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Body, Call, Endpoint, answer, done, page_answer
from lakegc_assets.embedded.objects import copies, linking, objects
from lakegc_assets.embedded.objects.objects import DEFAULT_CONTENT_TYPE, Found
from lakegc_assets.graveler.entry import Entry, Timestamp

METADATA_HEADER = "x-lakefs-meta-"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MTIME_HEADER = "X-Lakegc-Mtime"
# Ids of objects and slices hold seconds in 32 bits.
_XID_END = 1 << 32
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
# A browser must not run an object as a page of this server.
_FOR_BROWSERS = {"X-Frame-Options": "SAMEORIGIN", "Content-Security-Policy": "default-src 'none'"}
# The range of dates in HTTP headers.
_FIRST_SECOND = -62_135_596_800
_LAST_SECOND = 253_402_300_799


def upload(call: Call) -> Response:
    """Write an object, from the body or from a form's ``content``."""
    data, content_type = call.upload or (call.body, _header_text(call, "content-type"))
    found = objects.upload(
        call.lake,
        call.repository,
        call.branch,
        call.required("path"),
        data,
        content_type=content_type,
        metadata={
            name.removeprefix(METADATA_HEADER): _header_text(call, name)
            for name in call.headers
            if name.startswith(METADATA_HEADER)
        },
        if_absent=call.only_if_absent(),
        mtime=_mtime(call),
        force=call.flag("force"),
    )
    return answer(_stats(found), 201)


def get(call: Call) -> Response:
    """An object's content, or a range of it; 410 if it was swept."""
    found = _entry(call)
    if call.headers.get("if-none-match") == _etag(found):
        return Response(status_code=304, headers={"ETag": _etag(found)})
    if call.flag("presign"):
        return _redirect(call, found)
    data = objects.content(call.lake, found)
    wanted = _range(call, len(data))
    shown = {**_headers(found), **_FOR_BROWSERS}
    if wanted is None:
        return Response(data, headers=shown)
    shown |= {"Content-Range": f"bytes {wanted.start}-{wanted.stop - 1}/{len(data)}"}
    return Response(data[wanted.start : wanted.stop], 206, shown)


def head(call: Call) -> Response:
    """The headers of ``get`` without the content; 410 when the object was swept."""
    found = _entry(call)
    objects.require_content(call.lake, found)
    size = found.entry.size
    wanted = _range(call, size)
    if wanted is None:
        return Response(headers={**_headers(found), "Content-Length": str(size)})
    shown = {
        **_headers(found),
        "Content-Range": f"bytes {wanted.start}-{wanted.stop - 1}/{size}",
        "Content-Length": str(len(wanted)),
    }
    return Response(status_code=206, headers=shown)


def stat(call: Call) -> Response:
    """Statistics of an object, swept or not."""
    return answer(_asked_stats(call, _entry(call), with_metadata=_with_metadata(call)))


def delete(call: Call) -> Response:
    """Delete a path from a branch."""
    paths, force = [call.required("path")], call.flag("force")
    objects.delete(call.lake, call.repository, call.branch, paths, force=force)
    return done()


def delete_many(call: Call) -> Response:
    """Delete paths from a branch; each path has its own error if the branch is protected."""
    paths = call.json("PathList").texts("paths")
    try:
        objects.delete(call.lake, call.repository, call.branch, paths, force=call.flag("force"))
    except errors.ProtectedBranchError as error:
        refused = {"status_code": error.status, "message": error.message}
        return answer({"errors": [{"path": path, **refused} for path in paths]})
    return answer({"errors": []})


def list_objects(call: Call) -> Response:
    """A page of the objects at a reference."""
    found, has_more = objects.list_objects(
        call.lake, call.repository, call.names["ref"], call.paging()
    )
    with_metadata = _with_metadata(call)
    shown = [
        _common_prefix(item)
        if isinstance(item, str)
        else _asked_stats(call, item, with_metadata=with_metadata and bool(item.entry.metadata))
        for item in found
    ]
    return page_answer(shown, has_more=has_more, key="path")


def copy(call: Call) -> Response:
    """Copy an object to a path of a branch; the server copies its data only if it must."""
    body = call.json("ObjectCopyCreation")
    body.flag("shallow")
    found = copies.copy(
        call.lake,
        call.repository,
        call.branch,
        call.required("dest_path"),
        source_ref=body.text("src_ref", "") or call.branch,
        source_path=body.text("src_path"),
        force=body.flag("force"),
    )
    return answer(_stats(found), 201)


def stage(call: Call) -> Response:
    """Stage an object outside of the namespace."""
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
    found = linking.stage_outside(
        call.lake,
        call.repository,
        call.branch,
        call.required("path"),
        entry,
        force=body.flag("force"),
    )
    return answer(_stats(found, with_metadata=False), 201)


def get_physical_address(call: Call) -> Response:
    """An address to write to, and to link afterwards; with a presigned URL on request."""
    path, presign = call.required("path"), call.flag("presign")
    if presign:
        call.lake.stores.require_presigning()
    address = linking.new_link_address(call.lake, call.repository, call.branch, path)
    shown: dict[str, object] = {"physical_address": address, "presigned_url": None}
    if presign:
        bucket, key = objects.bucket_and_key(address)
        url = call.lake.stores.presigned_url("put_object", bucket, key)
        shown |= {"presigned_url": url.url, "presigned_url_expiry": url.expires}
    return answer(shown)


def link_physical_address(call: Call) -> Response:
    """Stage the object at an address."""
    body = call.json("StagingMetadata")
    if not isinstance(body.fields.get("staging"), dict):
        raise errors.bad_body("StagingMetadata", "staging", 'property "staging" is missing')
    staging = Body("StagingLocation", body.fields["staging"])
    entry = Entry(
        address=staging.text("physical_address"),
        size=body.number("size_bytes"),
        e_tag=body.text("checksum"),
        metadata=body.strings("user_metadata"),
        content_type=body.text("content_type", "") or DEFAULT_CONTENT_TYPE,
    )
    found = linking.link(
        call.lake,
        call.repository,
        call.branch,
        call.required("path"),
        entry,
        if_absent=call.only_if_absent(),
        force=body.flag("force"),
    )
    return answer(_stats(found))


def _stats(found: Found, *, with_metadata: bool = True) -> dict[str, object]:
    """An object as lakeFS's ``ObjectStats``."""
    entry = found.entry
    shown: dict[str, object] = {
        "checksum": entry.e_tag,
        "content_type": entry.content_type,
        "mtime": entry.last_modified.seconds,
        "path": found.path,
        "path_type": "object",
        "physical_address": found.physical_address,
        "size_bytes": entry.size,
    }
    if with_metadata:
        shown["metadata"] = dict(entry.metadata)
    return shown


def _asked_stats(call: Call, found: Found, *, with_metadata: bool) -> dict[str, object]:
    """The same, with a presigned URL instead of the address if the request asks for one."""
    shown = _stats(found, with_metadata=with_metadata)
    if call.flag("presign"):
        url = call.lake.stores.presigned_url("get_object", *objects.locate(call.lake, found))
        shown |= {"physical_address": url.url, "physical_address_expiry": url.expires}
    return shown


def _common_prefix(path: str) -> dict[str, object]:
    """``ObjectStats`` of a common prefix."""
    return {
        "checksum": "",
        "mtime": 0,
        "path": path,
        "path_type": "common_prefix",
        "physical_address": "",
        "size_bytes": 0,
    }


def _headers(found: Found) -> dict[str, str]:
    """The HTTP headers of an object."""
    entry = found.entry
    return {
        "ETag": _etag(found),
        "Last-Modified": formatdate(entry.last_modified.seconds, usegmt=True),
        "Content-Type": _raw(entry.content_type),
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store, must-revalidate",
        "Expires": "0",
        "X-Content-Type-Options": "nosniff",
        **_metadata_headers(entry.metadata),
    }


def _etag(found: Found) -> str:
    """The entity tag of an object, in quotes."""
    return f'"{_raw(found.entry.e_tag)}"'


def _metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Headers for the metadata that HTTP allows; only ``stat`` returns the others."""
    return {
        METADATA_HEADER + name: _raw(value)
        for name, value in metadata.items()
        if _HEADER_NAME.fullmatch(name)
    }


def _raw(text: str) -> str:
    """Text for Starlette, which writes headers in Latin-1; lakeFS writes UTF-8 on one line."""
    return _CONTROL.sub(" ", text).strip().encode().decode("latin-1")


def _with_metadata(call: Call) -> bool:
    return call.query.get("user_metadata", "true").lower() == "true"


def _entry(call: Call) -> Found:
    path = call.required("path")
    return objects.get_entry(call.lake, call.repository, call.names["ref"], path)


def _redirect(call: Call, found: Found) -> Response:
    """Redirect to the URL of the object in the store."""
    url = call.lake.stores.presigned_url("get_object", *objects.locate(call.lake, found))
    objects.require_content(call.lake, found)
    return Response(status_code=302, headers={"Location": url.url})


def _range(call: Call, size: int) -> range | None:
    """The range of bytes in the request, or None for all; 416 if the object does not have it."""
    if "range" not in call.headers:
        return None
    wanted = _RANGE.fullmatch(call.headers["range"])
    first, last = wanted.groups() if wanted else ("", "")
    begin = int(first) if first else max(size - int(last or 0), 0)
    end = min(int(last) + 1, size) if first and last else size
    if begin >= end:
        raise errors.ApiError(416, "Requested Range Not Satisfiable")
    return range(begin, end)


def _mtime(call: Call) -> float | None:
    text = call.headers.get(MTIME_HEADER)
    if text is None:
        return None
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < _XID_END:
            return seconds
    raise errors.bad_request(f"{MTIME_HEADER} must be epoch seconds, not {text!r}")


def _header_text(call: Call, name: str) -> str:
    """A header's value; Starlette reads Latin-1, but clients of lakeFS write UTF-8."""
    try:
        return call.headers.get(name, "").encode("latin-1").decode()
    except UnicodeDecodeError:
        raise errors.bad_request(f"the header {name} must be UTF-8") from None


_REPO = "/repositories/{repository}"
_BRANCH = _REPO + "/branches/{branch}"
_BACKING = _BRANCH + "/staging/backing"
_REF = _REPO + "/refs/{ref}"
ENDPOINTS = (
    Endpoint("POST", _BRANCH + "/objects", upload),
    Endpoint("PUT", _BRANCH + "/objects", stage),
    Endpoint("DELETE", _BRANCH + "/objects", delete),
    Endpoint("POST", _BRANCH + "/objects/delete", delete_many),
    Endpoint("POST", _BRANCH + "/objects/copy", copy),
    Endpoint("GET", _BACKING, get_physical_address),
    Endpoint("PUT", _BACKING, link_physical_address),
    Endpoint("GET", _REF + "/objects", get),
    Endpoint("HEAD", _REF + "/objects", head),
    Endpoint("GET", _REF + "/objects/stat", stat),
    Endpoint("GET", _REF + "/objects/ls", list_objects),
)
