"""The server's half of garbage collection: rules, active commits, and the uncommitted list."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from random import shuffle
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.embedded import catalog, errors, staging
from lakegc_assets.embedded.catalog import Branch, Repository
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.graveler.entry import AddressType, Entry, decode_entry
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.retention.active_commits import active_commits
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.rules import Rules, RulesError

_GC = "_lakefs/retention/gc"
_TASK_PREFIX = "GCPC"
_UNCOMMITTED_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("creation_date", pa.int64(), nullable=False),
    ]
)


def rules(lake: Lake, repository: str) -> dict[str, Any]:
    """The rules as the API tells them; 404 when there are none."""
    with lake.state.read() as db:
        repo = catalog.repository(db, repository)
    if repo.rules is None:
        raise errors.ApiError(404, "not found")
    found: dict[str, Any] = json.loads(repo.rules)
    return found


def set_rules(lake: Lake, repository: str, days: int, branches: dict[str, int]) -> None:
    """Replace the rules.

    As with lakeFS, a default of 0 with no branches means no rules, and no branches read as null.
    """
    text = None
    if days or branches:
        listed = [{"branch_id": b, "retention_days": d} for b, d in branches.items()]
        text = json.dumps({"default_retention_days": days, "branches": listed or None})
    with lake.state.write() as db:
        repo = catalog.writable_repository(db, repository)
        db.execute("UPDATE repositories SET rules = ? WHERE id = ?", (text, repo.id))


def prepare_commits(lake: Lake, repository: str) -> dict[str, str]:
    """Write the list of active commits; where it is, as the API tells it.

    Raises:
        ApiError: 404 without rules, 403 for a read-only repository.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        commits = {
            c.id: Commit(c.id, c.parents, c.creation_date, c.metarange_id)
            for c in catalog.all_commits(db, repo)
        }
        heads = {b.name: b.commit_id for b in catalog.branches(db, repo)}
    if repo.rules is None:
        raise errors.ApiError(404, "get gc rules: not found")
    try:
        parsed = Rules.parse(json.loads(repo.rules))
    except RulesError as error:
        raise errors.bad_request(f"get gc rules: {error}") from None
    now = datetime.fromtimestamp(lake.now(), tz=timezone.utc)
    active = list(active_commits(commits, heads, parsed, now).active)
    # Today's servers list them in the order of a Go map, which is none.
    shuffle(active)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("commit_id", "expired", "metarange_id"))
    writer.writerows((name, "false", commits[name].metarange_id) for name in active)
    run_id = lake.xids.new_slice(lake.now())
    path = f"{_GC}/commits/run_id={run_id}/commits.csv"
    lake.stores.open(repo.namespace).put(path, text.getvalue().encode())
    return {
        "run_id": run_id,
        "gc_commits_location": repo.address(path),
        "gc_addresses_location": repo.address(f"{_GC}/addresses/"),
    }


def start_task(lake: Lake, repository: str) -> str:
    """Record a task of preparing commits; its id."""
    with lake.state.write() as db:
        repo = catalog.writable_repository(db, repository)
        task = _TASK_PREFIX + lake.xids.new(lake.now())
        db.execute(
            "INSERT INTO tasks VALUES (?, ?, ?, NULL)", (task, repo.id, _rfc3339(lake.now()))
        )
    return task


def run_task(lake: Lake, repository: str, task: str) -> None:
    """Do a recorded task, and record its result or its error."""
    outcome: dict[str, object]
    try:
        outcome = {"result": prepare_commits(lake, repository)}
    except errors.ApiError as error:
        outcome = {"error": {"message": error.message}}
    except Exception as error:  # noqa: BLE001 - whatever it was, whoever asks for the task must know
        outcome = {"error": {"message": str(error)}}
    with lake.state.write() as db:
        db.execute(
            "UPDATE tasks SET outcome = ?, updated = ? WHERE id = ?",
            (json.dumps(outcome), _rfc3339(lake.now()), task),
        )


def end_interrupted_tasks(lake: Lake) -> None:
    """Tell of the tasks that an earlier process did not finish that they failed."""
    outcome = json.dumps({"error": {"message": "the server was stopped; start the task again"}})
    with lake.state.write() as db:
        db.execute("UPDATE tasks SET outcome = ? WHERE outcome IS NULL", (outcome,))


def task_status(lake: Lake, repository: str, task: str) -> dict[str, Any]:
    """What is known of a task; 404 for an unknown one."""
    with lake.state.read() as db:
        repo = catalog.repository(db, repository)
        row = db.execute(
            "SELECT updated, outcome FROM tasks WHERE id = ? AND repository = ?", (task, repo.id)
        ).fetchone()
    if row is None:
        raise errors.ApiError(404, "not found")
    status = {"task_id": task, "completed": row[1] is not None, "update_time": row[0]}
    return {**status, **json.loads(row[1])} if row[1] else status


@dataclass(frozen=True)
class _Token:
    """Where the next page starts: at ``path`` of ``branch``, which is still to be written."""

    branch: str
    path: str
    run_id: str

    @classmethod
    def parse(cls, text: str) -> _Token:
        try:
            found = json.loads(base64.b64decode(text, validate=True))
            return cls(str(found["branch"]), str(found["path"]), str(found["run_id"]))
        except (binascii.Error, ValueError, KeyError, TypeError):
            raise errors.bad_request("invalid continuation token") from None

    def encode(self) -> str:
        fields = {"branch": self.branch, "path": self.path, "run_id": self.run_id, "key": ""}
        return base64.b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()


def prepare_uncommitted(lake: Lake, repository: str, token: str) -> dict[str, str]:
    """Write one page of the addresses staged on all branches; where it is, as the API tells it.

    Args:
        lake: the server.
        repository: its name.
        token: from the page before, or empty.
    """
    start = _Token.parse(token) if token else None
    found: list[tuple[str, int]] = []
    following: _Token | None = None
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        run_id = start.run_id if start else lake.xids.new_slice(lake.now())
        limit = lake.settings.uncommitted_page_steps
        for step, (branch, key, record) in enumerate(_staged_on_all(db, repo, start)):
            if step == limit:
                following = _Token(branch.name, key.decode(), run_id)
                break
            if record is not None:
                found += _addresses(repo, decode_entry(record.value))
    answer = {"run_id": run_id, "gc_uncommitted_location": ""}
    if following:
        answer["continuation_token"] = following.encode()
    if found:
        folder = f"{_GC}/uncommitted/{run_id}/uncommitted/"
        data = _uncommitted_file(found)
        lake.stores.open(repo.namespace).put(folder + lake.xids.new(lake.now()), data)
        answer["gc_uncommitted_location"] = repo.address(folder)
    return answer


def _staged_on_all(
    db: sqlite3.Connection, repo: Repository, start: _Token | None
) -> Iterator[tuple[Branch, bytes, Record | None]]:
    """Every branch once with an empty key, then what is staged on it; from ``start`` on."""
    for branch in catalog.branches(db, repo):
        first = start.path.encode() if start and start.branch == branch.name else b""
        if start and branch.name < start.branch:
            continue
        if not first:
            yield branch, b"", None
        for key, record in staging.staged_changes(db, branch, first):
            yield branch, key, record


def _addresses(repo: Repository, entry: Entry) -> Iterator[tuple[str, int]]:
    """What an entry keeps alive inside the namespace, with its time."""
    created = entry.last_modified.seconds
    if entry.address_type is AddressType.RELATIVE:
        yield entry.address, created
    else:
        for address in repo.place.relatives(entry.address):
            yield address, created


def _uncommitted_file(found: list[tuple[str, int]]) -> bytes:
    addresses, dates = zip(*found, strict=True)
    sink = io.BytesIO()
    table = pa.table([pa.array(addresses), pa.array(dates)], schema=_UNCOMMITTED_SCHEMA)
    pq.write_table(table, sink, compression="gzip")
    return sink.getvalue()


def _rfc3339(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
