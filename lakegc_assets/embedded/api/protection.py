"""REST: the rules that protect branches."""

from __future__ import annotations

from starlette.responses import Response

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.api.calls import Call, Endpoint, allowed, answer, done
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.refs import protection

_SCHEMA = "BranchProtectionRule"


def get_rules(call: Call) -> Response:
    """The rules of a repository."""
    with call.lake.state.read() as db:
        found = protection.patterns(db, catalog.repository(db, call.repository))
    return answer([{"pattern": pattern} for pattern in found], ETag=protection.etag(found))


def set_rules(call: Call) -> Response:
    """Replace the rules, if they have the ETag that ``If-Match`` names."""
    wanted = [rule.text("pattern") for rule in call.json_array(_SCHEMA)]
    expected = call.headers.get("if-match")
    with call.lake.state.write() as db:
        repo = catalog.repository(db, call.repository)
        if expected not in {None, protection.etag(protection.patterns(db, repo))}:
            raise errors.moved_meanwhile()
        protection.set_patterns(db, repo, wanted)
    return done()


def add_rule(call: Call) -> Response:
    """Add one rule."""
    pattern = call.json(_SCHEMA).text("pattern")
    with call.lake.state.write() as db:
        repo = catalog.repository(db, call.repository)
        protection.set_patterns(db, repo, [*protection.patterns(db, repo), pattern])
    return done()


def delete_rule(call: Call) -> Response:
    """Delete one rule; 404 if the pattern has none."""
    pattern = call.json(_SCHEMA).text("pattern")
    with call.lake.state.write() as db:
        repo = catalog.repository(db, call.repository)
        found = protection.patterns(db, repo)
        if pattern not in found:
            raise errors.not_found()
        protection.set_patterns(db, repo, [one for one in found if one != pattern])
    return done()


_REPO = "/repositories/{repository}"
_SETTINGS = _REPO + "/settings/branch_protection"
_OLD = _REPO + "/branch_protection"
ENDPOINTS = (
    Endpoint("GET", _SETTINGS, get_rules),
    Endpoint("PUT", _SETTINGS, set_rules),
    Endpoint("GET", _OLD, get_rules),
    Endpoint("POST", _OLD, add_rule),
    Endpoint("DELETE", _OLD, delete_rule),
    Endpoint("GET", _OLD + "/set_allowed", allowed),
)
