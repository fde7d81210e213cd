"""Requests and answers of bulk deletes are those of boto3, which takes longer for them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakegc_assets.storage.s3.client import clients
from lakegc_assets.storage.s3.delete_xml import read_deleted
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import SPACE, delete_result

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_KEY = "<Deleted><Key>{}</Key></Deleted>"
_TWO = _KEY.format("data/a b+%41") + _KEY.format("c")
_DECLARED = '<?xml version="1.0" encoding="UTF-8"?>\n'
_MARKER = "<DeleteMarker>true</DeleteMarker><DeleteMarkerVersionId>m</DeleteMarkerVersionId>"
_FAILED = "<Error><Key>d</Key><Code>AccessDenied</Code><Message>no</Message></Error>"


def _both(script: Script) -> tuple[S3Client, S3Client]:
    return clients(script.config()).usual, boto3.client("s3", endpoint_url=script.endpoint)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"Key": "data/a"}, id="key"),
        pytest.param({"Key": "a&<>\"' ü]]>&amp;"}, id="what XML escapes"),
        pytest.param({"Key": " a\nb\tc "}, id="white space"),
        pytest.param({"Key": "a", "VersionId": "v&1", "ETag": '"e-2"'}, id="version and etag"),
    ],
)
def test_a_request_says_what_boto_would_say(script: Script, fields: Any) -> None:
    script.answers = [Answer(body=delete_result(_TWO))]
    for client in _both(script):
        client.delete_objects(Bucket="b", Delete={"Objects": [fields, {"Key": "z"}]})
    ours, theirs = (
        [(element.tag, element.text) for element in ET.fromstring(body).iter()]
        for body in script.bodies
    )
    assert ours == theirs
    assert fields["Key"] in [text for _, text in ours]


def test_a_quiet_request_stays_as_it_is(script: Script) -> None:
    script.answers = [Answer(body=delete_result())]
    for client in _both(script):
        client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "z"}], "Quiet": True})
    assert script.bodies[0] == script.bodies[1]


@pytest.mark.parametrize(
    ("body", "at_once"),
    [
        pytest.param(delete_result(_TWO), True, id="all deleted"),
        pytest.param(_DECLARED + delete_result(_TWO), True, id="declared"),
        pytest.param(f"<DeleteResult>\n{_TWO}\n</DeleteResult>\n", True, id="lines"),
        pytest.param(delete_result(_TWO, _TWO), True, id="named twice"),
        pytest.param(delete_result(), False, id="nothing"),
        pytest.param(delete_result(_TWO, _FAILED), False, id="one failed"),
        pytest.param(delete_result(_FAILED, _TWO), False, id="the first one failed"),
        pytest.param(delete_result(_KEY.format("a&amp;b"), _TWO), False, id="an entity"),
        pytest.param(delete_result(_KEY.format("ü"), _TWO), False, id="not ASCII"),
        pytest.param(delete_result(_KEY.format(""), _TWO), True, id="an empty key"),
        pytest.param(delete_result(f"<!--{_TWO}-->", _TWO), False, id="a comment"),
        pytest.param(
            delete_result(_KEY.format("<![CDATA[a]]>"), _TWO), False, id="characters as they are"
        ),
        pytest.param(
            delete_result(f"<Deleted><Key>a</Key>{_MARKER}</Deleted>", _TWO), False, id="a marker"
        ),
        pytest.param(
            delete_result(f"<Deleted>{_MARKER}<Key>a</Key></Deleted>"), False, id="marker first"
        ),
        pytest.param(
            delete_result("<Deleted><Key>a</Key><VersionId>v</VersionId></Deleted>", _TWO),
            False,
            id="a version",
        ),
        pytest.param(
            f"<DeleteResult {SPACE}><Deleted/></DeleteResult>", False, id="deleted without a key"
        ),
    ],
)
def test_an_answer_is_read_as_boto_reads_it(script: Script, body: str, *, at_once: bool) -> None:
    script.answers = [Answer(body=body)]
    ours, theirs = (
        client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "a"}]})
        for client in _both(script)
    )
    for answer in (ours, theirs):
        del answer["ResponseMetadata"]  # type: ignore[misc]
    assert ours == theirs
    response: dict[str, Any] = {"status_code": 200, "body": body.encode()}
    read_deleted(response, {})
    assert (response["body"] != body.encode()) is at_once


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(500, delete_result(_TWO), id="a failure"),
        pytest.param(200, delete_result(_TWO).removesuffix(">"), id="cut"),
        pytest.param(200, delete_result(_TWO) + delete_result(_TWO), id="two answers"),
        pytest.param(200, f"<Result>{_TWO}</Result>", id="another answer"),
        pytest.param(200, delete_result(f"<Error>{_TWO}</Error>"), id="something deeper"),
    ],
)
def test_what_is_no_good_answer_is_left_to_boto(status: int, body: str) -> None:
    response, read = {"status_code": status, "body": body.encode()}, dict[str, Any]()
    read_deleted(response, read)
    assert response == {"status_code": status, "body": body.encode()}
    assert not read
