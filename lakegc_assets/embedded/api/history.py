"""REST: changes of a branch's history, and diffs."""

from __future__ import annotations

from starlette.responses import Response

from lakegc_assets.embedded.api.calls import Body, Call, Endpoint, answer, done, page_answer
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.refs import changes, history
from lakegc_assets.embedded.refs.changes import Change
from lakegc_assets.embedded.refs.history import Overrides


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
