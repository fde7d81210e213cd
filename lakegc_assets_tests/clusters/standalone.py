"""A standalone Spark cluster on this machine: a master and workers, each a process of its own.

What runs tasks is a Python that cannot import lakegc_assets: what tasks have of it was sent to
them. All that the cluster writes is below one folder.
"""

from __future__ import annotations

import json
import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pyspark

import lakegc_assets
from lakegc_assets.engine.spark_session import LOCAL, OPTIONS
from lakegc_assets_tests.sessions import SMALL

_HOME: Final = Path(pyspark.__file__).parent
_SPARK_CLASS: Final = _HOME / "bin" / "spark-class"
_PATIENCE_S: Final = 120
#: Only these variables of this process are the cluster's too.
_PASSED: Final = ("PATH", "JAVA_HOME", "LANG", "TMPDIR", "SPARK_HOME")
#: Small JVMs that start fast.
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str) -> str:
    """What a web server of the cluster shows."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or not."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            stat = (entry / "stat").read_text()
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found


def kill(pid: int) -> None:
    """End a process and all that it has started, at once."""
    for each in descendants(pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def bare_python(folder: Path) -> Path:
    """A Python with the packages of this one, but without lakegc_assets.

    A folder that a ``.pth`` file adds is not searched for ``.pth`` files, and one of those is what
    an editable installation is made of.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, cwd=folder.parent
    )
    python = folder / "bin" / "python"
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder)})
    places = {*site.getsitepackages(), sysconfig.get_path("purelib")}
    Path(purelib, "dependencies.pth").write_text("\n".join(sorted(places)))
    for module, expected in (("pyspark", 0), ("lakegc_assets", 1)):
        done = subprocess.run(
            [str(python), "-c", f"import {module}"],
            cwd=folder, env={}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == expected, (module, done.stderr)
    return python


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        folder: all that it writes is below.
        python: what runs its tasks.
        environment: variables of its workers, where their tasks find credentials.
        port: of the master.
        ui_port: of its web interface.
        workers: process ids, by name.
    """

    folder: Path
    python: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    ui_port: int = field(default_factory=free_port)
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def ui(self) -> str:
        """URL of the master's web interface."""
        return f"http://127.0.0.1:{self.ui_port}"

    def start(self, name: str, *arguments: str, memory: str = "256m") -> subprocess.Popen[bytes]:
        """Start one of Spark's daemons."""
        passed = {n: os.environ[n] for n in _PASSED if n in os.environ}
        environment = {
            **passed,
            **self.environment,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "PYSPARK_PYTHON": str(self.python),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(_SPARK_CLASS), *arguments],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def start_master(self) -> subprocess.Popen[bytes]:
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        return self.start(
            "master", "org.apache.spark.deploy.master.Master", *address,
            "--webui-port", str(self.ui_port),
        )  # fmt: skip

    def start_worker(self, name: str) -> None:
        """A worker with one core."""
        self.workers[name] = self.start(
            name, "org.apache.spark.deploy.worker.Worker", self.master,
            "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g",
            "--work-dir", str(self.folder / "work" / name),
        )  # fmt: skip

    def wait_for_workers(self) -> None:
        """Wait until the master knows all workers."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with suppress(OSError):
                if fetch(f"{self.ui}/json/").count('"ALIVE"') == len(self.workers) + 1:
                    return
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))


@contextmanager
def standalone(folder: Path, environment: Mapping[str, str], workers: int) -> Iterator[Cluster]:
    """A cluster for as long as the block runs."""
    cluster = Cluster(folder, bare_python(folder / "python"), environment)
    master = cluster.start_master()
    try:
        for number in range(workers):
            cluster.start_worker(f"worker-{number}")
        cluster.wait_for_workers()
        yield cluster
    finally:
        for process in (*cluster.workers.values(), master):
            kill(process.pid)
            process.wait()


@dataclass(frozen=True)
class Driver:
    """Runs the command ``lakegc`` as a user of a cluster does, and reads what it leaves.

    Attributes:
        cluster: where the tasks run.
        folder: of its settings, artifacts, Dagster instance and logs.
        environment: where it finds credentials.
        endpoint: of lakeFS, which tasks are told.
        ui_port: of the web interface of its Spark application.
    """

    cluster: Cluster
    folder: Path
    environment: Mapping[str, str]
    endpoint: str
    ui_port: int = field(default_factory=free_port)

    def write_settings(self, **more: str) -> None:
        """The file of Spark's settings."""
        events = self.folder / "events"
        events.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.master": self.cluster.master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "768m",
            "spark.executor.extraJavaOptions": _OPTIONS,
            "spark.pyspark.python": str(self.cluster.python),
            "spark.ui.port": str(self.ui_port),
            # Of what makes a query on tiny data fast, as for the other tests.
            **{name: value for name, value in SMALL.items() if name.startswith("spark.sql.")},
            OPTIONS: LOCAL[OPTIONS],
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            **{f"spark.{name}": value for name, value in more.items()},
        }
        lines = [f"{name} {value}\n" for name, value in settings.items()]
        (self.folder / "spark.conf").write_text("# of the tests\n" + "".join(lines))

    def run(
        self, repository: str, run: str, settings: Mapping[str, Any]
    ) -> subprocess.Popen[bytes]:
        """Start ``lakegc run`` with these settings of the collector."""
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "lakegc_assets.cli", "run", repository, "--run", run]
        passed = {n: os.environ[n] for n in _PASSED if n in os.environ}
        environment = {
            **passed,
            **self.environment,
            "LAKECTL_SERVER_ENDPOINT_URL": self.endpoint,
            "LAKEGC_SPARK_CONF": str(self.folder / "spark.conf"),
            "LAKEGC_ARTIFACT_ROOT": (self.folder / "artifacts").as_uri(),
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            # The driver, and only it, has the package.
            "PYTHONPATH": str(Path(lakegc_assets.__file__).parents[1]),
        }
        with (self.folder / "lakegc.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *given], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def log(self) -> str:
        """What it printed."""
        return (self.folder / "lakegc.log").read_text()

    def notes(self, kind: str) -> list[Path]:
        """Of the first round of a sweep: which tasks have begun, or ended."""
        return list((self.folder / "artifacts").glob(f"*/*/*/swept_set/tasks/*/0001/*.{kind}"))

    def outcomes(self, run: str) -> dict[str, str]:
        """What became of each marked object; each has been recorded once."""
        rows = []
        for path in (self.folder / "artifacts").glob(f"*/{run}/*/swept_set/data/*.parquet"):
            rows += pq.read_table(path).to_pylist()
        found = {row["address"]: row["outcome"] for row in rows}
        assert len(found) == len(rows)
        return found

    def rounds(self, run: str) -> int:
        """How many rounds the sweep took."""
        pattern = f"*/{run}/*/swept_set/manifest.json"
        (manifest,) = (self.folder / "artifacts").glob(pattern)
        return int(json.loads(manifest.read_bytes())["facts"]["rounds"])
