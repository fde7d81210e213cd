"""What full addresses name in another repository's namespace, in columns as one by one."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark import full_addresses as full_module
from lakegc_assets.mark.addresses import entry_spellings
from lakegc_assets.mark.full_addresses import Inside, full_addresses, inside

NAMESPACES = [
    "s3://lab/repo",
    "s3://lab",
    "s3://Lab/a//b",
    "s3://lab/100%25",
    "gs://lab/repo/deep",
    "local://repo",
    "local://lab/repo",
    "https://account.blob.core.windows.net/lab/repo",
    "https://account.blob.core.windows.net/lab/with%20space",
]
STARTS = [
    "s3://lab/", "S3A://lab/", "s3n://LAB/", "s3://lab", "s3://", "gs://lab/", "local://repo/",
    "local://lab/", "local:///", "file:///", "mystery://lab/", "https://example.com/lab/",
    "https://account.blob.core.windows.net/lab/", "https://ACCOUNT.dfs.core.windows.net/l%61b/",
    "abfss://lab@account.dfs.core.windows.net/", "wasb://other@account.blob.core.windows.net/",
    "", "no scheme/",
]  # fmt: skip
FOLDERS = [
    "repo/", "Repo/", "repo/deep/", "deep/", "re%70o/", "a//b/", "a/b/", "100%25/", "with space/",
    "with%20space/", "./repo/", "repo/../repo/", "//repo/", "repo\\", "", "repository/",
]  # fmt: skip
NAMES = st.sampled_from(
    ["data/s/x", "data//x", "x", "", "a?b", "é", "data/s/x/", "..", "a%2Fb", "x.", "s./x"]
)
ADDRESSES = st.builds("{}{}{}".format, st.sampled_from(STARTS), st.sampled_from(FOLDERS), NAMES)


def one_by_one(namespace: StorageNamespace, addresses: list[str]) -> Inside:
    found, last = set[str](), set[str]()
    for address in addresses:
        spellings, resolved = entry_spellings(namespace, address, AddressType.FULL)
        (found if resolved else last).update(spellings)
    return Inside(pa.array(sorted(found), pa.string()), frozenset(last))


@given(st.sampled_from(NAMESPACES), st.lists(ADDRESSES | st.text(max_size=20), max_size=8))
def test_columns_say_what_is_said_of_each(url: str, addresses: list[str]) -> None:
    namespace = StorageNamespace.parse(url)
    told = inside(namespace, pa.array(addresses, pa.string()))
    alone = one_by_one(namespace, addresses)
    assert sorted(told.addresses.to_pylist()) == alone.addresses.to_pylist()
    assert told.last_parts == alone.last_parts


def test_what_may_not_be_inside_by_its_beginning_is_not() -> None:
    for url, beginning, folder in product(NAMESPACES, STARTS, FOLDERS):
        namespace, address = StorageNamespace.parse(url), f"{beginning}{folder}data/s/x"
        start = full_module.starts_of(pa.array([address], pa.string()))[0].as_py()
        if not namespace.may_hold(start):
            assert one_by_one(namespace, [address]) == Inside(
                pa.array([], pa.string()), frozenset()
            )


def batch(*entries: tuple[str, AddressType]) -> pa.RecordBatch:
    columns = [[a for a, _ in entries], [int(t) for _, t in entries]]
    arrays = [pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int8())]
    return pa.RecordBatch.from_arrays(arrays, ["address", "address_type"])


def test_kept_of_a_range_is_what_may_lie_elsewhere() -> None:
    kinds = AddressType
    found = full_addresses(
        "s3://lab/other",
        batch(
            ("data/s/own", kinds.RELATIVE),
            ("s3://lab/repo/literal", kinds.RELATIVE),
            ("s3://lab/repo/data/full", kinds.FULL),
            ("data/without scheme", kinds.FULL),
            ("s3://lab/repo/data/old", kinds.BY_PREFIX_DEPRECATED),
            ("data/old", kinds.BY_PREFIX_DEPRECATED),
            ("../repo/data/up", kinds.RELATIVE),
            ("..data/x..", kinds.RELATIVE),
        ),
    )
    assert found.to_pylist() == [
        "s3://lab/repo/data/full",
        "data/without scheme",
        "s3://lab/repo/data/old",
        "s3://lab/other/../repo/data/up",
    ]
    # Nobody can tell where the last one leads, so what ends like it stays.
    assert inside(StorageNamespace.parse("s3://lab/repo"), found[3:]).last_parts == {"up"}
