"""REST: branches, tags, commits, logs, diffs, merges and reverts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import dropwhile, islice

from starlette.responses import Response

from lakegc_assets.embedded import catalog, errors, history, refs
from lakegc_assets.embedded.calls import (
    Call,
    Endpoint,
    answer,
    done,
    one_page,
    page_answer,
    text_answer,
)
from lakegc_assets.embedded.catalog import Branch, Commit
from lakegc_assets.embedded.history import Change


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
        repo = catalog.writable_repository(db, call.repository)
        head = refs.resolve(db, repo, source).commit
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
        repo = catalog.writable_repository(db, call.repository)
        gone = catalog.branch(db, repo, call.branch)
        if gone.name == repo.default_branch:
            raise errors.bad_request("cannot delete repository default branch")
        catalog.delete_branch(db, gone)
    return done()


def reset_branch(call: Call) -> Response:
    """Forget what is staged on a branch, or part of it."""
    body = call.json("ResetCreation")
    kind, path = body.text("type"), body.text("path", "")
    history.reset(call.lake, call.repository, call.branch, kind=kind, path=path)
    return done()


def diff_branch(call: Call) -> Response:
    """What is staged on a branch, against its HEAD."""
    found, has_more = history.staged_differences(
        call.lake, call.repository, call.branch, call.paging()
    )
    return page_answer(list(map(_change, found)), has_more=has_more, key="path")


def diff_refs(call: Call) -> Response:
    """What differs between two references."""
    found, has_more = history.ref_differences(
        call.lake,
        call.repository,
        call.names["left"],
        call.names["right"],
        call.paging(),
        two_dot=call.query.get("type") == "two_dot",
    )
    return page_answer(list(map(_change, found)), has_more=has_more, key="path")


def commit_branch(call: Call) -> Response:
    """Commit what is staged on a branch."""
    body = call.json("CommitCreation")
    made = history.commit(
        call.lake,
        call.repository,
        call.branch,
        message=body.text("message"),
        metadata=body.strings("metadata"),
        date=body.number("date") if "date" in body.fields else None,
        allow_empty=body.flag("allow_empty"),
    )
    return answer(_commit(made), 201)


def revert_branch(call: Call) -> Response:
    """Undo a commit on a branch."""
    body = call.json("RevertCreation")
    history.revert(
        call.lake,
        call.repository,
        call.branch,
        ref=body.text("ref"),
        parent_number=body.number("parent_number"),
        allow_empty=body.flag("allow_empty"),
    )
    return done()


def merge_into_branch(call: Call) -> Response:
    """Merge a reference into a branch."""
    body = call.json("Merge", optional=True)
    made = history.merge(
        call.lake,
        call.repository,
        call.names["source"],
        call.branch,
        message=body.text("message", ""),
        metadata=body.strings("metadata"),
        strategy=body.text("strategy", ""),
        squash=body.flag("squash_merge"),
        allow_empty=body.flag("allow_empty"),
    )
    return answer({"reference": made.id})


def get_commit(call: Call) -> Response:
    """The commit that a reference names."""
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        try:
            found = refs.resolve(db, repo, call.names["ref"]).commit
        except errors.ApiError:
            raise errors.not_found("commit") from None
    return answer(_commit(found))


def log(call: Call) -> Response:
    """A page of a reference's commit and its ancestors."""
    page = call.paging()
    amount, after = page.amount, page.after
    with call.lake.state.read() as db:
        repo = catalog.repository(db, call.repository)
        start = refs.resolve(db, repo, call.names["ref"]).commit
        walk = refs.log(db, repo, start, first_parent=call.flag("first_parent"))
        if after:
            walk = islice(dropwhile(lambda c: c.id != after, walk), 1, None)
        found = list(islice(walk, amount + 1))
    return one_page(map(_commit, found), amount, key="id")


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
    with call.lake.state.write() as db:
        repo = catalog.writable_repository(db, call.repository)
        commit = refs.resolve(db, repo, ref).commit
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
        repo = catalog.writable_repository(db, call.repository)
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


def _commit(commit: Commit) -> dict[str, object]:
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


def _change(change: Change | str) -> dict[str, object]:
    if isinstance(change, str):
        return {"path": change, "path_type": "common_prefix", "type": "prefix_changed"}
    return {
        "path": change.path,
        "path_type": "object",
        "size_bytes": change.size,
        "type": change.kind,
    }


_REPO = "/repositories/{repository}"
_BRANCH = _REPO + "/branches/{branch}"
ENDPOINTS = (
    Endpoint("GET", _REPO + "/branches", list_branches),
    Endpoint("POST", _REPO + "/branches", create_branch),
    Endpoint("GET", _BRANCH, get_branch),
    Endpoint("DELETE", _BRANCH, delete_branch),
    Endpoint("PUT", _BRANCH, reset_branch),
    Endpoint("GET", _BRANCH + "/diff", diff_branch),
    Endpoint("POST", _BRANCH + "/commits", commit_branch),
    Endpoint("POST", _BRANCH + "/revert", revert_branch),
    Endpoint("GET", _REPO + "/refs/{left}/diff/{right}", diff_refs),
    Endpoint("POST", _REPO + "/refs/{source}/merge/{branch}", merge_into_branch),
    Endpoint("GET", _REPO + "/refs/{ref}/commits", log),
    Endpoint("GET", _REPO + "/commits/{ref}", get_commit),
    Endpoint("GET", _REPO + "/tags", list_tags),
    Endpoint("POST", _REPO + "/tags", create_tag),
    Endpoint("GET", _REPO + "/tags/{tag}", get_tag),
    Endpoint("DELETE", _REPO + "/tags/{tag}", delete_tag),
)
