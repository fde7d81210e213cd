"""Many small requests in one, as Azure and GCS take them: ``multipart/mixed`` of HTTP messages."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lakegc_assets.storage.http import HttpFailure, Request

_ID: Final = re.compile(
    rb"^content-id:[ \t]*<?(?:response-)?(\d+)>?[ \t]*$", re.IGNORECASE | re.MULTILINE
)
_STATUS: Final = re.compile(rb"^HTTP/[\d.]+ (\d{3})[^\n]*$", re.MULTILINE)
_HEADER: Final = re.compile(rb"^([A-Za-z0-9-]+):[ \t]*(.*)$", re.MULTILINE)


class Part(NamedTuple):
    """The answer to one request of a batch.

    Attributes:
        status: of HTTP.
        headers: with names in lower case.
        body: text, for people.
    """

    status: int
    headers: Mapping[str, str]
    body: str


def joined(requests: Sequence[Request]) -> tuple[str, bytes]:
    """Content type and body of a batch; ``url`` of each request is its path and query."""
    boundary = f"batch_{uuid.uuid4()}"
    lines: list[str] = []
    for number, request in enumerate(requests):
        lines += [
            f"--{boundary}", "Content-Type: application/http", "Content-Transfer-Encoding: binary",
            f"Content-ID: {number}", "", f"{request.method} {request.url} HTTP/1.1",
        ]  # fmt: skip
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += ["", ""]
    body = "\r\n".join([*lines, f"--{boundary}--", ""]).encode()
    return f"multipart/mixed; boundary={boundary}", body


def split(content_type: str, body: bytes) -> Mapping[int, Part]:
    """The answers of a batch by the number of their request.

    An answer without a number is the answer to the batch as a whole: its number is -1.

    Raises:
        HttpFailure: it is not the answer to a batch, or names a request twice.
    """
    found = re.search(r'boundary="?([^";]+)"?', content_type)
    if found is None:
        raise HttpFailure("NoAnswer", f"a batch was answered with {content_type!r}")
    parts: dict[int, Part] = {}
    for text in body.replace(b"\r\n", b"\n").split(b"--" + found[1].encode())[1:]:
        status = _STATUS.search(text)
        if status is None:
            continue
        head, message = text[: status.start()], text[status.end() :].lstrip(b"\n")
        fields, _, content = message.partition(b"\n\n")
        named = _ID.search(head)
        number = int(named[1]) if named else -1
        if number in parts:
            raise HttpFailure("NoAnswer", f"a batch was answered with two parts named {number}")
        headers = {
            name.decode().lower(): value.decode(errors="replace").strip()
            for name, value in _HEADER.findall(fields)
        }
        parts[number] = Part(int(status[1]), headers, content.decode(errors="replace").strip())
    return parts
