"""REST: retention rules, lists for a collector, and locations of metadata files."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from lakegc_assets.embedded import errors, gc, tasks
from lakegc_assets.embedded.api.calls import (
    Body,
    Call,
    Endpoint,
    allowed,
    answer,
    done,
    in_background,
)


def get_rules(call: Call) -> Response:
    """The rules; 404 without rules."""
    return answer(gc.rules(call.lake, call.repository))


def set_rules(call: Call) -> Response:
    """Replace the rules; of two rules for one branch the last one applies."""
    body = call.json("GarbageCollectionRules")
    days = body.number("default_retention_days")
    branches = dict(_rule(item) for item in body.items("branches"))
    gc.set_rules(call.lake, call.repository, days, branches)
    return done()


def delete_rules(call: Call) -> Response:
    """Remove the rules."""
    gc.set_rules(call.lake, call.repository, 0, {})
    return done()


def prepare_commits(call: Call) -> Response:
    """Write the list of active commits, now."""
    return answer(gc.prepare_commits(call.lake, call.repository), 201)


def prepare_commits_async(call: Call) -> Response:
    """Write the list of active commits in the background."""
    return in_background(call, gc.TASK_PREFIX, gc.prepare_commits)


def prepare_commits_status(call: Call) -> Response:
    """The state of a background task."""
    return answer(tasks.status(call.lake, call.repository, call.required("id")))


def prepare_uncommitted(call: Call) -> Response:
    """Write one page of the staged addresses."""
    body = call.json("PrepareGCUncommittedRequest", optional=True)
    token = body.text("continuation_token", "")
    return answer(gc.prepare_uncommitted(call.lake, call.repository, token), 201)


def metadata_file(call: Call) -> Response:
    """The location of a range or metarange; like lakeFS, without a request to the store."""
    call.lake.repository(call.repository)
    location = f"_lakefs/{call.names['id']}"
    return answer({"location": location}, Location=quote(location))


def _rule(item: Any) -> tuple[str, int]:  # noqa: ANN401 - it is any JSON until it was checked
    if not isinstance(item, dict):
        raise errors.bad_body("GarbageCollectionRules", "branches", "value must be an object")
    rule = Body("GarbageCollectionRule", item)
    return rule.text("branch_id"), rule.number("retention_days")


_REPO = "/repositories/{repository}"
ENDPOINTS = (
    Endpoint("GET", _REPO + "/settings/gc_rules", get_rules, newer=True),
    Endpoint("PUT", _REPO + "/settings/gc_rules", set_rules, newer=True),
    Endpoint("DELETE", _REPO + "/settings/gc_rules", delete_rules, newer=True),
    Endpoint("GET", _REPO + "/gc/rules", get_rules),
    Endpoint("POST", _REPO + "/gc/rules", set_rules),
    Endpoint("DELETE", _REPO + "/gc/rules", delete_rules),
    Endpoint("GET", _REPO + "/gc/rules/set_allowed", allowed),
    Endpoint("POST", _REPO + "/gc/prepare_commits", prepare_commits),
    Endpoint("POST", _REPO + "/gc/prepare_commits/async", prepare_commits_async, newer=True),
    Endpoint("GET", _REPO + "/gc/prepare_commits/status", prepare_commits_status, newer=True),
    Endpoint("POST", _REPO + "/gc/prepare_uncommited", prepare_uncommitted),
    Endpoint("GET", _REPO + "/metadata/meta_range/{id}", metadata_file),
    Endpoint("GET", _REPO + "/metadata/range/{id}", metadata_file),
)
