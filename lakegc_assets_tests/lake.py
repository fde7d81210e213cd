"""A small repository on the embedded lakeFS, marked once, so that each test can sweep a copy."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from lakegc_assets.checks.invariants import check_candidates
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.app import make_app
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.objects import objects
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.mark.candidates import find_candidates
from lakegc_assets.mark.commits import find_active_commits
from lakegc_assets.mark.committed_addresses import read_committed_addresses
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.report import report
from lakegc_assets.mark.uncommitted_snapshot import snapshot_uncommitted
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.sessions import Session

REPOSITORY = "repo"
RUN = "mark-1"
SECRET_KEY = "test-secret-key"
STAGES = (
    list_store,
    snapshot_uncommitted,
    find_active_commits,
    read_committed_addresses,
    find_candidates,
    check_candidates,
    report,
)
SETTINGS = Settings(
    min_age_hours=1 / 3600,
    allow_unsafe_min_age=True,
    max_candidate_share=0.9,
    listing_num_partitions=1,
    range_num_partitions=1,
    address_num_partitions=1,
    sweep_num_partitions=1,
)
_DAY = 86_400


@dataclass
class Calendar:
    """The server's clock: some days before now, which may be any moment that a test chooses."""

    days_ago: float = 0
    now: Callable[[], float] = time.time

    def __call__(self) -> float:
        return self.now() - self.days_ago * _DAY


def _unseen(_method: str, _path: str) -> None:
    """Nobody looks at requests."""


@dataclass
class _Watched:
    """An application that shows every request to its lake before it is answered."""

    app: ASGIApp
    lakes: Sequence[SmallLake]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for lake in self.lakes:
                if lake.on_request is not _unseen:
                    await run_in_threadpool(lake.on_request, scope["method"], scope["path"])
        await self.app(scope, receive, send)


@dataclass
class SmallLake:
    """One server with one repository, and the artifacts of its runs beside it.

    Attributes:
        folder: of everything.
        server: the embedded lakeFS.
        calendar: its clock.
        on_request: called with method and path before each request is answered.
    """

    folder: Path
    server: EmbeddedLakeFS
    calendar: Calendar
    on_request: Callable[[str, str], None] = _unseen

    def __post_init__(self) -> None:
        self.client = self.config.connect_writer()

    @property
    def config(self) -> LakeFSConfig:
        return LakeFSConfig(
            endpoint=self.server.endpoint,
            credentials_file=str(self.folder / "lakectl.yaml"),
            first_backoff_s=0.01,
            read_timeout_s=60,
        )

    @property
    def objects(self) -> Path:
        """Where the repository's namespace is on disk."""
        return self.server.objects_dir / REPOSITORY

    @property
    def root(self) -> ArtifactRoot:
        return ArtifactRoot(str(self.folder / "artifacts"), self.server.store_config)

    @property
    def store(self) -> ObjectStore:
        """Rooted at the repository's namespace."""
        return open_store(f"local://{REPOSITORY}", self.server.store_config)

    def contents(self, addresses: Iterable[str]) -> dict[str, bytes]:
        """Some objects, as they are on disk."""
        return {address: (self.objects / address).read_bytes() for address in addresses}

    def write(self, address: str, content: bytes) -> None:
        """Write an object by other means than lakeFS's, or another one over it."""
        path = self.objects / address
        path.parent.mkdir(parents=True, exist_ok=True)
        # Other copies of the lake have the same file under another name.
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    def keys(self) -> set[str]:
        """What the store holds, but for lakeFS's own files."""
        # Folders may go while they are walked: a store removes those that became empty.
        walked = os.walk(self.objects, onerror=lambda _: None)
        found = (Path(folder, name) for folder, _, names in walked for name in names)
        keys = {path.relative_to(self.objects).as_posix() for path in found}
        return {key for key in keys if not key.startswith("_lakefs/")}

    def context(self, spark: Session, run: str = RUN, **settings: object) -> RunContext:
        return RunContext(
            repository=REPOSITORY,
            run=run,
            settings=SETTINGS.changed(**settings),
            lakefs=self.config,
            root=self.root,
            session=spark,
        )

    def upload(self, branch: str, path: str, content: str) -> str:
        """Stage an object; its address."""
        found = self.client.upload_object(REPOSITORY, branch, path, content.encode())
        return found.physical_address.removeprefix(f"local://{REPOSITORY}/")

    def commit(self, branch: str, message: str = "a commit") -> str:
        return self.client.commit_branch(REPOSITORY, branch, message, allow_empty=True).id

    def head(self, branch: str) -> str:
        return {b.id: b.commit_id for b in self.client.branches(REPOSITORY)}[branch]

    def stage(self, branch: str, path: str, address: str, size: int = 1) -> None:
        """Stage an object that lies in the namespace already, as today's lakeFS lets clients do."""
        entry = Entry(address=address, size=size, e_tag="0" * 32, content_type="text/plain")
        objects.stage_entry(self.server.lake, REPOSITORY, branch, path, entry)

    def rules(self, default: int, **branches: int) -> None:
        self.client.set_gc_rules(REPOSITORY, default, branches)


@dataclass(frozen=True)
class Marked:
    """A lake that was marked, as a folder to copy.

    Attributes:
        folder: of the lake; no server runs on it.
        groups: addresses of candidates by what made them so.
        commits: ids by name.
        live: what the store held besides the candidates.
    """

    folder: Path
    groups: Mapping[str, frozenset[str]]
    commits: Mapping[str, str]
    live: frozenset[str]

    @property
    def candidates(self) -> frozenset[str]:
        return frozenset().union(*self.groups.values())


@contextmanager
def running(folder: Path, calendar: Calendar | None = None, **settings: Any) -> Iterator[SmallLake]:
    """Run the lake of a folder, with fields of ``ServerSettings``."""
    calendar = calendar or Calendar()
    settings = {"range_raggedness": 3, **settings}
    lakes: list[SmallLake] = []

    def watched(parts: Lake) -> _Watched:
        return _Watched(make_app(parts), lakes)

    (folder / "lakefs").mkdir(parents=True, exist_ok=True)
    with mock.patch("lakegc_assets.embedded.server.make_app", watched):
        server = EmbeddedLakeFS(
            folder / "lakefs", clock=calendar, secret_key=SECRET_KEY, **settings
        )
        server.__enter__()
    try:
        credentials = folder / "lakectl.yaml"
        credentials.write_text(
            f"credentials:\n  access_key_id: {server.access_key}\n"
            f"  secret_access_key: {SECRET_KEY}\n"
        )
        credentials.chmod(0o600)
        lake = SmallLake(folder, server, calendar)
        lakes.append(lake)
        yield lake
    finally:
        server.__exit__(None, None, None)


def copy_of(marked: Marked, folder: Path) -> Path:
    """A copy of a marked lake; objects must be replaced in it, not written in place."""
    return copy_lake(marked.folder, folder / "lake")


def copy_lake(lake: Path, target: Path) -> Path:
    """A copy of a lake's folder; objects must be replaced in it, not written in place.

    An object's etag tells which file it is, so the objects are the same files under other names.
    """
    namespace = lake / "lakefs" / "objects" / REPOSITORY

    def copy(source: str, target: str) -> None:
        if Path(source).is_relative_to(namespace):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    return shutil.copytree(lake, target, copy_function=copy)


def mark(ctx: RunContext, stages: Sequence[Callable[[RunContext], object]] = STAGES) -> RunContext:
    """Run the stages of a mark, or some of them."""
    for stage in stages:
        stage(ctx)
    return ctx


def candidates(ctx: RunContext) -> set[str]:
    """The addresses that a mark names."""
    found = ctx.root.attempt(ctx.repository, ctx.run).read("deletion_candidates")
    return set(found["address"].to_pylist())


def make_marked(folder: Path, spark: Session) -> Marked:
    """Tell a short history with every kind of candidate, and mark it.

    Rules: main 10 days, all others 20. ``replaced`` and ``removed`` are held by old commits of
    main, ``given up`` by a commit of a deleted branch, ``orphans`` by nothing.
    """
    with running(folder) as lake:
        groups, commits = tell_history(lake)
        mark(lake.context(spark))
        live = lake.keys() - set().union(*groups.values())
    return Marked(folder, groups, commits, frozenset(live))


def tell_history(lake: SmallLake) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    """Make a repository with a history: candidates by what made them so, and commits by name."""
    client, on = lake.client, lake.calendar
    commits: dict[str, str] = {}
    client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
    lake.rules(20, main=10)
    on.days_ago = 100
    replaced = {lake.upload("main", f"a/{n}", f"first a {n}") for n in range(4)}
    kept = [lake.upload("main", f"keep/{n}", f"kept {n} and kept") for n in range(3)]
    commits["first"] = lake.commit("main")
    on.days_ago = 90
    removed = {lake.upload("main", f"r/{n}", f"to be removed {n}") for n in range(3)}
    second = {lake.upload("main", f"a/{n}", f"second of a {n}") for n in range(4)}
    commits["second"] = lake.commit("main")
    client.create_branch(REPOSITORY, "given-up", "main")
    given_up = {lake.upload("given-up", f"try/{n}", f"given up, {n} of 3") for n in range(3)}
    commits["given up"] = lake.commit("given-up")
    on.days_ago = 80
    client.delete_branch(REPOSITORY, "given-up")
    for n in range(3):
        client.delete_object(REPOSITORY, "main", f"r/{n}")
    commits["removal"] = lake.commit("main")
    on.days_ago = 70
    for n in range(4):
        lake.upload("main", f"a/{n}", f"the third and last of a {n}")
    lake.commit("main")
    client.create_branch(REPOSITORY, "dev", "main")
    client.create_branch(REPOSITORY, "busy", "main")
    on.days_ago = 30
    orphans = {lake.upload("dev", f"s/{n}", f"never committed {n}") for n in range(4)}
    for n in range(4):
        lake.upload("dev", f"s/{n}", f"staged at last, {n} of 4")
    on.days_ago = 0
    assert len(kept) == 3
    return {
        "replaced": frozenset(replaced),
        "second": frozenset(second),
        "removed": frozenset(removed),
        "given up": frozenset(given_up),
        "orphans": frozenset(orphans),
    }, commits
