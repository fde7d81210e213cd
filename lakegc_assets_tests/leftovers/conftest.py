"""A lake with leftovers: a deleted repository, and tables that nothing names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lakegc_assets.graveler.entry import Entry
from lakegc_assets.graveler.ranges import write_metarange, write_range
from lakegc_assets.leftovers.server import Server
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, SETTINGS, SmallLake, copy_lake, running
from lakegc_assets_tests.sessions import Session


class Orphan(NamedTuple):
    """Keys of a range and a metarange that no commit has."""

    range: str
    metarange: str


def orphan(namespace: Path, name: str) -> Orphan:
    """Write a range and a metarange that no commit has into the folder of a namespace."""
    info, data = write_range([(name, Entry(address=f"data/{name}", size=1, e_tag="0" * 32))])
    metarange, content = write_metarange([info])
    for table, text in ((info.id, data), (metarange, content)):
        (namespace / "_lakefs" / table).write_bytes(text)
    return Orphan(f"_lakefs/{info.id}", f"_lakefs/{metarange}")


def mark_as(namespace: Path, installation_id: str | None, repository: str = "old") -> None:
    """Write the marker of a collection into the folder of a namespace, a month ago."""
    marker = namespace / MARKER
    marker.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "installation_id": installation_id,
        "repository": repository,
        "creation_date": 1,
    }
    marker.write_text(json.dumps(told))
    age(namespace, 31)


@pytest.fixture(scope="session")
def with_a_deleted_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One repository with two commits and a tag, and one that was deleted; to be copied."""
    folder = tmp_path_factory.mktemp("leftovers")
    with running(folder) as found:
        client = found.client
        client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        found.upload("main", "a", "first")
        found.commit("main")
        client.create_branch(REPOSITORY, "gone", "main")
        found.upload("gone", "b", "of a branch that is deleted")
        found.commit("gone")
        client.delete_branch(REPOSITORY, "gone")
        found.upload("main", "a", "second")
        found.commit("main")
        client.create_repository("old", "local://team/old")
        client.upload_object("old", "main", "x", b"1234")
        client.commit_branch("old", "main", "first")
        client.call("DELETE", "repositories", "old")
    return folder


@pytest.fixture
def lake(with_a_deleted_repository: Path, tmp_path: Path) -> Iterator[SmallLake]:
    with running(copy_lake(with_a_deleted_repository, tmp_path / "lake")) as found:
        yield found


@pytest.fixture
def server(lake: SmallLake, spark: Session) -> Server:
    def context(repository: str) -> RunContext:
        return RunContext(
            repository=repository,
            run="leftovers",
            settings=SETTINGS,
            lakefs=lake.config,
            root=lake.root,
            session=spark,
        )

    return Server(lake.root, context, lake.config.connect(), ("local://team",))


@pytest.fixture
def old(lake: SmallLake) -> Path:
    """The namespace on disk, which nobody has used for a month."""
    folder = lake.server.objects_dir / "team/old"
    age(folder, 31)
    return folder
