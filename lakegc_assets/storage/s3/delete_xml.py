"""The XML of DeleteObjects, written and read at several times boto3's speed.

boto3's general serializer and parser would take most of the time of a request with 1,000 keys. Both
stay in charge of all else: what a handler puts in place here is what they would have made of it.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from xml.sax.saxutils import escape

_BODY: Final = "lakegc_body"
_OK: Final = 200
_BEGIN: Final = '<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
# A parser would take it for a space at the beginning of a line.
_ENTITIES: Final = {"\n": "&#xA;", "\r": "&#xD;"}
#: A text without entities in printable ASCII, so that an XML parser would not change it.
_TEXT: Final = "[ -%'-;=?-~]*"
#: An answer by which every object that it names is deleted, and nothing of it is kept.
_ALL_DELETED: Final = re.compile(
    r'(?:<\?xml [^<>]*\?>\s*)?<DeleteResult(?: xmlns="[^"<>]*")?>\s*'
    f"(?:<Deleted><Key>{_TEXT}</Key></Deleted>\\s*)+</DeleteResult>\\s*".encode()
)
_KEY: Final = re.compile(b"<Key>([^<]*)</Key>")


def write_body(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    """The ``before-parameter-build`` handler for botocore: write the body before it does."""
    delete = params["Delete"]
    if delete.keys() == {"Objects"}:
        objects = "".join(map(_object, delete["Objects"]))
        context[_BODY] = f"{_BEGIN}{objects}</Delete>".encode()
        params["Delete"] = {"Objects": []}


def put_body(params: dict[str, Any], context: Mapping[str, Any], **_: object) -> None:
    """The ``before-call`` handler for botocore: put what ``write_body`` wrote into a request."""
    if _BODY in context:
        params["body"] = context[_BODY]


def _object(fields: Mapping[str, str]) -> str:
    texts = (f"<{name}>{escape(text, _ENTITIES)}</{name}>" for name, text in fields.items())
    return f"<Object>{''.join(texts)}</Object>"


def read_deleted(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """The ``before-parse`` handler for botocore: read an answer that says of all keys the same.

    Whatever says anything else is left to botocore as a whole.
    """
    body = response_dict["body"]
    if response_dict["status_code"] == _OK and _ALL_DELETED.fullmatch(body):
        keys = (key.decode("ascii") for key in _KEY.findall(body))
        customized_response_dict["Deleted"] = [{"Key": key} for key in keys]
        response_dict["body"] = b"<DeleteResult/>"
