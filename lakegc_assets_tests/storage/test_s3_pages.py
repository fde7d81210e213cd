"""Pages of S3 listings: every key exact, whatever cannot be trusted refused."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from botocore.parsers import ResponseParserError
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import AccessDeniedError, StorageError, StoreThrottledError
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.pages import Page
from lakegc_assets.storage.s3 import listing as s3_listing
from lakegc_assets_tests.storage.conftest import Answer, Script, listed
from lakegc_assets_tests.storage.s3_answers import SPACE, entry, error, page

KEYS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), unique=True
)


COMMON = "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>"


def token(name: str) -> str:
    return f"<NextContinuationToken>{name}</NextContinuationToken>"


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


_PIECES = st.sampled_from(
    [
        *("", "<", ">", "&", "&quot;", "&#34;", "&amp;", "]]>", "a", "\0", "\n", "é", " a='b'"),
        *("<Contents>", "</Contents>", "<Key></Key>", "</Key>", "<Size>7</Size>", "<!-- -->"),
        *("<Owner><ID>x</ID></Owner>", "<Other>x</Other>", "<Other/>", "<_/>", "<Other xmlns='x'>"),
    ]
)


@given(data=st.data(), piece=_PIECES)
def test_both_readers_of_pages_agree_on_every_damage(data: st.DataObject, piece: str) -> None:
    """Two objects have as many tags, and one has others."""
    objects = entry("a") + entry("b", extra="<Other>x</Other>") + entry("c")
    body = page(objects, more="<KeyCount>3</KeyCount>")
    begin = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(begin, min(len(body), begin + 30)))
    damaged = body[:begin] + piece + body[end:]
    with pytest.MonkeyPatch.context() as patch:
        fast = _read_or_none(damaged)
        patch.setattr(s3_listing, "objects_in", lambda _: None)
        assert fast == _read_or_none(damaged)


@pytest.mark.parametrize(
    "around",
    [
        "<IsTruncated>fal{}se</IsTruncated>",
        "<CommonPrefixes><Prefix>c{}x/</Prefix></CommonPrefixes>",
        "<Other {}/>",
        "</ListBucketResult>{}",
        "<Other xmlns='x'>{}</Other>",
        "<Other xmlns='x'>{}</Other><_/>",
    ],
)
def test_an_object_in_the_middle_of_something_else_does_not_make_that_whole(around: str) -> None:
    damaged = page(around.format(entry("a")))
    with pytest.MonkeyPatch.context() as patch:
        fast = _read_or_none(damaged)
        patch.setattr(s3_listing, "objects_in", lambda _: None)
        assert fast == _read_or_none(damaged)


@pytest.mark.parametrize("hidden", ["<Other><![CDATA[{}]]></Other>", "<?other {}?>", "<!-- {} -->"])
def test_what_is_no_element_of_the_page_is_no_object_of_it(hidden: str) -> None:
    assert read(page(hidden.format(entry("a")))).objects.num_rows == 0


def test_an_element_without_a_name_is_no_xml() -> None:
    with pytest.raises(StorageError):
        read(page(entry("a", extra="<></>")))


def test_a_page_of_an_unknown_encoding_is_no_answer(script: Script) -> None:
    damaged = page(entry("ns/a")).replace("UTF-8", "TF-8")
    script.answers = [Answer(body=damaged)]
    with pytest.raises(StorageError, match="unknown encoding"):
        listed(open_store("s3://bkt/ns", script.config()))


def _read_or_none(body: str) -> Page | None:
    """A page; None where it is refused."""
    try:
        return read(body)
    except (StorageError, ResponseParserError):
        return None


def test_the_fast_reader_is_the_one_that_reads_pages_of_s3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []
    parse = s3_listing.parse

    def spy(body: bytes) -> object:
        parsed.append(body)
        return parse(body)

    monkeypatch.setattr(s3_listing, "parse", spy)
    extra = (
        "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
    )
    objects = entry("a b", extra=extra) + entry("c+d") + entry("e") + entry("f", extra=extra)
    assert read(page(objects)).objects["key"].to_pylist() == ["a b", "c+d", "e", "f"]
    (rest,) = parsed
    assert b"Contents" not in rest


def test_objects_of_one_page_may_have_other_elements_than_the_first_one() -> None:
    """On AWS only what was written since 2025 names a checksum, and not all of it the same."""
    one, two = (f"<Checksum{n}>CRC64NVME</Checksum{n}>" for n in ("Algorithm", "Type"))
    for extras in (["", one], [one, ""], [one, "", one + two, ""], [one, two], [one, one + one]):
        objects = "".join(entry(f"k{n}", extra=extra) for n, extra in enumerate(extras))
        names = [f"k{n}" for n in range(len(extras))]
        assert read(page(objects)).objects["key"].to_pylist() == names


def test_an_object_with_as_many_tags_may_have_shorter_ones() -> None:
    """The last tags of the first one would be looked for behind the end of the page."""
    long = entry("a", extra="".join(f"<{'Long' * 20}{n}>x</{'Long' * 20}{n}>" for n in "ab"))
    short = entry("b", extra="<a/><b/><c/><d/>")
    assert read(page(long + short)).objects["key"].to_pylist() == ["a", "b"]


def test_fields_of_objects_may_stand_in_any_order() -> None:
    size, wanted = "<Size>7</Size>", read(page(entry("a") + entry("b")))
    a, b = (entry(key).replace(size, "").replace("<Key>", f"{size}<Key>") for key in "ab")
    assert [read(page(a + b)), read(page(a + entry("b")))] == [wanted, wanted]


def test_keys_of_servers_that_do_not_encode_them() -> None:
    body = page(entry("a%20+b&<é", encoded=False), encoded=False)
    assert read(body).objects["key"].to_pylist() == ["a%20+b&<é"]
    with pytest.raises(StorageError, match=r"not percent-encoded.*: remove or rename"):
        read(page(entry("a\nb", encoded=False), encoded=False))


@pytest.mark.parametrize(
    "body",
    [
        page("", truncated="maybe"),
        page(entry("ns/a"), truncated="true"),
        page(entry("ns/a"), more=token("t")),
        page(entry("ns/a"), more="<KeyCount>2</KeyCount>"),
        page("<Contents><Key>ns/a</Key></Contents>"),
        page(entry("ns/a").replace("<Size>7</Size>", "")),
        page(entry("ns/a").replace("<Size>7</Size>", "<Size>many</Size>")),
        page(entry("ns/a").replace("2026-01-02T03", "yesterday")),
        page(entry("ns/a").replace("<Key>ns/a</Key>", "<Key></Key>")),
        page(entry("ns/a").replace("<Key>ns/a</Key>", "<Key>ns/%FF</Key>")),
        page(entry("ns/a").replace("05.678Z", "05.678")),
        page(entry("ns/a").replace("<ETag>&quot;abc-2&quot;</ETag>", "")),
        page(entry("ns/a").replace("abc-2", "")),
        f"<ListBucketResult {SPACE}/>",
        "<html><body>It works!</body></html>",
    ],
)
def test_a_damaged_page_is_an_error_and_never_a_shorter_listing(script: Script, body: str) -> None:
    script.answers = [Answer(body=body)]
    with pytest.raises(StorageError, match=r"s3://bkt/ns: listing.*(damaged page|not a listing)"):
        listed(open_store("s3://bkt/ns", script.config()))


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        (entry("b").replace("abc-2", ""), "the object 'b' has no etag"),
        (entry("b").replace("<ETag>&quot;abc-2&quot;</ETag>", ""), "the object 'b' has no etag"),
        (entry("b").replace("<Size>7</Size>", ""), "the object 'b' has no size"),
        (
            entry("b").replace("2026-01", "1970-01").replace("02T03:04:05.678", "01T00:00:00"),
            "'b' has no last_modified",
        ),
    ],
)
def test_an_object_of_which_a_server_does_not_say_all_is_named(damaged: str, told: str) -> None:
    """As versitygw lists files that were put beside it, without an etag."""
    with pytest.raises(StorageError, match=told):
        read(page(entry("a") + damaged + entry("c")))


@pytest.mark.parametrize("keys", [["ns/b", "ns/a"], ["ns/a", "ns/a"], ["ns/a", "nt/b"], ["a"]])
def test_keys_out_of_order_or_not_asked_for_are_an_error(script: Script, keys: list[str]) -> None:
    script.answers = [Answer(body=page("".join(map(entry, keys))))]
    with pytest.raises(StorageError, match="cannot be trusted"):
        listed(open_store("s3://bkt/ns", script.config()))


def test_pages_that_repeat_themselves_are_an_error(script: Script) -> None:
    first = Answer(body=page(entry("ns/a"), more=token("t"), truncated="true"))
    script.answers = [first, first]
    with pytest.raises(StorageError, match="cannot be trusted"):
        listed(open_store("s3://bkt/ns", script.config()))
    script.answers = [first, Answer(body=page("", more=token("t"), truncated="true"))]
    with pytest.raises(StorageError, match="a token came twice"):
        listed(open_store("s3://bkt/ns", script.config()))


def test_an_error_in_place_of_a_page_is_asked_for_again(script: Script) -> None:
    store = open_store("s3://bkt/ns", script.config(3))
    script.answers = [Answer(body=error("InternalError")), Answer(body=page(entry("ns/a")))]
    assert listed(store) == ["a"]
    assert len(script.requests) == 2
    script.answers = [Answer(body=error("SlowDown"))]
    with pytest.raises(StoreThrottledError):
        listed(store)
    assert len(script.requests) == 5
    script.answers = [Answer(body=error("AccessDenied"))]
    with pytest.raises(AccessDeniedError):
        listed(store)


def test_empty_pages_in_the_middle_are_passed(script: Script) -> None:
    script.answers = [
        Answer(body=page("", more=token("1"), truncated="true")),
        Answer(body=page(entry("ns/a"), more=token("2"), truncated="true")),
        Answer(body=page("")),
    ]
    assert listed(open_store("s3://bkt/ns", script.config())) == ["a"]


def test_pages_end_where_the_range_ends(s3_server: str, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/ns", StoreConfig(endpoint_url=s3_server))
    for key in ("a", "b", "c"):
        store.put(key, b"")
    assert listed(store, "", None, "b") == ["a"]
    assert listed(store, "", None, "a") == []


def test_times_may_be_exact_to_the_nanosecond() -> None:
    body = page(entry("a").replace("05.678Z", "05.678901234Z"))
    (time,) = read(body).objects["last_modified"].to_pylist()
    assert time == datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc)


def test_a_level_is_followed_over_pages_and_its_order_is_checked(script: Script) -> None:
    first = Answer(
        body=page(entry("ns/b"), more=COMMON.format("ns/a/") + token("1"), truncated="true")
    )
    empty = Answer(body=page("", more=token("2"), truncated="true"))
    script.answers = [first, empty, Answer(body=page("", more=COMMON.format("ns/c/")))]
    found = open_store("s3://bkt/ns", script.config()).list_prefixes()
    assert (found.prefixes, [info.key for info in found.objects]) == (["a/", "c/"], ["b"])
    for late in ("ns/a-/", "ns/a/", "ns/b"):
        body = page(entry(late)) if late == "ns/b" else page("", more=COMMON.format(late))
        script.answers = [first, empty, Answer(body=body)]
        with pytest.raises(StorageError, match="out of order"):
            open_store("s3://bkt/ns", script.config()).list_prefixes()
    script.answers = [first, empty, Answer(body=page("", more=token("1"), truncated="true"))]
    with pytest.raises(StorageError, match="a token came twice"):
        open_store("s3://bkt/ns", script.config()).list_prefixes()


def test_a_store_that_ignores_where_to_start_is_refused(script: Script) -> None:
    script.answers = [Answer(body=page(entry("ns/a") + entry("ns/c")))]
    with pytest.raises(StorageError, match="out of order"):
        listed(open_store("s3://bkt/ns", script.config()), "", "b")


def test_a_server_that_counts_no_prefixes(script: Script) -> None:
    more = COMMON.format("ns/b/") + COMMON.format("ns/c/") + "<KeyCount>{}</KeyCount>"
    store = open_store("s3://bkt/ns", script.config())
    for count in (1, 3):
        script.answers = [Answer(body=page(entry("ns/a"), more=more.format(count)))]
        assert store.list_prefixes().prefixes == ["b/", "c/"]
    script.answers = [Answer(body=page(entry("ns/a"), more=more.format(2)))]
    with pytest.raises(StorageError, match="counts 2 keys, and has 3"):
        store.list_prefixes()


def test_a_server_that_begins_at_the_key_itself(script: Script) -> None:
    store = open_store("s3://bkt/ns", script.config())
    for rest in ("", entry("ns/c")):
        script.answers = [Answer(body=page(entry("ns/b") + rest))]
        assert listed(store, "", "b") == ["c"] * bool(rest)
    script.answers = [
        Answer(body=page(entry("ns/b"), more=token("1"), truncated="true")),
        Answer(body=page(entry("ns/b") + entry("ns/c"))),
    ]
    with pytest.raises(StorageError, match="out of order"):
        listed(store, "", "a")
