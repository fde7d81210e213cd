"""REST: repositories."""

from __future__ import annotations

import re

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Call, Endpoint, answer, done, one_page
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.embedded.refs import history, refs

LAYOUT_HEADER = "X-Lakegc-Layout"
_NAME = "^[a-z0-9][a-z0-9-]{2,62}$"


def list_repositories(call: Call) -> Response:
    """A page of repositories."""
    page = call.paging()
    with call.lake.state.read() as db:
        found = catalog.repositories(db, page.prefix, page.after, page.amount + 1)
    return one_page(map(_shown, found), page.amount, key="id")


def create_repository(call: Call) -> Response:
    """Create a repository, with its first commit."""
    body = call.json("RepositoryCreation")
    name, namespace = body.text("name"), body.text("storage_namespace")
    if not re.fullmatch(_NAME, name):
        raise errors.bad_body(
            "RepositoryCreation", "name", f'string doesn\'t match the regular expression "{_NAME}"'
        )
    default_branch = body.text("default_branch", "main") or "main"
    refs.check_branch_name(default_branch)
    new = Repository(
        id=name,
        namespace=namespace.rstrip("/"),
        default_branch=default_branch,
        creation_date=int(call.lake.now()),
        read_only=body.flag("read_only"),
        rules=None,
    )
    return answer(_shown(history.create_repository(call.lake, new, _layout(call))), 201)


def get_repository(call: Call) -> Response:
    """One repository."""
    return answer(_shown(call.lake.repository(call.repository)))


def delete_repository(call: Call) -> Response:
    """Delete a repository; its objects stay in the store."""
    with call.lake.state.write() as db:
        repo = catalog.repository(db, call.repository)
        if repo.read_only and not call.flag("force"):
            raise errors.read_only()
        catalog.delete_repository(db, repo.id)
    return done()


def repository_metadata(call: Call) -> Response:
    """Metadata of a repository, which is always empty."""
    call.lake.repository(call.repository)
    return answer({})


def action_runs(call: Call) -> Response:
    """A page of the runs of actions; the server runs none, so it is empty."""
    call.lake.repository(call.repository)
    return one_page([], call.paging().amount, key="run_id")


def _layout(call: Call) -> Layout | None:
    text = call.headers.get(LAYOUT_HEADER)
    try:
        return None if text is None else Layout(text)
    except ValueError:
        names = ", ".join(layout.value for layout in Layout)
        raise errors.bad_request(f"{LAYOUT_HEADER} is {text!r}: it is one of {names}") from None


def _shown(repo: Repository) -> dict[str, object]:
    return {
        "creation_date": repo.creation_date,
        "default_branch": repo.default_branch,
        "id": repo.id,
        "read_only": repo.read_only,
        "storage_id": "",
        "storage_namespace": repo.namespace,
    }


_ONE = "/repositories/{repository}"
ENDPOINTS = (
    Endpoint("GET", "/repositories", list_repositories),
    Endpoint("POST", "/repositories", create_repository),
    Endpoint("GET", _ONE, get_repository),
    Endpoint("DELETE", _ONE, delete_repository),
    Endpoint("GET", f"{_ONE}/metadata", repository_metadata),
    Endpoint("GET", f"{_ONE}/actions/runs", action_runs),
)
