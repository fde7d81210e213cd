"""What Azure answers, for tests that write its answers."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from lakegc_assets_tests.storage.conftest import Answer


def blob(name: str, *, properties: str = "", metadata: str = "", encoded: bool = False) -> str:
    attribute = ' Encoded="true"' if encoded else ""
    return (
        f"<Blob><Name{attribute}>{name}</Name><Properties>{properties}"
        "<Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified><Etag>0x8D</Etag>"
        f"<Content-Length>7</Content-Length></Properties>"
        f"{f'<Metadata>{metadata}</Metadata>' if metadata else '<Metadata />'}</Blob>"
    )


def page(*items: str, marker: str = "") -> Answer:
    names = [
        i if i.startswith("<") else f"<BlobPrefix><Name>{i}</Name></BlobPrefix>" for i in items
    ]
    return Answer(
        body="<?xml version='1.0' encoding='utf-8'?><EnumerationResults><Blobs>"
        f"{''.join(names)}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
    )


#: The first blob of an account: only where directories are real ones it has a type.
FLAT = page(blob("ns/a"))
REAL_DIRECTORIES = page(blob("ns/a", properties="<ResourceType>file</ResourceType>"))


def refusal(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>told {code}\nRequestId:1</Message></Error>"
    return Answer(status, body, headers={"x-ms-error-code": code})


def batch(*parts: tuple[int, int, str]) -> Answer:
    """An answer to a batch: number, status and code of each part."""
    lines = []
    for number, status, code in parts:
        lines += ["--b", "Content-Type: application/http", f"Content-ID: {number}", ""]
        lines += [f"HTTP/1.1 {status} Reason", f"x-ms-error-code: {code}" if code else "", "", ""]
    body = "\r\n".join([*lines, "--b--"])
    return Answer(202, body, headers={"Content-Type": "multipart/mixed; boundary=b"})


def query_of(request: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(request.split(" ", 1)[1]).query)
