"""REST: the server's configuration, and repositories."""

from __future__ import annotations

import re

from starlette.responses import Response

from lakegc_assets.embedded import catalog, errors, history, refs
from lakegc_assets.embedded.calls import Call, Endpoint, answer, done, one_page
from lakegc_assets.embedded.catalog import Repository
from lakegc_assets.embedded.layouts import Layout

VERSION = "1.84.0"
LAYOUT_HEADER = "X-Lakegc-Layout"
_NAME = "^[a-z0-9][a-z0-9-]{2,62}$"


def version(_: Call) -> Response:
    """The version of lakeFS whose API this is."""
    return answer(_version())


def storage(call: Call) -> Response:
    """What the server says of its block store."""
    return answer(_storage(call))


def config(call: Call) -> Response:
    """All of the configuration that the server tells."""
    return answer(
        {
            "capabilities_config": {},
            "storage_config": _storage(call),
            "storage_config_list": [],
            "ui_config": {},
            "version_config": _version(),
        }
    )


def garbage_collection(call: Call) -> Response:
    """For how long an address that was handed out can be linked."""
    return answer({"grace_period": call.lake.settings.grace_period})


def healthcheck(_: Call) -> Response:
    """The server answers."""
    return done()


def user(_: Call) -> Response:
    """The one user."""
    return answer(
        {
            "user": {
                "creation_date": 0,
                "email": "",
                "friendly_name": "",
                "id": history.COMMITTER,
            }
        }
    )


def list_repositories(call: Call) -> Response:
    """A page of repositories."""
    page = call.paging()
    with call.lake.state.read() as db:
        found = catalog.repositories(db, page.prefix, page.after, page.amount + 1)
    return one_page(map(_shown, found), page.amount, key="id")


def create_repository(call: Call) -> Response:
    """A new repository, with its first commit."""
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
    with call.lake.state.read() as db:
        return answer(_shown(catalog.repository(db, call.repository)))


def delete_repository(call: Call) -> Response:
    """Forget a repository; what it wrote stays in the store."""
    with call.lake.state.write() as db:
        repo = catalog.repository(db, call.repository)
        if repo.read_only and not call.flag("force"):
            raise errors.read_only()
        catalog.delete_repository(db, repo.id)
    return done()


def repository_metadata(call: Call) -> Response:
    """Metadata of a repository: none is ever set."""
    with call.lake.state.read() as db:
        catalog.repository(db, call.repository)
    return answer({})


def _layout(call: Call) -> Layout | None:
    text = call.headers.get(LAYOUT_HEADER)
    try:
        return None if text is None else Layout(text)
    except ValueError:
        names = ", ".join(layout.value for layout in Layout)
        raise errors.bad_request(f"{LAYOUT_HEADER} is {text!r}: it is one of {names}") from None


def _version() -> dict[str, object]:
    return {"version": VERSION, "version_context": "lakegc-embedded"}


def _storage(call: Call) -> dict[str, object]:
    settings = call.lake.settings
    regex = call.lake.stores.namespace_regex
    return {
        "blockstore_description": "",
        "blockstore_id": "",
        "blockstore_namespace_ValidityRegex": regex,
        "blockstore_namespace_example": f"{settings.blockstore_type}://example-bucket/",
        "blockstore_type": settings.blockstore_type,
        "default_namespace_prefix": settings.store or "local://",
        "import_support": False,
        "import_validity_regex": regex,
        "pre_sign_multipart_upload": False,
        "pre_sign_support": bool(settings.store),
        "pre_sign_support_ui": False,
    }


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
    Endpoint("GET", "/config", config),
    Endpoint("GET", "/config/version", version),
    Endpoint("GET", "/config/storage", storage),
    Endpoint("GET", "/config/garbage-collection", garbage_collection),
    Endpoint("GET", "/healthcheck", healthcheck, open_to_all=True),
    Endpoint("GET", "/user", user),
    Endpoint("GET", "/repositories", list_repositories),
    Endpoint("POST", "/repositories", create_repository),
    Endpoint("GET", _ONE, get_repository),
    Endpoint("DELETE", _ONE, delete_repository),
    Endpoint("GET", f"{_ONE}/metadata", repository_metadata),
)
