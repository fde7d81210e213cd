"""Many small requests in one, as Azure and GCS take them: ``multipart/mixed`` of HTTP messages."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import requests

from lakegc_assets.storage.http import HttpFailure, Request

_ID: Final = re.compile(
    rb"^content-id:[ \t]*<?(?:response-)?(\d+)>?[ \t]*$", re.IGNORECASE | re.MULTILINE
)
_STATUS: Final = re.compile(rb"^HTTP/[\d.]+ (\d{3})[^\n]*$", re.MULTILINE)
_HEADER: Final = re.compile(rb"^([A-Za-z0-9-]+):[ \t]*(.*)$", re.MULTILINE)


class Part(NamedTuple):
    """The answer to one request of a batch; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: str


def joined(batch: Sequence[Request]) -> tuple[str, bytes]:
    """Content type and body of a batch; ``url`` of each is its path and query."""
    boundary = f"batch_{uuid.uuid4()}"
    lines: list[str] = []
    for number, request in enumerate(batch):
        lines += [
            f"--{boundary}", "Content-Type: application/http", "Content-Transfer-Encoding: binary",
            f"Content-ID: {number}", "", f"{request.method} {request.url} HTTP/1.1",
        ]  # fmt: skip
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += ["", ""]
    body = "\r\n".join([*lines, f"--{boundary}--", ""]).encode()
    return f"multipart/mixed; boundary={boundary}", body


def split(
    answer: requests.Response,
    keys: Sequence[str],
    failure_of: Callable[[Part], HttpFailure | None],
) -> Mapping[str, HttpFailure | None]:
    """The failure, or None, of each key that the answer to a batch names.

    Args:
        answer: to a batch of one request for each key.
        keys: in the order of the requests.
        failure_of: the failure in one part; None if its request was carried out.

    Raises:
        HttpFailure: it is not the answer to this batch, or refuses it as a whole.
    """
    parts = _parts(answer.headers.get("Content-Type", ""), answer.content)
    if None in parts:
        raise failure_of(parts[None]) or HttpFailure("NoAnswer", "a batch was not answered")
    found = {}
    for number, part in parts.items():
        if number is None or number >= len(keys):
            message = f"a batch of {len(keys)} was answered with a part named {number}"
            raise HttpFailure("NoAnswer", message)
        found[keys[number]] = failure_of(part)
    return found


def _parts(content_type: str, body: bytes) -> Mapping[int | None, Part]:
    """The parts of an answer by the number of their request; None for one without a number."""
    found = re.search(r'boundary="?([^";]+)"?', content_type)
    if found is None:
        raise HttpFailure("NoAnswer", f"a batch was answered with {content_type!r}")
    parts: dict[int | None, Part] = {}
    for text in body.replace(b"\r\n", b"\n").split(b"--" + found[1].encode())[1:]:
        status = _STATUS.search(text)
        if status is None:
            continue
        head, message = text[: status.start()], text[status.end() :].lstrip(b"\n")
        fields, _, content = message.partition(b"\n\n")
        named = _ID.search(head)
        number = int(named[1]) if named else None
        if number in parts:
            raise HttpFailure("NoAnswer", f"a batch was answered with two parts named {number}")
        headers = {
            name.decode().lower(): value.decode(errors="replace").strip()
            for name, value in _HEADER.findall(fields)
        }
        parts[number] = Part(int(status[1]), headers, content.decode(errors="replace").strip())
    return parts
