"""REST: branches, tags, commits and logs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import dropwhile, islice

from starlette.responses import Response

from lakegc_assets.embedded import catalog, errors, refs
from lakegc_assets.embedded.calls import Call, Endpoint, answer, done, one_page, text_answer
from lakegc_assets.embedded.catalog import Branch, Commit


def list_branches(call: Call) -> Response:
    """A page of branches, hidden ones only with ``show_hidden``."""
    page = call.paging()
    amount = page.amount
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        found = catalog.branches(
            db,
            repo,
            prefix=page.prefix,
            after=page.after,
            amount=amount + 1,
            show_hidden=call.flag("show_hidden"),
        )
    return one_page(map(_branch, found), amount, key="id")


def create_branch(call: Call) -> Response:
    """A branch at a reference; the answer is the commit's id."""
    body = call.json("BranchCreation")
    name, source = body.text("name"), body.text("source")
    refs.check_branch_name(name)
    with call.lake.state.write() as db:
        repo = catalog.writable_repository(db, call.repository, force=body.flag("force"))
        refs.check_free(db, repo, name, kind="branch")
        head = refs.resolve_commit(db, repo, source)
        catalog.insert_branch(db, repo, name, head.id, hidden=body.flag("hidden"))
    return text_answer(head.id, 201)


def get_branch(call: Call) -> Response:
    """One branch."""
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        return answer(_branch(catalog.branch(db, repo, call.branch)))


def delete_branch(call: Call) -> Response:
    """Delete a branch, and what is staged on it; never the default one."""
    with call.lake.state.write() as db:
        repo = catalog.writable_repository(db, call.repository, force=call.flag("force"))
        gone = catalog.branch(db, repo, call.branch)
        if gone.name == repo.default_branch:
            raise errors.bad_request("cannot delete repository default branch")
        catalog.delete_branch(db, gone)
    return done()


def get_commit(call: Call) -> Response:
    """The commit that a reference names."""
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        try:
            found = refs.resolve(db, repo, call.names["ref"]).commit
        except errors.ApiError:
            raise errors.not_found("commit") from None
    return answer(shown_commit(found))


def log(call: Call) -> Response:
    """A page of a reference's commit and its ancestors."""
    page = call.paging()
    amount, after = page.amount, page.after
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        start = refs.resolve_commit(db, repo, call.names["ref"])
        walk = refs.log(db, repo, start, first_parent=call.flag("first_parent"))
        if after:
            walk = islice(dropwhile(lambda c: c.id != after, walk), 1, None)
        found = list(islice(walk, amount + 1))
    return one_page(map(shown_commit, found), amount, key="id")


def list_tags(call: Call) -> Response:
    """A page of tags."""
    page = call.paging()
    prefix = page.prefix
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        rows = db.execute(
            "SELECT name, commit_id FROM tags WHERE repository = ? AND name > ? "
            "AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?",
            (repo.id, page.after, len(prefix), prefix, page.amount + 1),
        ).fetchall()
    return one_page(_tags(rows), page.amount, key="id")


def create_tag(call: Call) -> Response:
    """A tag at a reference."""
    body = call.json("TagCreation")
    name, ref = body.text("id"), body.text("ref")
    refs.check_tag_name(name)
    with call.lake.state.write() as db:
        repo = catalog.writable_repository(db, call.repository, force=body.flag("force"))
        refs.check_free(db, repo, name, kind="tag")
        commit = refs.resolve_commit(db, repo, ref)
        try:
            db.execute("INSERT INTO tags VALUES (?, ?, ?)", (repo.id, name, commit.id))
        except sqlite3.IntegrityError:
            raise errors.conflict("tag already exists: not unique") from None
    return answer({"commit_id": commit.id, "id": name}, 201)


def get_tag(call: Call) -> Response:
    """One tag."""
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        row = db.execute(
            "SELECT name, commit_id FROM tags WHERE repository = ? AND name = ?",
            (repo.id, call.names["tag"]),
        ).fetchone()
    if row is None:
        raise errors.not_found("tag")
    return answer(next(_tags([row])))


def delete_tag(call: Call) -> Response:
    """Delete a tag; its commit stays."""
    with call.lake.state.write() as db:
        repo = catalog.writable_repository(db, call.repository, force=call.flag("force"))
        deleted = db.execute(
            "DELETE FROM tags WHERE repository = ? AND name = ?", (repo.id, call.names["tag"])
        )
        if deleted.rowcount != 1:
            raise errors.not_found("tag")
    return done()


def _branch(branch: Branch) -> dict[str, object]:
    return {"commit_id": branch.commit_id, "id": branch.name}


def _tags(rows: list[tuple[str, str]]) -> Iterator[dict[str, object]]:
    for name, commit_id in rows:
        yield {"commit_id": commit_id, "id": name}


def shown_commit(commit: Commit) -> dict[str, object]:
    """A commit as the API tells it."""
    return {
        "committer": commit.committer,
        "creation_date": commit.creation_date,
        "generation": commit.generation,
        "id": commit.id,
        "message": commit.message,
        "meta_range_id": commit.metarange_id,
        "metadata": dict(commit.metadata),
        "parents": list(commit.parents),
        "version": 1,
    }


_REPO = "/repositories/{repository}"
_BRANCH = _REPO + "/branches/{branch}"
ENDPOINTS = (
    Endpoint("GET", _REPO + "/branches", list_branches),
    Endpoint("POST", _REPO + "/branches", create_branch),
    Endpoint("GET", _BRANCH, get_branch),
    Endpoint("DELETE", _BRANCH, delete_branch),
    Endpoint("GET", _REPO + "/refs/{ref}/commits", log),
    Endpoint("GET", _REPO + "/commits/{ref}", get_commit),
    Endpoint("GET", _REPO + "/tags", list_tags),
    Endpoint("POST", _REPO + "/tags", create_tag),
    Endpoint("GET", _REPO + "/tags/{tag}", get_tag),
    Endpoint("DELETE", _REPO + "/tags/{tag}", delete_tag),
)
