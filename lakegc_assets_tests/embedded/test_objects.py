"""Objects: what was uploaded is read, listed, overwritten, deleted, and gone after a sweep."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

import pytest
import requests

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.graveler.namespace import decode_xid, slice_time
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW

ODD_PATH = "dir with space/ü-ключ+%25&?.txt"


def test_an_upload_is_read_and_known_by_its_checksum(repo: Repo) -> None:
    answer = repo.put(ODD_PATH, b"content", headers={"x-lakefs-meta-owner": "me"})
    assert answer == repo.stat(ODD_PATH)
    assert repo.read(ODD_PATH) == b"content"
    assert answer == {
        "checksum": hashlib.md5(b"content").hexdigest(),
        "content_type": "application/octet-stream",
        "metadata": {"owner": "me"},
        "mtime": int(NOW),
        "path": ODD_PATH,
        "path_type": "object",
        "physical_address": answer["physical_address"],
        "size_bytes": 7,
    }
    data, slice_name, name = answer["physical_address"].removeprefix("local://repo/").split("/")
    assert data == "data"
    assert slice_time(slice_name) == datetime.fromtimestamp(int(NOW), tz=timezone.utc)
    assert decode_xid(name).seconds == int(NOW)


def test_user_metadata_is_told_with_the_object(repo: Repo) -> None:
    body = {"physical_address": "s3://elsewhere/x", "checksum": "c", "size_bytes": 0}
    where = {"path": "a"}
    repo.call(
        "PUT", "/branches/main/objects", 201, params=where, json={**body, "metadata": {"k": "ü"}}
    )
    assert repo.stat("a")["metadata"] == {"k": "ü"}
    assert repo.call("GET", "/refs/main/objects/ls")["results"][0]["metadata"] == {"k": "ü"}
    head = repo.api.send("HEAD", f"{repo.path}/refs/main/objects", params=where)
    assert head.headers["x-lakefs-meta-k"].encode("latin-1").decode() == "ü"


def test_a_form_upload_is_read(repo: Repo) -> None:
    form = {"content": ("name", b"content", "text/csv")}
    answer = repo.call("POST", "/branches/main/objects", 201, params={"path": "a"}, files=form)
    assert answer["content_type"] == "text/csv"
    assert repo.read("a") == b"content"


def test_a_form_without_content_is_refused(repo: Repo) -> None:
    form = {"other": ("name", b"content")}
    found = repo.call("POST", "/branches/main/objects", 400, params={"path": "a"}, files=form)
    assert "content" in found["message"]


def test_a_form_may_be_announced_in_capitals(repo: Repo) -> None:
    parts = {"content": ("name", b"in a form", "text/plain")}
    made = requests.Request("POST", "http://server", files=parts).prepare()
    kind = made.headers["Content-Type"].replace("multipart/form-data", "Multipart/Form-Data")
    repo.call(
        "POST",
        "/branches/main/objects",
        201,
        params={"path": "form"},
        data=made.body,
        headers={"Content-Type": kind},
    )
    assert repo.read("form") == b"in a form"


def test_an_object_is_read_in_parts(repo: Repo) -> None:
    repo.put("a", b"0123456789")
    address = f"{repo.path}/refs/main/objects"
    for wanted, expected in (("2-4", b"234"), ("7-", b"789"), ("-3", b"789"), ("8-99", b"89")):
        headers = {"Range": f"bytes={wanted}"}
        found = repo.api.send("GET", address, params={"path": "a"}, headers=headers)
        assert (found.status_code, found.content) == (206, expected)
        head = repo.api.send("HEAD", address, params={"path": "a"}, headers=headers)
        assert (head.status_code, head.content) == (206, b"")
        for name in ("Content-Range", "Content-Length"):
            assert head.headers[name] == found.headers[name]
    for wanted in ("bytes=10-", "bytes=5-4", "bytes=-0", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4"):
        found = repo.api.send("GET", address, params={"path": "a"}, headers={"Range": wanted})
        assert (found.status_code, found.json()) == (
            416,
            {"message": "Requested Range Not Satisfiable"},
        )
        head = repo.api.send("HEAD", address, params={"path": "a"}, headers={"Range": wanted})
        assert head.status_code == 416
    found = repo.api.send("HEAD", address, params={"path": "a"})
    assert (found.headers["Content-Length"], found.content) == ("10", b"")


def test_an_object_that_the_client_has_is_not_sent_again(repo: Repo) -> None:
    etag = f'"{repo.put("a", b"1")["checksum"]}"'
    address, where = f"{repo.path}/refs/main/objects", {"path": "a"}
    found = repo.api.send("GET", address, params=where, headers={"If-None-Match": etag})
    assert (found.status_code, found.content) == (304, b"")
    repo.put("a", b"2")
    found = repo.api.send("GET", address, params=where, headers={"If-None-Match": etag})
    assert (found.status_code, found.content) == (200, b"2")


def test_upload_only_where_nothing_is(repo: Repo) -> None:
    only_new = {"If-None-Match": "*"}
    repo.put("a", b"1", headers=only_new)
    where = {"params": {"path": "a"}, "data": b"2", "headers": only_new}
    assert repo.call("POST", "/branches/main/objects", 412, **where) == {
        "message": "path already exists"
    }
    repo.commit()
    repo.call("POST", "/branches/main/objects", 412, **where)
    repo.remove("a")
    repo.call("POST", "/branches/main/objects", 201, **where)
    assert repo.read("a") == b"2"


@pytest.mark.parametrize("committed", [False, True])
def test_a_swept_object_answers_410_but_stat_and_ls_know_it(
    repo: Repo, server: EmbeddedLakeFS, *, committed: bool
) -> None:
    answer = repo.put("dir/a", b"content", headers={"x-lakefs-meta-k": "v"})
    repo.put("dir/b", b"alive")
    if committed:
        repo.commit()
    (server.objects_dir / answer["physical_address"].removeprefix("local://")).unlink()
    objects = f"{repo.path}/refs/{'main@' if committed else 'main'}/objects"
    for wanted in ({}, {"Range": "bytes=0-2"}, {"Range": "bytes=-1"}, {"Range": "bytes=99-"}):
        found = repo.api.send("GET", objects, params={"path": "dir/a"}, headers=wanted)
        assert (found.status_code, found.content) == (410, b'{"message":"No data"}\n')
        assert found.headers["Content-Type"] == "application/json"
        found = repo.api.send("HEAD", objects, params={"path": "dir/a"}, headers=wanted)
        assert (found.status_code, found.content) == (410, b"")
    assert repo.stat("dir/a") == answer
    assert repo.list() == ["dir/a", "dir/b"]
    assert repo.list(delimiter="/") == ["dir/"]
    assert repo.read("dir/b") == b"alive"
    repo.put("dir/a", b"again")
    assert repo.read("dir/a") == b"again"


def test_staged_entries_and_tombstones_lie_over_the_commit(repo: Repo) -> None:
    for name in "abcdef":
        repo.put(name, b"1")
    repo.commit()
    repo.put("b", b"two")
    repo.put("bb", b"new")
    repo.put("zz", b"new")
    repo.remove("c")
    repo.put("f", b"then deleted")
    repo.remove("f")
    repo.put("temporary", b"")
    repo.remove("temporary")
    repo.remove("never there")
    assert repo.list() == ["a", "b", "bb", "d", "e", "zz"]
    assert repo.list("main@") == list("abcdef")
    assert repo.staged() == {
        "b": "changed",
        "bb": "added",
        "c": "removed",
        "f": "removed",
        "zz": "added",
    }
    assert (repo.read("b"), repo.read("c"), repo.read("b", "main@")) == (b"two", 404, b"1")
    assert repo.stat("c", status=404) == {"message": "not found"}
    before = repo.list()
    repo.commit()
    assert repo.list() == before
    assert repo.staged() == {}


def test_the_same_bytes_again_are_staged_and_are_no_change(repo: Repo) -> None:
    first = repo.put("a", b"same")["physical_address"]
    repo.commit()
    second = repo.put("a", b"same")["physical_address"]
    assert repo.staged() == {"a": "changed"}
    assert repo.stat("a")["physical_address"] == second
    assert repo.call("POST", "/branches/main/commits", 400, json={"message": "x"}) == {
        "message": "commit: no changes"
    }
    repo.put("b", b"other")
    repo.commit()
    assert repo.stat("a")["physical_address"] == first


def test_lists_by_prefix_delimiter_and_page(repo: Repo) -> None:
    paths = ["a", "b/1", "b/2", "b/c/3", "b0", "c/4", "d"]
    for path in paths[:4]:
        repo.put(path, path)
    repo.commit()
    for path in paths[4:]:
        repo.put(path, path)
    assert repo.list() == paths
    assert repo.list(delimiter="/") == ["a", "b/", "b0", "c/", "d"]
    assert repo.list(prefix="b/", delimiter="/") == ["b/1", "b/2", "b/c/"]
    assert repo.list(prefix="b") == ["b/1", "b/2", "b/c/3", "b0"]
    assert repo.list(after="b/2") == ["b/c/3", "b0", "c/4", "d"]
    for delimiter, expected in (("", paths), ("/", ["a", "b/", "b0", "c/", "d"])):
        found, after, more = [], "", True
        while more:
            params = {"amount": 2, "after": after, "delimiter": delimiter}
            page = repo.call("GET", "/refs/main/objects/ls", params=params)
            found += [item["path"] for item in page["results"]]
            more, after = page["pagination"]["has_more"], page["pagination"]["next_offset"]
            assert bool(after) == more
        assert found == expected


def test_a_page_may_end_at_an_object_whose_name_ends_with_the_delimiter(repo: Repo) -> None:
    for path in ("a/b", "a/b/c"):
        repo.put(path, b"x")
    assert repo.list(prefix="a/", delimiter="/b", after="a/b") == ["a/b/c"]


def test_bulk_delete(repo: Repo) -> None:
    for name in "abc":
        repo.put(name, b"1")
    repo.commit()
    answer = repo.call(
        "POST", "/branches/main/objects/delete", json={"paths": ["a", "c", "nothing"]}
    )
    assert answer == {"errors": []}
    assert repo.list() == ["b"]


@pytest.mark.parametrize("path", [None, 5, True, ["a"], {"path": "a"}], ids=repr)
def test_a_bulk_delete_with_a_path_that_is_no_text_deletes_nothing(repo: Repo, path: Any) -> None:
    names = sorted({"a", str(path)})
    for name in names:
        repo.put(name, b"1")
    body = {"paths": ["a", path]}
    answer = repo.call("POST", "/branches/main/objects/delete", 400, json=body)
    assert 'Error at "/paths/1": value must be a string' in answer["message"]
    assert repo.list() == names


def test_objects_of_a_read_only_repository_are_changed_by_force_alone(
    api: Api, server: EmbeddedLakeFS
) -> None:
    repo = api.repository("repo")
    repo.put("a", b"1")
    repo.put("b", b"1")
    repo.commit()
    repo.put("c", b"1")
    backing = "/branches/main/staging/backing"
    address = repo.call("GET", backing, params={"path": "linked"})["physical_address"]
    written = server.objects_dir / address.removeprefix("local://")
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_bytes(b"1")
    with server.lake.state.write() as db:
        db.execute("UPDATE repositories SET read_only = 1")
    entry = {"size_bytes": 1, "checksum": "e"}
    outside = {**entry, "physical_address": "s3://elsewhere/x"}
    linked = {**entry, "staging": {"physical_address": address}}
    for force in (False, True):
        flag = {"force": force}
        for method, path, status, params, body in (
            ("POST", "", 201, {"path": "up", "force": force}, None),
            ("PUT", "", 201, {"path": "out"}, {**outside, **flag}),
            ("POST", "/copy", 201, {"dest_path": "shallow"}, {"src_path": "c", **flag}),
            ("POST", "/copy", 201, {"dest_path": "deep"}, {"src_path": "a", **flag}),
            ("DELETE", "", 204, {"path": "a", "force": force}, None),
            ("POST", "/delete", 200, {"force": force}, {"paths": ["b"]}),
        ):
            where = f"/branches/main/objects{path}"
            repo.call(method, where, status if force else 403, params=params, json=body)
        status = 200 if force else 403
        repo.call("PUT", backing, status, params={"path": "linked"}, json={**linked, **flag})
        expected = ["c", "deep", "linked", "out", "shallow", "up"] if force else ["a", "b", "c"]
        assert repo.list() == expected


def test_reset_of_all_of_a_prefix_and_of_one_object(repo: Repo) -> None:
    for path in ("a/1", "a/2", "b/1", "b/11", "c"):
        repo.put(path, b"1")
    repo.call("PUT", "/branches/main", 204, json={"type": "common_prefix", "path": "a/"})
    assert set(repo.staged()) == {"b/1", "b/11", "c"}
    repo.call("PUT", "/branches/main", 204, json={"type": "object", "path": "b/1"})
    assert set(repo.staged()) == {"b/11", "c"}
    repo.call("PUT", "/branches/main", 204, json={"type": "reset"})
    assert repo.staged() == {}
    assert repo.call("PUT", "/branches/main", 400, json={"type": "other"}) == {
        "message": "unknown reset type"
    }


def test_a_backdated_upload_is_old_in_name_and_in_store(repo: Repo, server: EmbeddedLakeFS) -> None:
    day = 24 * 3600
    addresses: list[str] = []
    for age in (30, 400, 30):
        mtime = NOW - age * day
        answer = repo.put(f"a{len(addresses)}", b"1", headers={"X-Lakegc-Mtime": str(mtime)})
        assert answer["mtime"] == int(mtime)
        address = answer["physical_address"].removeprefix("local://")
        assert (server.objects_dir / address).stat().st_mtime == mtime
        created = slice_time(address.split("/")[2])
        assert created is not None
        assert 0 <= mtime - created.timestamp() < 3600
        addresses.append(address.split("/")[2])
    assert addresses[0] == addresses[2] < addresses[1]


@pytest.mark.parametrize("mtime", ["yesterday", "nan", "-1", "4294967296", ""])
def test_a_time_that_is_none_is_refused(repo: Repo, mtime: str) -> None:
    headers = {"X-Lakegc-Mtime": mtime}
    where: dict[str, Any] = {"params": {"path": "a"}, "headers": headers}
    message = repo.call("POST", "/branches/main/objects", 400, **where)["message"]
    assert "epoch seconds" in message
