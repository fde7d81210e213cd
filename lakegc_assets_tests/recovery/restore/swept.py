"""Lakes that were swept, and what a restore tells of them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from lakegc_assets.recovery.backup_creation import make_backup
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import (
    REPOSITORY,
    Marked,
    SmallLake,
    copy_lake,
    copy_of,
    running,
)
from lakegc_assets_tests.recovery.conftest import Place
from lakegc_assets_tests.sessions import Session

ALL = Choice(everything=True)


def age(lake: SmallLake, addresses: set[str] | frozenset[str]) -> None:
    """Copies are as young as they are: let a month pass for them."""
    for address in addresses:
        path = lake.objects / address
        lake.write(address, path.read_bytes())
        os.utime(path, (time.time() - 30 * 86_400,) * 2)


def outcomes(ctx: RunContext, manifest: Manifest) -> dict[str, tuple[str, str | None]]:
    rows = ctx.root.attempt(REPOSITORY, ctx.run).read(manifest.asset).to_pylist()
    assert len(rows) == len({row["address"] for row in rows}) == manifest.rows
    return {row["address"]: (row["outcome"], row["source"]) for row in rows}


Swept = tuple[Place, Mapping[str, bytes]]


#: For tests of what follows, which is the same wherever it came from.
from_anywhere_the_same = pytest.mark.parametrize(
    "swept", ["trash", pytest.param("backup", marks=pytest.mark.conformance)], indirect=True
)


@pytest.fixture(scope="session")
def swept_once(
    marked: Marked, tmp_path_factory: pytest.TempPathFactory, spark: Session
) -> Callable[[str], Path]:
    """Gives, by where all of it is, a folder with the swept lake and the backups, to be copied."""

    @cache
    def made(where: str) -> Path:
        folder = tmp_path_factory.mktemp("swept")
        with running(copy_of(marked, folder)) as lake:
            place = Place(lake, lake.root, str(folder / "backups"), spark)
            if where == "backup":
                backed_up(place, marked)
            else:
                sweep(_without_backups(place).context())
                assert lake.keys() == marked.live
        return folder

    return made


@pytest.fixture(params=["trash", "backup"])
def swept(
    request: pytest.FixtureRequest,
    swept_once: Callable[[str], Path],
    marked: Marked,
    tmp_path: Path,
    spark: Session,
) -> Iterator[Swept]:
    """A lake whose mark was swept, and what was swept: it is in the trash, or in the backup."""
    source = swept_once(request.param)
    objects = marked.folder / "lakefs/objects" / REPOSITORY
    before = {address: (objects / address).read_bytes() for address in marked.candidates}
    if request.param == "backup":
        # Etags tell which file it is here, too.
        shutil.copytree(source / "backups", tmp_path / "backups", copy_function=os.link)
    with running(copy_lake(source / "lake", tmp_path / "lake")) as lake:
        place = Place(lake, lake.root, str(tmp_path / "backups"), spark)
        yield (place if request.param == "backup" else _without_backups(place)), before


def _without_backups(place: Place) -> Place:
    return replace(place, url=None)  # type: ignore[arg-type] # no backups


def backed_up(place: Place, marked: Marked) -> Swept:
    """Sweep a lake so that only the backup has anything."""
    before = place.lake.contents(marked.candidates)
    make_backup(place.context())
    sweep(place.context(trash_days=0))
    assert place.lake.keys() == marked.live
    return place, before
