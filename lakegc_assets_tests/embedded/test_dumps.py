"""Dumps of refs: what they hold, what they say they are, and that no collector reads them."""

from __future__ import annotations

import json

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.refs import dumps
from lakegc_assets.graveler import ident, sstable
from lakegc_assets.graveler.errors import FormatError
from lakegc_assets.graveler.sstable import SSTable, read_sstable, table_kind
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.embedded.api import Repo


@pytest.fixture
def history(repo: Repo) -> Repo:
    repo.put("a", b"1")
    first = repo.commit("first ü", metadata={"k": "v", "ü": ""}, date=1000)["id"]
    repo.branch("dev", first)
    repo.branch("hidden", first, hidden=True)
    repo.put("b", b"1", "dev")
    repo.commit("on dev", "dev")
    repo.put("c", b"1")
    repo.commit("on main")
    repo.call("POST", "/refs/dev/merge/main")
    repo.call("POST", "/tags", 201, json={"id": "v1/ü", "ref": first})
    return repo


def table(server: EmbeddedLakeFS, repo: Repo, kind: str, name: str) -> SSTable:
    """A file of a dump, read through the API and checked; the reader of entries refuses it."""
    answer = repo.api.send("GET", f"{repo.path}/metadata/object/{kind}/{name}")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.content == open_store("local://repo", server.store_config).get(f"_lakefs/{name}")
    assert table_kind(answer.content, name) == "refs"
    with pytest.raises(FormatError, match="dump of refs"):
        read_sstable(answer.content, name)
    file = sstable.SSTableFile(answer.content, name)
    metaindex, index = file.footer()
    properties = file.properties(metaindex)
    pairs = list(file.pairs(file.data_blocks(index, properties)))
    found = SSTable(properties, [file.record(*each) for each in pairs], [])
    content = ((key, value) for _, key, value in pairs)
    assert ident.content_id(content, found.metadata) == name
    return found


def tables(server: EmbeddedLakeFS, repo: Repo, metarange_id: str) -> list[SSTable]:
    """The metarange, and the ranges that it names."""
    found = [table(server, repo, "meta_range", metarange_id)]
    ranges = [record.identity.decode() for record in found[0].records]
    return found + [table(server, repo, "range", name) for name in ranges]


def test_a_dump_holds_all_commits_branches_and_tags(history: Repo, server: EmbeddedLakeFS) -> None:
    dumped = history.call("PUT", "/refs/dump", 201)
    read = {}
    for kind in ("commit", "branch", "tag"):
        files = tables(
            server, history, dumped[f"{kind}{'es' if kind == 'branch' else 's'}_meta_range_id"]
        )
        message = dumps.message(f"{kind.capitalize()}Data")
        for file in files:
            name = f"io.treeverse.lakefs.graveler.{kind.capitalize()}Data"
            assert file.properties["entity"] == kind.encode()
            assert file.properties["schema_name"] == name.encode()
            schema = json.loads(file.properties["schema_definition"])
            assert schema["name"] == f"{kind.capitalize()}Data"
            assert schema["field"][0] == {
                "name": "id",
                "number": 1,
                "label": "LABEL_OPTIONAL",
                "type": "TYPE_STRING",
                "jsonName": "id",
            }
        read[kind] = [
            (record, message.FromString(record.value))
            for file in files[1:]
            for record in file.records
        ]
    log = history.call("GET", "/refs/main/commits")["results"]
    assert len(log) == len(read["commit"]) == 5
    for commit in log:
        (found,) = (each for record, each in read["commit"] if record.key == commit["id"].encode())
        assert (found.id, found.committer, found.message) == (
            commit["id"],
            commit["committer"],
            commit["message"],
        )
        assert (found.creation_date.seconds, found.meta_range_id, dict(found.metadata)) == (
            commit["creation_date"],
            commit["meta_range_id"],
            commit["metadata"],
        )
        assert (list(found.parents), found.version, found.generation) == (
            commit["parents"],
            1,
            commit["generation"],
        )
    assert {each.id: each.commit_id for _, each in read["branch"]} == {
        name: history.head(name) for name in ("dev", "hidden", "main")
    }
    ((record, tag),) = read["tag"]
    assert (record.key.decode(), tag.id) == ("v1/ü", "v1/ü")
    assert record.identity.decode() == tag.commit_id == history.head("hidden")


def test_an_equal_dump_has_the_same_ids_and_no_tags_are_a_dump_too(repo: Repo) -> None:
    dumped = repo.call("PUT", "/refs/dump", 201)
    assert repo.call("PUT", "/refs/dump", 201) == dumped
    repo.branch("another")
    again = repo.call("PUT", "/refs/dump", 201)
    changed = {name for name, value in again.items() if value != dumped[name]}
    assert changed == {"branches_meta_range_id"}


def test_a_dump_in_the_background_ends_the_same(history: Repo) -> None:
    task = history.call("POST", "/dump", 202)["id"]
    found = {"done": False}
    while not found["done"]:
        found = history.call("GET", "/dump", params={"task_id": task})
    assert found["id"] == task
    assert found["refs"] == history.call("PUT", "/refs/dump", 201)
    history.call("GET", "/dump", 404, params={"task_id": "DRnone"})
    history.call("GET", "/dump", 400)
    # A task of another kind is not a dump, and a dump is no import.
    history.call("GET", "/branches/main/import", 404, params={"id": task})


def test_files_that_are_no_metadata_objects(repo: Repo) -> None:
    repo.commit(allow_empty=True)
    for path in ("range/" + "0" * 64, "meta_range/..%2Fdata", "range/retention", "range/a%2Fb"):
        repo.call("GET", f"/metadata/object/{path}", 404)
    repo.call("GET", "/metadata/object/commit/" + "0" * 64, 400)
