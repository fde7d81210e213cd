"""Background tasks with a recorded owner, so that the tasks of a dead process end as failed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Repository

_INTERRUPTED = "the server that did this was stopped; start the task again"


def start(
    lake: Lake,
    repository: str,
    prefix: str,
    check: Callable[[sqlite3.Connection, Repository], object] = lambda *_: None,
    *,
    force: bool = False,
) -> str:
    """Record a task that this process will do in the background; its id.

    The prefix of the id shows the kind of the task. ``check`` checks first, in the same
    transaction, whether the task is possible.

    Raises:
        ApiError: 404 when there is no such repository, 403 for a read-only one unless ``force``.
    """
    with lake.writing(repository, force=force) as (db, repo):
        check(db, repo)
        task = prefix + lake.xids.new(lake.now())
        db.execute(
            "INSERT INTO prepare_tasks VALUES (?, ?, ?, ?, NULL)",
            (task, repo.id, lake.owner.name, _rfc3339(lake.now())),
        )
    return task


def run(lake: Lake, task: str, work: Callable[[], object]) -> None:
    """Do a recorded task's work, and record its result or its error."""
    try:
        outcome: dict[str, object] = {"result": work()}
    except Exception as error:  # noqa: BLE001 - whatever it was, whoever asks for the task must know
        outcome = failed(str(error) or type(error).__name__)
    with lake.state.write() as db:
        finish(lake, db, task, outcome)


def failed(message: str) -> dict[str, object]:
    """The state of a task that ended without a result."""
    return {"error": {"message": message}}


def finish(lake: Lake, db: sqlite3.Connection, task: str, outcome: Mapping[str, object]) -> None:
    """Record the end of a task, unless it was cancelled before."""
    db.execute(
        "UPDATE prepare_tasks SET outcome = ?, updated = ? WHERE id = ? AND outcome IS NULL",
        (json.dumps(outcome), _rfc3339(lake.now()), task),
    )


def end_interrupted(lake: Lake) -> None:
    """End the tasks of dead processes as failed."""
    with lake.state.write() as db:
        query = "SELECT id, owner FROM prepare_tasks WHERE outcome IS NULL"
        for task, name in db.execute(query).fetchall():
            if not lake.owner.is_alive(name):
                finish(lake, db, task, failed(_INTERRUPTED))


def status(lake: Lake, repository: str, task: str) -> dict[str, Any]:
    """The state of a task, as the API reports it; 404 for an unknown one."""

    def known() -> dict[str, Any]:
        with lake.state.read() as db:
            return recorded(db, catalog.repository(db, repository), task)

    found = known()
    if not found["completed"]:
        end_interrupted(lake)
        found = known()
    return found


def recorded(db: sqlite3.Connection, repo: Repository, task: str) -> dict[str, Any]:
    """The recorded state of a task; 404 for an unknown one."""
    row = db.execute(
        "SELECT updated, outcome FROM prepare_tasks WHERE id = ? AND repository = ?",
        (task, repo.id),
    ).fetchone()
    if row is None:
        raise errors.ApiError(404, "not found")
    updated, outcome = row
    known = {"task_id": task, "completed": outcome is not None, "update_time": updated}
    return {**known, **json.loads(outcome)} if outcome else known


def _rfc3339(seconds: float) -> str:
    """Epoch seconds in the form of answers."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
