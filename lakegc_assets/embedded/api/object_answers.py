"""Objects in answers of the REST API: statistics, headers, presigned addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate

from lakegc_assets.embedded.api.calls import Call
from lakegc_assets.embedded.objects import objects, presigning
from lakegc_assets.embedded.objects.objects import Found

METADATA_HEADER = "x-lakefs-meta-"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def stats(found: Found, *, with_metadata: bool = True) -> dict[str, object]:
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


def asked_stats(call: Call, found: Found, *, with_metadata: bool) -> dict[str, object]:
    """The same, with a presigned URL instead of the address if the request asks for one."""
    shown = stats(found, with_metadata=with_metadata)
    if call.flag("presign"):
        url = presigning.presigned_url(call.lake, "get_object", *objects.locate(call.lake, found))
        shown |= {"physical_address": url.url, "physical_address_expiry": url.expires}
    return shown


def common_prefix(path: str) -> dict[str, object]:
    """``ObjectStats`` of a common prefix."""
    return {
        "checksum": "",
        "mtime": 0,
        "path": path,
        "path_type": "common_prefix",
        "physical_address": "",
        "size_bytes": 0,
    }


def headers(found: Found) -> dict[str, str]:
    """The HTTP headers of an object."""
    entry = found.entry
    return {
        "ETag": etag(found),
        "Last-Modified": formatdate(entry.last_modified.seconds, usegmt=True),
        "Content-Type": _raw(entry.content_type),
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store, must-revalidate",
        "Expires": "0",
        "X-Content-Type-Options": "nosniff",
        **_metadata_headers(entry.metadata),
    }


def etag(found: Found) -> str:
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
