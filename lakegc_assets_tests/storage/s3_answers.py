"""What an S3 server answers, for tests that write its answers."""

from __future__ import annotations

import hashlib
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

from lakegc_assets_tests.storage.conftest import Answer

SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
DATE = "Fri, 02 Jan 2026 03:04:05 GMT"
MISSING = Answer(404)
BEGUN = Answer(
    body=f"<InitiateMultipartUploadResult {SPACE}><UploadId>upload</UploadId>"
    "</InitiateMultipartUploadResult>"
)


def entry(key: str, *, encoded: bool = True, extra: str = "") -> str:
    text = quote_plus(key, safe="/") if encoded else escape(key)
    return (
        f"<Contents><Key>{text}</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified>"
        f"<ETag>&quot;abc-2&quot;</ETag>{extra}<Size>7</Size></Contents>"
    )


def page(entries: str, *, more: str = "", encoded: bool = True, truncated: str = "false") -> str:
    encoding = "<EncodingType>url</EncodingType>" if encoded else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult {SPACE}><Name>b</Name>'
        f"{encoding}<IsTruncated>{truncated}</IsTruncated>{more}{entries}</ListBucketResult>"
    )


def error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>told {code}</Message></Error>"


def delete_result(*parts: str) -> str:
    return f"<DeleteResult {SPACE}>{''.join(parts)}</DeleteResult>"


def md5(data: bytes | str) -> str:
    return hashlib.md5(data if isinstance(data, bytes) else data.encode()).hexdigest()


def copied(etag: str, **headers: str) -> Answer:
    body = f'<CopyObjectResult {SPACE}><ETag>"{etag}"</ETag></CopyObjectResult>'
    return Answer(body=body, headers=headers)


def part_copied(etag: str) -> Answer:
    return Answer(body=f'<CopyPartResult {SPACE}><ETag>"{etag}"</ETag></CopyPartResult>')


def completed(etag: str) -> Answer:
    body = f'<CompleteMultipartUploadResult {SPACE}><ETag>"{etag}"</ETag>'
    return Answer(body=f"{body}</CompleteMultipartUploadResult>")


def found(
    body: str, etag: str | None = None, headers: dict[str, str] | None = None, *, cut: bool = False
) -> Answer:
    """An answer to GET or HEAD."""
    told = {"ETag": f'"{etag or md5(body)}"', "Last-Modified": DATE, **(headers or {})}
    return Answer(body=body, headers=told, cut=cut)
