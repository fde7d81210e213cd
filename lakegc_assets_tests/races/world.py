"""A lake at a moment that the tests choose: what was written to it, and what must stay readable."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import ObjectStats
from lakegc_assets.lakefs.transport import parse
from lakegc_assets.retention.commits import Commit
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.lake import REPOSITORY, Calendar, SmallLake, running
from lakegc_assets_tests.sessions import Session

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
NAMESPACE = f"local://{REPOSITORY}/"
_DAY = timedelta(days=1)
_COMMIT = re.compile("[0-9a-f]{64}")


class Standing(Clocks):
    """Clocks that stand still, so that ages are what the tests say."""

    def now(self) -> datetime:
        return NOW

    def of_lakefs(self, client: LakeFSClient) -> datetime:
        return client.server_time()

    def of_store(self, _store: ObjectStore) -> datetime:
        return NOW


@dataclass
class World:
    """A running lake whose clock stands still.

    Attributes:
        lake: the lake.
        contents: what was written, by address relative to the namespace.
        corner: what the names of all branches but ``main`` end with, so that the same can be told
            in several corners of one repository.
    """

    lake: SmallLake
    contents: dict[str, bytes] = field(default_factory=dict)
    corner: str = ""

    def in_corner(self, corner: str) -> World:
        """The same lake, where branches have names of their own."""
        return dataclasses.replace(self, corner=corner)

    @contextmanager
    def days_ago(self, days: float) -> Iterator[None]:
        """Let the server believe that it is some days before now."""
        before, self.lake.calendar.days_ago = self.lake.calendar.days_ago, days
        yield
        self.lake.calendar.days_ago = before

    def on(self, ref: str) -> str:
        """A branch by the name that the lake knows it by; all other refs are what they are."""
        return ref if ref == "main" or _COMMIT.fullmatch(ref) else ref + self.corner

    def upload(self, branch: str, path: str, content: str) -> str:
        """Stage an object; its address."""
        address = self.lake.upload(self.on(branch), path, content)
        self.contents[address] = content.encode()
        return address

    def stage(self, branch: str, path: str, address: str) -> None:
        """Stage what lies at an address already, as a real lakeFS lets its clients do."""
        self.lake.stage(self.on(branch), path, address, len(self.contents[address]))

    def remove(self, branch: str, path: str) -> None:
        """Stage a deletion."""
        self.lake.client.delete_object(REPOSITORY, self.on(branch), path)

    def commit(self, branch: str) -> str:
        """Commit what is staged; the commit's id."""
        return self.lake.commit(self.on(branch))

    def branch(self, name: str, source: str = "main") -> None:
        """Make a branch."""
        self.lake.client.create_branch(REPOSITORY, self.on(name), self.on(source))

    def delete_branch(self, name: str) -> None:
        """Delete a branch, with what is staged on it."""
        self.lake.client.delete_branch(REPOSITORY, self.on(name))

    def reset(self, branch: str) -> None:
        """Drop what is staged."""
        self.lake.client.reset_branch(REPOSITORY, self.on(branch))

    def reset_hard(self, branch: str, commit: str) -> None:
        """Let a branch point at another commit."""
        self._call("PUT", branch, "hard_reset", ref=commit)

    def revert(self, branch: str, commit: str) -> None:
        """Commit the opposite of a commit."""
        self.lake.client.revert(REPOSITORY, self.on(branch), commit)

    def merge(self, source: str, branch: str) -> None:
        """Merge a ref into a branch."""
        self.lake.client.merge(REPOSITORY, self.on(source), self.on(branch))

    def copy(self, branch: str, source: str, target: str) -> str:
        """Copy within a branch as the API does; the address at the target."""
        found = self._call(
            "POST", branch, "objects", "copy", dest_path=target, json={"src_path": source}
        )
        stats = parse(found, ObjectStats)
        address = stats.physical_address.removeprefix(NAMESPACE)
        if address not in self.contents:
            self.contents[address] = self.read(branch, target)
        return address

    def link_address(self, branch: str, path: str, content: str) -> str:
        """Have an address handed out, and write an object there; the address, in full."""
        found = self._call("GET", branch, "staging", "backing", path=path)
        address: str = found.json()["physical_address"]
        relative = address.removeprefix(NAMESPACE)
        self.store.put(relative, content.encode())
        moment = self.lake.calendar()
        os.utime(self.lake.objects / relative, (moment, moment))
        self.contents[relative] = content.encode()
        return address

    def link(self, branch: str, path: str, address: str) -> None:
        """Link what was written to an address that was handed out."""
        content = self.contents[address.removeprefix(NAMESPACE)]
        body = {
            "staging": {"physical_address": address},
            "checksum": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            "size_bytes": len(content),
        }
        self._call("PUT", branch, "staging", "backing", path=path, json=body)

    def stage_by_api(self, branch: str, path: str, address: str, size: int | None = None) -> None:
        """Stage an address of the namespace, which a faultless server refuses."""
        body = {
            "physical_address": NAMESPACE + address,
            "checksum": "0" * 32,
            "size_bytes": len(self.contents[address]) if size is None else size,
        }
        self._call("PUT", branch, "objects", path=path, json=body)

    def post(self, *path: str) -> None:
        """Call what has neither parameters nor a body."""
        self.lake.client.call("POST", "repositories", REPOSITORY, *path)

    def branches(self) -> set[str]:
        """The names of all branches."""
        return {branch.id for branch in self.lake.client.branches(REPOSITORY)}

    @property
    def store(self) -> ObjectStore:
        """The store that holds the repository."""
        return open_store(NAMESPACE, self.lake.server.store_config)

    @property
    def namespace(self) -> StorageNamespace:
        """The repository's."""
        return StorageNamespace.parse(NAMESPACE)

    def set_rule(self, branch: str, days: int) -> None:
        """Give one branch a rule, and leave the others as they are."""
        rules = self.rules()
        branches = {**rules.branches, self.on(branch): days}
        self.lake.client.set_gc_rules(REPOSITORY, rules.default_retention_days, branches)

    def rules(self) -> Rules:
        """The rules as they are."""
        found = self.lake.client.gc_rules(REPOSITORY)
        assert found is not None
        return Rules.parse(found)

    def read(self, ref: str, path: str) -> bytes:
        """What a reader gets."""
        return self.lake.client.get_object(REPOSITORY, self.on(ref), path)

    def live(self) -> dict[str, tuple[str, str]]:
        """A place (ref, path) of every address that must stay readable.

        That is what a branch serves and what a commit inside its retention holds, found without
        the collector: by the server's own state, and the literal reading of the rules.
        """
        with self.lake.server.lake.state.read() as db:
            repository = catalog.repository(db, REPOSITORY)
            commits = {
                c.id: Commit(c.id, c.parents, c.creation_date, c.metarange_id)
                for c in catalog.all_commits(db, repository)
            }
            heads = {b.name: b.commit_id for b in catalog.branches(db, repository)}
        active = naive_active_commits(commits, heads, self.rules(), NOW)
        found: dict[str, tuple[str, str]] = {}
        for ref in (*heads, *active):
            for stats in self.lake.client.objects(REPOSITORY, ref):
                address = stats.physical_address.removeprefix(NAMESPACE)
                # An odd spelling is served, and nothing can be read there.
                if address in self.contents:
                    found.setdefault(address, (ref, stats.path))
        return found

    def context(self, spark: Session, run: str, **settings: Any) -> RunContext:
        """A run with all margins, at the moment at which the clock stands."""
        safe = {"min_age_hours": 24, "allow_unsafe_min_age": False, "max_candidate_share": 1.0}
        found = self.lake.context(spark, run, **{**safe, **settings})
        return dataclasses.replace(found, clocks=Standing())

    def _call(
        self, method: str, branch: str, *path: str, json: object = None, **params: str
    ) -> Any:
        segments = ("repositories", REPOSITORY, "branches", self.on(branch), *path)
        return self.lake.client.call(method, *segments, params=params, json=json)


@contextmanager
def open_world(
    folder: Path, contents: dict[str, bytes] | None = None, **settings: Any
) -> Iterator[World]:
    """Run the lake of a folder at the moment of the tests, with fields of ``ServerSettings``."""
    calendar = Calendar(now=NOW.timestamp)
    with running(folder, calendar, **settings) as lake:
        yield World(lake, dict(contents or {}))
