"""What is particular to Google Cloud Storage: pages, generations, batches, errors, credentials."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import google.auth.exceptions
import pytest

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import GcsAccess, StoreConfig
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
    error_class,
)
from lakegc_assets.storage.gcs import service as gcs_service
from lakegc_assets.storage.http import HttpFailure, Request
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.conftest import Answer, Script, listed
from lakegc_assets_tests.storage.gcs_answers import refusal


def item(name: str, generation: int = 7) -> dict[str, str]:
    return {
        "name": name, "size": "3", "updated": "2026-01-02T03:04:05.678Z",
        "generation": str(generation),
    }  # fmt: skip


def page(*names: str, token: str | None = None, prefixes: tuple[str, ...] = ()) -> Answer:
    items = [item(name) for name in names]
    content = {"kind": "storage#objects", "items": items, "prefixes": prefixes}
    return Answer(body=json.dumps(content | ({"nextPageToken": token} if token else {})))


def with_items(*items: dict[str, str | None] | dict[str, str]) -> Answer:
    return Answer(body=json.dumps({"kind": "storage#objects", "items": items}))


def query_of(request: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(request.split(" ", 1)[1]).query, keep_blank_values=True)


def test_a_listing_goes_on_until_there_is_no_token(
    gcs: Callable[..., ObjectStore], script: Script
) -> None:
    store = gcs(page("ns/", "ns/a", token="t"), page(token="u"), page("ns/b é"))
    (first, second) = store.list()
    assert first.to_pylist() == [
        {
            "key": "a",
            "size": 3,
            "last_modified": datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc),
            "etag": "7",
        }
    ]
    assert second["key"].to_pylist() == ["b é"]
    assert [query_of(r).get("pageToken") for r in script.requests] == [None, ["t"], ["u"]]
    assert not any("authorization" in headers for headers in script.headers)


@pytest.mark.parametrize(
    ("low", "high", "asked"),
    [
        ("a", "c", ("ns/a", "ns/c")),
        ("a\U0010ffff", "c\0", ("ns/a", "ns/c ")),
        (None, "c\U0010ffff", (None, None)),
        ("\0", None, ("ns/", None)),
    ],
)
def test_bounds_are_sent_as_far_as_names_can_hold_them(
    gcs: Callable[..., ObjectStore],
    script: Script,
    low: str | None,
    high: str | None,
    asked: tuple[str | None, str | None],
) -> None:
    keys = ["0", "a", "a\U0001f600", "b", "c", "c ", "d"]
    store = gcs(page(*(f"ns/{key}" for key in keys)))
    expected = [k for k in keys if k > (low or "") and (high is None or k < high)]
    assert listed(store, "", low, high) == expected
    query = query_of(script.requests[0])
    sent = tuple(query.get(name, [None])[0] for name in ("startOffset", "endOffset"))
    assert sent == asked


@pytest.mark.parametrize(
    "damaged",
    [
        Answer(body="<html/>"),
        Answer(body="[]"),
        Answer(body="{}"),
        Answer(body='{"message": "It works!"}'),
        Answer(body='{"kind": "storage#buckets"}'),
        with_items({"name": "ns/a"}),
        Answer(body='{"kind": "storage#objects", "items": {"name": "ns/a"}}'),
        with_items(item("ns/a") | {"size": "many"}),
        with_items(item("ns/a") | {"updated": "soon"}),
        *(with_items({**item("ns/a"), name: None}) for name in item("ns/a")),
        with_items(item("ns/a") | {"generation": ""}),
        Answer(body='{"kind": "storage#objects", "nextPageToken": ""}'),
        Answer(body='{"kind": "storage#objects", "nextPageToken": false}'),
        page(prefixes=("ns/d/",)),
        page("elsewhere"),
        page("ns/b", "ns/a"),
        page("ns/a", "ns/a"),
        page("ns/a", token="again"),
    ],
)
def test_pages_that_cannot_be_trusted_are_refused(
    gcs: Callable[..., ObjectStore], damaged: Answer
) -> None:
    with pytest.raises(StorageError, match="gs://bkt/ns"):
        listed(gcs(damaged, damaged))


def test_a_level_goes_over_pages_and_its_order_is_checked(
    gcs: Callable[..., ObjectStore],
) -> None:
    first, empty = page("ns/b", prefixes=("ns/a/",), token="1"), page(token="2")
    found = gcs(first, empty, page("ns/d", prefixes=("ns/c/",))).list_prefixes()
    assert (found.prefixes, [info.key for info in found.objects]) == (["a/", "c/"], ["b", "d"])
    for late in (page(prefixes=("ns/a/",)), page("ns/a-"), page("ns/b")):
        with pytest.raises(StorageError, match="out of order"):
            gcs(first, empty, late).list_prefixes()
    with pytest.raises(StorageError, match="twice"):
        gcs(first, empty, page(token="1")).list_prefixes()


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (403, "forbidden", AccessDeniedError),
        (401, "required", AccessDeniedError),
        (403, "rateLimitExceeded", StoreThrottledError),
        (429, "rateLimitExceeded", StoreThrottledError),
        (503, "backendError", StoreUnavailableError),
        (408, "odd", StoreUnavailableError),
        (502, "", StoreUnavailableError),
        (400, "invalid", StorageError),
    ],
)
def test_errors_are_told_apart(
    gcs: Callable[..., ObjectStore], status: int, reason: str, expected: type[LakegcError]
) -> None:
    store = gcs(refusal(status, reason) if reason else Answer(status, "<html>proxy</html>"))
    calls: list[Callable[[], object]] = [
        lambda: store.get("some/key"),
        lambda: store.put("some/key", b""),
        lambda: store.put_if_absent("some/key", b""),
        lambda: listed(store, "some/key"),
    ]
    for call in calls:
        with pytest.raises(expected, match="gs://bkt/ns") as raised:
            call()
        assert raised.type is expected
    (outcome,) = store.delete_many(["some/key"])
    assert outcome.outcome == "failed"
    assert error_class(outcome.error_code or "") is expected


def test_a_missing_bucket_is_told_from_a_missing_object(
    gcs: Callable[..., ObjectStore],
) -> None:
    missing = refusal(404, "notFound")
    calls: list[Callable[[ObjectStore], object]] = [
        lambda store: store.get("k"),
        lambda store: store.head("k"),
        lambda store: store.put_if_match("k", b"", "1"),
        listed,
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="bucket does not exist"):
            call(gcs(missing))
    with pytest.raises(ObjectNotFoundError, match="'k'"):
        gcs(missing, page()).get("k")
    with pytest.raises(PreconditionFailedError):
        gcs(missing, page()).put_if_match("k", b"", "1")
    (outcome,) = gcs(missing).delete_many(["k"])
    assert (outcome.outcome, outcome.error_code) == ("failed", "NoSuchBucket")
    (outcome,) = gcs(missing, page()).delete_many(["k"])
    assert outcome.outcome == "already_missing"


def test_a_404_of_somebody_else_does_not_say_that_an_object_is_missing(
    gcs: Callable[..., ObjectStore],
) -> None:
    proxy = Answer(404, "<html>404 page not found</html>")
    for odd in (proxy, Answer(404, '{"error": "not found"}')):
        (outcome,) = gcs(odd, page()).delete_many(["k"])
        assert (outcome.outcome, outcome.error_code) == ("failed", "404")
    outcomes = gcs(refusal(404, "notFound")).delete_many(["k", "l"])
    assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", "notFound")] * 2
    with pytest.raises(StorageError, match="404 page") as raised:
        gcs(proxy, Answer(body=json.dumps(item("ns/k")))).get("k")
    assert raised.type is StorageError
    with pytest.raises(ObjectNotFoundError):
        gcs(Answer(404, "No such object"), refusal(404, "notFound"), page()).get("k")


def test_what_no_store_says_is_no_answer(gcs: Callable[..., ObjectStore]) -> None:
    """Whoever answers 200 to everything is no store."""
    portal = gcs(Answer(body="It works!"))
    for keys in (["a"], ["a", "b"]):
        assert {o.error_code for o in portal.delete_many(keys)} == {"NoAnswer"}
    with pytest.raises(StorageError, match="names 'ns/other'"):
        gcs(Answer(body=json.dumps(item("ns/other")))).put_if_absent("k", b"")
    with pytest.raises(StorageError, match="has no generation"):
        portal.get("k")
    changed = batch((0, 412, "conditionNotMet"), (1, 204, ""))
    for odd in (Answer(body="{}"), Answer(body=json.dumps(item("ns/other", 9)))):
        outcomes = gcs(changed, odd).delete_many("ab", {"a": "7", "b": "7"})
        assert [o.error_code for o in outcomes] == ["NoAnswer", None]
    outcomes = gcs(batch((0, 204, ""), (2, 204, ""))).delete_many(["a", "b"])
    assert [o.error_code for o in outcomes] == ["NoAnswer"] * 2


@pytest.mark.parametrize("etag", ["", "0", "0x8D", "\u0663"])
def test_what_is_no_generation_is_no_condition(
    gcs: Callable[..., ObjectStore], script: Script, etag: str
) -> None:
    """GCS may read it as no condition at all."""
    outcomes = gcs(Answer(204)).delete_many(["a", "b"], {"a": etag, "b": "7"})
    assert [(o.outcome, o.error_code) for o in outcomes] == [
        ("failed", "InvalidKey"),
        ("deleted", None),
    ]
    assert [query_of(r) for r in script.requests] == [{"ifGenerationMatch": ["7"]}]


def test_conditions_are_generations(gcs: Callable[..., ObjectStore], script: Script) -> None:
    written = Answer(body=json.dumps(item("ns/k", 8)))
    store = gcs(refusal(503, "rateLimitExceeded"), written, tries=3)
    assert store.put_if_absent("k", b"x") == "8"
    assert [query_of(r)["ifGenerationMatch"] for r in script.requests] == [["0"], ["0"]]
    script.answers = [refusal(412, "conditionNotMet")]
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("k", b"x", "8")
    script.answers = [refusal(500, "backendError"), written]
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_match("k", b"x", "8")
    asked = len(script.requests)
    for etag in ("0", "0x8D", ""):
        with pytest.raises(PreconditionFailedError, match="numbers"):
            store.put_if_match("k", b"x", etag)
    assert len(script.requests) == asked


def test_the_time_is_asked_for_below_the_namespace(
    gcs: Callable[..., ObjectStore], script: Script
) -> None:
    """The policy of a managed folder allows no list of the whole bucket."""
    gcs(page()).server_time()
    assert query_of(script.requests[-1])["prefix"] == ["ns/"]


def batch(*parts: tuple[int, int, str]) -> Answer:
    lines = []
    for number, status, reason in parts:
        lines += ["--b", "Content-Type: application/http", f"Content-ID: <response-{number}>", ""]
        lines += [f"HTTP/1.1 {status} Reason", "Content-Type: application/json", ""]
        lines += [refusal(status, reason).body if reason else "", ""]
    body = "\r\n".join([*lines, "--b--"])
    return Answer(200, body, headers={"Content-Type": 'multipart/mixed; boundary="b"'})


def test_each_key_of_a_batch_has_the_outcome_that_the_store_gave(
    gcs: Callable[..., ObjectStore], script: Script
) -> None:
    answer = batch(
        (4, 204, ""), (0, 404, "notFound"), (1, 403, "forbidden"), (2, 412, "conditionNotMet")
    )
    store = gcs(answer, page(), Answer(body=json.dumps(item("ns/2", 9))))
    outcomes = store.delete_many(["0", "1/é", "2", "3", "4"], dict.fromkeys(
        ["0", "1/é", "2", "3", "4"], "7"
    ))  # fmt: skip
    assert [(o.outcome, o.error_code) for o in outcomes] == [
        ("already_missing", None),
        ("failed", "forbidden"),
        ("spared", None),
        ("failed", "NoAnswer"),
        ("deleted", None),
    ]
    line = b"DELETE /storage/v1/b/bkt/o/ns%2F1%2F%C3%A9?ifGenerationMatch=7 HTTP/1.1\r\n"
    assert line in script.bodies[0]


def test_after_a_batch_that_fails_as_a_whole_no_other_is_sent(
    gcs: Callable[..., ObjectStore], script: Script
) -> None:
    good = batch(*((number, 204, "") for number in range(100)))
    keys = [f"{n:04d}" for n in range(250)]
    codes = [o.error_code for o in gcs(good, refusal(401, "required")).delete_many(keys)]
    assert codes == [None] * 100 + ["required"] * 100 + ["NotSent"] * 50
    assert len(script.requests) == 2


def test_what_keeps_deleted_objects_is_told(gcs: Callable[..., ObjectStore]) -> None:
    soft = {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
    found = gcs(Answer(body=json.dumps(soft))).recovery()
    assert found[:2] == ("soft_delete", 7.0)
    assert "7 days, and are paid for" in found.notice
    more = {"versioning": {"enabled": True}, "retentionPolicy": {"retentionPeriod": "5"}}
    found = gcs(Answer(body=json.dumps(more))).recovery()
    assert found[:2] == ("versions", None)
    assert "versioning is on" in found.notice
    assert "retention policy" in found.notice
    off = {"softDeletePolicy": {"retentionDurationSeconds": "0"}, "versioning": {"enabled": False}}
    assert gcs(Answer(body=json.dumps(off))).recovery()[:2] == ("nothing", None)
    found = gcs(refusal(403, "forbidden")).recovery()
    assert found[:2] == ("unknown", None)
    assert "not known whether deleted objects are kept (forbidden)" in found.notice
    assert "storage.buckets.get" in found.notice


@pytest.mark.parametrize(
    ("condition", "days"),
    [
        ({"daysSinceNoncurrentTime": 14}, 21.0),
        ({"daysSinceNoncurrentTime": 14, "matchesPrefix": ["other/"]}, None),
        ({"daysSinceNoncurrentTime": 14, "matchesPrefix": ["ns/data/"]}, 21.0),
        ({"numNewerVersions": 1}, None),
        ({"age": 30, "isLive": True}, None),
        ({"age": 30, "isLive": False}, 7.0),
    ],
)
def test_lifecycle_rules_say_for_how_long(
    gcs: Callable[..., ObjectStore], condition: dict[str, object], days: float | None
) -> None:
    settings = {
        "softDeletePolicy": {"retentionDurationSeconds": "604800"},
        "versioning": {"enabled": True},
        "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": condition}]},
    }
    assert gcs(Answer(body=json.dumps(settings))).recovery()[:2] == ("versions", days)


def test_credentials_that_cannot_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    path = tmp_path / "key.json"
    path.write_text('{"type": "service_account"}')
    for file in (path, tmp_path / "missing.json"):
        config = StoreConfig(gcs=GcsAccess(credentials_file=str(file)))
        with pytest.raises(ConfigurationError, match="no credentials"):
            open_store("gs://bkt/ns", config).get("k")


def test_a_token_that_does_not_come_is_an_error_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[Exception] = []

    class Credentials:
        def before_request(
            self, _renewal: object, _method: str, _url: str, headers: object
        ) -> None:
            if raised:
                raise raised[0]
            assert isinstance(headers, dict)
            headers["authorization"] = "Bearer t"

    def load(*, scopes: list[str]) -> tuple[Credentials, None]:
        assert scopes
        return Credentials(), None

    monkeypatch.setattr(gcs_service, "default_credentials", load)
    sign = gcs_service.signer_of(gcs_service.credentials_of(None))
    request = Request("GET", "https://storage.googleapis.com/")
    sign(request)
    assert request.headers == {"authorization": "Bearer t"}
    # As google-auth raises them for a metadata server that is away, and for one that refuses.
    errors: Any = google.auth.exceptions
    away, refused = errors.RefreshError("no token"), errors.RefreshError("no token")
    away.__cause__ = errors.TransportError("metadata server unavailable")
    refused.__cause__ = errors.TransportError("Status: 404", object())
    for error, expected in (
        (errors.TransportError("down"), StoreUnavailableError),
        (errors.RefreshError("busy", retryable=True), StoreUnavailableError),
        (errors.RefreshError("invalid_grant"), AccessDeniedError),
        (away, StoreUnavailableError),
        (refused, AccessDeniedError),
    ):
        raised[:] = [error]
        with pytest.raises(HttpFailure) as found:
            sign(request)
        assert error_class(found.value.code) is expected


def test_an_emulator_is_taken_from_the_environment_and_gets_no_credentials(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", script.endpoint.removeprefix("http://"))
    script.answers = [page("ns/a")]
    assert listed(open_store("gs://bkt/ns", StoreConfig(max_attempts=1))) == ["a"]
    assert "authorization" not in script.headers[0]
