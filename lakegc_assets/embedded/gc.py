"""The server's part of garbage collection: rules, and the lists that it prepares for a collector.

``prepare_uncommited`` lists all staged entries, page by page. A page is one consistent view of the
state, and one Parquet file. Pages go through the branches by name and through each branch by path;
shallow copies are last (see ``copies``). So an entry that is staged when a run begins is on one of
its pages, unless it is committed, deleted or reset meanwhile. Changes of one branch do not remove
rows of another.
"""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from random import shuffle
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Branch, Repository
from lakegc_assets.embedded.objects import copies
from lakegc_assets.graveler.entry import (
    AddressType,
    decode_entry,
    decode_place,
    entry_identity,
)
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.retention.active_commits import SECONDS_A_DAY, active_commits
from lakegc_assets.retention.commits import Commit, dangling_commits
from lakegc_assets.retention.rules import Rules, RulesError

GC_FOLDER = "_lakefs/retention/gc"
TASK_PREFIX = "GCPC"
_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("creation_date", pa.int64(), nullable=False),
    ]
)
# Number of rows in memory, which are one row group.
GROUP_ROWS = 50_000
BATCH_ROWS = 1000
# No branch can have this name, and every branch name sorts before it.
_BEHIND_BRANCHES = "\U0010ffff"


def rules(lake: Lake, repository: str) -> dict[str, Any]:
    """The rules as the API returns them; 404 without rules."""
    repo = lake.repository(repository)
    if repo.rules is None:
        raise errors.ApiError(404, "not found")
    found: dict[str, Any] = json.loads(repo.rules)
    return found


def set_rules(lake: Lake, repository: str, days: int, branches: dict[str, int]) -> None:
    """Replace the rules.

    As in lakeFS, a default of 0 without branches means no rules, and an empty list of branches is
    read as null.
    """
    text = None
    if days or branches:
        listed = [{"branch_id": b, "retention_days": d} for b, d in branches.items()]
        text = json.dumps({"default_retention_days": days, "branches": listed or None})
    with lake.writing(repository) as (db, repo):
        db.execute("UPDATE repositories SET rules = ? WHERE id = ?", (text, repo.id))


def prepare_commits(lake: Lake, repository: str) -> dict[str, str]:
    """Write the list of active commits, and return its location as the API does.

    The list is written as one object with a new name, so it is complete or does not exist.

    Raises:
        ApiError: 404 without rules, 403 for a read-only repository, 400 for rules that cannot be
            followed.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        commits = {
            c.id: Commit(c.id, c.parents, c.creation_date, c.metarange_id)
            for c in catalog.all_commits(db, repo)
        }
        heads = {b.name: b.commit_id for b in catalog.branches(db, repo)}
    now = datetime.fromtimestamp(lake.now(), tz=timezone.utc)
    active = list(_active(lake, commits, heads, _parsed_rules(repo), now))
    # Today's servers list them in the order of a Go map, which is random.
    shuffle(active)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("commit_id", "expired", "metarange_id"))
    writer.writerows((name, "false", commits[name].metarange_id) for name in active)
    run_id = lake.xids.new_slice(lake.now())
    path = f"{GC_FOLDER}/commits/run_id={run_id}/commits.csv"
    lake.stores.open(repo.namespace).put(path, text.getvalue().encode())
    answer = {
        "run_id": run_id,
        "gc_commits_location": repo.address(path),
        "gc_addresses_location": repo.address(f"{GC_FOLDER}/addresses/"),
    }
    if lake.stores.can_presign:
        url = lake.stores.presigned_url("get_object", repo.namespace, path)
        answer["gc_commits_presigned_url"] = url.url
    return answer


def _parsed_rules(repo: Repository) -> Rules:
    if repo.rules is None:
        raise errors.ApiError(404, "get gc rules: not found")
    try:
        return Rules.parse(json.loads(repo.rules))
    except (RulesError, ValueError) as error:
        raise errors.bad_request(f"get gc rules: {error}; set the rules again") from None


def _active(
    lake: Lake,
    commits: Mapping[str, Commit],
    heads: Mapping[str, str],
    parsed: Rules,
    now: datetime,
) -> Iterable[str]:
    if Fault.ORDER_DEPENDENT_WALK in lake.settings.faults:
        return order_dependent_walk(commits, heads, parsed, now)
    return active_commits(commits, heads, parsed, now).active


def order_dependent_walk(
    commits: Mapping[str, Commit], heads: Mapping[str, str], rules: Rules, now: datetime
) -> Iterable[str]:
    """The commits that lakeFS calls active.

    It walks from HEADs and dangling commits in the order of their ids. A walk ends at a parent that
    an earlier walk with the same or a longer retention has visited. It ends there before it checks
    whether the child is young enough to keep that parent. Commits are by id, heads by branch.
    """
    active: set[str] = set()
    thresholds: dict[str, float] = {}
    for commit_id, branch in _starts(commits, heads):
        days = rules.default_retention_days if branch is None else rules.days(branch)
        threshold = now.timestamp() - days * SECONDS_A_DAY
        created, parent = commits[commit_id].creation_date, commits[commit_id].main_parent
        if branch is None:
            # lakeFS treats the commit as if it had a child of its own age.
            parent = commit_id
        else:
            active.add(commit_id)
            thresholds[commit_id] = threshold
        while parent is not None and thresholds.get(parent, math.inf) > threshold:
            if created > threshold:
                active.add(parent)
            thresholds[parent] = threshold
            created, parent = commits[parent].creation_date, commits[parent].main_parent
    return active


def _starts(
    commits: Mapping[str, Commit], heads: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Each commit where a walk starts, with the branch that has it as HEAD; None if dangling."""
    branches = [(head, branch) for branch, head in heads.items()]
    dangling = [(commit_id, "") for commit_id in dangling_commits(commits, heads)]
    for commit_id, branch in sorted(branches + dangling):
        yield commit_id, branch or None


class _Place(NamedTuple):
    """The start of a page: a path of a branch or, after all branches, the address of a copy."""

    branch: str = ""
    path: str = ""
    key: str = ""


class _Begun(NamedTuple):
    """An unfinished run: its location, its id, and the namespace of its repository."""

    place: _Place
    run_id: str
    namespace: str


def prepare_uncommitted(lake: Lake, repository: str, token: str) -> dict[str, str]:
    """Write one page of the staged addresses of all branches; return its location as the API does.

    A page without rows has no location, unless the run has written files before. Then it has the
    location of these files and of one file without rows, so that a client finds all files with the
    last answer alone. The token is that of the page before, or empty for a new run.

    Raises:
        ApiError: 400 for a token that is invalid, too old, or of another repository; 403 for a
            read-only repository.
    """
    begun = _parse(lake, token) if token else None
    start, run_id = begun[:2] if begun else (_Place(), lake.xids.new_slice(lake.now()))
    if not token:
        with lake.state.write() as db:
            copies.purge(lake, db)
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        if begun and begun.namespace != repo.namespace:
            raise errors.bad_request(
                f"continuation token of {begun.namespace}: begin again without a token"
            )
        page = _Page(lake, db, repo)
        following = page.fill(start)
    if Fault.PAGES_WITHOUT_LOCATION in lake.settings.faults and page.file.rows:
        following = following or _Place(_BEHIND_BRANCHES, "", _BEHIND_BRANCHES)
    folder = f"{GC_FOLDER}/uncommitted/{run_id}/uncommitted/"
    store = lake.stores.open(repo.namespace)
    has_location = page.file.rows > 0 or (
        token != ""
        and Fault.PAGES_WITHOUT_LOCATION not in lake.settings.faults
        and next(iter(store.list(folder)), None) is not None
    )
    if has_location:
        store.put(folder + lake.xids.new(lake.now()), page.file.finish())
    answer = {
        "run_id": run_id,
        "gc_uncommitted_location": repo.address(folder) if has_location else "",
    }
    if following:
        answer["continuation_token"] = _token(_Begun(following, run_id, repo.namespace))
    return answer


def _parse(lake: Lake, token: str) -> _Begun:
    try:
        found = json.loads(base64.b64decode(token, validate=True))
        place = _Place(*(str(found[name]) for name in _Place._fields))
        begun = _Begun(place, str(found["run_id"]), str(found["namespace"]))
        started = slice_time(begun.run_id)
    except (binascii.Error, ValueError, KeyError, TypeError):
        started = None
    if started is None:
        raise errors.bad_request("invalid continuation token")
    if abs(lake.now() - started.timestamp()) > copies.longest_scan(lake):
        raise errors.bad_request(
            f"continuation token of run {begun.run_id} has expired: begin again without a token"
        )
    return begun


def _token(begun: _Begun) -> str:
    place = begun.place._asdict()
    fields = {**place, "run_id": begun.run_id, "namespace": begun.namespace}
    return base64.b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()


class _File:
    """A Parquet file that need not be in memory at once.

    Attributes:
        rows: their number.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._addresses: list[str] = []
        self._dates: list[int] = []
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            _SCHEMA,
            compression="gzip",
            compression_level=1,
            use_dictionary=["creation_date"],
        )

    def add(self, address: str, date: int) -> None:
        """Append a row."""
        self._addresses.append(address)
        self._dates.append(date)
        self.rows += 1
        if len(self._addresses) == GROUP_ROWS:
            self._flush()

    @property
    def size(self) -> int:
        """Bytes written until now."""
        return self._sink.tell()

    def finish(self) -> bytes:
        """The whole file."""
        self._flush()
        self._writer.close()
        return self._sink.getvalue()

    def _flush(self) -> None:
        if self._addresses:
            columns = [pa.array(self._addresses, pa.string()), pa.array(self._dates, pa.int64())]
            self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
            self._addresses, self._dates = [], []


@dataclass
class _Page:
    """One page in the making: it ends at a limit of steps, seconds or file size."""

    lake: Lake
    db: sqlite3.Connection
    repo: Repository
    file: _File = field(default_factory=_File)
    steps: int = 0

    def __post_init__(self) -> None:
        self._deadline = self.lake.now() + self.lake.settings.uncommitted_page_seconds

    def fill(self, start: _Place) -> _Place | None:
        """Add rows from a place on; the start of the next page, or None at the end."""
        for branch in catalog.branches(self.db, self.repo):
            if branch.name < start.branch:
                continue
            path = start.path if branch.name == start.branch else ""
            if (stopped := self._scan(branch, path)) is not None:
                return _Place(branch.name, stopped)
        return self._read_copies(start.key if start.branch == _BEHIND_BRANCHES else "")

    def _scan(self, branch: Branch, path: str) -> str | None:
        """Add a branch's entries from a path on; the path where the next page starts, or None."""
        self.lake.settings.at_scan_step(branch.name)
        if not path:
            if self._is_over():
                return ""
            self.steps += 1
        if Fault.ROWS_LOST_ON_BRANCH_DELETE in self._faults and self._is_gone(branch):
            self.file = _File()
            return None
        limit = self._half(branch, path) if Fault.SCAN_ENDS_EARLY in self._faults else -1
        found = self.db.execute(
            "SELECT key, value FROM staged WHERE branch = ? AND key >= ? ORDER BY key LIMIT ?",
            (branch.uid, path.encode(), limit),
        )
        while rows := found.fetchmany(self._batch_rows()):
            self.lake.settings.at_scan_step(branch.name)
            if self._is_over():
                return str(rows[0][0], "utf-8")
            self.steps += len(rows)
            if Fault.SHADOWED_UPLOADS in self._faults:
                rows = [row for row in rows if not self._is_shadowed(branch, *row)]
            self._take(rows)
        return None

    def _read_copies(self, address: str) -> _Place | None:
        found = copies.tracked(self.db, self.repo, address)
        while rows := found.fetchmany(self._batch_rows()):
            if self._is_over():
                return _Place(_BEHIND_BRANCHES, "", rows[0][0])
            self.steps += len(rows)
            for row in rows:
                self.file.add(*row)
        return None

    def _take(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        for _, value in rows:
            if value is None:
                continue
            address, kind, created = decode_place(value)
            if kind == AddressType.RELATIVE:
                self.file.add(address, created)
            else:
                for inside in copies.inside_addresses(self.lake, self.repo, address, kind):
                    self.file.add(inside, created)

    def _is_over(self) -> bool:
        """Return whether the page is full; a page has at least one step."""
        settings = self.lake.settings
        return self.steps > 0 and (
            self.steps == settings.uncommitted_page_steps
            or self.file.size >= settings.uncommitted_file_bytes
            or self.lake.now() >= self._deadline
        )

    def _batch_rows(self) -> int:
        limit = self.lake.settings.uncommitted_page_steps
        # At the limit of steps, one more row is read: it is the start of the next page.
        return BATCH_ROWS if limit is None else max(1, min(BATCH_ROWS, limit - self.steps))

    @property
    def _faults(self) -> frozenset[Fault]:
        return self.lake.settings.faults

    def _is_gone(self, branch: Branch) -> bool:
        with self.lake.state.read() as db:
            now = catalog.find_branch(db, self.repo, branch.name)
        return now is None or now.uid != branch.uid

    def _half(self, branch: Branch, path: str) -> int:
        """The number of entries in the first half of the branch's staged entries from a path on."""
        count = "SELECT COUNT(*) FROM staged WHERE branch = ? AND key >= ?"
        (whole,) = self.db.execute(count, (branch.uid, b"")).fetchone()
        (left,) = self.db.execute(count, (branch.uid, path.encode())).fetchone()
        return int(max(0, whole // 2 - (whole - left)))

    def _is_shadowed(self, branch: Branch, key: bytes, value: bytes | None) -> bool:
        """Return whether an entry equals HEAD's in everything but its address."""
        head = catalog.commit(self.db, self.repo, branch.commit_id)
        old = self.lake.stores.trees(self.repo).get(head.metarange_id, key)
        return (
            value is not None
            and old is not None
            and old.identity == entry_identity(decode_entry(value))
        )
