"""S3's XML documents: writes those of answers, and reads those of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TypeAlias, Union
from xml.etree import ElementTree as ET

from starlette.responses import Response

from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.gateway.errors import S3Error

Value: TypeAlias = Union[str, int, bool, "Fields"]
Fields: TypeAlias = Iterable["tuple[str, Value]"]

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_ESCAPED = re.compile(r"[&<>\"\x00-\x1f\x7f-\x9f\ufffe\uffff]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


def document(name: str, fields: Fields, status: int = 200, **headers: str) -> Response:
    """An answer with one document: elements by name, in order; names may repeat."""
    return Response(
        _HEAD + f'<{name} xmlns="{_NAMESPACE}">{_inside(fields)}</{name}>',
        status,
        headers={"Content-Type": "application/xml", **headers},
    )


def error_document(error: S3Error, resource: str, request_id: str) -> Response:
    """An answer with an error document."""
    fields: list[tuple[str, Value]] = [
        ("Code", error.code),
        ("Message", error.message),
        ("Resource", resource),
        ("RequestId", request_id),
    ]
    return Response(
        _HEAD + f"<Error>{_inside(fields)}</Error>",
        error.status,
        headers={"Content-Type": "application/xml", **error.headers},
    )


def time_of(seconds: float) -> str:
    """Epoch seconds in the form of documents."""
    moment = datetime.fromtimestamp(int(seconds), tz=timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Element:
    """An element of a request's document; namespaces are ignored, as S3 does."""

    def __init__(self, node: ET.Element) -> None:
        self._node = node

    @property
    def name(self) -> str:
        """Its name, without a namespace."""
        return self._node.tag.rpartition("}")[2]

    def all(self, name: str) -> list[Element]:
        """The direct child elements of this name, in order."""
        return [child for child in map(Element, self._node) if child.name == name]

    def text(self, name: str, default: str | None = None) -> str:
        """The text of the only child element of this name; MalformedXML if it is missing."""
        found = self.all(name)
        if len(found) == 1:
            return found[0]._node.text or ""  # noqa: SLF001 - of the same class
        if found or default is None:
            raise errors.malformed_xml()
        return default


def parse(body: bytes, name: str) -> Element:
    """The document of a request, with an outermost element of this name.

    Raises:
        S3Error: it is not well-formed, has another outermost element, or defines entities.
    """
    # Only UTF-8 is read, so this finds every definition.
    if b"<!" in body or b"\0" in body:
        raise errors.malformed_xml()
    try:
        root = Element(ET.fromstring(body))  # noqa: S314 - definitions were refused
    except (ET.ParseError, LookupError, ValueError):
        raise errors.malformed_xml() from None
    if root.name != name:
        raise errors.malformed_xml()
    return root


def _inside(fields: Fields) -> str:
    return "".join(f"<{name}>{_text(value)}</{name}>" for name, value in fields)


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _ESCAPED.sub(_escape, value)
    return _inside(value)


def _escape(found: re.Match[str]) -> str:
    # XML 1.0 forbids most control characters, but S3 writes them in this form.
    return _ENTITIES.get(found[0], f"&#x{ord(found[0]):x};")


_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
