"""Imports: which objects, to where, what they replace, and what is refused or cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.trees import Breaks, Trees, TreeWriter
from lakegc_assets.embedded.refs import imports
from lakegc_assets.embedded.refs.imports import Location, overlay
from lakegc_assets.graveler.entry import AddressType, Entry, decode_entry
from lakegc_assets.graveler.ranges import range_record
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.embedded.api import Repo


@pytest.fixture
def outside(server: EmbeddedLakeFS) -> Callable[..., None]:
    """Put objects into ``local://outside``."""

    def put(*keys: str) -> None:
        store = open_store("local://outside", server.store_config)
        for key in keys:
            store.put(key, key.encode())

    (server.objects_dir / "outside").mkdir()
    return put


def location(kind: str, path: str, destination: str) -> dict[str, str]:
    return {"type": kind, "path": path, "destination": destination}


def start(repo: Repo, *paths: dict[str, str], status: int = 202, **fields: Any) -> Any:
    body = {"paths": list(paths), "commit": {"message": "an import"}, **fields}
    return repo.call("POST", "/branches/main/import", status, json=body)


def ended(repo: Repo, *paths: dict[str, str], **fields: Any) -> Any:
    """Import and wait; the server answers the next call of a client after the work is done."""
    task = start(repo, *paths, **fields)["id"]
    while True:
        found = repo.call("GET", "/branches/main/import", params={"id": task})
        if found["completed"] or "error" in found:
            return found


def test_an_import_is_one_commit_of_full_addresses(
    repo: Repo, outside: Callable[..., None]
) -> None:
    outside("a/1", "a/b/2", "ab/3", "lone ü+%20", "other")
    repo.put("in/old", b"old")
    repo.put("inside", b"kept")
    before = repo.commit()["id"]
    found = ended(
        repo,
        location("common_prefix", "local://outside/a/", "in/"),
        location("object", "local://outside/other", "some/where"),
        location("object", "local://outside/lone ü+%20", "odd ü"),
        commit={"message": "an import", "metadata": {"k": "v"}},
    )
    assert found["ingested_objects"] == 4
    commit = found["commit"]
    assert commit["parents"] == [before]
    assert commit["metadata"] == {"k": "v", ".lakefs.merge.strategy": "source-wins"}
    assert commit == repo.call("GET", f"/commits/{repo.head()}")
    assert commit["meta_range_id"] == found["metarange_id"]
    assert repo.list() == ["in/1", "in/b/2", "inside", "odd ü", "some/where"]
    assert repo.stat("in/b/2")["physical_address"] == "local://outside/a/b/2"
    assert repo.stat("odd ü")["physical_address"] == "local://outside/lone ü+%20"
    assert repo.read("in/b/2") == b"a/b/2"


def test_an_import_without_words_has_those_of_lakefs(
    repo: Repo, outside: Callable[..., None]
) -> None:
    outside("a")
    source = location("object", "local://outside/a", "a")
    assert ended(repo, source, commit={"message": ""})["commit"]["message"] == "Import objects"
    assert ended(repo, source, commit={"message": "mine"})["commit"]["message"] == "mine"


def test_a_prefix_need_not_end_at_a_slash(repo: Repo, outside: Callable[..., None]) -> None:
    outside("dir/ab1", "dir/ab2/x", "dir/c")
    ended(repo, location("common_prefix", "local://outside/dir/ab", "to"))
    assert repo.list() == ["to/ab1", "to/ab2/x"]
    ended(repo, location("common_prefix", "local://outside/", ""))
    assert repo.list() == ["dir/ab1", "dir/ab2/x", "dir/c"]


def test_what_an_import_brings_is_never_a_candidate(
    repo: Repo, outside: Callable[..., None], server: EmbeddedLakeFS
) -> None:
    outside("a/1")
    own = repo.put("own", b"1")["physical_address"]
    repo.commit()
    ended(repo, location("common_prefix", "local://outside/a", "x"))
    trees = server.lake.stores
    with server.lake.state.read() as db:
        found = trees.trees(catalog.repository(db, repo.name))
    entries = [
        decode_entry(record.value)
        for record in found.scan(repo.call("GET", "/commits/main")["meta_range_id"])
    ]
    kinds = {entry.address: entry.address_type for entry in entries}
    relative = own.removeprefix("local://repo/")
    assert kinds == {"local://outside/a/1": AddressType.FULL, relative: AddressType.RELATIVE}


@pytest.mark.parametrize(
    ("kind", "path", "destination", "words"),
    [
        ("common_prefix", "local://repo/data/", "x", "overlaps"),
        ("common_prefix", "local://repo", "x", "overlaps"),
        ("object", "local://repo/data/a/b", "x", "overlaps"),
        ("common_prefix", "s3://outside/a", "x", "does not match"),
        ("common_prefix", "local://", "x", "import path"),
        ("common_prefix", "local://../", "x", "import path"),
        ("common_prefix", "local://outside/../repo/data/", "x", "import path"),
        ("folder", "local://outside/a", "x", "import type"),
        ("object", "local://outside/a", "", "required value"),
    ],
)
def test_sources_that_cannot_be(
    repo: Repo, kind: str, path: str, destination: str, words: str
) -> None:
    answer = start(repo, location(kind, path, destination), status=400)
    assert words in answer["message"]
    assert repo.log() == ["Repository created"]


def test_a_namespace_whose_name_begins_like_the_source_is_seen(
    repo: Repo, server: EmbeddedLakeFS
) -> None:
    inner = repo.api.repository("inner", "local://outside/names/pace")
    inner.put("a", b"1")
    inner.commit("inside")
    open_store("local://outside", server.store_config).put("names/plain", b"1")
    found = ended(inner, location("common_prefix", "local://outside/names/p", "x"))
    assert "inside the repository's storage namespace" in found["error"]["message"]
    assert inner.log() == ["inside", "Repository created"]


@pytest.mark.parametrize(("kind", "path"), [("object", "none"), ("common_prefix", "none/")])
def test_an_import_of_nothing_fails_and_removes_nothing(
    repo: Repo, outside: Callable[..., None], kind: str, path: str
) -> None:
    outside("a")
    repo.put("x/kept", b"1")
    repo.commit()
    found = ended(repo, location(kind, f"local://outside/{path}", "x"))
    assert found["completed"] is False
    assert "there is no" in found["error"]["message"]
    assert repo.list() == ["x/kept"]


def test_an_import_needs_a_clean_branch_that_may_be_written(
    repo: Repo, outside: Callable[..., None]
) -> None:
    outside("a")
    source = location("object", "local://outside/a", "a")
    body = {"paths": [source], "commit": {"message": "m"}}
    repo.call("POST", "/branches/none/import", 404, json=body)
    repo.call("POST", "/branches/main/import", 400, json={"paths": [source]})
    repo.call("POST", "/branches/main/import", 400, json={**body, "paths": []})
    repo.call("POST", "/branches/main/import", 400, json={**body, "paths": ["a"]})
    repo.put("staged", b"1")
    assert "dirty branch" in ended(repo, source)["error"]["message"]
    assert repo.staged() == {"staged": "added"}
    repo.call("GET", "/branches/main/import", 404, params={"id": "IMnone"})
    repo.call("DELETE", "/branches/main/import", 404, params={"id": "none"})


def test_a_tombstone_of_nothing_hides_no_imported_object(
    repo: Repo, outside: Callable[..., None]
) -> None:
    outside("a")
    repo.put("x", b"1")
    repo.remove("x")
    ended(repo, location("object", "local://outside/a", "x"))
    assert (repo.read("x"), repo.staged()) == (b"a", {})


def test_a_cancelled_import_commits_nothing(
    repo: Repo,
    outside: Callable[..., None],
    server: EmbeddedLakeFS,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled when all is written and only the commit is missing."""
    outside("a")
    write = imports.overlay
    tasks: list[str] = []

    def cancel_first(*args: Any) -> str:
        result = write(*args)
        with server.lake.state.read() as db:
            tasks.extend(row[0] for row in db.execute("SELECT id FROM prepare_tasks"))
        imports.cancel(server.lake, repo.name, tasks[0])
        return result

    monkeypatch.setattr(imports, "overlay", cancel_first)
    found = ended(repo, location("object", "local://outside/a", "a"))
    assert found["error"] == {"message": "Canceled"}
    repo.call("DELETE", "/branches/main/import", 409, params={"id": tasks[0]})
    assert repo.log() == ["Repository created"]
    assert repo.list() == []


def test_a_commit_meanwhile_makes_an_import_fail(
    repo: Repo, outside: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside("a")
    write = imports.overlay

    def commit_first(*args: Any) -> str:
        repo.commit("meanwhile", allow_empty=True)
        return write(*args)

    monkeypatch.setattr(imports, "overlay", commit_first)
    found = ended(repo, location("object", "local://outside/a", "a"))
    assert "Precondition" in found["error"]["message"]
    assert repo.log() == ["meanwhile", "Repository created"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    store = open_store(str(tmp_path_factory.mktemp("trees")))
    return Trees(store, Breaks(raggedness=4, max_bytes=1 << 20))


def written(trees: Trees, content: dict[str, str]) -> str:
    writer = TreeWriter(trees)
    for path in sorted(content, key=str.encode):
        writer.add_record(range_record(path, Entry(content[path], e_tag=content[path])))
    return writer.finish()


def read(trees: Trees, metarange_id: str) -> dict[str, str]:
    return {
        record.key.decode(): decode_entry(record.value).address
        for record in trees.scan(metarange_id)
    }


paths = st.text("ab/ü", min_size=1, max_size=5)


@settings(max_examples=40)
@given(
    old=st.dictionaries(paths, st.just("old"), max_size=40),
    new=st.dictionaries(paths, st.just("new"), max_size=10),
    prefixes=st.lists(st.sampled_from(["a", "a/", "b/a", "ü", "ab/"]), max_size=2),
    objects=st.lists(paths, max_size=3),
)
def test_an_overlay_is_what_a_plain_model_says(
    trees: Trees,
    old: dict[str, str],
    new: dict[str, str],
    prefixes: list[str],
    objects: list[str],
) -> None:
    folders = [prefix.rstrip("/") + "/" for prefix in prefixes]
    # Sources hold only what lies at a destination.
    new = {
        path: address
        for path, address in new.items()
        if path in objects or path.startswith(tuple(folders))
    }
    locations = [Location("common_prefix", "", prefix) for prefix in prefixes]
    locations += [Location("object", "", path) for path in objects]
    kept = {
        path: address
        for path, address in old.items()
        if path not in objects and not path.startswith(tuple(folders))
    }
    made = overlay(trees, written(trees, old), written(trees, new), locations)
    assert read(trees, made) == {**kept, **new}


def test_ranges_on_both_sides_are_taken_over_whole(trees: Trees) -> None:
    old = {f"a/{n:02}": "old" for n in range(30)} | {f"c/{n:02}": "old" for n in range(30)}
    new = {f"b/{n:02}": "new" for n in range(30)}
    dest, source = written(trees, old), written(trees, new)
    made = overlay(trees, dest, source, [Location("common_prefix", "", "b/")])
    wanted = {info.id for info in trees.ranges(source)}
    shared = {info.id for info in trees.ranges(made)}
    straddling = [info for info in trees.ranges(dest) if info.min_key < b"b/" < info.max_key]
    untouched = {info.id for info in trees.ranges(dest)} - {info.id for info in straddling}
    assert len(straddling) <= 1
    assert untouched <= shared
    assert straddling or wanted <= shared
