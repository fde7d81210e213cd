"""REST: repositories, and the rules that protect their branches."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Call, Endpoint, allowed, answer, done, one_page
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.embedded.refs import history, refs

LAYOUT_HEADER = "X-Lakegc-Layout"
_RULE = "BranchProtectionRule"
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
    with call.lake.writing(call.repository, force=call.flag("force")) as (db, repo):
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


def get_rules(call: Call) -> Response:
    """The rules that protect branches."""
    with call.lake.reading(call.repository) as (db, repo):
        found = catalog.protected_patterns(db, repo)
    return answer([{"pattern": pattern} for pattern in found], ETag=_rules_etag(found))


def set_rules(call: Call) -> Response:
    """Replace the rules, if they have the ETag that ``If-Match`` names."""
    wanted = [rule.text("pattern") for rule in call.json_array(_RULE)]
    expected = call.headers.get("if-match")
    with call.lake.writing(call.repository, force=True) as (db, repo):
        if expected not in {None, _rules_etag(catalog.protected_patterns(db, repo))}:
            raise errors.moved_meanwhile()
        catalog.set_protected_patterns(db, repo, wanted)
    return done()


def add_rule(call: Call) -> Response:
    """Add one rule."""
    pattern = call.json(_RULE).text("pattern")
    with call.lake.writing(call.repository, force=True) as (db, repo):
        catalog.set_protected_patterns(db, repo, [*catalog.protected_patterns(db, repo), pattern])
    return done()


def delete_rule(call: Call) -> Response:
    """Delete one rule; 404 if the pattern has none."""
    pattern = call.json(_RULE).text("pattern")
    with call.lake.writing(call.repository, force=True) as (db, repo):
        found = catalog.protected_patterns(db, repo)
        if pattern not in found:
            raise errors.not_found()
        catalog.set_protected_patterns(db, repo, [one for one in found if one != pattern])
    return done()


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


def _rules_etag(patterns: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(patterns).encode()).hexdigest() if patterns else ""


_REPO = "/repositories/{repository}"
_RULES = _REPO + "/settings/branch_protection"
_OLD_RULES = _REPO + "/branch_protection"
ENDPOINTS = (
    Endpoint("GET", "/repositories", list_repositories),
    Endpoint("POST", "/repositories", create_repository),
    Endpoint("GET", _REPO, get_repository),
    Endpoint("DELETE", _REPO, delete_repository),
    Endpoint("GET", _REPO + "/metadata", repository_metadata),
    Endpoint("GET", _REPO + "/actions/runs", action_runs),
    Endpoint("GET", _RULES, get_rules),
    Endpoint("PUT", _RULES, set_rules),
    Endpoint("GET", _OLD_RULES, get_rules),
    Endpoint("POST", _OLD_RULES, add_rule),
    Endpoint("DELETE", _OLD_RULES, delete_rule),
    Endpoint("GET", _OLD_RULES + "/set_allowed", allowed),
)
