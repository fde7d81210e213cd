"""Queries of repositories and their runs, from the artifacts and from lakeFS."""

from __future__ import annotations

from typing import Any

from lakegc_assets.cli.site import Site
from lakegc_assets.defs.names import partition_key
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.estate.guards import Guards, read_guards
from lakegc_assets.estate.repository_state import UNREADABLE, Unread, runs_by_begin
from lakegc_assets.estate.run_outcome import outcome_of
from lakegc_assets.estate.run_state import RunManifests, run_state
from lakegc_assets.estate.run_state import sweep_command as command_of
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.mark.adoption import require_adoptable
from lakegc_assets.recovery.restore.selection import known_ref
from lakegc_assets.run.context import known_repository

_THREADS = 8


def outcome(repository: str, run: str) -> dict[str, Any]:
    """The findings and the outcome of a run, as JSON values."""
    return outcome_of(Site.defined().attempt(repository, run))


def sweep_command(repository: str, run: str) -> str:
    """The command that sweeps a published mark."""
    return command_of(Site.defined().attempt(repository, run))


def address_at(repository: str, ref: str, path: str) -> str:
    """The full address of the object that lakeFS shows at a path of a branch, tag or commit."""
    partition_key(repository, "any")
    client = Site.defined().lakefs.connect()
    known_repository(client, repository)
    try:
        found = client.stat(repository, known_ref(client, repository, ref), path)
    except NotFoundError as error:
        raise RefusedError(
            f"lakeFS shows nothing at {path!r} of {ref!r}. What is not there any more a commit may "
            "have had: give its id in place of the branch"
        ) from error
    return found.physical_address


def adoptable(repository: str, run: str, mark_id: str) -> None:
    """Refuse a mark of lakeFS's collector that no run can be made of, before anything is started.

    Raises as ``require_adoptable``.
    """
    partition_key(repository, run)
    site = Site.defined()
    require_adoptable(site.store(repository), site.root, repository, run, mark_id)


def known_runs() -> list[dict[str, Any]]:
    """The repositories of the server with their namespaces and the runs in the artifacts."""
    site = Site.defined()
    found = list(site.lakefs.connect().repositories())

    def look(repository: Repository) -> dict[str, Any]:
        guards = read_guards(repository.storage_namespace, site.stores)
        return {
            "repository": repository.id,
            "storage_namespace": repository.storage_namespace,
            "read_only": repository.read_only,
            "on_hold": guards.hold is not None,
            "runs": [_described(one, guards) for one in runs_by_begin(site.root, repository.id)],
        }

    return thread_map(look, found, _THREADS)


def last_marked(repository: str) -> str | None:
    """The run whose mark was begun last of those that finished one; None where none did."""
    partition_key(repository, "any")
    runs = reversed(runs_by_begin(Site.defined().root, repository))
    marked = (one for one in runs if isinstance(one, RunManifests) and one.report is not None)
    return next((one.attempt.run for one in marked), None)


def _described(one: RunManifests | Unread, guards: Guards) -> dict[str, str]:
    """The state of a run; unreadable, with the reason, where it is unknown."""
    if isinstance(one, Unread):
        return _unreadable(one.run, one.error)
    try:
        found = run_state(one, guards)
    except LakegcError as error:
        return _unreadable(one.attempt.run, error)
    shown = {"state": found.state, "summary": found.summary, "because": found.because}
    return {"run": one.attempt.run, **shown}


def _unreadable(run: str, error: Exception) -> dict[str, str]:
    return {"run": run, "state": UNREADABLE, "summary": UNREADABLE, "because": str(error)}
