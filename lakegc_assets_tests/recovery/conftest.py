"""A lake that was marked once, and a running copy of it for each test, with a place for backups."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.engine.datasets import read_parts
from lakegc_assets.recovery import backup_task
from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.backups import Backup, find_backup
from lakegc_assets.recovery.copies import COPIES, scratch_space, verified_copies
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.copies import copy_object
from lakegc_assets.storage.values import Copied
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import (
    REPOSITORY,
    RUN,
    Marked,
    SmallLake,
    copy_lake,
    copy_of,
    mark,
    running,
)
from lakegc_assets_tests.marked import few_tasks, lake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.stand_ins import stand_in

__all__ = ["few_tasks", "lake"]


#: Names as clients may give them; a mark leaves those with a line break alone.
ODD = (
    "data/é/ü ß 漢字 🎉",
    "data/a b/ leading",
    "data/a b/trailing ",
    "data/#;|&?=+%41/x#y;z|w",
    "data/[*]{a,b}/$HOME",
    "data/" + "/".join(["long" * 60] * 2),
    "root level",
)


@dataclass(frozen=True)
class Place:
    """A lake whose marks are backed up.

    Attributes:
        lake: with the mark.
        root: of its artifacts, with all that reaches the stores.
        url: ``backup_url``.
        spark: the session.
    """

    lake: SmallLake
    root: ArtifactRoot
    url: str
    spark: Session

    def context(self, run: str = RUN, **settings: object) -> RunContext:
        """A run with backups."""
        ctx = self.lake.context(self.spark, run, **{"backup_url": self.url, **settings})
        return replace(ctx, root=self.root)

    @property
    def store(self) -> ObjectStore:
        """Rooted at the backup of the mark."""
        return ArtifactRoot(self.url, self.root.stores).open(REPOSITORY, RUN)

    @property
    def found(self) -> Backup:
        """The finished backup of the mark."""
        found = find_backup(self.root.stores, self.url, REPOSITORY, RUN)
        assert found is not None
        return found

    @property
    def outcomes(self) -> pa.Table:
        """The outcome of each object of the mark."""
        return pa.concat_tables(read_parts(self.store, self.found.record.parts))

    @property
    def copied(self) -> pa.Table:
        """Its verified copies."""
        ctx = self.context()
        with scratch_space(ctx.connect()) as space:
            tables = list(space.tables(verified_copies(space, self.found, listed=False)))
        return pa.concat_tables([COPIES.empty_table(), *tables])

    def contents(self) -> dict[str, bytes]:
        """Its copies with their contents, as the store has them."""
        keys = [key for page in self.store.list() for key in page["key"].to_pylist()]
        return {key: self.store.get(key) for key in keys if not key.startswith("_lakegc/")}


def before_copies(patch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Let something happen before a task copies an object, by its key."""

    def copied(source: ObjectStore, key: str, *rest: Any, **more: Any) -> Copied:
        act(key)
        return copy_object(source, key, *rest, **more)

    patch.setattr(backup_task, "copy_object", copied)


@pytest.fixture
def place(lake: SmallLake, spark: Session, tmp_path: Path) -> Place:
    """Backups in a folder of this machine."""
    return Place(lake, lake.root, str(tmp_path / "backups"), spark)


#: For tests of what is decided, which is the same wherever the backups are.
anywhere_the_same = pytest.mark.parametrize("where", ["local"])
#: For tests of which others show more quickly that an S3 server is no different.
on_s3_later = pytest.mark.parametrize(
    "where", ["local", pytest.param("s3", marks=pytest.mark.conformance)]
)


@pytest.fixture(params=["local", "s3"])
def where(request: pytest.FixtureRequest) -> str:
    """Whether backups are in a folder or in a bucket of an S3 server."""
    found: str = request.param
    return found


@pytest.fixture
def anywhere(
    request: pytest.FixtureRequest, where: str, lake: SmallLake, spark: Session, tmp_path: Path
) -> Place:
    """Backups in a folder, or in a bucket of an S3 server."""
    if where == "local":
        return Place(lake, lake.root, str(tmp_path / "backups"), spark)
    endpoint, bucket = (request.getfixturevalue(name) for name in ("s3_server", "s3_bucket"))
    stores = replace(lake.root.stores, endpoint_url=endpoint)
    root = ArtifactRoot(lake.root.url, stores)
    return Place(lake, root, f"s3://{bucket}/some backups", spark)


def make_odd(folder: Path, spark: Session) -> None:
    """A marked lake whose candidates have odd names."""
    with running(folder) as lake:
        lake.calendar.days_ago = 100
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        lake.upload("main", "a", "kept")
        lake.commit("main")
        for name in ODD:
            path = lake.objects / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"content of {name}")
            os.utime(path, (time.time() - 30 * 86_400,) * 2)
        lake.calendar.days_ago = 0
        mark(lake.context(spark, max_candidate_share=1.0))


@pytest.fixture(scope="session")
def backed_up_and_swept(
    marked: Marked, tmp_path_factory: pytest.TempPathFactory, spark: Session
) -> Path:
    """A folder with a lake whose mark was swept, and its backups beside it, to be copied."""
    folder = tmp_path_factory.mktemp("swept")
    with running(copy_of(marked, folder)) as lake:
        _back_up_and_sweep(Place(lake, lake.root, str(folder / "backups"), spark))
    return folder


@pytest.fixture
def swept(
    request: pytest.FixtureRequest, where: str, spark: Session, tmp_path: Path
) -> Iterator[Place]:
    """A place with the backup of a mark that was swept."""
    if where == "s3":
        place: Place = request.getfixturevalue("anywhere")
        _back_up_and_sweep(place)
        yield place
        return
    source: Path = request.getfixturevalue("backed_up_and_swept")
    # Etags tell which file it is: copies of objects are the same files under other names.
    shutil.copytree(source / "backups", tmp_path / "backups", copy_function=os.link)
    with running(copy_lake(source / "lake", tmp_path / "lake")) as lake:
        yield Place(lake, lake.root, str(tmp_path / "backups"), spark)


def _back_up_and_sweep(place: Place) -> None:
    make_backup(place.context())
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        sweep(place.context())
