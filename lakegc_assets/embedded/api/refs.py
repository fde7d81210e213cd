"""REST: branches, tags and commits: what they are, how they change, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import dropwhile, islice
from typing import Final

from pydantic import AwareDatetime, TypeAdapter
from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import (
    Body,
    Call,
    Endpoint,
    answer,
    done,
    one_page,
    page_answer,
)
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.catalog import Branch, Commit
from lakegc_assets.embedded.refs import changes, history, refs
from lakegc_assets.embedded.refs.changes import Change
from lakegc_assets.embedded.refs.history import Overrides

_TIME: Final = TypeAdapter[datetime](AwareDatetime)


def list_branches(call: Call) -> Response:
    """A page of branches, with hidden ones only if ``show_hidden`` is set."""
    page = call.paging()
    amount = page.amount
    with call.lake.reading(call.repository) as (db, repo):
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
    """Create a branch at a reference; the answer is the commit's id."""
    body = call.json("BranchCreation")
    name, source = body.text("name"), body.text("source")
    refs.check_branch_name(name)
    with call.lake.writing(call.repository, force=body.flag("force")) as (db, repo):
        refs.check_free(db, repo, name, kind="branch")
        head = refs.resolve_commit(db, repo, source)
        catalog.insert_branch(db, repo, name, head.id, hidden=body.flag("hidden"))
    return Response(head.id, 201, media_type="text/plain")


def get_branch(call: Call) -> Response:
    """One branch."""
    with call.lake.reading(call.repository) as (db, repo):
        return answer(_branch(catalog.branch(db, repo, call.branch)))


def delete_branch(call: Call) -> Response:
    """Delete a branch and its staged entries; the default branch cannot be deleted."""
    with call.lake.writing(call.repository, force=call.flag("force")) as (db, repo):
        gone = catalog.branch(db, repo, call.branch)
        if gone.name == repo.default_branch:
            raise errors.bad_request("cannot delete repository default branch")
        catalog.delete_branch(db, gone)
    return done()


def get_commit(call: Call) -> Response:
    """The commit that a reference names."""
    with call.lake.reading(call.repository) as (db, repo):
        try:
            found = refs.resolve(db, repo, call.names["ref"]).commit
        except errors.ApiError:
            raise errors.not_found("commit") from None
    return answer(found.shown())


def log(call: Call) -> Response:
    """A page of a reference's commit and its ancestors."""
    amount, after = call.paging().amount, call.paging().after
    with call.lake.reading(call.repository) as (db, repo):
        start = refs.resolve_commit(db, repo, call.names["ref"])
        walk = refs.log(db, repo, start, first_parent=call.flag("first_parent"))
        if after:
            walk = islice(dropwhile(lambda c: c.id != after, walk), 1, None)
        # lakectl sends an empty value if the log has no end.
        if stop_at := call.query.get("stop_at"):
            walk = _until(walk, refs.resolve_commit(db, repo, stop_at))
        if "since" in call.query:
            since = _instant(call.query["since"])
            walk = (commit for commit in walk if commit.creation_date >= since)
        objects, prefixes = call.query.getlist("objects"), call.query.getlist("prefixes")
        if objects or prefixes:
            trees = call.lake.stores.trees(repo)
            walk = (
                commit
                for commit in walk
                if changes.touches(db, repo, trees, commit, objects, prefixes)
            )
        found = list(islice(walk, amount + 1))
    if call.flag("limit"):
        found = found[:amount]
    return one_page(map(Commit.shown, found), amount, key="id")


def list_tags(call: Call) -> Response:
    """A page of tags."""
    page = call.paging()
    with call.lake.reading(call.repository) as (db, repo):
        found = catalog.tags(db, repo, prefix=page.prefix, after=page.after, amount=page.amount + 1)
    return one_page((_tag(*tag) for tag in found), page.amount, key="id")


def create_tag(call: Call) -> Response:
    """Create a tag at a reference."""
    body = call.json("TagCreation")
    name, ref = body.text("id"), body.text("ref")
    refs.check_tag_name(name)
    with call.lake.writing(call.repository, force=body.flag("force")) as (db, repo):
        refs.check_free(db, repo, name, kind="tag")
        commit = refs.resolve_commit(db, repo, ref)
        catalog.insert_tag(db, repo, name, commit.id)
    return answer(_tag(name, commit.id), 201)


def get_tag(call: Call) -> Response:
    """One tag."""
    name = call.names["tag"]
    with call.lake.reading(call.repository) as (db, repo):
        commit_id = catalog.find_tag(db, repo, name)
    if commit_id is None:
        raise errors.not_found("tag")
    return answer(_tag(name, commit_id))


def delete_tag(call: Call) -> Response:
    """Delete a tag; its commit stays."""
    with call.lake.writing(call.repository, force=call.flag("force")) as (db, repo):
        catalog.delete_tag(db, repo, call.names["tag"])
    return done()


def commit(call: Call) -> Response:
    """Commit the staged entries of a branch, or the tree ``source_metarange``."""
    body = call.json("CommitCreation")
    message, metadata = body.text("message"), body.strings("metadata")
    date = body.number("date") if "date" in body.fields else None
    force = body.flag("force")
    source = call.query.get("source_metarange")
    if source:
        made = history.commit_tree(
            call.lake,
            call.repository,
            call.branch,
            source,
            message=message,
            metadata=metadata,
            date=date,
            force=force,
        )
    else:
        made = history.commit(
            call.lake,
            call.repository,
            call.branch,
            message=message,
            metadata=metadata,
            date=date,
            allow_empty=body.flag("allow_empty"),
            force=force,
        )
    return answer(made.shown(), 201)


def reset(call: Call) -> Response:
    """Drop the staged entries of a branch, or some of them."""
    body = call.json("ResetCreation")
    history.reset(
        call.lake,
        call.repository,
        call.branch,
        kind=body.text("type"),
        path=body.text("path", ""),
        force=body.flag("force"),
    )
    return done()


def hard_reset(call: Call) -> Response:
    """Set a branch without staged changes to another commit."""
    ref, force = call.required("ref"), call.flag("force")
    history.hard_reset(call.lake, call.repository, call.branch, ref, force=force)
    return done()


def revert(call: Call) -> Response:
    """Undo a commit on a branch."""
    body = call.json("RevertCreation")
    history.revert(
        call.lake,
        call.repository,
        call.branch,
        ref=body.text("ref"),
        parent_number=body.number("parent_number"),
        allow_empty=body.flag("allow_empty"),
        overrides=_overrides(body),
        force=body.flag("force"),
    )
    return done()


def cherry_pick(call: Call) -> Response:
    """Apply the changes of a commit to a branch."""
    body = call.json("CherryPickCreation")
    made = history.cherry_pick(
        call.lake,
        call.repository,
        call.branch,
        ref=body.text("ref"),
        parent_number=body.number("parent_number") if "parent_number" in body.fields else None,
        overrides=_overrides(body),
        force=body.flag("force"),
    )
    return answer(made.shown(), 201)


def merge(call: Call) -> Response:
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
        force=body.flag("force"),
    )
    return answer({"reference": made.id})


def merge_base(call: Call) -> Response:
    """The merge base of two references."""
    return answer(changes.merge_base(call.lake, call.repository, call.names["source"], call.branch))


def diff_branch(call: Call) -> Response:
    """Staged changes of a branch, against its HEAD."""
    found, has_more = changes.staged_differences(
        call.lake, call.repository, call.branch, call.paging()
    )
    if Fault.SCAN_ENDS_EARLY in call.lake.settings.faults:
        found, has_more = found[: len(found) // 2], False
    return page_answer(list(map(_change, found)), has_more=has_more, key="path")


def diff_refs(call: Call) -> Response:
    """Differences between two references."""
    found, has_more = changes.ref_differences(
        call.lake,
        call.repository,
        call.names["left"],
        call.names["right"],
        call.paging(),
        two_dot=changes.is_two_dot(call.query.get("type", "three_dot")),
    )
    return page_answer(list(map(_change, found)), has_more=has_more, key="path")


def _until(walk: Iterator[Commit], stop: Commit) -> Iterator[Commit]:
    for commit in walk:
        yield commit
        if commit.id == stop.id:
            return


def _instant(text: str) -> float:
    """Epoch seconds of a time in the form of RFC 3339."""
    try:
        # Python 3.10 reads neither the zone in the form of lakeFS's client nor a Z.
        return _TIME.validate_strings(text, strict=True).timestamp()
    except ValueError:
        raise errors.bad_request(
            f'parameter "since" in query has an error: value {text}: not a date-time'
        ) from None


def _branch(branch: Branch) -> dict[str, object]:
    return {"commit_id": branch.commit_id, "id": branch.name}


def _tag(name: str, commit_id: str) -> dict[str, object]:
    return {"commit_id": commit_id, "id": name}


def _overrides(body: Body) -> Overrides:
    found = body.body("commit_overrides", "CommitOverrides", {})
    metadata = found.strings("metadata") if "metadata" in found.fields else None
    return Overrides(found.text("message", ""), metadata)


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
_MERGE = _REPO + "/refs/{source}/merge/{branch}"
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
    Endpoint("POST", _BRANCH + "/commits", commit),
    Endpoint("PUT", _BRANCH, reset),
    Endpoint("PUT", _BRANCH + "/hard_reset", hard_reset),
    Endpoint("POST", _BRANCH + "/revert", revert),
    Endpoint("POST", _BRANCH + "/cherry-pick", cherry_pick),
    Endpoint("POST", _MERGE, merge),
    Endpoint("GET", _MERGE, merge_base),
    Endpoint("GET", _BRANCH + "/diff", diff_branch),
    Endpoint("GET", _REPO + "/refs/{left}/diff/{right}", diff_refs),
)
