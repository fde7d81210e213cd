"""What is particular to Azure: pages, directories, batches, errors, credentials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.storage import azure_auth, azure_listing
from lakegc_assets.storage.azure import AzureStore
from lakegc_assets.storage.azure_auth import write_azure_credentials_file
from lakegc_assets.storage.azure_listing import read_page
from lakegc_assets.storage.azure_service import VERSION, VERSION_OF_START_FROM
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.config import AzureAccess, StoreConfig
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.servers import AZURE_KEY

URL = "https://acc.blob.core.windows.net/box/ns"
FLAT = Answer(headers={"x-ms-is-hns-enabled": "false"})
REAL_DIRECTORIES = Answer(headers={"x-ms-is-hns-enabled": "true"})


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "azure.json"
    write_azure_credentials_file(path, account_key=AZURE_KEY)
    return str(path)


@pytest.fixture
def told(script: Script, key_file: str) -> Callable[..., ObjectStore]:
    """Opens a store whose server gives these answers."""

    def opened(*answers: Answer, tries: int = 1, url: str = URL) -> ObjectStore:
        script.answers = list(answers)
        access = AzureAccess(f"{script.endpoint}/acc", key_file)
        return StoreConfig(max_attempts=tries, azure=access).open(url)

    return opened


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


def refusal(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>told {code}\nRequestId:1</Message></Error>"
    return Answer(status, body, headers={"x-ms-error-code": code})


def listed(store: ObjectStore, *args: str | None) -> list[str]:
    return [key for b in store.list(*args) for key in b["key"].to_pylist()]  # type: ignore[arg-type]


def query_of(request: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(request.split(" ", 1)[1]).query)


def test_a_listing_goes_on_until_there_is_no_marker(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    last = page(blob("ns/%EF%BF%BE", encoded=True))
    store = told(FLAT, page(blob("ns/"), blob("ns/a"), marker="m 1"), page(marker="m2"), last)
    assert listed(store) == ["a", "\ufffe"]
    assert [query_of(r).get("marker") for r in script.requests[1:]] == [None, ["m 1"], ["m2"]]
    assert {query_of(r)["prefix"][0] for r in script.requests[1:]} == {"ns/"}
    assert all(h["authorization"].startswith("SharedKey acc:") for h in script.headers)


@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")),
        unique=True,
        max_size=6,
    ).map(lambda names: [f"ns/{name}" for name in names])
)
def test_both_readers_of_pages_agree_on_every_name(names: list[str]) -> None:
    """The second page has metadata, which the fast reader leaves to the other one."""
    fast = page(*(blob(escape(name)) for name in names)).body.encode()
    slow = page(*(blob(escape(name), metadata="<a>b</a>") for name in names)).body.encode()
    assert read_page(fast, "there") == read_page(slow, "there")
    assert read_page(fast, "there").objects["key"].to_pylist() == names


def test_the_fast_reader_is_the_one_that_reads_pages_of_azure() -> None:
    usual = blob("ns/a é").replace("<Metadata />", "<Metadata /><OrMetadata />")
    created = "<Creation-Time>Fri, 02 Jan 2026 03:04:05 GMT</Creation-Time>"
    usual = usual.replace("<Properties>", f"<Properties>{created}")
    usual = usual.replace("</Properties>", "<AccessTier>Hot</AccessTier><A /></Properties>")
    rows, rest = azure_listing._split(page(usual, usual, "ns/b/").body.encode())
    assert rows == [("ns/a é", "Fri, 02 Jan 2026 03:04:05 GMT", "0x8D", "7")] * 2
    assert b"<Blob>" not in rest
    assert b"ns/b/" in rest


def test_a_blob_in_another_form_is_not_lost_beside_usual_ones() -> None:
    odd = blob("ns/a").replace("<Blob>", '<Blob kind="odd">')
    found = read_page(page(odd, blob("ns/b"), blob("ns/c")).body.encode(), "there")
    assert found.objects["key"].to_pylist() == ["ns/a", "ns/b", "ns/c"]


def test_directories_are_no_objects(told: Callable[..., ObjectStore]) -> None:
    marked = blob("ns/d", metadata="<hdi_isfolder>true</hdi_isfolder>")
    capital = blob("ns/e", metadata="<Hdi_isfolder>True</Hdi_isfolder>")
    real = blob("ns/f", properties="<ResourceType>directory</ResourceType>")
    file = blob("ns/g", properties="<ResourceType>file</ResourceType>", metadata="<a>b</a>")
    assert listed(told(FLAT, page(marked, capital, real, file))) == ["g"]
    folder = Answer(headers={"x-ms-meta-hdi_isfolder": "true"})
    with pytest.raises(ObjectNotFoundError, match="directory"):
        told(folder).head("d")
    with pytest.raises(ObjectNotFoundError, match="directory"):
        told(folder).get("d")


def test_real_directories_are_listed_one_by_one_in_byte_order(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    """Such accounts give ``a/`` before ``a-b``, which comes first in byte order."""
    store = told(
        REAL_DIRECTORIES,
        page("ns/a/", blob("ns/a-b"), marker="m"),
        page(blob("ns/a.b"), blob("ns/a0"), "ns/a0/"),
        page(blob("ns/a/2"), "ns/a/b/"),
        page(blob("ns/a/b/1")),
        page(blob("ns/a0/x")),
    )
    assert listed(store) == ["a-b", "a.b", "a/2", "a/b/1", "a0", "a0/x"]
    assert {query_of(request)["delimiter"][0] for request in script.requests[1:]} == {"/"}
    script.requests.clear()
    script.answers = [page(blob("ns/a/b/1"), blob("ns/a/b/2"), blob("ns/a/b/3"))]
    assert listed(store, "a/", "a/b/1", "a/b/3") == ["a/b/2"]
    assert [query_of(request)["prefix"] for request in script.requests] == [["ns/a/b/"]]


@pytest.mark.parametrize("account", [FLAT, REAL_DIRECTORIES], ids=["flat", "hierarchical"])
def test_a_level_goes_over_pages_and_names_nothing_twice(
    told: Callable[..., ObjectStore], account: Answer
) -> None:
    """A prefix that the end of a page cuts comes again, and is one."""
    first, empty = page(blob("ns/a"), "ns/b/", marker="1"), page(marker="2")
    found = told(account, first, empty, page("ns/b/", blob("ns/c"))).list_prefixes()
    assert (found.prefixes, [info.key for info in found.objects]) == (["b/"], ["a", "c"])
    for late in (page(blob("ns/a")), page(blob("ns/c"), "ns/b/", "ns/b/")):
        with pytest.raises(StorageError, match="out of order"):
            told(first, empty, late).list_prefixes()
    with pytest.raises(StorageError, match="twice"):
        told(first, empty, page(marker="1")).list_prefixes()
    for other in (page("ns/"), page("ns/c/d/"), page(blob("ns/c/d"))):
        with pytest.raises(StorageError, match="not asked for"):
            told(first, other).list_prefixes()


def test_a_level_of_a_flat_account_is_in_order(told: Callable[..., ObjectStore]) -> None:
    with pytest.raises(StorageError, match="out of order"):
        told(FLAT, page(blob("ns/b"), marker="1"), page("ns/a/")).list_prefixes()


def test_a_directory_that_comes_twice_is_refused(told: Callable[..., ObjectStore]) -> None:
    level = [page("ns/a/", marker="1"), page("ns/b/", marker="2"), page("ns/a/")]
    with pytest.raises(StorageError, match="out of order"):
        listed(told(REAL_DIRECTORIES, *level, page()))


def test_who_may_not_ask_about_the_account_gets_a_listing_whose_order_is_checked(
    told: Callable[..., ObjectStore],
) -> None:
    denied = refusal(403, "AuthorizationFailure")
    assert listed(told(denied, page(blob("ns/a"), blob("ns/b")))) == ["a", "b"]
    with pytest.raises(StorageError, match="out of order"):
        listed(told(page(blob("ns/a/b"), blob("ns/a-b"))))
    with pytest.raises(StoreThrottledError, match="kind of account"):
        listed(told(refusal(503, "ServerBusy"), url=URL.replace("acc", "busy")))


def test_a_listing_starts_at_a_name_where_the_service_can(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    store = told(FLAT, page(blob("ns/data/b"), blob("ns/data/c-1"), blob("ns/data/c-2")))
    assert listed(store, "data/", "data/c-1") == ["data/c-2"]
    assert query_of(script.requests[-1])["startFrom"] == ["ns/data/c"]
    assert script.headers[-1]["x-ms-version"] == VERSION_OF_START_FROM


def test_a_listing_starts_at_the_beginning_where_the_service_cannot_skip(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    names = page(blob("ns/data/b"), blob("ns/data/c"))
    store = told(FLAT, refusal(400, "InvalidHeaderValue"), names)
    assert listed(store, "data/", "data/b") == ["data/c"]
    assert "startFrom" not in query_of(script.requests[-1])
    assert script.headers[-1]["x-ms-version"] == VERSION
    assert listed(store, "data/", "data/b") == ["data/c"]
    assert len(script.requests) == 4


@pytest.mark.parametrize(
    "damaged",
    [
        Answer(body="<EnumerationResults><Blobs></Blobs>"),
        Answer(body="<html/>"),
        Answer(body="<EnumerationResults><Blobs/></EnumerationResults>"),
        page(blob("")),
        page(blob("ns/a").replace("7</Content-Length>", "many</Content-Length>")),
        page(blob("ns/a").replace("<Content-Length>7</Content-Length>", "")),
        page(blob("ns/a").replace("Fri, 02 Jan", "yesterday")),
        page(blob("ns/%FF", encoded=True)),
        page(blob("ns/a\r\nb")),
        page(blob("elsewhere")),
        page(blob("ns/b"), blob("ns/a")),
        page(blob("ns/a"), blob("ns/a")),
        page(blob("ns/a"), marker="again"),
        page("ns/d/"),
        page(blob("ns/a").replace("<Etag>0x8D</Etag>", "")),
        page(blob("ns/a").replace("<Etag>0x8D</Etag>", "<Etag></Etag>")),
    ],
)
def test_pages_that_cannot_be_trusted_are_refused(
    told: Callable[..., ObjectStore], damaged: Answer
) -> None:
    with pytest.raises(StorageError, match=r"acc\.blob"):
        listed(told(FLAT, damaged, damaged))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AuthenticationFailed", AccessDeniedError),
        (403, "AuthorizationPermissionMismatch", AccessDeniedError),
        (403, "", AccessDeniedError),
        (404, "ContainerNotFound", ConfigurationError),
        (404, "", StorageError),
        (503, "ServerBusy", StoreThrottledError),
        (429, "", StoreThrottledError),
        (500, "OperationTimedOut", StoreUnavailableError),
        (500, "InternalError", StoreUnavailableError),
        (400, "Odd", StorageError),
    ],
)
def test_errors_are_told_apart(
    told: Callable[..., ObjectStore], status: int, code: str, expected: type[LakegcError]
) -> None:
    answer = refusal(status, code) if code else Answer(status, "<html>proxy</html>")
    store = told(answer)
    calls: list[Callable[[], object]] = [
        lambda: store.get("some/key"),
        lambda: store.put("some/key", b""),
        lambda: store.put_if_absent("some/key", b""),
        lambda: store.list_prefixes("some/key"),
    ]
    for call in calls:
        with pytest.raises(expected) as raised:
            call()
        assert raised.type is expected
        assert URL in str(raised.value)
        assert AZURE_KEY not in str(raised.value)
    (outcome,) = store.delete_many(["some/key"])
    assert outcome.outcome == "failed"
    assert error_class(outcome.error_code or "") is expected


def test_a_conditional_put_is_repeated_only_if_it_was_refused(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    store = told(refusal(503, "ServerBusy"), Answer(201, headers={"ETag": '"0x1"'}), tries=3)
    assert store.put_if_absent("k", b"x") == "0x1"
    assert [h["if-none-match"] for h in script.headers] == ["*", "*"]
    script.answers = [refusal(500, "InternalError"), Answer(201)]
    with pytest.raises(StoreUnavailableError, match="not known whether"):
        store.put_if_match("k", b"x", "0x1")
    for status, code in (
        (412, "ConditionNotMet"),
        (409, "BlobAlreadyExists"),
        (404, "BlobNotFound"),
    ):
        script.answers = [refusal(status, code)]
        with pytest.raises(PreconditionFailedError):
            store.put_if_match("k", b"x", "0x1")


def batch(*parts: tuple[int, int, str]) -> Answer:
    """An answer to a batch: number, status and code of each part."""
    lines = []
    for number, status, code in parts:
        lines += ["--b", "Content-Type: application/http", f"Content-ID: {number}", ""]
        lines += [f"HTTP/1.1 {status} Reason", f"x-ms-error-code: {code}" if code else "", "", ""]
    body = "\r\n".join([*lines, "--b--"])
    return Answer(202, body, headers={"Content-Type": "multipart/mixed; boundary=b"})


def test_each_key_of_a_batch_has_the_outcome_that_the_store_gave(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    answer = batch(
        (4, 202, ""), (0, 404, "BlobNotFound"), (1, 409, "SnapshotsPresent"),
        (2, 503, "ServerBusy"),
    )  # fmt: skip
    store = told(answer)
    outcomes = store.delete_many(["0", "1 é", "2", "3", "4", "b\\s"])
    assert [(o.key, o.outcome, o.error_code) for o in outcomes] == [
        ("0", "already_missing", None),
        ("1 é", "failed", "SnapshotsPresent"),
        ("2", "failed", "ServerBusy"),
        ("3", "failed", "NoAnswer"),
        ("4", "deleted", None),
        ("b\\s", "failed", "InvalidKey"),
    ]
    assert f"DELETE /acc/box/ns/{quote('1 é')} HTTP/1.1\r\n".encode() in script.bodies[0]
    assert script.bodies[0].count(b"Authorization: SharedKey acc:") == 5


def test_a_blob_with_another_etag_is_spared(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    changed = Answer(headers={"ETag": '"0x2"'})
    missing = Answer(404, headers={"x-ms-error-code": "BlobNotFound"})
    same = Answer(headers={"ETag": '"0x1"'})
    refused = batch(*((number, 412, "ConditionNotMet") for number in range(3)))
    store = told(refused, changed, missing, same)
    outcomes = store.delete_many("abc", dict.fromkeys("abc", "0x1"))
    assert [o.outcome for o in outcomes] == ["spared", "already_missing", "failed"]
    assert script.bodies[0].count(b'If-Match: "0x1"\r\n') == 3
    script.answers = [Answer(412, headers={"x-ms-error-code": "ConditionNotMet"}), changed]
    (outcome,) = store.delete_many(["a"], {"a": "0x1"}, singly=True)
    assert outcome.outcome == "spared"
    with pytest.raises(KeyError):
        store.delete_many(["a", "b"], {"a": "0x1"})


def test_after_a_batch_that_fails_as_a_whole_no_other_is_sent(
    told: Callable[..., ObjectStore], script: Script
) -> None:
    keys = [f"{n:04d}" for n in range(600)]
    good = batch(*((number, 202, "") for number in range(256)))
    store = told(good, refusal(403, "AuthorizationFailure"))
    codes = [o.error_code for o in store.delete_many(keys)]
    assert codes == [None] * 256 + ["AuthorizationFailure"] * 256 + ["NotSent"] * 88
    assert len(script.requests) == 2
    for odd in (Answer(202, "no batch"), batch((0, 202, ""), (0, 202, ""))):
        script.answers = [odd]
        assert {o.error_code for o in store.delete_many(["a", "b"])} == {"NoAnswer"}
    script.answers = [Answer(202, good.body, headers=good.headers, cut=True)]
    assert {o.error_code for o in store.delete_many(["a", "b"])} == {"ConnectionFailed"}
    whole = "--b\r\n\r\nHTTP/1.1 400 Bad\r\nx-ms-error-code: InvalidInput\r\n\r\n--b--"
    script.answers = [Answer(202, whole, headers=good.headers)]
    assert {o.error_code for o in store.delete_many(["a", "b"])} == {"InvalidInput"}


def test_a_batch_that_is_answered_for_another_one_says_nothing(
    told: Callable[..., ObjectStore],
) -> None:
    outcomes = told(batch((0, 202, ""), (2, 202, ""))).delete_many(["a", "b"])
    assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", "NoAnswer")] * 2
    assert "named 2" in str(outcomes[0].detail)


def test_a_batch_that_is_missing_says_of_no_key_that_it_is(
    told: Callable[..., ObjectStore],
) -> None:
    for code in ("BlobNotFound", "ConditionNotMet"):
        outcomes = told(refusal(404, code)).delete_many("ab", {"a": "1", "b": "1"})
        assert [(o.outcome, o.error_code) for o in outcomes] == [("failed", code)] * 2


def test_what_no_store_says_is_no_answer(told: Callable[..., ObjectStore]) -> None:
    """Whoever answers 200 to everything is no store."""
    portal = told(Answer(body="It works!"))
    for keys in (["a"], ["a", "b"]):
        assert {o.error_code for o in portal.delete_many(keys)} == {"NoAnswer"}
    for call in (
        lambda: portal.put("k", b""),
        lambda: portal.put_if_absent("k", b""),
        lambda: portal.head("k"),
    ):
        with pytest.raises(StorageError):
            call()
    for part in (204, 206):
        with pytest.raises(StorageError, match=str(part)):
            told(Answer(part, "" if part == 204 else "par")).get("k")
    with pytest.raises(StorageError, match="time is None"):
        told(Answer(headers={"ETag": '"e"'})).head("k")
    refused = batch((0, 412, "ConditionNotMet"), (1, 202, ""))
    outcomes = told(refused, Answer()).delete_many("ab", {"a": "1", "b": "1"})
    assert [o.error_code for o in outcomes] == ["NoAnswer", None]


@pytest.mark.parametrize("key", ["a//b", "/a", "a/../b", "a/."])
def test_keys_that_a_path_cannot_carry_are_not_sent(
    told: Callable[..., ObjectStore], script: Script, key: str
) -> None:
    """Accounts with real directories, and proxies, read ``a//b`` as ``a/b``."""
    store = told(Answer(202))
    (outcome,) = store.delete_many([key])
    assert (outcome.outcome, outcome.error_code) == ("failed", "InvalidKey")
    with pytest.raises(InvalidKeyError):
        store.get(key)
    assert script.requests == []


def test_a_copy_is_waited_for(
    told: Callable[..., ObjectStore], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakegc_assets.storage.azure._COPY_POLL_S", 0)
    source = Answer(headers={"Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT", "ETag": '"e"'})
    begun, pending, done, failed = (
        Answer(number, headers={"x-ms-copy-status": status})
        for number, status in (
            (202, "pending"), (200, "pending"), (200, "success"), (202, "failed"),
        )
    )  # fmt: skip
    store = told(source, begun, pending, done)
    store.copy("a", "b")
    assert [request.split(" ")[0] for request in script.requests] == ["HEAD", "PUT", "HEAD", "HEAD"]
    assert script.headers[1]["x-ms-copy-source"].endswith("/acc/box/ns/a")
    with pytest.raises(StorageError, match="'failed'"):
        told(source, failed).copy("a", "b")


def test_what_keeps_deleted_blobs_is_told(told: Callable[..., ObjectStore]) -> None:
    def service(policy: str) -> Answer:
        return Answer(body=f"<StorageServiceProperties>{policy}</StorageServiceProperties>")

    on = "<DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days></DeleteRetentionPolicy>"
    off = "<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"
    assert "7 days" in str(told(service(on)).retention_notice())
    assert told(service(off), page(blob("ns/a"))).retention_notice() is None
    versions = page(blob("ns/a").replace("<Properties>", "<VersionId>1</VersionId><Properties>"))
    assert "versioning is on" in str(told(service(off), versions).retention_notice())
    denied = told(refusal(403, "AuthorizationFailure")).retention_notice()
    assert "could not be found out (AuthorizationFailure)" in str(denied)


def test_a_renewed_file_takes_effect(
    told: Callable[..., ObjectStore],
    script: Script,
    key_file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = told(FLAT, page(blob("ns/a")))
    assert listed(store) == ["a"]
    write_azure_credentials_file(key_file, sas_token="?sv=1&sig=s%2Fe")
    assert listed(store) == ["a"]
    assert "authorization" in script.headers[-1]
    monkeypatch.setattr(azure_auth, "_REREAD_S", -1.0)
    assert listed(store) == ["a"]
    assert "authorization" not in script.headers[-1]
    assert script.requests[-1].endswith("&sv=1&sig=s%2Fe")


@pytest.mark.parametrize("content", ["{", "[]", '{"account_key": ""}', '{"key": "hidden"}'])
def test_a_damaged_file_is_refused_without_quoting_it(
    told: Callable[..., ObjectStore], key_file: str, content: str
) -> None:
    Path(key_file).write_text(content)
    with pytest.raises(ConfigurationError, match="credentials file") as raised:
        told(FLAT).get("k")
    assert "hidden" not in str(raised.value)
    write_azure_credentials_file(key_file, account_key="no base64!")
    with pytest.raises(ConfigurationError, match="not base64"):
        told(FLAT).get("k")


def test_a_token_is_not_sent_in_the_open(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    config = StoreConfig(azure=AzureAccess(f"{script.endpoint}/acc"))
    with pytest.raises(ConfigurationError, match="in the open"):
        config.open(URL).get("k")
    monkeypatch.setenv("AZURE_STORAGE_KEY", AZURE_KEY)
    script.answers = [Answer(body="x")]
    assert config.open(URL).get("k") == b"x"
    assert script.headers[0]["authorization"].startswith("SharedKey acc:")


def test_the_url_of_an_account_must_be_that_of_the_namespace(key_file: str) -> None:
    access = AzureAccess("https://other.blob.core.windows.net", key_file)
    with pytest.raises(ConfigurationError, match="'acc'"):
        StoreConfig(azure=access).open(URL).get("k")


@pytest.mark.parametrize(
    "url",
    [
        "https://acc.blob.core.windows.net/box/ns/",
        "https://ACC.dfs.core.windows.net/box/ns",
        "abfss://box@acc.dfs.core.windows.net/ns",
        "wasbs://box@acc.blob.core.windows.net/ns/",
    ],
)
def test_every_form_of_a_namespace_opens_the_same_store(url: str) -> None:
    store = StoreConfig().open(url)
    assert isinstance(store, AzureStore)
    assert store.url == URL
