"""What lakeFS says of its commits is taken only whole, and only where it proves itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.ident import commit_id
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError, UnexpectedAnswerError
from lakegc_assets.lakefs.models import Commit as ApiCommit
from lakegc_assets.mark import commits
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.refs import load_commits, read_commits_csv, read_heads, read_tags
from lakegc_assets.retention.commits import Commit
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests import recorded
from lakegc_assets_tests.mark.conftest import Goldens
from lakegc_assets_tests.replay import GOLDEN, Answer, ReplayServer, Request, paged

NAMESPACE = StorageNamespace.parse("s3://lab/small")
HEADER = "commit_id,expired,metarange_id\n"
ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)


def read(text: str | bytes, folder: Path) -> dict[str, str]:
    body = text.encode() if isinstance(text, str) else text
    store = open_store(str(folder))
    store.put("x/commits.csv", body)
    return read_commits_csv(store, NAMESPACE, "s3a://lab/small/x/commits.csv")


def test_a_whole_list_is_read(tmp_path: Path) -> None:
    text = f"{HEADER}{ONE},false,{THREE}\n{TWO},false,\n"
    assert read(text, tmp_path) == {ONE: THREE, TWO: ""}
    assert read(text.replace("\n", "\r\n"), tmp_path) == {ONE: THREE, TWO: ""}
    assert read(HEADER, tmp_path) == {}


def test_expired_commits_of_older_servers_are_not_active(tmp_path: Path) -> None:
    assert read(f"{HEADER}{ONE},true,{THREE}\n{TWO},false,{THREE}\n", tmp_path) == {TWO: THREE}


WRONG: dict[str, str | bytes] = {
    "nothing": "",
    "an empty line": "\n",
    "no header": f"{ONE},false,{THREE}\n",
    "another header": f"commit_id,metarange_id\n{ONE},{THREE}\n",
    "no end": f"{HEADER}{ONE},false,{THREE}",
    "half a line": f"{HEADER}{ONE},fal",
    "a short line": f"{HEADER}{ONE},false\n",
    "a long line": f"{HEADER}{ONE},false,{THREE},\n",
    "a line twice": f"{HEADER}{ONE},false,{THREE}\n{ONE},false,{THREE}\n",
    "an empty line in the middle": f"{HEADER}\n{ONE},false,{THREE}\n",
    "another word": f"{HEADER}{ONE},False,{THREE}\n",
    "no word": f"{HEADER}{ONE},,{THREE}\n",
    "a short commit": f"{HEADER}{ONE[:63]},false,{THREE}\n",
    "a short metarange": f"{HEADER}{ONE},false,{THREE[:63]}\n",
    "capitals": f"{HEADER}{'A' * 64},false,{THREE}\n",
    "an open quote": f'{HEADER}"{ONE},false,{THREE}\n{TWO},false,\n',
    "a null": f"{HEADER}{ONE},false,{THREE}\n\0\n",
    "no text": HEADER.encode() + b"\xff\n",
    "a long field": HEADER + "1" * 200_000 + f",false,{THREE}\n",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_list_in_another_form_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"commits\.csv"):
        read(WRONG[name], tmp_path)


def test_a_list_elsewhere_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with pytest.raises(IntegrityError, match="outside of s3://lab/small"):
        read_commits_csv(store, NAMESPACE, "s3://lab/smaller/commits.csv")


def test_a_list_that_is_not_there_says_that_another_store_is_looked_at(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    said = r"x/commits\.csv, and there is no such object .*endpoint, region, account or local_root"
    with pytest.raises(IntegrityError, match=said):
        read_commits_csv(store, NAMESPACE, "s3://lab/small/x/commits.csv")


RECORDED = next((GOLDEN / "retention" / "prepare").glob("**/commits.csv")).read_bytes()


@given(st.integers(0, len(RECORDED) - 1))
def test_a_list_that_is_cut_is_refused_or_ends_with_a_whole_line(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "csv"
    folder.mkdir(exist_ok=True)
    whole = read(RECORDED, folder)
    try:
        found = read(RECORDED[:length], folder)
    except IntegrityError:
        return
    lines = RECORDED[:length].decode()
    assert lines.endswith("\n")
    assert found == {c: m for c, m in whole.items() if c in lines}


@given(st.integers(0, len(RECORDED) - 1))
def test_a_list_that_lost_a_byte_is_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "csv"
    folder.mkdir(exist_ok=True)
    with pytest.raises(IntegrityError):
        read(RECORDED[:at] + RECORDED[at + 1 :], folder)


# The log


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    with ReplayServer("retention") as found:
        yield found


@pytest.fixture
def client(server: ReplayServer, tmp_path: Path) -> LakeFSClient:
    return server.config(tmp_path).connect()


LOGS = ("GET", r"/repositories/retention/refs/[^/]+/commits")


def change_log(server: ReplayServer, change: Any) -> None:
    def answer(request: Request) -> Answer:
        found = server.derived(request)
        results = [r for r in map(change, found.body["results"]) if r]
        pagination = {**found.body["pagination"], "results": len(results)}
        return Answer(found.status, {"pagination": pagination, "results": results})

    server.overrides[LOGS] = answer


def test_all_that_can_be_reached_is_read(server: ReplayServer, client: LakeFSClient) -> None:
    head = server.recording.refs["main"]
    commits = load_commits(client, "retention", [head])
    expected = {commit["id"] for commit in server.recording.log(head, first_parent=False)}
    assert commits.keys() == expected
    assert len({commit["id"] for commit in server.recording.log(head, first_parent=True)}) < len(
        expected
    )
    for commit in commits.values():
        told = server.recording.commits[commit.id]
        assert commit.metarange_id == told["meta_range_id"]
        assert list(commit.parents) == told["parents"]
        assert commit.creation_date == told["creation_date"]


def test_what_a_head_has_behind_it_is_not_asked_for_again(
    server: ReplayServer, client: LakeFSClient
) -> None:
    head = server.recording.refs["main"]
    listed = [commit["id"] for commit in server.recording.log(head, first_parent=True)]
    assert len(listed) > 1
    load_commits(client, "retention", [head, *listed])
    asked = {request.segments[3] for request in server.asked(*LOGS)}
    assert asked & {*listed} == {head}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("meta_range_id", "0" * 64),
        ("creation_date", 1795000000),
        ("message", "another"),
        ("committer", "another"),
        ("metadata", {"a": "b"}),
        ("parents", []),
    ],
)
def test_a_commit_that_is_not_what_its_id_says_stops_the_run(
    field: str, value: object, server: ReplayServer, client: LakeFSClient
) -> None:
    head = server.recording.refs["main"]
    change_log(server, lambda c: {**c, field: value} if c["id"] == head else c)
    with pytest.raises(IntegrityError, match=f"the content of commit {head}"):
        load_commits(client, "retention", [head])


def test_a_log_that_ends_early_stops_the_run(server: ReplayServer, client: LakeFSClient) -> None:
    head = server.recording.refs["main"]
    first = list(server.recording.log(head, first_parent=True))[-1]["id"]
    change_log(server, lambda c: None if c["id"] == first else c)
    with pytest.raises(UnexpectedAnswerError, match="first parents have not come"):
        load_commits(client, "retention", [head])


def test_a_log_of_another_commit_stops_the_run(server: ReplayServer, client: LakeFSClient) -> None:
    main, dev = server.recording.refs["main"], server.recording.refs["dev"]

    def answer(request: Request) -> Answer:
        path = request.path.replace(main, dev)
        return server.derived(replace(request, path=path))

    server.overrides[LOGS] = answer
    with pytest.raises(IntegrityError, match=f"the log of {main} .* does not start with it"):
        load_commits(client, "retention", [main])


def picked(told: dict[str, Any]) -> dict[str, Any]:
    """A commit as lakeFS 1.84 tells it by its id after a cherry-pick of it at the same time."""
    metadata = {
        **told["metadata"],
        "cherry-pick-origin": told["id"],
        "cherry-pick-committer": "lab",
    }
    changed = commit_id(
        told["committer"], told["message"], told["meta_range_id"], told["creation_date"], metadata,
        told["parents"],
    )  # fmt: skip
    return {**told, "metadata": metadata, "id": changed}


def test_commits_that_were_cherry_picked_are_read_as_they_were_made(
    server: ReplayServer, client: LakeFSClient
) -> None:
    head = server.recording.refs["main"]
    made = load_commits(client, "retention", [head])
    change_log(server, picked)
    assert load_commits(client, "retention", [head]) == made


@pytest.mark.parametrize("named_by", ["branch", "tag"])
def test_heads_that_were_cherry_picked_are_asked_for_by_a_name(
    server: ReplayServer, client: LakeFSClient, named_by: str
) -> None:
    """Until lakeFS reads them again it finds them by no id, and shows them in histories."""
    asked = {"branch": "main", "tag": "v1"}[named_by]
    head = server.recording.refs[asked]
    made = load_commits(client, "retention", [head])
    one = client.commit("retention", head)
    if named_by == "tag":
        list_without(server, *(b["id"] for b in server.recording.branches()))

    def answer(request: Request) -> Answer:
        if f"/{head}" in request.path:
            return Answer(404, {"message": "commit not found"})
        found = server.derived(
            replace(request, path=request.path.replace(f"/{asked}/", f"/{head}/"))
        )
        keys = {"cherry-pick-committer": "lab"}
        told = [
            {**one, "metadata": {**one["metadata"], **keys, "cherry-pick-origin": one["id"]}}
            for one in found.body["results"]
        ]
        return Answer(found.status, {**found.body, "results": told})

    server.overrides[LOGS] = answer
    server.overrides["GET", f"/repositories/retention/commits/{head}"] = answer
    assert load_commits(client, "retention", [head]) == made
    assert client.commit("retention", head) == one


def pick(
    of: ApiCommit | None, parents: tuple[str, ...], committer: str = "lab", **metadata: str
) -> ApiCommit:
    """A commit with lakeFS's own id for its content, perhaps by a cherry-pick."""
    if of is not None:
        metadata |= {"cherry-pick-origin": of.id, "cherry-pick-committer": of.committer}
    found = commit_id(committer, "m", "", 1, metadata, parents)
    return ApiCommit(
        id=found, parents=parents, committer=committer, message="m", creation_date=1,
        meta_range_id="", metadata=metadata,
    )  # fmt: skip


def test_by_its_id_another_commit_is_believed_only_with_a_name(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """By the id of what was cherry-picked lakeFS finds what was made of it, which may hold less."""
    head, other = server.recording.refs["main"], server.recording.refs["v1"]
    one = client.commit("retention", head)
    server.overrides["GET", f"/repositories/retention/commits/{head}"] = Answer(
        200, client.commit("retention", other).model_dump()
    )
    assert client.commit("retention", head) == one
    with pytest.raises(
        UnexpectedAnswerError, match=f"commit {head} .* answered with {other}.*Run again"
    ):
        client.commit("retention", head, by_name=False)


def test_a_branch_that_moved_has_no_log_of_where_it_was(
    server: ReplayServer, client: LakeFSClient
) -> None:
    head = server.recording.refs["main"]
    whole, branch = list(client.log("retention", head)), {"main": head}

    def answer(request: Request) -> Answer:
        if f"/{head}" in request.path:
            return Answer(404, {"message": "commit not found"})
        return server.derived(
            replace(request, path=request.path.replace("/main/", f"/{branch['main']}/"))
        )

    server.overrides[LOGS] = answer
    assert list(client.log("retention", head)) == whole
    branch["main"] = whole[1].id
    with pytest.raises(NotFoundError):
        list(client.log("retention", head))


@pytest.mark.parametrize("knows", ["another branch", "an earlier mark", "nobody"])
def test_a_cherry_pick_that_was_picked_is_proven_by_what_it_was_made_of(
    client: LakeFSClient, monkeypatch: pytest.MonkeyPatch, knows: str
) -> None:
    """Its own keys are overwritten, by its own id: in backports from branch to branch."""
    first = pick(None, ())
    origin = pick(None, (first.id,), k="v")
    made = pick(origin, (first.id,), k="v")
    keys = {"cherry-pick-origin": made.id, "cherry-pick-committer": "lab"}
    told = made.model_copy(update={"metadata": {**made.metadata, **keys}})
    logs = {made.id: [told, first], origin.id: [origin, first]}
    monkeypatch.setattr(client, "log", lambda _repository, ref, **_more: iter(logs[ref]))
    roots = [made.id, *([origin.id] if knows == "another branch" else [])]
    known = {origin.id} if knows == "an earlier mark" else set()
    if knows == "nobody":
        with pytest.raises(IntegrityError, match=f"{made.id} .* was cherry-picked.*ten minutes"):
            load_commits(client, "retention", roots, known)
        return
    found = load_commits(client, "retention", roots, known)
    assert dict(found[made.id].metadata) == made.metadata
    assert found[made.id].parents == made.parents


def test_the_committer_of_a_known_commit_is_read_where_it_proves_another_one(
    client: LakeFSClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of known commits only the ids are: somebody else may have made what was cherry-picked."""
    first = pick(None, ())
    origin = pick(None, (first.id,), "alice")
    made = pick(origin, (first.id,))
    keys = {"cherry-pick-origin": made.id, "cherry-pick-committer": "lab"}
    told = made.model_copy(update={"metadata": {**made.metadata, **keys}})
    logs = {made.id: [told, first], origin.id: [origin, first]}
    monkeypatch.setattr(client, "log", lambda _repository, ref, **_more: iter(logs[ref]))
    read: dict[str, Commit] = {}
    found = load_commits(client, "retention", [made.id, origin.id], {origin.id, first.id}, read)
    assert dict(found[made.id].metadata) == made.metadata
    assert found == read
    assert set(found) == {made.id, origin.id, first.id}


def test_a_commit_that_the_server_does_not_know_stops_the_run(client: LakeFSClient) -> None:
    with pytest.raises(IntegrityError, match=f"commit {'4' * 64} of 'retention' is named by"):
        load_commits(client, "retention", ["4" * 64])


@pytest.mark.parametrize("by_name", [True, False])
def test_a_forgotten_commit_is_looked_for_among_no_names(
    server: ReplayServer, client: LakeFSClient, *, by_name: bool
) -> None:
    """Nothing leads to it, and a forecast may ask for very many: lists for each would take long."""
    with pytest.raises(IntegrityError):
        load_commits(client, "retention", ["4" * 64], by_name=by_name)
    lists = [
        server.asked("GET", f"/repositories/retention/{refs}") for refs in ("branches", "tags")
    ]
    assert [len(asked) for asked in lists] == [int(by_name)] * 2


# Branches


def list_without(server: ReplayServer, *names: str) -> None:
    found = [b for b in server.recording.branches() if b["id"] not in names]
    server.overrides["GET", "/repositories/retention/branches"] = lambda request: paged(
        found, "id", request.params
    )


def test_heads_are_those_of_all_branches(server: ReplayServer, client: LakeFSClient) -> None:
    heads = read_heads(client, "retention", ["main", "deleted-long-ago"])
    assert heads == {b["id"]: b["commit_id"] for b in server.recording.branches()}
    assert "hidden" in heads


def test_a_list_that_ends_early_is_asked_for_again_behind_its_end(
    server: ReplayServer, client: LakeFSClient
) -> None:
    told = server.recording.branches()
    asked: list[str] = []

    def cut(request: Request) -> Answer:
        """Two branches a page, and none is said to follow."""
        after = request.params.get("after", "")
        asked.append(after)
        found = [branch for branch in told if branch["id"] > after][:2]
        end = {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": len(found)}
        return Answer(200, {"pagination": end, "results": found})

    server.overrides["GET", "/repositories/retention/branches"] = cut
    assert read_heads(client, "retention") == {b["id"]: b["commit_id"] for b in told}
    assert asked == [
        "",
        *(b["id"] for b in told[1::2]),
        *([told[-1]["id"]] if len(told) % 2 else []),
    ]


def test_a_list_without_the_default_branch_stops_the_run(
    server: ReplayServer, client: LakeFSClient
) -> None:
    list_without(server, "main")
    with pytest.raises(IntegrityError, match="not its default branch 'main'"):
        read_heads(client, "retention")
    list_without(server, *(branch["id"] for branch in server.recording.branches()))
    # A real lakeFS lists no branches of a repository that was deleted seconds ago, and names it.
    deleted = r"has 0 branches, and not its default .* just deleted\. If `lakegc repositories`"
    with pytest.raises(IntegrityError, match=deleted):
        read_heads(client, "retention")


def test_a_list_that_lacks_a_branch_stops_the_run(
    server: ReplayServer, client: LakeFSClient
) -> None:
    list_without(server, "dev")
    with pytest.raises(IntegrityError, match="branch 'dev' of 'retention' exists, but the list"):
        read_heads(client, "retention", ["main", "dev"])
    server.overrides["GET", "/repositories/retention/branches/dev"] = (404, {"message": "gone"})
    assert "dev" not in read_heads(client, "retention", ["main", "dev"])


def list_tags(server: ReplayServer, *tags: dict[str, str], repository: str = "retention") -> None:
    server.overrides["GET", f"/repositories/{repository}/tags"] = lambda request: paged(
        list(tags), "id", request.params
    )


def test_a_list_that_lacks_a_tag_stops_the_run(server: ReplayServer, client: LakeFSClient) -> None:
    list_tags(server, {"id": "v2", "commit_id": TWO})
    one = ("GET", "/repositories/retention/tags/v1")
    server.overrides[one] = Answer(200, {"id": "v1", "commit_id": ONE})
    with pytest.raises(IntegrityError, match="tag 'v1' of 'retention' exists, but the list"):
        read_tags(client, "retention", ["v1", "v2"])
    server.overrides[one] = Answer(404, {"message": "tag not found"})
    assert read_tags(client, "retention", ["v1", "v2"]) == {"v2": TWO}


def test_tags_behind_an_end_that_came_early_are_found(
    server: ReplayServer, client: LakeFSClient
) -> None:
    """Each page says that it is the last one."""
    tags = [{"id": f"v{n}", "commit_id": TWO} for n in range(3)]

    def one(request: Any) -> Answer:
        rest = [tag for tag in tags if tag["id"] > request.params.get("after", "")]
        return paged(rest[:1], "id", {})

    server.overrides["GET", "/repositories/retention/tags"] = one
    assert list(read_tags(client, "retention")) == ["v0", "v1", "v2"]


# The whole stage


def test_a_metarange_in_the_list_that_is_not_the_commits_stops_the_run(
    golden: Goldens, tmp_path: Path
) -> None:
    marked = recorded.rewind(golden("small").marked, tmp_path, "active_commits")
    (key,) = [
        key
        for key in recorded.keys("small")
        if key.endswith(f"{marked.manifests['active_commits'].facts['server_run_id']}/commits.csv")
    ]
    first, second, *rest = recorded.content("small", key).decode().splitlines(keepends=True)
    wrong = second[:-65] + "5" * 64 + "\n"
    with recorded.preserved("small"):
        recorded.plant("small", key, "".join([first, wrong, *rest]).encode())
        with pytest.raises(
            IntegrityError, match=r"at s3://.* the list cannot be trusted. Run again"
        ):
            find_active_commits(marked.ctx)


def test_lakefs_makes_no_list_if_it_does_not_find_a_head(golden: Goldens, tmp_path: Path) -> None:
    """Such a list ends the whole server with a panic, and again in each try of the mark."""
    given = golden("retention")
    marked = recorded.rewind(given.marked, tmp_path, "active_commits")
    branches = given.server.recording.branches()
    told = sorted([*branches, {"id": "lost", "commit_id": ONE}], key=lambda one: one["id"])
    given.server.overrides["GET", "/repositories/retention/branches"] = lambda request: paged(
        told, "id", request.params
    )
    lists = "/repositories/retention/gc/prepare_commits.*"
    before = len(given.server.asked("POST", lists))
    with pytest.raises(IntegrityError, match=f"'lost' of 'retention' points to commit {ONE}"):
        find_active_commits(marked.ctx)
    assert len(given.server.asked("POST", lists)) == before


@pytest.mark.parametrize("call", [0, 1])
def test_a_branch_that_moves_meanwhile_counts_with_both_of_its_heads(
    golden: Goldens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    given = golden("retention").marked
    expired = given.attempt.read("active_commits", "expired")["commit_id"].to_pylist()
    other, calls = min(expired), count()

    def read(*asked: Any) -> dict[str, str]:
        heads = read_heads(*asked)
        return {**heads, "main": other} if next(calls) == call else heads

    monkeypatch.setattr(commits, "read_heads", read)
    marked = recorded.rewind(given, tmp_path, "active_commits")
    find_active_commits(marked.ctx)
    found, known = (
        {row["commit_id"]: row["source"] for row in one.attempt.read("active_commits").to_pylist()}
        for one in (marked, given)
    )
    assert found.items() >= known.items()
    assert found.keys() - known.keys() == {other}
    assert next(calls) == 2


def test_tags_can_be_protected(golden: Goldens, tmp_path: Path) -> None:
    golden_small = golden("small")
    expired = {
        row["commit_id"]
        for row in golden_small.marked.attempt.read("active_commits", "expired").to_pylist()
    }
    tagged = min(expired)
    tag = {"id": "v1", "commit_id": tagged}
    list_tags(golden_small.server, tag, repository="small")
    for protect in (True, False):
        folder = tmp_path / str(protect)
        marked = recorded.rewind(
            golden_small.marked, folder, "active_commits", protect_tags=protect
        )
        find_active_commits(marked.ctx)
        rows = marked.attempt.read("active_commits").to_pylist()
        assert ({row["commit_id"]: row["kind"] for row in rows}.get(tagged) == "tag") is protect
        (row,) = marked.attempt.read("active_commits", "tags").to_pylist()
        assert (row["tag"], row["commit_id"], row["active"]) == ("v1", tagged, protect)

        # Another mark finds no tags listed, although the one of this mark is there.
        list_tags(golden_small.server, repository="small")
        golden_small.server.overrides["GET", "/repositories/small/tags/v1"] = Answer(200, tag)
        later = replace(marked.ctx, run="later")
        for stage in recorded.STAGES[:2]:
            stage(later)
        if protect:
            with pytest.raises(IntegrityError, match="tag 'v1' of 'small' exists, but the list"):
                find_active_commits(later)
        else:
            find_active_commits(later)
        list_tags(golden_small.server, tag, repository="small")


def test_what_the_previous_mark_kept_stays_while_it_is_inside(
    golden: Goldens, tmp_path: Path
) -> None:
    """A branch is deleted, and the server's list lacks its commits: no log leads to them."""
    given = golden("retention")
    first = recorded.rewind(given.marked, tmp_path)
    gone = given.server.recording.refs["dev"]
    list_without(given.server, "dev")
    branch = r"/repositories/retention/(branches/dev|refs/dev%40/diff/.*)"
    given.server.overrides["GET", branch] = Answer(404, {"message": "branch not found"})
    csv = f"{first.manifests['active_commits'].facts['server_run_id']}/commits.csv"
    (key,) = [key for key in recorded.keys("retention") if key.endswith(csv)]
    lines = recorded.content("retention", key).decode().splitlines(keepends=True)
    with recorded.preserved("retention"):
        kept = [line for line in lines if not line.startswith(gone)]
        assert len(kept) == len(lines) - 1
        recorded.plant("retention", key, "".join(kept).encode())
        for days, active in ((1, True), (20, False)):
            ctx = replace(first.ctx, run=f"after-{days}")
            clocks = recorded.FixedClocks(first.ctx.clocks.now() + timedelta(days=days))
            ctx = replace(ctx, clocks=clocks)
            for stage in recorded.STAGES[:3]:
                stage(ctx)
            attempt = ctx.root.attempt("retention", ctx.run)
            rows = attempt.read("active_commits").to_pylist()
            sources = {row["commit_id"]: row["source"] for row in rows}
            assert (gone in sources) is active
            if active:
                named = sources[gone]
                assert named in ("previous mark", "own computation")
