"""A server, an artifact root and a Dagster instance, as a user of the command has them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakegc_assets.embedded.server import EmbeddedLakeFS
from lakegc_assets.engine.spark_session import LOCAL
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets_tests.lake import Calendar
from lakegc_assets_tests.sessions import LAKECTL_OF_TASKS, SMALL, Session

_DAY = 86_400


@dataclass(frozen=True)
class Completed:
    """Addresses of a repository, by what a mark should say about them."""

    expired: str
    unreferenced: str
    live: str
    staged: str
    young: str
    spared: str


@dataclass
class Site:
    """One embedded lakeFS, with all that the command needs beside it."""

    folder: Path
    server: EmbeddedLakeFS
    calendar: Calendar
    repositories: dict[str, Completed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = LakeFSConfig().connect_writer()

    @property
    def root(self) -> ArtifactRoot:
        return ArtifactRoot(str(self.folder / "artifacts"), self.server.store_config)

    def namespace(self, repository: str) -> Path:
        return self.server.objects_dir / repository

    def published(self, repository: str) -> list[str]:
        """Files of marks in the namespace."""
        marks = self.namespace(repository) / "_lakefs/retention/gc/unified"
        return sorted(str(p.relative_to(marks)) for p in marks.rglob("*") if p.is_file())

    def upload(self, repository: str, path: str, content: str) -> str:
        """Stage an object on main; its address."""
        found = self.client.upload_object(repository, "main", path, content.encode())
        return found.physical_address.rpartition(f"/{repository}/")[2]

    def tell(self, repository: str) -> Completed:
        """Make a repository with one object of every kind."""
        client, on = self.client, self.calendar
        on.days_ago = 100
        client.create_repository(repository, f"local://{repository}")
        client.set_gc_rules(repository, 20, {})
        expired = self.upload(repository, "a", "the first a")
        self.upload(repository, "b", "kept for good")
        client.commit_branch(repository, "main", "first")
        on.days_ago = 60
        live = self.upload(repository, "a", "the second and last a")
        client.commit_branch(repository, "main", "second")
        on.days_ago = 30
        unreferenced = self.upload(repository, "c", "staged, and staged again")
        staged = self.upload(repository, "c", "staged and never committed")
        on.days_ago = 0
        young = self.upload(repository, "d", "thought better of at once")
        client.delete_object(repository, "main", "d")
        spared = f"{unreferenced}\nby hand"
        odd = self.namespace(repository) / spared
        odd.write_text("put here by hand")
        os.utime(odd, (time.time() - 25 * _DAY,) * 2)
        told = Completed(expired, unreferenced, live, staged, young, spared)
        self.repositories[repository] = told
        return told


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Start a server, and let the environment point at it."""
    calendar = Calendar()
    with (
        EmbeddedLakeFS(folder / "lakefs", clock=calendar) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {
            "LAKECTL_SERVER_ENDPOINT_URL": server.endpoint,
            "LAKECTL_CREDENTIALS_ACCESS_KEY_ID": server.access_key,
            "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY": server.secret_key,
            "LAKEGC_LOCAL_ROOT": str(server.objects_dir),
            "LAKEGC_ARTIFACT_ROOT": str(folder / "artifacts"),
            "DAGSTER_HOME": str(folder / "dagster"),
        }.items():
            patch.setenv(name, value)
        # Jobs set the options of their session; those of the tests' session must stay.
        for name, value in SMALL.items():
            patch.setitem(LOCAL, name, value)
        LAKECTL_OF_TASKS.write_text(
            f"server:\n  endpoint_url: {server.endpoint}\n"
            f"credentials:\n  access_key_id: {server.access_key}\n"
            f"  secret_access_key: {server.secret_key}\n"
        )
        yield Site(folder, server, calendar)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: Session) -> Iterator[Site]:  # noqa: ARG001 - its tasks must not outlive it
    with serving(tmp_path_factory.mktemp("site")) as found:
        yield found
