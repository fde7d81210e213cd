"""REST: objects that clients wrote to the store, at issued addresses or elsewhere."""

from __future__ import annotations

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Body, Call, Endpoint, answer
from lakegc_assets.embedded.api.object_answers import stats
from lakegc_assets.embedded.objects import linking, objects, presigning
from lakegc_assets.embedded.objects.objects import DEFAULT_CONTENT_TYPE
from lakegc_assets.graveler.entry import Entry, Timestamp

# The range of dates in HTTP headers.
_FIRST_SECOND = -62_135_596_800
_LAST_SECOND = 253_402_300_799


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
    found = objects.stage_outside(
        call.lake,
        call.repository,
        call.branch,
        call.required("path"),
        entry,
        force=body.flag("force"),
    )
    return answer(stats(found, with_metadata=False), 201)


def get_physical_address(call: Call) -> Response:
    """An address to write to, and to link afterwards; with a presigned URL on request."""
    path, presign = call.required("path"), call.flag("presign")
    if presign:
        presigning.require_support(call.lake)
    address = linking.new_link_address(call.lake, call.repository, call.branch, path)
    shown: dict[str, object] = {"physical_address": address, "presigned_url": None}
    if presign:
        bucket, key = objects.bucket_and_key(address)
        url = presigning.presigned_url(call.lake, "put_object", bucket, key)
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
    return answer(stats(found))


_BACKING = "/repositories/{repository}/branches/{branch}/staging/backing"
ENDPOINTS = (
    Endpoint("PUT", "/repositories/{repository}/branches/{branch}/objects", stage),
    Endpoint("GET", _BACKING, get_physical_address),
    Endpoint("PUT", _BACKING, link_physical_address),
)
