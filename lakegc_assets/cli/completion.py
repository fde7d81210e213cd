"""Shell completion: names of repositories, and ids of their runs.

The shell calls it at each press of a key. So it loads neither Dagster nor Spark, sends each
server one request, and reports no errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from lakegc_assets.cli.options import chosen

if TYPE_CHECKING:
    from lakegc_assets.run.artifacts import ArtifactRoot

_SECONDS: Final = 2.0
_KIND: Final = "lakegc_assets.GarbageCollection"
_FILES: Final = ("defs.yaml", "component.yaml")
_VARIABLE: Final = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")
#: Variables of the client's keys; and fields of the file, which name the variables to use instead.
_KEYS: Final = {
    "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": "access_key_id_variable",
    "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": "secret_access_key_variable",
}


class _Completed(click.ParamType[str]):
    """A text that a shell completes from lists of names; unreadable lists are ignored."""

    name = "text"

    def __init__(self, *lists: Callable[[click.Context, str], Iterable[str]]) -> None:
        self._lists = lists

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - as click calls it
        incomplete: str,
    ) -> list[CompletionItem]:
        """The names that begin with the incomplete text."""
        names: set[str] = set()
        for one in self._lists:
            with suppress(Exception):
                names.update(one(ctx, incomplete))
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _runs(ctx: click.Context, _: str) -> list[str]:
    """The runs of the repository that precedes this argument."""
    # If an option lacks its value, click's parser ends before it has named the arguments.
    repository = ctx.params.get("repository") or next(iter(ctx.args), "")
    return _root(defined(ctx)).runs(repository) if repository else []


def completed(command: click.Command) -> click.Command:
    """Return the command with shell completion for its repositories and runs."""
    for param in command.params:
        if param.name in {"repository", "repositories"}:
            param.type = _Completed(lambda ctx, _: _root(defined(ctx)).repositories(), _on_server)
        elif param.name == "run_id":
            param.type = _Completed(_runs)
    return command


def defined(ctx: click.Context) -> Mapping[str, Any]:
    """Values of the component that ``--defs`` names, if they are plain text; empty without it.

    Raises:
        LookupError: there is no such component. Then nothing is completed.
        ValueError: there are several.
    """
    place = chosen(ctx.find_root().params.get("defs")).definitions
    if not place:
        return {}
    import yaml

    path, name = place, None
    if not Path(place).exists():
        path, _, name = place.rpartition("#")
    found = [
        document.get("attributes") or {}
        for file in _files(Path(path))
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("type") == _KIND
    ]
    (only,) = [one for one in found if name is None or one.get("name", "") == name] or [None]
    if only is None:
        raise LookupError(place)
    return only


def _files(where: Path) -> list[Path]:
    if where.is_file():
        return [where]
    found = []
    for folder, folders, files in os.walk(where):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found += [Path(folder, name) for name in files if name in _FILES]
    return found


def _plain(text: object) -> str | None:
    """A value of the file with its variables; a ``LookupError`` if only Dagster can render it."""
    if text is None:
        return None
    said = _VARIABLE.sub(lambda found: os.environ[found[1]], str(text))
    if "{{" in said:
        raise LookupError(said)
    return said


def _root(defs: Mapping[str, Any]) -> ArtifactRoot:
    from lakegc_assets.run.artifacts import ArtifactRoot, place_of_artifacts
    from lakegc_assets.storage.config import StoreConfig

    stores = defs.get("stores") or {}
    url = place_of_artifacts(_plain(stores.get("artifact_root")), defs.get("name") or "")
    config = StoreConfig(
        endpoint_url=_plain(stores.get("s3_endpoint_url")),
        region=_plain(stores.get("s3_region")),
        profile=_plain(stores.get("s3_profile")),
        connect_timeout_s=_SECONDS,
        read_timeout_s=_SECONDS,
        max_attempts=1,
    )
    return ArtifactRoot(url, config)


def _on_server(ctx: click.Context, prefix: str) -> Iterable[str]:
    from lakegc_assets.lakefs.config import LakeFSConfig

    server = defined(ctx).get("lakefs") or {}
    # Setting variables affects no other code: this process ends with its answer.
    for variable, key in _KEYS.items():
        if name := server.get(key):
            os.environ[variable] = os.environ[name]
    config = LakeFSConfig(
        endpoint=_plain(server.get("endpoint")),
        credentials_file=_plain(server.get("credentials_file")),
        connect_timeout_s=_SECONDS,
        read_timeout_s=_SECONDS,
        max_attempts=1,
    )
    return (repository.id for repository in config.connect().repositories(prefix))
