"""Deletes on S3: what is sent, and what becomes of each key by the answers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

import boto3
import pytest

from lakegc_assets.storage import http
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.s3 import client as s3_client
from lakegc_assets.storage.s3.client import clients, write_credentials_file
from lakegc_assets_tests import http_server
from lakegc_assets_tests.http_server import Asked, serving
from lakegc_assets_tests.storage.conftest import Answer, Script, listed
from lakegc_assets_tests.storage.s3_answers import delete_result, error

_FAILED = "<Error><Key>ns/{}</Key><Code>{}</Code><Message>m</Message></Error>"


def deleted(*keys: str, failed: dict[str, str] | None = None) -> str:
    """The body of an answer to a bulk delete."""
    gone = "".join(f"<Deleted><Key>ns/{key}</Key></Deleted>" for key in keys)
    errors = "".join(_FAILED.format(key, code) for key, code in (failed or {}).items())
    return f"<DeleteResult>{gone}{errors}</DeleteResult>"


def test_a_bulk_delete_names_the_etag_of_each_key(script: Script) -> None:
    script.answers = [Answer(body=deleted("a", "b"))]
    outcomes = open_store("s3://bkt/ns", script.config()).delete_many(
        ["a", "b"], {"a": "e1", "b": "e-2"}
    )
    assert [o.outcome for o in outcomes] == ["deleted", "deleted"]
    body = script.bodies[0].decode().replace("&quot;", '"')
    assert '<Key>ns/a</Key><ETag>"e1"</ETag>' in body
    assert '<Key>ns/b</Key><ETag>"e-2"</ETag>' in body


def test_without_etags_no_condition_is_sent(script: Script) -> None:
    script.answers = [Answer(body=deleted("a"))]
    open_store("s3://bkt/ns", script.config()).delete_many(["a"])
    assert b"ETag" not in script.bodies[0]


def test_every_key_must_have_its_etag(script: Script) -> None:
    with pytest.raises(KeyError, match="b"):
        open_store("s3://bkt/ns", script.config()).delete_many(["a", "b"], {"a": "e"})
    assert script.requests == []


def test_singly_there_is_one_request_for_each_key(script: Script) -> None:
    script.answers = [Answer(status=204)]
    store = open_store("s3://bkt/ns", script.config())
    outcomes = store.delete_many(["a", "b c"], {"a": "e1", "b c": "e2"}, singly=True)
    assert [o.outcome for o in outcomes] == ["deleted", "deleted"]
    assert script.requests == ["DELETE /bkt/ns/a", "DELETE /bkt/ns/b%20c"]


@pytest.mark.parametrize(
    ("head", "outcome", "words"),
    [
        (Answer(headers={"ETag": '"new"'}), "spared", "it has the etag new, old was expected"),
        (Answer(status=404), "already_missing", "it does not exist"),
        (Answer(headers={"ETag": '"old"'}), "failed", "then named this etag"),
        (Answer(status=403), "failed", "check the credentials"),
        (Answer(status=503), "failed", "503"),
    ],
)
@pytest.mark.parametrize("singly", [False, True])
def test_after_a_failed_condition_the_store_is_asked_what_is_there(
    script: Script, head: Answer, outcome: str, words: str, *, singly: bool
) -> None:
    """A store may say so of an object that is gone; that is not one that was written again."""
    refusal = Answer(body=deleted(failed={"k": "PreconditionFailed"}))
    if singly:
        error = "<Error><Code>PreconditionFailed</Code><Message>m</Message></Error>"
        refusal = Answer(status=412, body=error)
    script.answers = [refusal, head]
    (found,) = open_store("s3://bkt/ns", script.config()).delete_many(
        ["k"], {"k": "old"}, singly=singly
    )
    assert found.outcome == outcome
    assert words in str(found.detail)
    assert [request.split()[0] for request in script.requests][1:] == ["HEAD"]


def test_a_missing_object_is_told_by_a_condition(script: Script) -> None:
    script.answers = [Answer(body=deleted(failed={"k": "NoSuchKey"}))]
    (found,) = open_store("s3://bkt/ns", script.config()).delete_many(["k"], {"k": "e"})
    assert found.outcome == "already_missing"


def test_without_a_condition_a_failed_one_is_a_failure(script: Script) -> None:
    script.answers = [Answer(body=deleted(failed={"k": "PreconditionFailed"}))]
    (found,) = open_store("s3://bkt/ns", script.config()).delete_many(["k"])
    assert (found.outcome, found.error_code) == ("failed", "PreconditionFailed")
    assert len(script.requests) == 1


def test_one_spared_key_does_not_keep_single_deletes_from_the_next(s3_store: ObjectStore) -> None:
    etags = {key: s3_store.put(key, b"1") for key in ("a", "b", "c")}
    s3_store.put("a", b"2")
    s3_store.delete_many(["b"])
    outcomes = s3_store.delete_many(etags, etags, singly=True)
    assert [o.outcome for o in outcomes] == ["spared", "already_missing", "deleted"]
    assert s3_store.get("a") == b"2"


@pytest.fixture
def s3_store(s3_server: str, s3_bucket: str) -> ObjectStore:
    return open_store(f"s3://{s3_bucket}/ns", StoreConfig(endpoint_url=s3_server))


def test_each_key_of_a_bulk_delete_has_the_outcome_that_the_store_gave(script: Script) -> None:
    script.answers = [
        Answer(
            body=delete_result(
                "<Deleted><Key>ns/gone</Key></Deleted>",
                "<Deleted><Key>ns/both</Key></Deleted>",
                "<Error><Key>ns/both</Key><Code>InternalError</Code><Message>m</Message></Error>",
                "<Error><Key>ns/denied</Key><Code>AccessDenied</Code><Message>m</Message></Error>",
                "<Error><Key>ns/missing</Key><Code>NoSuchKey</Code><Message>m</Message></Error>",
            )
        )
    ]
    keys = ["denied", "gone", "missing", "both", "unnamed"]
    outcomes = open_store("s3://bkt/ns", script.config()).delete_many(keys)
    assert [(o.key, o.outcome, o.error_code) for o in outcomes] == [
        ("denied", "failed", "AccessDenied"),
        ("gone", "deleted", None),
        ("missing", "already_missing", None),
        ("both", "failed", "NoAnswer"),
        ("unnamed", "failed", "NoAnswer"),
    ]


@pytest.mark.parametrize("stranger", ["ns/stranger", "a0", "ns/e\u0301", "other/a0"])
def test_an_answer_that_names_a_key_that_was_not_sent_says_nothing(
    script: Script, stranger: str
) -> None:
    """It is the answer to another request, so what it says of the same key is not about ours."""
    keys = ["\u00e9", *(f"a{number}" for number in range(1100))]
    gone = [f"<Deleted><Key>{name}</Key></Deleted>" for name in ("ns/a0", "ns/a1", stranger)]
    script.answers = [Answer(body=delete_result(*gone))]
    outcomes = open_store("s3://bkt/ns", script.config()).delete_many(keys)
    assert {o.outcome for o in outcomes} == {"failed"}
    assert [o.error_code for o in outcomes] == ["NoAnswer"] * 1000 + ["NotSent"] * 101
    assert stranger in str(outcomes[0].detail)


def test_a_key_that_is_named_twice_is_not_known_to_be_gone(script: Script) -> None:
    errors = [_FAILED.format("k", code) for code in ("AccessDenied", "NoSuchKey")]
    script.answers = [Answer(body=delete_result(*errors))]
    (outcome,) = open_store("s3://bkt/ns", script.config()).delete_many(["k"])
    assert (outcome.outcome, outcome.error_code) == ("failed", "NoAnswer")


def test_a_call_with_many_keys_says_of_none_that_it_is_missing(script: Script) -> None:
    """A 404 for the whole call is about the call, also where it holds one key."""
    script.answers = [Answer(404, error("NoSuchKey"))]
    store = open_store("s3://bkt/ns", script.config())
    for keys in (["k"], ["k", "l"]):
        outcomes = store.delete_many(keys)
        assert {(o.outcome, o.error_code) for o in outcomes} == {("failed", "NoSuchKey")}


def test_only_an_answer_without_content_says_that_one_object_is_gone(script: Script) -> None:
    script.answers = [Answer(200)]
    (outcome,) = open_store("s3://bkt/ns", script.config()).delete_many(["k"], singly=True)
    assert (outcome.outcome, outcome.error_code) == ("failed", "NoAnswer")


def test_a_key_without_an_etag_is_not_deleted_on_a_condition(script: Script) -> None:
    script.answers = [Answer(body=deleted("b"))]
    outcomes = open_store("s3://bkt/ns", script.config()).delete_many(
        ["a", "b"], {"a": "", "b": "e"}
    )
    assert [(o.outcome, o.error_code) for o in outcomes] == [
        ("failed", "InvalidKey"),
        ("deleted", None),
    ]
    assert b"ns/a" not in script.bodies[0]


def test_what_a_url_would_change_is_not_looked_at(script: Script) -> None:
    """A proxy may read ``a//b`` as ``a/b``, and tell of that."""
    script.answers = [Answer(body=deleted(failed={"a//b": "PreconditionFailed"})), Answer(404)]
    (outcome,) = open_store("s3://bkt/ns", script.config()).delete_many(["a//b"], {"a//b": "e"})
    assert (outcome.outcome, outcome.error_code) == ("failed", "PreconditionFailed")
    assert len(script.requests) == 1


def test_after_a_call_that_fails_as_a_whole_no_other_is_sent(script: Script) -> None:
    keys = [f"{n:04d}" for n in range(2100)]
    first = delete_result(*(f"<Deleted><Key>ns/{key}</Key></Deleted>" for key in keys[:1000]))
    script.answers = [Answer(body=first), Answer(403, error("AccessDenied")), Answer()]
    outcomes = open_store("s3://bkt/ns", script.config()).delete_many([*keys, "ctl\x01"])
    codes = [o.error_code for o in outcomes]
    assert codes == [None] * 1000 + ["AccessDenied"] * 1000 + ["NotSent"] * 101
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("upstream connect error or disconnect/reset before headers", "503"),
        ("<html><h1>503 Service Unavailable</h1></html>", "503"),
        (error("SlowDown"), "SlowDown"),
    ],
)
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
def test_a_proxy_that_lost_the_store_gives_no_code_of_the_store(
    script: Script, body: str, code: str, keys: list[str]
) -> None:
    """A sweep tells the two apart: the store may yet carry out what a proxy answered."""
    script.answers = [Answer(status=503, body=body)]
    outcomes = open_store("s3://bkt/ns", script.config(max_attempts=1)).delete_many(keys)
    assert {(o.outcome, o.error_code) for o in outcomes} == {("failed", code)}


def test_a_call_with_one_key_that_is_locked_says_so_of_that_key_alone(script: Script) -> None:
    """As a server answers that looks for locks before it deletes anything."""
    why = "<Error><Code>InvalidRequest</Code><Message>Object is WORM protected</Message></Error>"
    locked = Answer(400, why)
    script.answers = [locked, Answer(204)]
    store = open_store("s3://bkt/ns", script.config())
    (alone, after) = store.delete_many(["a", "ctl\x01"])
    assert (alone.outcome, alone.error_code) == ("locked", "ObjectLocked")
    assert after.outcome == "deleted"
    script.answers = [locked]
    both = store.delete_many(["a", "b"])
    assert [(one.outcome, one.error_code) for one in both] == [("failed", "ObjectLocked")] * 2


_ODD = ["a%41", "a+b", "two  blanks"]
_LOCKED = Answer(
    400, "<Error><Code>InvalidRequest</Code><Message>Object is WORM protected</Message></Error>"
)


@pytest.mark.parametrize(
    ("second", "outcomes"),
    [
        (Answer(204), ["deleted", "deleted", "deleted"]),
        # A lock tells nothing about other keys, and a missing permission concerns them all.
        (_LOCKED, ["deleted", "locked", "deleted"]),
        (Answer(403, error("AccessDenied")), ["deleted", "failed", "failed"]),
    ],
)
def test_of_a_thousand_keys_only_the_odd_ones_are_requests_of_their_own(
    script: Script, second: Answer, outcomes: list[str]
) -> None:
    plain = [f"{number:04d}" for number in range(997)]
    script.answers = [Answer(body=deleted(*plain)), Answer(204), second, Answer(204)]
    keys = [*plain[:500], *_ODD, *plain[500:]]
    found = open_store("s3://bkt/ns", script.config()).delete_many(keys)
    by_key = {one.key: one.outcome for one in found}
    assert {by_key[key] for key in plain} == {"deleted"}
    assert [by_key[key] for key in _ODD] == outcomes
    singles = ["DELETE /bkt/ns/a%2541", "DELETE /bkt/ns/a%2Bb", "DELETE /bkt/ns/two%20%20blanks"]
    sent = 2 if outcomes[1:] == ["failed", "failed"] else 3
    assert script.requests == ["POST /bkt?delete", *singles[:sent]]


def test_keys_are_sent_so_that_nothing_on_the_way_can_change_them(script: Script) -> None:
    """XML keeps dots and empty segments, a URL keeps control characters; neither keeps both."""
    script.answers = [Answer(body=delete_result()), Answer(204), Answer(204)]
    keys = ["a/../b", "a//b", "n\nl", "\x01 +", "cr\r", "../\x01"]
    outcomes = open_store("s3://bkt/ns", script.config()).delete_many(keys)
    assert script.requests == [
        "POST /bkt?delete",
        "DELETE /bkt/ns/%01%20%2B",
        "DELETE /bkt/ns/cr%0D",
    ]
    for text in (b"<Key>ns/a/../b</Key>", b"<Key>ns/a//b</Key>", b"<Key>ns/n&#xA;l</Key>"):
        assert text in script.bodies[0]
    assert [o.outcome for o in outcomes] == ["failed"] * 3 + ["deleted"] * 2 + ["failed"]
    assert [o.error_code for o in outcomes][-1] == "InvalidKey"


@pytest.mark.parametrize(
    ("read", "dead", "alive"),
    [
        pytest.param(str.strip, "data/a ", "data/a", id="trims"),
        pytest.param(lambda key: " ".join(key.split()), "a  b", "a b", id="unites blanks"),
        pytest.param(unquote, "data/%41", "data/A", id="decodes"),
        pytest.param(unquote_plus, "a+b", "a b", id="decodes as a form"),
    ],
)
def test_a_server_that_reads_keys_in_xml_otherwise_deletes_no_other_object(
    aws_environment: None,  # noqa: ARG001 - it is wanted to be there
    read: Callable[[str], str],
    dead: str,
    alive: str,
) -> None:
    objects = {f"ns/{key}" for key in (dead, alive, "plain")}

    def respond(asked: Asked) -> http_server.Answer:
        if asked.method == "DELETE":
            objects.discard(unquote(asked.path).removeprefix("/bkt/"))
            return http_server.Answer(204)
        sent = [one.text or "" for one in ET.fromstring(asked.body).iter() if "Key" in one.tag]
        objects.difference_update(map(read, sent))
        body = delete_result(*(f"<Deleted><Key>{key}</Key></Deleted>" for key in sent))
        return http_server.Answer(200, body.encode())

    with serving(respond) as endpoint:
        store = open_store("s3://bkt/ns", StoreConfig(endpoint_url=endpoint, max_attempts=1))
        assert {o.outcome for o in store.delete_many(["plain", dead])} == {"deleted"}
        assert [store.is_deleted_alone(key) for key in ("plain", dead)] == [False, True]
    assert objects == {f"ns/{alive}"}


def test_keys_that_urls_cannot_carry_are_listed_and_deleted(s3_server: str, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/ns", StoreConfig(endpoint_url=s3_server))
    plain = boto3.client("s3", endpoint_url=s3_server)
    keys = ["a/../b", "a/./b", "a//b", "/lead", "//", "dir/", "..", "q/."]
    for key in keys:
        plain.put_object(Bucket=s3_bucket, Key=f"ns/{key}", Body=b"x")
    plain.put_object(Bucket=s3_bucket, Key="ns/b", Body=b"alive")
    assert listed(store) == sorted([*keys, "b"])
    assert {o.outcome for o in store.delete_many(keys)} == {"deleted"}
    assert listed(store) == ["b"]


def _after(start: datetime, minutes: int) -> datetime:
    return start + timedelta(minutes=minutes)


def test_credentials_that_expire_are_asked_for_again(script: Script, tmp_path: Path) -> None:
    """Whoever renews the file renews the credentials of requests that are sent later."""
    now = datetime.now(timezone.utc)
    path = tmp_path / "credentials"
    write_credentials_file(path, "first-key", "secret")
    script.answers = [Answer(body=deleted("a"))]
    config = StoreConfig(endpoint_url=script.endpoint, credentials_file=str(path), max_attempts=1)
    store = open_store("s3://bkt/ns", config)
    credentials: Any = clients(config).small.session.get_credentials()
    used = []
    for minutes in (0, 1, 6, 7):
        credentials._time_fetcher = partial(_after, now, minutes)
        store.delete_many(["a"])
        used.append(script.headers[-1]["authorization"].split("Credential=")[1].split("/")[0])
        write_credentials_file(path, f"key-after-{minutes}", "secret")
    assert used == ["first-key", "first-key", "key-after-1", "key-after-6"]
    assert json.loads(path.read_text())["access_key"] == "key-after-7"


def test_credentials_that_cannot_be_renewed_are_denied(script: Script, tmp_path: Path) -> None:
    """Botocore asks for new ones, and gets what has expired too: nothing is sent."""
    path = tmp_path / "credentials"
    write_credentials_file(path, "key", "secret")
    config = StoreConfig(endpoint_url=script.endpoint, credentials_file=str(path), max_attempts=1)
    store = open_store("s3://bkt/ns", config)
    credentials: Any = clients(config).small.session.get_credentials()
    credentials._time_fetcher = partial(_after, datetime.now(timezone.utc), 60)
    (found,) = store.delete_many(["a"])
    assert (found.outcome, found.error_code) == ("failed", "ExpiredToken")
    assert "renew them" in str(found.detail)
    assert script.requests == []


@pytest.mark.parametrize("singly", [False, True])
def test_a_delete_is_not_sent_after_its_credentials_took_long_to_renew(
    script: Script, monkeypatch: pytest.MonkeyPatch, *, singly: bool
) -> None:
    script.answers = [Answer(status=204) if singly else Answer(body=deleted("a"))]
    store = open_store("s3://bkt/ns", script.config())
    readings = iter([0.0, 11.0, 20.0, 29.0])
    monkeypatch.setattr(http, "seconds", lambda: next(readings))
    monkeypatch.setattr(s3_client, "seconds", http.seconds)
    (late,) = store.delete_many(["a"], singly=singly)
    assert (late.outcome, late.error_code) == ("failed", "ConnectionFailed")
    assert "nothing was sent" in str(late.detail)
    assert script.requests == []
    (found,) = store.delete_many(["a"], singly=singly)
    assert found.outcome == "deleted"


@pytest.mark.parametrize("expires_s", [None, 60])
@pytest.mark.parametrize("singly", [False, True])
def test_the_time_that_botocore_takes_to_renew_credentials_counts(
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expires_s: int | None,
    *,
    singly: bool,
) -> None:
    path = tmp_path / "credentials"
    write_credentials_file(path, "key", "secret")
    script.answers = [Answer(status=204) if singly else Answer(body=deleted("a"))]
    config = StoreConfig(endpoint_url=script.endpoint, credentials_file=str(path), max_attempts=1)
    store = open_store("s3://bkt/ns", config)
    now = [0.0]
    credentials: Any = clients(config).small.session.get_credentials()
    read = s3_client.read_credentials_file

    def slowly(path: str) -> Mapping[str, str | None]:
        now[0] += 11.0
        return read(path)

    monkeypatch.setattr(s3_client, "seconds", lambda: now[0])
    monkeypatch.setattr(http, "seconds", lambda: now[0])
    monkeypatch.setattr(s3_client, "read_credentials_file", slowly)
    credentials._time_fetcher = partial(_after, datetime.now(timezone.utc), 6)
    (late,) = store.delete_many(["a"], singly=singly, expires_s=expires_s)
    assert (late.outcome, late.error_code) == ("failed", "ConnectionFailed")
    assert "nothing was sent" in str(late.detail)
    assert script.requests == []
    credentials._time_fetcher = partial(_after, datetime.now(timezone.utc), 0)
    (found,) = store.delete_many(["a"], singly=singly, expires_s=expires_s)
    assert found.outcome == "deleted"
