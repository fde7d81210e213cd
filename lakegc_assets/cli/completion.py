"""What a shell completes: names of repositories, and ids of their runs.

It is asked at each press of a key, so it loads neither Dagster nor Spark, asks each server once,
and says nothing of what goes wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from lakegc_assets.run.artifacts import ArtifactRoot

_SECONDS = 2.0


class RepositoryName(click.ParamType[str]):
    """The name of a repository; those of the server and of the artifacts are completed."""

    name = "text"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        param: click.Parameter,  # noqa: ARG002 - likewise
        incomplete: str,
    ) -> list[CompletionItem]:
        """The names that begin so."""
        names: set[str] = set()
        with suppress(Exception):
            prefixes = _root().open().list_prefixes().prefixes
            names |= {name.rstrip("/") for name in prefixes if not name.startswith("_")}
        with suppress(Exception):
            names |= set(_on_server(incomplete))
        return _beginning(names, incomplete)


class RunId(click.ParamType[str]):
    """The id of a run; those of the repository that is named before it are completed."""

    name = "text"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - as click calls it
        incomplete: str,
    ) -> list[CompletionItem]:
        """The ids that begin so."""
        # An option without its value ends the parser of click before it has named the arguments.
        repository = ctx.params.get("repository") or next(iter(ctx.args), "")
        found: list[str] = []
        with suppress(Exception):
            found = _root().runs(repository) if repository else []
        return _beginning(found, incomplete)


def completed(command: click.Command) -> click.Command:
    """A command whose repositories and runs a shell completes."""
    for param in command.params:
        if param.name in {"repository", "repositories"}:
            param.type = RepositoryName()
        elif param.name == "run_id":
            param.type = RunId()
    return command


def _root() -> ArtifactRoot:
    from lakegc_assets.run.artifacts import ArtifactRoot  # noqa: PLC0415 - it loads Arrow
    from lakegc_assets.storage.config import StoreConfig  # noqa: PLC0415 - likewise

    place = os.environ.get("LAKEGC_ARTIFACT_ROOT") or ".lakegc/artifacts"
    url = place if "://" in place else str(Path(place).resolve())
    stores = StoreConfig(connect_timeout_s=_SECONDS, read_timeout_s=_SECONDS, max_attempts=1)
    return ArtifactRoot(url, stores)


def _on_server(prefix: str) -> Iterable[str]:
    from lakegc_assets.lakefs.config import LakeFSConfig  # noqa: PLC0415 - it loads slowly

    config = replace(
        LakeFSConfig(), connect_timeout_s=_SECONDS, read_timeout_s=_SECONDS, max_attempts=1
    )
    return (repository.id for repository in config.connect().repositories(prefix))


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
