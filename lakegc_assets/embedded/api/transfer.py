"""REST: imports of outside objects, dumps of refs, and the files of trees and dumps."""

from __future__ import annotations

from typing import Any

from starlette.background import BackgroundTask
from starlette.responses import Response

from lakegc_assets.embedded import errors, tasks
from lakegc_assets.embedded.api.calls import Call, Endpoint, answer, done, in_background
from lakegc_assets.embedded.refs import dumps, imports
from lakegc_assets.embedded.refs.imports import Location, Wanted
from lakegc_assets.storage.errors import InvalidKeyError, ObjectNotFoundError


def start_import(call: Call) -> Response:
    """Import outside objects into a new commit, in the background."""
    body = call.json("ImportCreation")
    locations = tuple(
        Location(each.text("type"), each.text("path"), each.text("destination"))
        for each in body.bodies("paths", "ImportLocation")
    )
    commit = body.body("commit", "CommitCreation")
    wanted = Wanted(
        call.repository,
        call.branch,
        locations,
        message=commit.text("message"),
        metadata=commit.strings("metadata"),
        force=body.flag("force"),
    )
    task = imports.start(call.lake, wanted)
    found = answer({"id": task}, 202)
    found.background = BackgroundTask(imports.run, call.lake, wanted, task)
    return found


def import_status(call: Call) -> Response:
    """The state of an import."""
    return answer(imports.status(_task(call, "id", imports.TASK_PREFIX)))


def cancel_import(call: Call) -> Response:
    """End an import without a commit."""
    _task(call, "id", imports.TASK_PREFIX)
    imports.cancel(call.lake, call.repository, call.required("id"))
    return done()


def dump_refs(call: Call) -> Response:
    """Write commits, branches and tags, now."""
    return answer(dumps.dump(call.lake, call.repository), 201)


def start_dump(call: Call) -> Response:
    """Write commits, branches and tags in the background."""
    return in_background(call, dumps.TASK_PREFIX, dumps.dump)


def dump_status(call: Call) -> Response:
    """The state of a dump."""
    found = _task(call, "task_id", dumps.TASK_PREFIX)
    shown = {
        "done": found["completed"],
        "id": found["task_id"],
        "update_time": found["update_time"],
    }
    if "error" in found:
        shown["error"] = found["error"]["message"]
    if "result" in found:
        shown["refs"] = found["result"]
    return answer(shown)


def metadata_object(call: Call) -> Response:
    """The content of a range or a metarange."""
    if call.names["type"] not in {"range", "meta_range"}:
        raise errors.bad_request("invalid metadata object type")
    repo = call.lake.repository(call.repository)
    name = call.names["id"]
    # Files below _lakefs/ with a slash in their name are neither ranges nor metaranges.
    if "/" in name:
        raise errors.not_found()
    try:
        data = call.lake.stores.open(repo.namespace).get(f"_lakefs/{name}")
    except (ObjectNotFoundError, InvalidKeyError):
        raise errors.not_found() from None
    return Response(data, media_type="application/octet-stream")


def _task(call: Call, parameter: str, prefix: str) -> dict[str, Any]:
    """A task of one kind; 404 for a task of another kind."""
    task = call.required(parameter)
    found = tasks.status(call.lake, call.repository, task)
    if not task.startswith(prefix):
        raise errors.not_found()
    return found


_REPO = "/repositories/{repository}"
_IMPORT = _REPO + "/branches/{branch}/import"
ENDPOINTS = (
    Endpoint("POST", _IMPORT, start_import),
    Endpoint("GET", _IMPORT, import_status),
    Endpoint("DELETE", _IMPORT, cancel_import),
    Endpoint("PUT", _REPO + "/refs/dump", dump_refs),
    Endpoint("POST", _REPO + "/dump", start_dump),
    Endpoint("GET", _REPO + "/dump", dump_status),
    Endpoint("GET", _REPO + "/metadata/object/{type}/{id}", metadata_object),
)
