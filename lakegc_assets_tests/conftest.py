"""Fixtures for all tests: an S3 server on this machine, started only when a test asks for it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import threading
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from botocore.loaders import Loader, create_loader
from botocore.utils import parse_to_aware_datetime
from dagster._config.pythonic_config.config import infer_schema_from_config_class
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from hypothesis import HealthCheck, settings
from moto.core import serialize
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from lakegc_assets.embedded.lake import state
from lakegc_assets.engine import database
from lakegc_assets.engine.plans import PlanCache
from lakegc_assets.lakefs import client
from lakegc_assets.run import lock
from lakegc_assets.storage import files
from lakegc_assets.sweep import lease, sweep
from lakegc_assets_tests.frames import frames
from lakegc_assets_tests.kills import reaper
from lakegc_assets_tests.marked import marked
from lakegc_assets_tests.sessions import spark
from lakegc_assets_tests.site import site
from lakegc_assets_tests.storage.servers import (
    S3_ACCESS_KEY,
    S3_SECRET_KEY,
    azurite_server,
    fake_gcs_server,
    minio_server,
    rclone_program,
    versioned_gateway,
    versitygw_server,
)

__all__ = [
    "aws_environment",
    "azurite_server",
    "fake_gcs_server",
    "frames",
    "marked",
    "minio_server",
    "rclone_program",
    "reaper",
    "s3_bucket",
    "s3_server",
    "site",
    "spark",
    "versioned_gateway",
    "versitygw_server",
]  # fmt: skip

pytest_plugins = [
    "lakegc_assets_tests.conformance.recorder",
    "lakegc_assets_tests.reliability.recorder",
    "lakegc_assets_tests.scheduling",
]

# First calls compile and load; a busy machine must not fail a property.
_SUPPRESSED = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile(
    "thorough",
    deadline=None,
    # Where the variable CI is set, Hypothesis would take the same examples in each run.
    derandomize=False,
    max_examples=50,
    suppress_health_check=_SUPPRESSED,
)
# What a rule gets wrong, few examples mostly show, and each run has others.
settings.register_profile("patient", settings.get_profile("thorough"), max_examples=16)
settings.load_profile("patient")

# What imports and the collection make stays to the end: to search it for garbage, each time that
# something large is loaded, takes longer than many a test.
gc.disable()
# At the very end Python is to free that, too: DuckDB complains about what outlives its module.
# pytest itself searches for garbage before, several times, which then takes long.
atexit.register(gc.unfreeze)

_VARIABLES = {
    "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": S3_SECRET_KEY,
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


def pytest_configure(config: pytest.Config) -> None:
    """Let `make conformance` try more examples."""
    if config.option.markexpr == "conformance":
        settings.load_profile("thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what needs servers of Go and Node to `make test-stores`, whatever else it is."""
    if config.option.markexpr == "conformance":
        others = [item for item in items if item.get_closest_marker("stores")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not item.get_closest_marker("stores")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Let the collector see what the tests themselves make, and only that, and seldom."""
    gc.enable()
    gc.freeze()
    # What a test leaves in cycles is little, and a search goes through all that fixtures hold.
    gc.set_threshold(20_000)


class _Hasty:
    """``asyncio`` with short pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 5)


_read: dict[str | None, dict[object, object]] = {}


def _loader(path: str | None = None) -> Loader:
    """One that knows what others have read: the description of S3 is large, and each session's."""
    made = create_loader(path)
    made._cache = _read.setdefault(path, {})  # type: ignore[attr-defined]
    return made


_migrations: dict[tuple[object, object], ScriptDirectory] = {}
_find_migrations = ScriptDirectory.from_config


def _known_migrations(config: Config) -> ScriptDirectory:
    """Those of Dagster's databases, of which each run has one, and for which all are loaded."""
    place = config.config_file_name, config.get_main_option("script_location")
    if place not in _migrations:
        _migrations[place] = _find_migrations(config)
    return _migrations[place]


#: Where Dagster infers the schemas of resources.
_RESOURCE = "dagster._config.pythonic_config.resource"
_schemas: dict[tuple[type, frozenset[str]], object] = {}
_infer_schema = infer_schema_from_config_class


def _known_schema(kind: type, *, fields_to_omit: set[str] | None = None, **more: Any) -> object:
    """That of a class of resources, of which each run makes several objects."""
    if more:
        return _infer_schema(kind, fields_to_omit=fields_to_omit, **more)
    key = kind, frozenset(fields_to_omit or ())
    if key not in _schemas:
        _schemas[key] = _infer_schema(kind, fields_to_omit=fields_to_omit)
    return _schemas[key]


_engines: dict[str, Engine] = {}


def _known_engine(url: str, **options: Any) -> Engine:
    """One for each database of Dagster's, with the SQL that it has compiled, and no connection."""
    if url not in _engines:
        _engines[url] = create_engine(url, **options)
    return _engines[url]


class _OneThread(database.Database):
    """Computes in one thread, as where there is little memory: a second has nothing to do here."""

    def __init__(self, memory: int, plans: PlanCache) -> None:
        super().__init__(memory, plans)
        self.cores = 1
        self.use_threads(memory)


@pytest.fixture(scope="session", autouse=True)
def _at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing waits for the disk, which no test takes the power from, nor for a server of ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "fsync", lambda _: None)
        patch.setattr(state, "SYNCHRONOUS", "OFF")
        patch.setattr(client, "FIRST_POLL_S", 0.01)
        # Commits have no hooks before them, but where a test is about that.
        patch.setattr(sweep, "await_commits", lambda *_: None)
        # Tests replace parts of relations: what they plan is not for other processes.
        patch.setattr(database, "plans_file", lambda: None)
        if request.config.option.markexpr != "conformance":
            patch.setattr(database, "Database", _OneThread)
        patch.setattr("botocore.session.create_loader", _loader)
        # Uvicorn looks ten times a second whether it is to end, and then waits as long once more.
        patch.setattr("uvicorn.server.asyncio", _Hasty())
        # Dagster's resources, and its own databases.
        patch.setattr(f"{_RESOURCE}.infer_schema_from_config_class", _known_schema)
        patch.setattr(ScriptDirectory, "from_config", _known_migrations)
        patch.setattr(sqlite_event_log, "create_engine", _known_engine)
        patch.setattr(sqlite_run_storage, "create_engine", _known_engine)
        patch.setattr(sqlite_schedule_storage, "create_engine", _known_engine)
        event.listen(Engine, "connect", _without_waiting)
        yield
        event.remove(Engine, "connect", _without_waiting)


@pytest.fixture(scope="session", autouse=True)
def _locks_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two workers have repositories of one name, whose locks lie where temporary files do."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(lock, "gettempdir", lambda: folder)
        yield


def _without_waiting(connection: DBAPIConnection, _record: object) -> None:
    connection.cursor().execute("PRAGMA synchronous=OFF")


@pytest.fixture(scope="session")
def aws_environment() -> Iterator[None]:
    """The AWS variables, with credentials for the S3 servers of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _VARIABLES.items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def s3_server(aws_environment: None) -> Iterator[str]:  # noqa: ARG001 - it is wanted to be there
    """URL of an S3 server (moto); the AWS variables hold credentials for it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    put_object, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_in_one_step(response: S3Response) -> object:
        """Check a condition and write in one step, as real servers do."""
        with one_at_a_time:
            return put_object(response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_in_one_step)
        # For each request it lists its folder and goes through the URLs of all of AWS, twice.
        choose = DomainDispatcherApplication.get_backend_for_host
        patch.setattr(DomainDispatcherApplication, "get_backend_for_host", cache(choose))
        # Each listing reads the times of all that it names.
        patch.setattr(serialize, "parse_to_aware_datetime", cache(parse_to_aware_datetime))
        yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def frequent_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed each second, and who waits for one sees soon that its owner lives."""
    monkeypatch.setattr(lease, "RENEWALS", 150)
    monkeypatch.setattr(lease, "POLL_S", 0.3)


@pytest.fixture(scope="session")
def _s3_client(s3_server: str) -> Iterator[Any]:
    client = boto3.client("s3", endpoint_url=s3_server)
    yield client
    client.close()


@pytest.fixture
def s3_bucket(_s3_client: Any) -> str:
    """Name of a new, empty bucket on the S3 server."""
    name = f"bucket-{uuid.uuid4().hex}"
    _s3_client.create_bucket(Bucket=name)
    return name
