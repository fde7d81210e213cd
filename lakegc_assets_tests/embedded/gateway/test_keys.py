"""Any key, and other clients than boto3: what one interface writes the others read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.gateway.s3 import S3, client_of

ODD_PATHS = [
    " ", "a b", " a ", "+", "%", "%2F", "%252F", "a%00b", "|", "a|b", "\n", "a\r\nb", "\t", "\x01",
    "\x7f", "..", "../x", "a/../b", ".", "./a", "a/.", "/", "//", "a//b", "a/", "/a", "?a=b", "#",
    "a?versionId=1", "a&b=c", ";", "<a>", "&amp;", '"', "'", "\\", "*", "[a]", "{a}", "~", "^", "`",
    "é", "e\u0301", "ключ", "日本", "\U0001f600", "\u2028", "\ufeff", "\u202e", "A", "a",
    "k" * 2000, "/".join("abc" * 50), "_lakefs/x", "data/x", "dummy", "api/v1", "\x00",
    "main/a", "@", "~1", "x-amz-meta-a", "=?utf-8?b?w7w=?=",
]  # fmt: skip
# boto3 puts keys into the XML of bulk deletes as they are; XML has no way to say these.
NOT_IN_XML = {"\x01", "\x00"}


@conforms(
    GATEWAY,
    "Keys of every kind",
    client="boto3",
    checked="blanks, percent signs, dots, slashes, control characters, Unicode, hypothesis: put, "
    "listed, copied and deleted by either interface, read by the other",
)
def test_odd_keys_go_both_ways(s3: S3, api: Api) -> None:
    repo = api.repository("odd")
    for number, path in enumerate(ODD_PATHS):
        s3.put_object(Bucket="odd", Key=f"main/{path}", Body=f"{number}")
        assert repo.read(path) == f"{number}".encode(), path
    expected = sorted(ODD_PATHS, key=str.encode)
    assert repo.list(amount=1000) == expected
    for listing in (s3.list_objects_v2, s3.list_objects):
        found = listing(Bucket="odd", Prefix="main/")["Contents"]
        assert [item["Key"] for item in found] == [f"main/{path}" for path in expected]
    repo.branch("other")
    for number, path in enumerate(ODD_PATHS):
        source = {"Bucket": "odd", "Key": f"main/{path}"}
        s3.copy_object(Bucket="odd", Key=f"other/{path}", CopySource=source)
        found = s3.get_object(Bucket="odd", Key=f"other/{path}")["Body"].read()
        assert found == f"{number}".encode(), path
    assert repo.list("other", amount=1000) == expected
    deletable = [path for path in ODD_PATHS if path not in NOT_IN_XML]
    s3.delete_objects(
        Bucket="odd", Delete={"Objects": [{"Key": f"main/{path}"} for path in deletable]}
    )
    assert set(repo.list(amount=1000)) == NOT_IN_XML
    for path in NOT_IN_XML:
        s3.delete_object(Bucket="odd", Key=f"main/{path}")
    assert repo.list() == []


@pytest.fixture(scope="module")
def repo_of_any_keys(api: Api) -> Repo:
    return api.repository("any")


@settings(max_examples=25)
@given(paths=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=4))
def test_any_keys_go_both_ways(s3: S3, repo_of_any_keys: Repo, paths: list[str]) -> None:
    repo = repo_of_any_keys
    repo.call("PUT", "/branches/main", 204, json={"type": "reset"})
    for number, path in enumerate(paths):
        if number % 2:
            s3.put_object(Bucket="any", Key=f"main/{path}", Body=f"{number}")
        else:
            repo.put(path, f"{number}")
    expected = {path: f"{number}".encode() for number, path in enumerate(paths)}
    for path, data in expected.items():
        assert repo.read(path) == data
        assert s3.get_object(Bucket="any", Key=f"main/{path}")["Body"].read() == data
    listed = s3.list_objects_v2(Bucket="any", Prefix="main/").get("Contents", [])
    assert [item["Key"] for item in listed] == [
        f"main/{p}" for p in sorted(expected, key=str.encode)
    ]


@conforms(
    GATEWAY,
    "A file system on S3",
    client="pyarrow.fs (AWS's C++ SDK)",
    checked="small and large files, directories, copies, moves, ranges, Parquet datasets",
)
def test_pyarrow_sees_a_file_system(server: EmbeddedLakeFS, api: Api) -> None:
    repo = api.repository("arrow")
    system = fs.S3FileSystem(
        access_key=server.access_key,
        secret_key=server.secret_key,
        endpoint_override=server.endpoint,
        scheme="http",
        region="us-east-1",
    )
    content = bytes(range(256)) * (48 << 10)
    with system.open_output_stream("arrow/main/a b/large.bin") as target:
        target.write(content)
    with system.open_output_stream(
        "arrow/main/a b/ü+%.bin", metadata={"Content-Type": "text/css"}
    ) as target:
        target.write(b"small")
    assert repo.read("a b/large.bin") == content
    assert repo.stat("a b/ü+%.bin")["content_type"] == "text/css"
    with system.open_input_file("arrow/main/a b/large.bin") as source:
        source.seek(1 << 20)
        assert source.read(300) == content[1 << 20 :][:300]
    system.create_dir("arrow/main/x/y")
    kinds = {
        info.path: info.type.name
        for info in system.get_file_info(fs.FileSelector("arrow/main", recursive=True))
    }
    assert kinds == {
        "arrow/main/a b": "Directory",
        "arrow/main/a b/large.bin": "File",
        "arrow/main/a b/ü+%.bin": "File",
        "arrow/main/x": "Directory",
        "arrow/main/x/y": "Directory",
    }
    system.copy_file("arrow/main/a b/ü+%.bin", "arrow/main/x/copy")
    system.move("arrow/main/x/copy", "arrow/main/x/moved")
    system.delete_dir("arrow/main/a b")
    assert repo.list() == ["x/", "x/moved", "x/y/"]
    found = system.get_file_info(["arrow", "arrow/main", "arrow/nothing", "arrow/main/nothing"])
    assert [info.type.name for info in found] == ["Directory"] * 2 + ["NotFound"] * 2
    table = pa.table({"n": list(range(1000)), "part": [n % 3 for n in range(1000)]})
    pq.write_to_dataset(table, "arrow/main/table", ["part"], filesystem=system)
    repo.commit()
    back = pq.read_table("arrow/main@/table", filesystem=system)
    assert sorted(back["n"].to_pylist()) == list(range(1000))


def test_the_data_directory_need_not_be_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedLakeFS("relative") as server, Api.of(server) as api:
        repo, s3 = api.repository(), client_of(server)
        upload = s3.create_multipart_upload(Bucket="repo", Key="main/a")["UploadId"]
        where = {"Bucket": "repo", "Key": "main/a", "UploadId": upload}
        etag = s3.upload_part(**where, PartNumber=1, Body=b"one")["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        s3.complete_multipart_upload(**where, MultipartUpload=parts)
        assert repo.read("a") == b"one"
