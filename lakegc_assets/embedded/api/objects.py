"""REST: objects on branches and at references."""

from __future__ import annotations

import re
from contextlib import suppress

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Call, Endpoint, answer, done, page_answer
from lakegc_assets.embedded.api.object_answers import (
    METADATA_HEADER,
    asked_stats,
    common_prefix,
    etag,
    headers,
    stats,
)
from lakegc_assets.embedded.objects import copies, objects, presigning
from lakegc_assets.embedded.objects.objects import Found

MTIME_HEADER = "X-Lakegc-Mtime"
# Ids of objects and slices hold seconds in 32 bits.
_XID_END = 1 << 32
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
# A browser must not run an object as a page of this server.
_FOR_BROWSERS = {"X-Frame-Options": "SAMEORIGIN", "Content-Security-Policy": "default-src 'none'"}


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
    return answer(stats(found), 201)


def get(call: Call) -> Response:
    """An object's content, or a range of it; 410 if it was swept."""
    found = _entry(call)
    if call.headers.get("if-none-match") == etag(found):
        return Response(status_code=304, headers={"ETag": etag(found)})
    if call.flag("presign"):
        return _redirect(call, found)
    data = objects.content(call.lake, found)
    wanted = _range(call, len(data))
    shown = {**headers(found), **_FOR_BROWSERS}
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
        return Response(headers={**headers(found), "Content-Length": str(size)})
    shown = {
        **headers(found),
        "Content-Range": f"bytes {wanted.start}-{wanted.stop - 1}/{size}",
        "Content-Length": str(len(wanted)),
    }
    return Response(status_code=206, headers=shown)


def stat(call: Call) -> Response:
    """Statistics of an object, swept or not."""
    with_metadata = call.query.get("user_metadata", "true").lower() == "true"
    return answer(asked_stats(call, _entry(call), with_metadata=with_metadata))


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
    with_metadata = call.query.get("user_metadata", "true").lower() == "true"
    shown = [
        common_prefix(item)
        if isinstance(item, str)
        else asked_stats(call, item, with_metadata=with_metadata and bool(item.entry.metadata))
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
    return answer(stats(found), 201)


def _entry(call: Call) -> Found:
    path = call.required("path")
    return objects.get_entry(call.lake, call.repository, call.names["ref"], path)


def _redirect(call: Call, found: Found) -> Response:
    """Redirect to the URL of the object in the store."""
    base, key = objects.locate(call.lake, found)
    url = presigning.presigned_url(call.lake, "get_object", base, key)
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
_REF = _REPO + "/refs/{ref}"
ENDPOINTS = (
    Endpoint("POST", _BRANCH + "/objects", upload),
    Endpoint("DELETE", _BRANCH + "/objects", delete),
    Endpoint("POST", _BRANCH + "/objects/delete", delete_many),
    Endpoint("POST", _BRANCH + "/objects/copy", copy),
    Endpoint("GET", _REF + "/objects", get),
    Endpoint("HEAD", _REF + "/objects", head),
    Endpoint("GET", _REF + "/objects/stat", stat),
    Endpoint("GET", _REF + "/objects/ls", list_objects),
)
