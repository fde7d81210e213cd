"""What a session is configured with, and what a cluster is refused."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from dagster_pyspark import LazyPySparkResource
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException

import lakegc_assets
from lakegc_assets.defs import connections, execution
from lakegc_assets.engine import spark_session as sessions
from lakegc_assets.engine.package_code import package_digest
from lakegc_assets.engine.spark_session import (
    FILE_VARIABLE,
    LOCAL,
    REQUIRED,
    is_cluster,
    prepare_environment,
    session_settings,
)
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.config import LakeFSConfig

PACKAGE = Path(lakegc_assets.__file__).parent


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "a folder" / "spark.conf"
    path.parent.mkdir()
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return path


@pytest.fixture(autouse=True)
def no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No archive of Spark's classes, which this machine may have."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def test_without_a_file_spark_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert session_settings() == LOCAL | REQUIRED


def test_a_file_for_this_machine_replaces_single_settings(settings_file: Path) -> None:
    settings_file.write_text("\n  # more memory\n\nspark.driver.memory   16g\nspark.x=a=b c \n")
    assert session_settings() == LOCAL | REQUIRED | {
        "spark.driver.memory": "16g",
        "spark.x": "a=b c",
    }


@pytest.mark.parametrize(
    ("master", "most"),
    [("local", 8 << 20), ("local[2]", 8 << 20), ("local[16,4]", 1 << 20), ("yarn", 8 << 20)],
)
def test_what_all_tasks_hash_at_a_time_fits_into_one_jvm(
    settings_file: Path, master: str, most: int
) -> None:
    """The table of a partition does not spill: it would end a run on a machine of many cores."""
    settings_file.write_text(f"spark.master {master}\n")
    found, adaptive = session_settings(), "spark.sql.adaptive"
    assert found[f"{adaptive}.maxShuffledHashJoinLocalMapThreshold"] == str(most)
    assert found[f"{adaptive}.advisoryPartitionSizeInBytes"] == str(most)


def test_nothing_of_this_machine_is_said_to_a_cluster(settings_file: Path) -> None:
    settings_file.write_text(
        "spark.master: spark://master:7077\nspark.sql.session.timeZone Asia/Tokyo\n"
        "spark.driver.host = driver\n! said before\n"
    )
    found = session_settings()
    assert found["spark.master"] == "spark://master:7077"
    assert found["spark.driver.host"] == "driver"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert not {"spark.driver.bindAddress", "spark.ui.enabled", "spark.driver.memory"} & set(found)
    assert "-XX:" not in found["spark.driver.extraJavaOptions"]


def test_copies_of_tasks_are_for_who_asks_for_them(settings_file: Path) -> None:
    """The copy of one that deletes ends at once, and with that Spark kills the first."""
    settings_file.write_text("spark.master yarn\n")
    assert session_settings()["spark.speculation"] == "false"
    settings_file.write_text("spark.master yarn\nspark.speculation true\n")
    assert session_settings()["spark.speculation"] == "true"


@pytest.mark.parametrize("name", [
    "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.fixed.token", "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    "spark.executorEnv.LAKECTL_CREDENTIALS_ACCESS_KEY_ID", "spark.executorEnv.AZURE_CLIENT_SECRET",
    "spark.authenticate.secret",
])  # fmt: skip
def test_secrets_are_refused(settings_file: Path, name: str) -> None:
    settings_file.write_text(f"spark.master yarn\n{name} hush-hush\n")
    with pytest.raises(ConfigurationError, match=r"line 2: .* is a secret") as caught:
        session_settings()
    assert name in str(caught.value)
    assert "hush-hush" not in str(caught.value)


def test_where_secrets_are_may_be_said(settings_file: Path) -> None:
    names = (
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.hadoop.hadoop.security.credential.provider.path",
        "spark.executorEnv.AWS_SHARED_CREDENTIALS_FILE",
        "spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE",
        "spark.authenticate.secret.file",
        "spark.security.credentials.hive.enabled",
    )
    settings_file.write_text("".join(f"{name} /etc/x\n" for name in names))
    assert set(names) <= set(session_settings())


@pytest.mark.parametrize("line", ["spark.master", "master yarn", "spark.a one \\", "= x"])
def test_a_line_that_is_no_setting_is_an_error(settings_file: Path, line: str) -> None:
    settings_file.write_text(f"# first\n{line}\n")
    with pytest.raises(ConfigurationError, match="line 2"):
        session_settings()


def test_a_file_that_is_not_there_is_an_error(settings_file: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{FILE_VARIABLE}: .*cannot be read"):
        session_settings()
    settings_file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=f"{FILE_VARIABLE}: .*cannot be read"):
        session_settings()


@pytest.mark.parametrize(("master", "cluster"), [
    ("local", False), ("local[*]", False), ("local[2,4]", False), ("local-cluster[2,1,512]", True),
    ("spark://localhost:7077", True), ("yarn", True), ("k8s://https://x", True),
])  # fmt: skip
def test_what_is_a_cluster(master: str, *, cluster: bool) -> None:
    assert is_cluster(master) is cluster


def test_the_python_of_tasks(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    settings_file.write_text("spark.master yarn\nspark.pyspark.python /opt/lakegc/bin/python\n")
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/lakegc/bin/python"
    assert "SPARK_LOCAL_IP" not in os.environ
    settings_file.write_text("")
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/lakegc/bin/python"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    monkeypatch.delenv("PYSPARK_PYTHON")
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


class Conf:
    def __init__(self, **values: str) -> None:
        self.known = values
        self.values: dict[str, str] = {}
        self.forbidden = ""

    def get(self, name: str, default: str) -> str:
        return self.known.get(name.replace(".", "_"), default)

    def set(self, name: str, value: str) -> None:
        if name == self.forbidden:
            raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] {name} is not available.")
        self.values[name] = value


class Session:
    """What ``prepare_session`` sees of a session."""

    version = "4.0.0-some-1"

    def __init__(self, master: str, application: str) -> None:
        self.conf = Conf(spark_master=master, spark_app_id=application)
        self.archives: list[str] = []

    def addArtifacts(self, path: str, *, archive: bool) -> None:  # noqa: N802 - Spark's name
        assert archive
        self.archives.append(path)


def test_the_package_is_sent_once_and_whole(tmp_path: Path) -> None:
    session: Any = Session("spark://x:1", "app-of-this-test")
    sessions.prepare_session(session)
    sessions.prepare_session(session)
    assert session.conf.values == REQUIRED
    (archive,) = session.archives
    path, _, name = archive.partition("#")
    assert name == "lakegc_assets"
    shutil.unpack_archive(path, tmp_path)
    sent = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()}
    files = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*") if p.is_file()}
    assert sent == {p for p in files if "__pycache__" not in p.parts}
    assert zipfile.is_zipfile(path)


def test_a_spark_that_is_too_old_is_named() -> None:
    session: Any = Session("yarn", "an-app-of-an-older-release")
    session.version = "3.5.6-amzn-1"
    with pytest.raises(ConfigurationError, match=r"Spark 3\.5\.6-amzn-1, .* needs Spark 4\.0"):
        sessions.prepare_session(session)
    assert not session.archives


def test_a_required_setting_that_may_not_be_set_is_named() -> None:
    session: Any = Session("spark://x:1", "an-app-with-few-settings")
    session.conf.forbidden = "spark.sql.files.ignoreMissingFiles"
    with pytest.raises(ConfigurationError, match=r"does not permit spark.*MissingFiles=false"):
        sessions.prepare_session(session)
    assert not session.archives


def test_each_session_of_connect_is_sent_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have the application of their server."""
    monkeypatch.setattr(sessions, "is_connect", lambda _: True)
    some: list[Any] = [Session("spark://x:1", "the-app-of-a-server") for _ in range(2)]
    for one in some:
        one.session_id = str(uuid4())
        sessions.prepare_session(one)
        sessions.prepare_session(one)
    assert [len(one.archives) for one in some] == [1, 1]


def test_nothing_is_sent_to_an_application_that_outlives_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    session: Any = Session("spark://x:1", "the-app-of-a-cluster")
    sessions.prepare_session(session)
    assert session.archives == []
    # Its tasks must run the code of this process all the same.
    assert sessions.code_of_tasks(session) == package_digest()


def test_nothing_is_sent_on_this_machine() -> None:
    session: Any = Session("local[2]", "another-app-of-this-test")
    sessions.prepare_session(session)
    assert session.archives == []
    assert not sessions.code_of_tasks(session)


def test_a_connect_server_is_all_that_is_set(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_file.write_text("spark.remote sc://one:15002\nspark.sql.shuffle.partitions 8\n")
    monkeypatch.setenv("SPARK_REMOTE", "sc://another:15002")
    own = {"spark.remote": "sc://one:15002", "spark.sql.shuffle.partitions": "8"}
    assert session_settings() == own | REQUIRED
    monkeypatch.delenv(FILE_VARIABLE)
    assert session_settings() == {"spark.remote": "sc://another:15002"} | REQUIRED
    assert sessions.configured_by() == "SPARK_REMOTE"


def test_keys_of_resources_do_not_go_to_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "private_files", {("s3",): "/tmp/lakegc-1/store.json"})
    connections.require_keys_on_nodes("local[4]", None, "/tmp/lakegc-1/store.json")
    connections.require_keys_on_nodes("yarn", None, "/etc/lakectl.yaml")
    with pytest.raises(ConfigurationError, match="tasks run on yarn"):
        connections.require_keys_on_nodes("yarn", None, "/tmp/lakegc-1/store.json")


def test_where_tasks_run_is_known_before_a_session_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> Session:
        return Session("yarn", "an app that was started")

    monkeypatch.setattr(execution, "session_of", start)
    for settings, master in (
        ({"spark.master": "local[2]"}, "local[2]"),
        ({"spark": {"master": "yarn"}}, "yarn"),
        ({}, "yarn"),
        ({"spark.remote": "sc://connect:15002/;token=abc"}, "sc://connect:15002/"),
    ):
        assert execution.place_of_tasks(LazyPySparkResource(spark_config=settings)) == master


def test_keys_of_resources_are_known_to_be_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "private_files", {})
    lakefs = connections.LakeFSResource(
        endpoint="http://x", access_key_id="key", secret_access_key="secret"
    )
    with pytest.raises(ConfigurationError, match="tasks run on yarn"):
        connections.require_keys_on_nodes("yarn", lakefs.config().credentials_file)


def test_tasks_ask_the_server_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKECTL_SERVER_ENDPOINT_URL", "http://here:8000")
    monkeypatch.setenv("LAKECTL_CREDENTIALS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", "a secret of this test")
    settled = LakeFSConfig(max_attempts=2).settled()
    assert settled == LakeFSConfig("http://here:8000/api/v1", max_attempts=2)
    assert "a secret" not in repr(settled)


def test_a_master_that_is_not_there_is_named(settings_file: Path) -> None:
    settings_file.write_text("spark.master spark://nowhere:7077\n")
    error = Py4JError("An error occurred while calling X.\n: java.lang.Y: all gone\n\tat x")
    told = str(sessions.spark_failure(error))
    assert "did not start with spark://nowhere:7077: java.lang.Y: all gone. Check that its" in told
    assert "An error occurred. Check that its" in str(
        sessions.spark_failure(Py4JError("An error occurred"))
    )
    assert "\tat" not in told
