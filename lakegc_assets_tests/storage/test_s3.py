"""What is particular to S3: pages, outcomes of deletes, errors, retries, credentials."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import boto3
import pytest
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage import s3_listing
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.credentials import read_credentials_file, write_credentials_file
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.storage.pages import Page
from lakegc_assets.storage.s3_client import clients
from lakegc_assets_tests.storage.conftest import Answer, Script

SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


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


def listed(store: ObjectStore, *args: str | None) -> list[str]:
    return [key for b in store.list(*args) for key in b["key"].to_pylist()]  # type: ignore[arg-type]


KEYS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), unique=True
)


def read(body: str) -> Page:
    response = {"status_code": 200, "body": body.encode()}
    answer: dict[str, object] = {}
    s3_listing.keep_page(response, answer)
    return s3_listing.read_page(answer, "s3://b")


@given(keys=KEYS)
def test_both_readers_of_pages_agree_on_every_key(keys: list[str]) -> None:
    """The second page has one element that the fast reader does not know."""
    fast = read(page("".join(map(entry, keys))))
    slow = read(page("".join(entry(key, extra="<Owner><ID>x</ID></Owner>") for key in keys)))
    assert fast.objects["key"].to_pylist() == keys
    assert fast == slow
    if keys:
        assert fast.objects.slice(0, 1).to_pylist() == [
            {
                "key": keys[0],
                "size": 7,
                "last_modified": datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc),
                "etag": "abc-2",
            }
        ]


def test_the_fast_reader_is_the_one_that_reads_pages_of_s3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []
    parse = s3_listing._parse

    def spy(body: bytes) -> object:
        parsed.append(body)
        return parse(body)

    monkeypatch.setattr(s3_listing, "_parse", spy)
    extra = (
        "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
    )
    assert read(page(entry("a b", extra=extra) + entry("c+d"))).objects["key"].to_pylist() == [
        "a b",
        "c+d",
    ]
    (rest,) = parsed
    assert b"Contents" not in rest


def test_keys_of_servers_that_do_not_encode_them() -> None:
    body = page(entry("a%20+b&<é", encoded=False), encoded=False)
    assert read(body).objects["key"].to_pylist() == ["a%20+b&<é"]
    with pytest.raises(StorageError, match="not percent-encoded"):
        read(page(entry("a\nb", encoded=False), encoded=False))


@pytest.mark.parametrize(
    "body",
    [
        page("", truncated="maybe"),
        page(entry("a"), truncated="true"),
        page(entry("a"), more="<KeyCount>2</KeyCount>"),
        page("<Contents><Key>a</Key></Contents>"),
        page(entry("a").replace("<Size>7</Size>", "")),
        page(entry("a").replace("<Size>7</Size>", "<Size>many</Size>")),
        page(entry("a").replace("2026-01-02T03", "yesterday")),
        page(entry("a").replace("<Key>a</Key>", "<Key></Key>")),
        page(entry("a").replace("<Key>a</Key>", "<Key>%FF</Key>")),
        f"<ListBucketResult {SPACE}/>",
        "<html><body>It works!</body></html>",
    ],
)
def test_a_damaged_page_is_an_error_and_never_a_shorter_listing(script: Script, body: str) -> None:
    script.answers = [Answer(body=body)]
    with pytest.raises(StorageError, match=r"s3://bkt/ns: listing"):
        listed(script.config().open("s3://bkt/ns"))


@pytest.mark.parametrize("keys", [["ns/b", "ns/a"], ["ns/a", "ns/a"], ["ns/a", "nt/b"], ["a"]])
def test_keys_out_of_order_or_not_asked_for_are_an_error(script: Script, keys: list[str]) -> None:
    script.answers = [Answer(body=page("".join(map(entry, keys))))]
    with pytest.raises(StorageError, match="cannot be trusted"):
        listed(script.config().open("s3://bkt/ns"))


def test_pages_that_repeat_themselves_are_an_error(script: Script) -> None:
    token = "<NextContinuationToken>t</NextContinuationToken>"
    first = Answer(body=page(entry("ns/a"), more=token, truncated="true"))
    script.answers = [first, first]
    with pytest.raises(StorageError, match="cannot be trusted"):
        listed(script.config().open("s3://bkt/ns"))
    script.answers = [first, Answer(body=page("", more=token, truncated="true"))]
    with pytest.raises(StorageError, match="same page token"):
        listed(script.config().open("s3://bkt/ns"))


def test_empty_pages_in_the_middle_are_passed(script: Script) -> None:
    def token(name: str) -> str:
        return f"<NextContinuationToken>{name}</NextContinuationToken>"

    script.answers = [
        Answer(body=page("", more=token("1"), truncated="true")),
        Answer(body=page(entry("ns/a"), more=token("2"), truncated="true")),
        Answer(body=page("")),
    ]
    assert listed(script.config().open("s3://bkt/ns")) == ["a"]


def test_an_answer_that_is_cut_off_is_asked_for_again(script: Script) -> None:
    whole = Answer(body=page(entry("ns/a")))
    script.answers = [Answer(body=whole.body[:-40], cut=True), whole]
    assert listed(script.config(2).open("s3://bkt/ns")) == ["a"]
    script.answers = [Answer(body="hal", cut=True), Answer(body="whole")]
    assert script.config(2).open("s3://bkt/ns").get("k") == b"whole"
    script.answers = [Answer(body="hal", cut=True)]
    for ask in (lambda s: s.get("k"), listed):
        with pytest.raises(StoreUnavailableError):
            ask(script.config(2).open("s3://bkt/ns"))


@pytest.mark.parametrize(
    ("status", "code", "expected", "advice"),
    [
        (403, "AccessDenied", AccessDeniedError, "policy"),
        (403, "InvalidAccessKeyId", AccessDeniedError, "credentials"),
        (400, "ExpiredToken", AccessDeniedError, "renew"),
        (404, "NoSuchBucket", ConfigurationError, "bucket does not exist"),
        (400, "AuthorizationHeaderMalformed", ConfigurationError, "region"),
        (403, "RequestTimeTooSkewed", ConfigurationError, "clock"),
        (503, "SlowDown", StoreThrottledError, "SlowDown"),
        (503, "", StoreThrottledError, "503"),
        (429, "Odd", StoreThrottledError, "429"),
        (500, "InternalError", StoreUnavailableError, "InternalError"),
        (502, "", StoreUnavailableError, "502"),
        (404, "", StorageError, "404"),
        (400, "Odd", StorageError, "Odd"),
    ],
)
def test_errors_are_told_apart(
    script: Script, status: int, code: str, expected: type[LakegcError], advice: str
) -> None:
    script.answers = [Answer(status, error(code) if code else "")]
    store = script.config().open("s3://bkt/ns")
    calls: list[Callable[[], object]] = [
        lambda: store.get("some/key"),
        lambda: store.put("some/key", b""),
        lambda: store.put_if_absent("some/key", b""),
        lambda: listed(store, "some/key"),
    ]
    for call in calls:
        with pytest.raises(expected, match=advice) as raised:
            call()
        assert raised.type is expected
        assert "s3://bkt/ns" in str(raised.value)
        assert "some/key" in str(raised.value)
        assert "test-secret-key" not in str(raised.value)
    (outcome,) = store.delete_many(["some/key"])
    assert outcome.outcome == "failed"
    assert outcome.error_code in {code, str(status)}
    assert error_class(outcome.error_code or "") is expected


def test_a_server_that_cannot_be_reached(s3_server: str) -> None:
    assert s3_server
    store = StoreConfig(endpoint_url="http://127.0.0.1:9", max_attempts=1).open("s3://bkt/ns")
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9"):
        store.get("k")
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_absent("k", b"")
    assert [o.error_code for o in store.delete_many(["k"])] == ["ConnectionFailed"]


def test_a_wrong_bucket_is_not_a_missing_object(s3_server: str) -> None:
    store = StoreConfig(endpoint_url=s3_server).open("s3://no-such-bucket/ns")
    calls: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.head("k"),
        lambda: store.put("k", b""),
        lambda: store.copy("k", "l"),
        lambda: listed(store),
        store.server_time,
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="no-such-bucket"):
            call()


def test_throttling_is_waited_for_and_retries_can_be_turned_off(script: Script) -> None:
    slow = Answer(503, error("SlowDown"))
    deleted = Answer(body="<DeleteResult><Deleted><Key>ns/k</Key></Deleted></DeleteResult>")
    script.answers = [slow, slow, deleted]
    assert [o.outcome for o in script.config(3).open("s3://bkt/ns").delete_many(["k"])] == [
        "deleted"
    ]
    assert len(script.requests) == 3
    script.answers = [slow, deleted]
    outcomes = script.config(1).open("s3://bkt/ns").delete_many(["k"])
    assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", "SlowDown")]
    assert len(script.requests) == 4


def test_a_conditional_put_is_repeated_only_if_it_was_refused(script: Script) -> None:
    store = script.config(3).open("s3://bkt/ns")
    script.answers = [
        Answer(503, error("SlowDown")),
        Answer(409, error("ConditionalRequestConflict")),
        Answer(),
    ]
    store.put_if_absent("k", b"x")
    assert len(script.requests) == 3
    script.answers = [Answer(500, error("InternalError")), Answer()]
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_absent("k", b"x")
    script.answers = [Answer(409, error("ConditionalRequestConflict"))]
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("k", b"x", "e")


def delete_result(*parts: str) -> str:
    return f"<DeleteResult {SPACE}>{''.join(parts)}</DeleteResult>"


def test_each_key_of_a_bulk_delete_has_the_outcome_that_the_store_gave(script: Script) -> None:
    script.answers = [
        Answer(
            body=delete_result(
                "<Deleted><Key>ns/gone</Key></Deleted>",
                "<Deleted><Key>ns/both</Key></Deleted>",
                "<Deleted><Key>ns/stranger</Key></Deleted>",
                "<Error><Key>ns/both</Key><Code>InternalError</Code><Message>m</Message></Error>",
                "<Error><Key>ns/denied</Key><Code>AccessDenied</Code><Message>m</Message></Error>",
                "<Error><Key>ns/missing</Key><Code>NoSuchKey</Code><Message>m</Message></Error>",
            )
        )
    ]
    keys = ["denied", "gone", "missing", "both", "unnamed"]
    outcomes = script.config().open("s3://bkt/ns").delete_many(keys)
    assert [(o.key, o.outcome, o.error_code) for o in outcomes] == [
        ("denied", "failed", "AccessDenied"),
        ("gone", "deleted", None),
        ("missing", "already_missing", None),
        ("both", "failed", "InternalError"),
        ("unnamed", "failed", "NoAnswer"),
    ]
    assert "ns/stranger" in str(outcomes[-1].detail)


def test_after_a_call_that_fails_as_a_whole_no_other_is_sent(script: Script) -> None:
    keys = [f"{n:04d}" for n in range(2100)]
    first = delete_result(*(f"<Deleted><Key>ns/{key}</Key></Deleted>" for key in keys[:1000]))
    script.answers = [Answer(body=first), Answer(403, error("AccessDenied")), Answer()]
    outcomes = script.config().open("s3://bkt/ns").delete_many([*keys, "ctl\x01"])
    codes = [o.error_code for o in outcomes]
    assert codes == [None] * 1000 + ["AccessDenied"] * 1000 + ["NotSent"] * 101
    assert len(script.requests) == 2


def test_keys_are_sent_so_that_nothing_on_the_way_can_change_them(script: Script) -> None:
    """XML keeps dots and empty segments, a URL keeps control characters; neither keeps both."""
    script.answers = [Answer(body=delete_result()), Answer(204), Answer(204)]
    keys = ["a/../b", "a//b", "n\nl", "\x01 +", "cr\r", "../\x01"]
    outcomes = script.config().open("s3://bkt/ns").delete_many(keys)
    assert script.requests == [
        "POST /bkt?delete",
        "DELETE /bkt/ns/%01%20%2B",
        "DELETE /bkt/ns/cr%0D",
    ]
    for text in (b"<Key>ns/a/../b</Key>", b"<Key>ns/a//b</Key>", b"<Key>ns/n&#xA;l</Key>"):
        assert text in script.bodies[0]
    assert [o.outcome for o in outcomes] == ["failed"] * 3 + ["deleted"] * 2 + ["failed"]
    assert [o.error_code for o in outcomes][-1] == "InvalidKey"


def test_keys_that_urls_cannot_carry_are_listed_and_deleted(s3_server: str, s3_bucket: str) -> None:
    store = StoreConfig(endpoint_url=s3_server).open(f"s3://{s3_bucket}/ns")
    plain = boto3.client("s3", endpoint_url=s3_server)
    keys = ["a/../b", "a/./b", "a//b", "/lead", "//", "dir/", "..", "q/."]
    for key in keys:
        plain.put_object(Bucket=s3_bucket, Key=f"ns/{key}", Body=b"x")
    plain.put_object(Bucket=s3_bucket, Key="ns/b", Body=b"alive")
    assert listed(store) == sorted([*keys, "b"])
    assert {o.outcome for o in store.delete_many(keys)} == {"deleted"}
    assert listed(store) == ["b"]


def test_the_time_comes_from_the_answer(script: Script) -> None:
    script.answers = [Answer(body=page(""), date="Fri, 01 Jan 2027 01:02:03 GMT")]
    store = script.config().open("s3://bkt/ns")
    assert store.server_time() == datetime(2027, 1, 1, 1, 2, 3, tzinfo=timezone.utc)
    script.answers = [Answer(body=page(""), date="soon")]
    with pytest.raises(StorageError, match="'soon'"):
        store.server_time()


def test_a_copy_keeps_to_the_bucket(s3_server: str) -> None:
    """The request that copies, as boto3 gets it."""
    config = StoreConfig(endpoint_url=s3_server, read_timeout_s=9)
    client = clients(config).usual
    with Stubber(client) as stub:
        stub.add_response("head_object", {"ContentLength": 3, "ETag": '"e"'})
        stub.add_response(
            "copy_object",
            {},
            {"Bucket": "bkt", "Key": "ns/t", "CopySource": {"Bucket": "bkt", "Key": "ns/s"}},
        )
        config.open("s3://bkt/ns").copy("s", "t")
        stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("endpoint", "addressing", "expected"),
    [
        (None, "auto", "https://bkt.s3.amazonaws.com/k"),
        (None, "path", "https://s3.eu-west-1.amazonaws.com/bkt/k"),
        ("http://minio.example:9000", "auto", "http://minio.example:9000/bkt/k"),
        ("http://minio.example:9000", "virtual", "http://bkt.minio.example:9000/k"),
        (
            "https://s3.eu-west-1.amazonaws.com",
            "virtual",
            "https://bkt.s3.eu-west-1.amazonaws.com/k",
        ),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_addressing(
    s3_server: str,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str | None,
    addressing: str,
    expected: str,
    *,
    by_variable: bool,
) -> None:
    assert s3_server
    if by_variable and endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    config = StoreConfig(
        endpoint_url=None if by_variable else endpoint,
        region="eu-west-1",
        addressing=addressing,  # type: ignore[arg-type]
    )
    url = clients(config).usual.generate_presigned_url(
        "get_object", Params={"Bucket": "bkt", "Key": "k"}
    )
    assert url.partition("?")[0] == expected


def test_the_region_comes_from_the_setting_or_the_variables(
    s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert s3_server
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.delenv("AWS_REGION")
    assert clients(StoreConfig()).usual.meta.region_name == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert clients(StoreConfig()).usual.meta.region_name == "eu-west-2"
    assert clients(StoreConfig(region="eu-west-3")).usual.meta.region_name == "eu-west-3"
    with pytest.raises(ConfigurationError, match="no-such-profile"):
        clients(StoreConfig(profile="no-such-profile"))


def test_a_store_without_credentials_says_so(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ConfigurationError, match="no credentials"):
        script.config().open("s3://bkt/ns").get("k")


def test_clients_are_shared(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StoreConfig(endpoint_url=s3_server)
    assert clients(config) is clients(StoreConfig(endpoint_url=s3_server))
    shared = clients(config)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert clients(config) is not shared


def test_a_credentials_file(tmp_path: Path, s3_server: str) -> None:
    path = tmp_path / "credentials.json"
    write_credentials_file(path, "key1", "secret1", "token1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = StoreConfig(endpoint_url=s3_server, credentials_file=str(path))
    credentials = clients(config).usual._request_signer._credentials  # type: ignore[attr-defined]
    assert credentials.get_frozen_credentials() == ("key1", "secret1", "token1", None)
    write_credentials_file(path, "key2", "secret2")
    credentials._expiry_time = datetime.now(timezone.utc)
    assert credentials.get_frozen_credentials()[:3] == ("key2", "secret2", None)
    assert "secret" not in repr(config) + repr(config.open("s3://b/p"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"access_key": "a"}', '{"access_key": "", "secret_key": "hidden"}']
)
def test_a_damaged_credentials_file_is_refused_without_quoting_it(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "credentials.json"
    write_credentials_file(path, "a", "b")
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="write it again") as raised:
        read_credentials_file(path)
    assert "hidden" not in str(raised.value)


def test_a_credentials_file_that_others_can_read_is_refused(tmp_path: Path, s3_server: str) -> None:
    path = tmp_path / "credentials.json"
    write_credentials_file(path, "a", "b")
    path.chmod(0o640)
    store = StoreConfig(endpoint_url=s3_server, credentials_file=str(path)).open("s3://bkt/ns")
    with pytest.raises(ConfigurationError, match="chmod 600"):
        store.get("k")
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_credentials_file(tmp_path / "missing")


def test_pages_end_where_the_range_ends(s3_server: str, s3_bucket: str) -> None:
    store = StoreConfig(endpoint_url=s3_server).open(f"s3://{s3_bucket}/ns")
    for key in ("a", "b", "c"):
        store.put(key, b"")
    assert listed(store, "", None, "b") == ["a"]
    assert listed(store, "", None, "a") == []
