"""rclone backs up and restores what our marks name, by the commands of docs/rclone.md."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import boto3
import pyarrow as pa
import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from lakegc_assets.embedded.objects import objects
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.lakefs.errors import GoneError
from lakegc_assets.mark.publication import forms, write_lists
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, STAGES
from lakegc_assets_tests.rclone import Rclone, commands
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.storage.conftest import azure_container, gcs_bucket
from lakegc_assets_tests.storage.servers import AZURE_ACCOUNT, AZURE_KEY, Server
from lakegc_assets_tests.sweep.s3_lake import S3Lake, s3_lake

__all__ = ["azure_container", "gcs_bucket"]

pytestmark = pytest.mark.stores

#: Names that a list, a shell, a filter or rclone's own way of writing names could get wrong.
NAMES = [
    "data/s/plain",
    "data/s/a b",
    "data/s/trailing ",
    "data/s/ leading",
    " data",
    " leading",
    "trailing ",
    "\u3000wide\u3000",
    "\ufeffmark",
    "# number",
    "#",
    "; semicolon",
    "- minus",
    "+ plus",
    "-P",
    "!bang",
    "~",
    "data/s/*[a]{b}?",
    "data/s/q'\"$`",
    "data/s/%41+%2F&=",
    "data/s/:<>|",
    "data/s/.hidden",
    "data/s/full stop.",
    "data/é/one character",
    "data/e\u0301/two characters",
    "data/é/e\u0301",
    "data/é/é",
    "data/s/\u2028line",
    "data/s/\U0001f600",
    "data/s/a\uff0fb",
    "data/s/\uff0e",
    "data/s/␀␁␡",
    "data/s/\u201b\u201b\uff0f",
    f"data/s/{'n' * 200}",
]
LIVE = {"data/live": b"live", "data/s/live # too": b"live too"}
#: The folders that lakeFS's own recipes name, by where their commands are on the page.
OLDER = {0: "addresses.text/mark_id=", 1: "uncommitted/"}


def content(name: str) -> bytes:
    return f"content of {name}".encode()


def keys(store: ObjectStore, prefix: str = "") -> set[str]:
    found = {key for batch in store.list(prefix) for key in batch["key"].to_pylist()}
    return {key.removeprefix(prefix) for key in found if not key.startswith("_lakefs/")}


@dataclass(frozen=True)
class Place:
    """A namespace with a mark in it, and a place for its backup.

    Attributes:
        store: of the namespace.
        backups: of the backup.
        rclone: reaches both.
        names: of the dead objects.
    """

    store: ObjectStore
    backups: ObjectStore
    rclone: Rclone
    names: Sequence[str] = tuple(NAMES)

    def plant(self) -> None:
        """Write dead and live objects, and the lists of a mark of the dead ones."""
        for name in self.names:
            self.store.put(name, content(name))
        for name, body in LIVE.items():
            self.store.put(name, body)
        write_lists(
            self.store, RUN, forms(RUN, "unified", "unified").texts, 0, pa.array(self.names)
        )

    def require_backup(self) -> None:
        assert keys(self.backups) == set(self.names)
        assert all(self.backups.get(name) == content(name) for name in self.names)

    def require_all(self) -> None:
        assert keys(self.store) == {*self.names, *LIVE}
        assert all(self.store.get(name) == content(name) for name in self.names)


def variables(bucket: str) -> dict[str, str]:
    return {"LAKE": f"store:{bucket}/n s", "BACKUP": f"store:{bucket}/back ups", "MARK": RUN}


def opened(url: str, config: StoreConfig, rclone: Rclone) -> Place:
    return Place(open_store(f"{url}/n s", config), open_store(f"{url}/back ups", config), rclone)


def s3_variables(server: Server) -> dict[str, str]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    return {name: os.environ[name] for name in names} | {"AWS_ENDPOINT_URL": server.endpoint}


def s3_place(server: Server, rclone_program: Path, folder: Path) -> Place:
    bucket = f"bucket-{uuid.uuid4().hex}"
    boto3.client("s3", endpoint_url=server.endpoint).create_bucket(Bucket=bucket)
    given = s3_variables(server) | variables(bucket)
    config = StoreConfig(endpoint_url=server.endpoint)
    return opened(f"s3://{bucket}", config, Rclone(rclone_program, folder, "S3", given))


@pytest.fixture
def s3(versitygw_server: Server, rclone_program: Path, tmp_path: Path) -> Place:
    return s3_place(versitygw_server, rclone_program, tmp_path)


@pytest.fixture
def minio(minio_server: Server, rclone_program: Path, tmp_path: Path) -> Place:
    return s3_place(minio_server, rclone_program, tmp_path)


@pytest.fixture
def azure(
    azurite_server: Server,
    azure_container: tuple[str, StoreConfig],
    rclone_program: Path,
    tmp_path: Path,
) -> Place:
    url, config = azure_container
    token = generate_account_sas(
        AZURE_ACCOUNT,
        AZURE_KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, list=True, add=True, create=True, write=True),
        datetime.now(timezone.utc) + timedelta(hours=1),
    )
    sas = f"{azurite_server.endpoint}/{AZURE_ACCOUNT}?{token}"
    given = {"AZURE_STORAGE_SAS_URL": sas} | variables(url.rsplit("/", 1)[-1])
    found = opened(url, config, Rclone(rclone_program, tmp_path, "Azure", given))
    # Azure drops the dots at the end of a name, so the store refuses such a name.
    return replace(found, names=[name for name in NAMES if not name.endswith(".")])


@pytest.fixture
def gcs(
    fake_gcs_server: Server,
    gcs_bucket: tuple[str, StoreConfig],
    rclone_program: Path,
    tmp_path: Path,
) -> Place:
    """Google's stand-in knows no accounts."""
    bucket, config = gcs_bucket
    given = {
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        "RCLONE_CONFIG_STORE_ANONYMOUS": "true",
        "RCLONE_CONFIG_STORE_ENDPOINT": f"{fake_gcs_server.endpoint}/storage/v1/",
    } | variables(bucket)
    return opened(f"gs://{bucket}", config, Rclone(rclone_program, tmp_path, "GCS", given))


@pytest.fixture(params=["s3"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    found.plant()
    return found


@pytest.mark.parametrize("place", ["s3", "minio", "azure", "gcs"], indirect=True)
def test_every_name_is_backed_up_checked_and_restored(place: Place) -> None:
    page = commands()
    place.rclone.run(*page["Backup"])
    place.require_backup()
    assert place.rclone.run(*page["Check"]) == ""
    outcomes = place.store.delete_many(place.names)
    assert {outcome.outcome for outcome in outcomes} == {"deleted"}
    place.rclone.run(*page["Restore"])
    place.require_all()
    assert all(place.store.get(name) == body for name, body in LIVE.items())
    place.require_backup()


@pytest.mark.parametrize(("place", "recipe"), [("s3", 0), ("azure", 1)], indirect=["place"])
def test_lakefs_own_commands_back_up_and_restore(place: Place, recipe: int) -> None:
    backup = commands()["lakeFS's own commands"][recipe]
    assert f"gc/{OLDER[recipe]}$MARK/" in backup
    place.rclone.run(backup)
    place.require_backup()
    place.store.delete_many(place.names)
    restore = re.sub(r'copy ("\$LAKE") ("\$BACKUP")', r"copy \2 \1", backup)
    assert restore != backup
    place.rclone.run(restore)
    place.require_all()


def test_what_a_backup_lacks_is_named(place: Place) -> None:
    page = commands()
    place.rclone.run(*page["Backup"])
    lost, gone = "# number", "data/s/trailing "
    place.backups.delete_many([lost, gone])
    place.store.delete_many([gone])
    compare, lacking, unnameable = page["Check"][0].splitlines()
    found = place.rclone.run(f"{compare} || true", lacking, unnameable)
    assert sorted(found.splitlines()) == [lost, gone]
    # rclone takes this one for another, which is there.
    odd = "data//s/plain"
    with (place.rclone.folder / f"{RUN}.txt").open("a") as names:
        names.write(f"{odd}\n")
    assert place.rclone.run(unnameable).splitlines() == [odd]


def test_restore_overwrites_nothing(place: Place) -> None:
    page = commands()
    place.rclone.run(*page["Backup"])
    changed, *gone = place.names
    place.store.put(changed, b"another")
    place.store.delete_many(gone)
    place.rclone.run(*page["Restore"])
    assert place.store.get(changed) == b"another"
    assert keys(place.store) == {*place.names, *LIVE}


def stage(found: S3Lake, names: Mapping[str, str]) -> None:
    """Stage objects of such names in the namespace, by path."""
    etags = found.put(names.values())
    for path, name in names.items():
        entry = Entry(name, size=len(content(name)), e_tag=etags[name])
        objects.stage_entry(found.lake.server.lake, REPOSITORY, "main", path, entry)


def test_what_a_sweep_deleted_reads_again_through_lakefs(
    tmp_path: Path, versitygw_server: Server, rclone_program: Path, spark: Session
) -> None:
    page = commands()
    paths = {f"p/{number}": name for number, name in enumerate(NAMES)}
    with s3_lake(tmp_path / "lake", versitygw_server) as found:
        lake = found.lake
        lake.rules(20)
        lake.calendar.days_ago = 100
        stage(found, paths)
        old = lake.commit("main")
        lake.calendar.days_ago = 90
        live = found.stage("main", paths)
        lake.commit("main")
        lake.calendar.days_ago = 0
        for step in STAGES:
            step(lake.context(spark))

        given = s3_variables(versitygw_server) | variables(found.bucket)
        given["LAKE"] = f"store:{found.bucket}/{REPOSITORY}"
        rclone = Rclone(rclone_program, tmp_path, "S3", given)
        rclone.run(*page["Backup"])
        assert rclone.run(*page["Check"]) == ""
        sweep(lake.context(spark))
        assert keys(found.store) == live
        for path in paths:
            with pytest.raises(GoneError):
                lake.client.get_object(REPOSITORY, old, path)
        rclone.run(*page["Restore"])
        assert keys(found.store) == live | set(NAMES)
        for path, name in paths.items():
            assert lake.client.get_object(REPOSITORY, old, path) == content(name)


def test_it_is_the_version_that_debian_packages(rclone_program: Path) -> None:
    told = subprocess.run([rclone_program, "version"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("rclone v1.60.1")
