from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError, IntegrityError
from lakegc_assets.graveler import namespace as module
from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import (
    StorageNamespace,
    UnresolvableAddressError,
    Xid,
    decode_xid,
    encode_xid,
    namespace_as_lakefs_reads_it,
    new_slice_name,
    slice_time,
)
from lakegc_assets_tests.graveler.samples import GOLDEN

LAB = StorageNamespace.parse("s3://lab/small")
AZURE = StorageNamespace.parse("https://account.blob.core.windows.net/box/repo")
LOCAL = StorageNamespace.parse("local://repo")
SEGMENT = st.text("xyé-_.%# +=,", min_size=1, max_size=6).filter(lambda s: s.strip(".") != "")


@pytest.mark.parametrize(
    ("url", "expected", "canonical"),
    [
        ("s3://lab/a/b/", ("s3", "lab", "a/b"), "s3://lab/a/b"),
        ("s3a://lab", ("s3", "lab", ""), "s3://lab"),
        ("S3N://lab//a//", ("s3", "lab", "a"), "s3://lab/a"),
        ("s3://lab/a%20b", ("s3", "lab", "a%20b"), "s3://lab/a%20b"),
        ("gs://lab_1.x/a", ("gs", "lab_1.x", "a"), "gs://lab_1.x/a"),
        ("local://repo/x", ("local", "repo", "x"), "local://repo/x"),
        ("/srv/lake", ("file", "", "srv/lake"), "file:///srv/lake"),
        ("file:///srv/lake/", ("file", "", "srv/lake"), "file:///srv/lake"),
        (
            "https://Account.blob.core.windows.net:443/box/a%20b/",
            ("azure", "account.core.windows.net/box", "a b"),
            "https://account.blob.core.windows.net/box/a%20b",
        ),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            ("azure", "account.core.windows.net/box", "a"),
            "https://account.blob.core.windows.net/box/a",
        ),
        (
            "wasb://box@account.blob.core.windows.net",
            ("azure", "account.core.windows.net/box", ""),
            "https://account.blob.core.windows.net/box",
        ),
        (
            "https://Gov.blob.core.usgovcloudapi.net/box/a",
            ("azure", "gov.core.usgovcloudapi.net/box", "a"),
            "https://gov.blob.core.usgovcloudapi.net/box/a",
        ),
        (
            "abfss://box@account.dfs.core.chinacloudapi.cn/a",
            ("azure", "account.core.chinacloudapi.cn/box", "a"),
            "https://account.blob.core.chinacloudapi.cn/box/a",
        ),
    ],
)
def test_every_spelling_has_one_canonical_form(
    url: str, expected: tuple[str, str, str], canonical: str
) -> None:
    namespace = StorageNamespace.parse(url)
    assert (namespace.scheme, namespace.authority, namespace.prefix) == expected
    assert namespace.url() == canonical
    assert StorageNamespace.parse(canonical) == namespace


def test_a_relative_path_becomes_absolute() -> None:
    here = Path.cwd().resolve()
    assert StorageNamespace.parse("some/lake").url() == f"file://{here}/some/lake"
    assert StorageNamespace.parse("some/../lake").url() == f"file://{here}/lake"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3://",
        "s3:///a",
        "s3://key:secret@lab/a",
        "s3://arn:aws:s3:::x/a",
        "s3://point-s3alias/a",
        "s3://lab/a/../b",
        "ftp://host/a",
        "http://account.blob.core.windows.net/box",
        "https://example.com/box/a",
        "https://account.blob.core.windows.net",
        "abfss://account.dfs.core.windows.net/a",
        "https://account.blob.core.chinacloudapi.net/box",
        "https://account.blob.core.windows.net/box/a%ff",
        "https://account.blob.core.windows.net/box/a./b",
        "abfss://box@account.dfs.core.windows.net/a.",
        "gs://lab/./a",
        "local://",
        "local:///abs",
    ],
)
def test_what_is_no_namespace_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        StorageNamespace.parse(url)


@given(st.lists(SEGMENT, min_size=1, max_size=4).map("/".join))
def test_the_key_of_a_relative_address_leads_back_to_it(relative: str) -> None:
    for namespace in (LAB, StorageNamespace.parse("s3a://lab")):
        full = f"s3n://lab/{namespace.key(relative)}"
        assert relative in namespace.relatives(full)


@pytest.mark.parametrize(
    ("namespace", "address", "relative"),
    [
        (LAB, "s3a://lab/small/data/x", "data/x"),
        (LAB, "s3://lab/small//x", "/x"),
        (LAB, "s3://lab/smaller/x", None),
        (LAB, "s3://lab/small", None),
        (LAB, "s3://lab/small/", None),
        (LAB, "s3://other/small/x", None),
        (LAB, "gs://lab/small/x", None),
        (LAB, "file:///lab/small/x", None),
        (LAB, "https://account.blob.core.windows.net/lab/small/x", None),
        (AZURE, "abfss://box@ACCOUNT.dfs.core.windows.net/repo/data/x", "data/x"),
        (AZURE, "https://account.blob.core.windows.net/box/rep%6F/data/x", "data/x"),
        (AZURE, "https://account.blob.core.windows.net/box2/repo/x", None),
        (AZURE, "https://other.blob.core.windows.net/box/repo/x", None),
        # A lakeFS with local storage says where its files are on its own machine.
        (LOCAL, "local://repo/data/x", "data/x"),
        (LOCAL, "local:///srv/repo/data/x", "data/x"),
        (LOCAL, "local://other/x", None),
        (LOCAL, "local://below/here/repo/data/x", "data/x"),
        (LOCAL, "local:///srv/repo/repo/_lakefs/x", "_lakefs/x"),
        (StorageNamespace.parse("local://repo/below"), "local:///a/repo/below/data/x", "data/x"),
        (StorageNamespace.parse("local://repo/below"), "local://repo/belows/data/x", None),
        # An account of the same name in another cloud is another one.
        (AZURE, "https://account.blob.core.usgovcloudapi.net/box/repo/x", None),
    ],
)
def test_full_addresses_are_resolved(
    namespace: StorageNamespace, address: str, relative: str | None
) -> None:
    assert namespace.relative(address) == relative


def test_all_counts_that_stands_behind_the_name_of_a_local_namespace() -> None:
    """The folder of the server, or one of the keys, may be named like it."""
    for address in ("local:///srv/repo/repo/data/repo/x", "local://repo/repo/data/repo/x"):
        assert LOCAL.relatives(address) == {"repo/data/repo/x", "data/repo/x", "x"}


@pytest.mark.parametrize(
    ("namespace", "address"),
    [
        (LAB, "s3://lab/small/a/../../other/x"),
        (LAB, "s3://lab/small/./x"),
        (LAB, "s3://lab/small/%2e%2e/x"),
        (LAB, "s3://lab/small/%ff"),
        (LAB, "s3://LAB/small/x"),
        (LAB, "s3://point-s3alias/small/x"),
        (LAB, "s3://point-0abc--ol-s3/small/x"),
        (LAB, "s3://point-0abc--op-s3/small/x"),
        (LAB, "s3://point--usw2-az1--xa-s3/small/x"),
        (LAB, "minio://lab/small/x"),
        (LAB, "https://s3.amazonaws.com/lab/small/x"),
        (LAB, "/lab/small/x"),
        (LAB, "s3://lab/small/a%20b"),
        (LAB, "s3://lab/small/a?b"),
        (AZURE, "https://account.blob.core.windows.net/box/repo//x"),
        (AZURE, "https://account.blob.core.windows.net/box/repo\\x"),
        (AZURE, "https://account.blob.core.windows.net/box/repo/x."),
        (AZURE, "https://account.blob.core.windows.net/box/repo/s./x"),
        (AZURE, "https://account.blob.core.windows.net/box/repo/x%2E"),
        (StorageNamespace.parse("local://repo"), "file:///srv/repo/x"),
        (StorageNamespace.parse("/srv/repo"), "local://repo/x"),
        (StorageNamespace.parse("local://repo"), "local:///srv/other/x"),
        # A symbolic link, or a disk that ignores case, may lead from there to the namespace.
        (StorageNamespace.parse("local://repo"), "local:///srv/link/data/x"),
        (StorageNamespace.parse("local://repo"), "local:///srv/REPO/data/x"),
        (StorageNamespace.parse("local://repo/below"), "local:///srv/repo/Below/data/x"),
        (StorageNamespace.parse("local://repo"), "local://../lake/repo/data/x"),
        (StorageNamespace.parse("local://repo"), "local:///srv/repo/../repo/x"),
        (StorageNamespace.parse("local://repo"), "local:///srv//repo/x"),
        (LAB, "local:///srv/lab/small/x"),
        (StorageNamespace.parse("local://repo"), "local://repo//data/x"),
        (StorageNamespace.parse("/srv/repo"), "file:///srv/repo//data/x"),
        (StorageNamespace.parse("local://repo"), "local://other/../repo/data/x"),
        (StorageNamespace.parse("local://repo"), "local://other/%2e%2E/repo/data/x"),
        (StorageNamespace.parse("local://repo/a"), "local://other/../repo/b/../a/data/x"),
        (StorageNamespace.parse("local://repo/a"), "local://other/%2e%2E/repo/b/%2e%2E/a/data/x"),
    ],
)
def test_what_cannot_be_decided_is_an_error(namespace: StorageNamespace, address: str) -> None:
    with pytest.raises(UnresolvableAddressError) as caught:
        namespace.relative(address)
    assert isinstance(caught.value, IntegrityError)
    assert address.rsplit("/", 1)[-1] in caught.value.last_components
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.last_components) == (str(caught.value), caught.value.last_components)


def test_dots_that_azure_drops_keep_the_object_without_them_alive() -> None:
    """``x.`` is the blob ``x``: seen on the service, but not on Azurite."""
    with pytest.raises(UnresolvableAddressError) as caught:
        AZURE.relatives("https://account.blob.core.windows.net/box/repo/data/x..")
    assert caught.value.last_components == {"x", "x.."}
    assert LAB.relatives("s3://lab/small/data/x.") == {"data/x."}


def test_an_address_that_lakefs_reads_otherwise_keeps_both_objects_alive() -> None:
    assert LAB.relatives("s3://lab/small/a%20b?c") == {"a%20b?c", "a%20b", "a b"}
    # lakeFS leaves a path encoded if its encoding is not the usual one.
    assert LAB.relatives("s3://lab/small/data/a%2Fb?x") == {
        "data/a%2Fb?x", "data/a%2Fb", "data/a/b",
    }  # fmt: skip
    assert LAB.relatives("s3://lab/sm%61ll/x") == {"x"}
    with pytest.raises(UnresolvableAddressError) as caught:
        LAB.relative("s3://lab/small/d/a%20b")
    assert caught.value.last_components == {"a%20b", "a b"}


@pytest.mark.parametrize("name", ["a%20b", "a b", "50%off", "what?", "a%2Fb?x", "a%2520b", "a+b#c"])
@pytest.mark.parametrize(
    "folder", ["repo", "with%20space", "with space", "w%C3%A9%2ft/%68", "", "100%2525"]
)
def test_a_key_behind_the_url_of_its_namespace_is_among_what_its_address_means(
    name: str, folder: str
) -> None:
    # So lakeFS writes the addresses that it serves.
    for url in (f"https://account.blob.core.windows.net/box/{folder}", f"s3://lab/{folder}"):
        namespace = StorageNamespace.parse(url)
        for base in {url.removesuffix("/"), namespace.url()}:
            assert f"data/{name}" in namespace.relatives(f"{base}/data/{name}")
    assert AZURE.relatives(f"{AZURE.url()}/a%20b?sig=1") == {"a%20b?sig=1", "a%20b", "a b"}


@pytest.mark.parametrize(
    ("url", "read"),
    [
        # As Go's url.ParseRequestURI and lakeFS's RawPathFromURI read each of them.
        ("s3://lab/my%20repo/", "s3://lab/my repo/"),
        ("s3://lab/my repo", "s3://lab/my repo"),
        ("gs://lab/caf%C3%A9", "gs://lab/café"),
        ("s3://lab/caf%c3%a9", "s3://lab/caf%c3%a9"),
        ("s3://lab/a%3Ab", "s3://lab/a%3Ab"),
        ("s3://lab/a%2Fb/c", "s3://lab/a%2Fb/c"),
        ("s3://lab/a%2520b", "s3://lab/a%20b"),
        ("s3://lab/a%21", "s3://lab/a!"),
        ("s3://lab/a!%20", "s3://lab/a!%20"),
        ("s3://lab/a%7Eb", "s3://lab/a%7Eb"),
        ("s3://lab/$&+,:;=@%20", "s3://lab/$&+,:;=@ "),
        ("s3://lab/a%3Fb", "s3://lab/a?b"),
        ("s3://lab/a?b", "s3://lab/a"),
        ("s3://lab", "s3://lab"),
        # Their paths are decoded by parse, and used as they stand.
        (f"{AZURE.url()}/a%20b", f"{AZURE.url()}/a%20b"),
        ("local://lab/a%20b", "local://lab/a%20b"),
    ],
)
def test_the_url_of_a_namespace_is_read_as_lakefs_reads_it(url: str, read: str) -> None:
    assert namespace_as_lakefs_reads_it(url) == read
    # lakeFS names what it writes there by either.
    namespace = StorageNamespace.parse(read)
    for base in {url.partition("?")[0].rstrip("/"), read.rstrip("/")}:
        assert "_lakefs/x" in namespace.relatives(f"{base}/_lakefs/x")


def test_an_address_that_only_some_servers_find_in_the_namespace_counts() -> None:
    assert LAB.relatives("s3://lab//small/data/x") == {"data/x"}
    assert LAB.relatives("s3://lab/%2Fsmall%2F/data/x") == {"data/x"}
    assert LAB.relatives("s3://lab/other//small/data/x") == set()


@pytest.mark.parametrize(
    ("namespace", "address"),
    [
        (AZURE, "https://account.blob.core.windows.net/box/repo\\data\\x"),
        (AZURE, "https://account.blob.core.windows.net/box/repo/data%5Cx"),
        (AZURE, "https://account.blob.core.windows.net/box/repo//data/x/"),
        (LAB, "s3://lab/small/data/x/."),
        (LAB, "s3://lab/small/data/x/y/.."),
        (LAB, "other://lab/small/data/x/?y"),
    ],
)
def test_the_end_of_an_address_is_also_what_servers_read_there(
    namespace: StorageNamespace, address: str
) -> None:
    with pytest.raises(UnresolvableAddressError) as caught:
        namespace.relatives(address)
    assert "x" in caught.value.last_components


def test_what_the_end_of_an_address_may_be_is_always_a_key() -> None:
    with pytest.raises(UnresolvableAddressError) as caught:
        LAB.relatives("s3://lab/imports/caf%E9.txt")
    assert caught.value.last_components == {"caf%E9.txt", "caf\ufffd.txt"}


def test_an_entry_is_resolved_by_its_address_type() -> None:
    full = "s3://lab/small/data/x"
    assert LAB.resolve(full, AddressType.FULL) == {"data/x"}
    assert LAB.resolve(full, AddressType.BY_PREFIX_DEPRECATED) == {"data/x"}
    assert LAB.resolve(full, AddressType.RELATIVE) == {full}
    assert LAB.resolve("data/x", AddressType.BY_PREFIX_DEPRECATED) == {"data/x"}
    assert LAB.resolve("a%20b", AddressType.RELATIVE) == {"a%20b"}
    assert LAB.resolve("gs://lab/x", AddressType.FULL) == frozenset()


def test_namespaces_overlap_by_whole_segments() -> None:
    def overlap(one: str, other: str) -> bool:
        pair = StorageNamespace.parse(one), StorageNamespace.parse(other)
        assert pair[0].overlaps(pair[1]) == pair[1].overlaps(pair[0])
        return pair[0].overlaps(pair[1])

    assert overlap("s3://lab/a", "s3a://lab/a/")
    assert overlap("s3://lab/a", "s3://lab/a/b")
    assert overlap("s3://lab", "s3://lab/a")
    assert not overlap("s3://lab/a", "s3://lab/ab")
    assert not overlap("s3://lab/a", "s3://other/a")
    assert not overlap("s3://lab/a", "gs://lab/a")


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("s3://lab/a", "s3a://other/b", True),
        ("s3://lab/a", "gs://lab/a", False),
        ("/srv/lake", "local://repo/x", True),
        ("local://repo/x", "file:///srv/lake", True),
        (AZURE.url(), "wasb://box@other.blob.core.windows.net/b", True),
        (AZURE.url(), "s3://lab/a", False),
        # Of what cannot be read the beginning tells, where it can.
        ("s3://lab/a", "S3://arn:aws:s3:::x/a", True),
        ("s3://lab/a", "https://example.com/b", False),
        (AZURE.url(), "HTTPS://example.com/b", True),
        (AZURE.url(), "abfss://example.com/b", True),
        (AZURE.url(), "s3://arn:aws:s3:::x/a", False),
        ("gs://lab/a", "mem://x", True),
        ("local://repo/x", "mem://x", True),
    ],
)
def test_a_namespace_in_a_store_of_another_kind_is_told_where_that_is_certain(
    ours: str, theirs: str, *, same: bool
) -> None:
    """What others name of it is read of those of its kind alone."""
    assert StorageNamespace.parse(ours).is_same_kind(theirs) is same


@given(
    st.builds(
        Xid,
        seconds=st.integers(0, 2**32 - 1),
        machine=st.binary(min_size=3, max_size=3),
        pid=st.integers(0, 2**16 - 1),
        counter=st.integers(0, 2**24 - 1),
    )
)
def test_xids_are_read_as_they_were_written(xid: Xid) -> None:
    text = encode_xid(xid)
    assert len(text) == 20
    assert decode_xid(text) == xid


def test_an_xid_of_the_reference_implementation() -> None:
    xid = Xid(seconds=1300816219, machine=b"\x60\xf4\x86", pid=0xE428, counter=4271561)
    assert encode_xid(xid) == "9m4e2mr0ui3e8a215n4g"
    assert decode_xid("9m4e2mr0ui3e8a215n4g") == xid


@pytest.mark.parametrize(
    "text", ["", "9m4e2mr0ui3e8a215n4", "9m4e2mr0ui3e8a215n4gg", "9m4e2mr0ui3e8a215n4h", "x" * 20]
)
def test_what_is_no_xid_is_told(text: str) -> None:
    assert slice_time(text) is None
    with pytest.raises(ValueError, match=r"xid|substring"):
        decode_xid(text)


@pytest.mark.parametrize(
    "xid", [Xid(2**32, b"abc", 0, 0), Xid(0, b"ab", 0, 0), Xid(0, b"abc", -1, 0)]
)
def test_an_xid_that_does_not_fit_is_refused(xid: Xid) -> None:
    with pytest.raises(ValueError, match=r"fit|3 bytes"):
        encode_xid(xid)


def test_slices_say_when_they_were_made_and_newer_ones_sort_first() -> None:
    start = datetime(2026, 11, 21, 4, 40, 35, tzinfo=timezone.utc)
    days = [start + timedelta(days=number) for number in range(0, 9000, 100)]
    names = [new_slice_name(day, b"abc", 1, 2) for day in days]
    assert [slice_time(name) for name in names] == days
    assert names == sorted(names, reverse=True)


def test_recorded_slices_are_as_old_as_their_objects() -> None:
    listing = (GOLDEN / "small" / "listing_before.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in listing]
    written = [(key.split("/")[2], row[1]) for key, *row in rows if key.startswith("small/data/")]
    assert len(written) > 100
    for name, modified in written:
        made = slice_time(name)
        assert made is not None
        age = datetime.fromisoformat(modified.replace("Z", "+00:00")) - made
        assert timedelta(seconds=-1) < age < timedelta(minutes=5)


@given(st.text("a/é€😀%", min_size=1, max_size=8).map(lambda text: f"x{text}x"))
def test_a_namespace_is_found_however_it_is_encoded(prefix: str) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in prefix.encode())
    assert "data/x" in StorageNamespace("s3", "lab", prefix).relatives(f"s3://lab/{encoded}/data/x")


def test_an_address_of_any_length_is_read_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may stage an object may choose its address, of a megabyte say."""
    read: list[int] = []

    def counting(text: str, errors: str = "replace") -> str:
        read.append(len(text))
        return unquote(text, errors=errors)

    monkeypatch.setattr(module, "unquote", counting)
    assert LAB.relatives("s3://lab/small/%61" + "/a" * 10_000) >= {"a" + "/a" * 10_000}
    assert len(read) < 1000
