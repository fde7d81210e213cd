"""A small repository on a real S3 server, marked once through a proxy, for tests to sweep."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.lake import REPOSITORY, RUN, STAGES, SmallLake, running
from lakegc_assets_tests.reliability.places import Place
from lakegc_assets_tests.sessions import Session

_HOUR = 3600


@dataclass(frozen=True)
class Bucket:
    """A bucket of versitygw, whose objects are files.

    Attributes:
        place: as the product reaches it; its URL is the bucket's root.
        folder: where its objects are on disk.
    """

    place: Place
    folder: Path

    def keys(self) -> set[str]:
        """The objects of the repository, but for lakeFS's own."""
        root = self.folder / REPOSITORY / "data"
        return {f"data/{p.relative_to(root)}" for p in root.rglob("*") if p.is_file()}

    def backdate(self, when: float) -> None:
        """Let the objects that were written just now be as old as lakeFS says."""
        for key in self.keys():
            path = self.folder / REPOSITORY / key
            if path.stat().st_mtime > time.time() - _HOUR:
                os.utime(path, (when, when))


@dataclass(frozen=True)
class Marked:
    """A repository that was marked.

    Attributes:
        bucket: its store.
        folder: the lake's; no server runs on it.
        objects: a copy of the bucket.
        live: addresses that must stay.
        dead: addresses that may be deleted: the candidates.
    """

    bucket: Bucket
    folder: Path
    objects: Path
    live: frozenset[str]
    dead: frozenset[str]

    @contextmanager
    def copy(self, folder: Path) -> Iterator[SmallLake]:
        """Run a copy of the lake, with the store as it was after the mark."""
        shutil.copytree(self.folder, folder / "lake")
        shutil.rmtree(self.bucket.folder / REPOSITORY)
        shutil.copytree(self.objects, self.bucket.folder / REPOSITORY)
        with _running(folder / "lake", self.bucket) as lake:
            yield lake

    def context(self, lake: SmallLake, spark: Session, **settings: Any) -> RunContext:
        return context(lake, self.bucket, spark, **settings)


@contextmanager
def _running(folder: Path, bucket: Bucket) -> Iterator[SmallLake]:
    with running(folder, store=bucket.place.url, store_config=bucket.place.direct) as lake:
        yield lake


def context(
    lake: SmallLake, bucket: Bucket, spark: Session, run: str = RUN, **settings: Any
) -> RunContext:
    """A run that reaches the store through the proxy."""
    root = ArtifactRoot(str(lake.folder / "artifacts"), bucket.place.config)
    return replace(lake.context(spark, run, **settings), root=root)


def make_marked(folder: Path, bucket: Bucket, spark: Session) -> Marked:
    """Four objects that were replaced long ago, four that were never committed; eleven live ones.

    Rule: 20 days.
    """
    url = f"{bucket.place.url}/{REPOSITORY}"

    with _running(folder / "lake", bucket) as lake:
        client, on = lake.client, lake.calendar

        def upload(branch: str, path: str, content: str) -> str:
            found = client.upload_object(REPOSITORY, branch, path, content.encode())
            return found.physical_address.removeprefix(f"{url}/")

        def pass_on(days_ago: float) -> None:
            bucket.backdate(on())
            on.days_ago = days_ago

        on.days_ago = 100
        client.create_repository(REPOSITORY, url)
        lake.rules(20)
        dead = {upload("main", f"a/{n}", f"first a {n}") for n in range(4)}
        live = {upload("main", f"keep/{n}", f"kept {n} and kept") for n in range(3)}
        lake.commit("main")
        pass_on(90)
        live |= {upload("main", f"a/{n}", f"second of a {n}") for n in range(4)}
        lake.commit("main")
        client.create_branch(REPOSITORY, "dev", "main")
        pass_on(30)
        dead |= {upload("dev", f"s/{n}", f"never committed {n}") for n in range(4)}
        live |= {upload("dev", f"s/{n}", f"staged at last, {n} of 4") for n in range(4)}
        pass_on(0)
        assert bucket.keys() == live | dead
        ctx = context(lake, bucket, spark)
        for stage in STAGES:
            stage(ctx)
    objects = folder / "objects"
    shutil.copytree(bucket.folder / REPOSITORY, objects)
    return Marked(bucket, folder / "lake", objects, frozenset(live), frozenset(dead))
