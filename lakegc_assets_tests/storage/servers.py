"""Real servers on this machine for tests: object stores of S3, Azure and GCS; and Prometheus.

versitygw, MinIO, Azurite, fake-gcs-server, Prometheus, and rclone, are installed once into
``.cache/stores`` below the checkout, in a pinned version, with the package manager of their
language. Each server listens on 127.0.0.1 at a free port. A session of tests that cannot have them
ends with one sentence that says why.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from shutil import which
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_CACHE: Final = ROOT / ".cache" / "stores"
_VERSITYGW: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
#: RELEASE.2025-09-07T16-13-09Z, which closes connections behind a 412 without saying so, as later
#: sources do not; to build it takes minutes.
_MINIO: Final = "github.com/minio/minio@v0.0.0-20250907161309-07c3a429bfed"
_FAKE_GCS: Final = "github.com/fsouza/fake-gcs-server@v1.56.1"
#: The version that Debian 12 packages; to build it takes minutes.
_RCLONE: Final = "github.com/rclone/rclone@v1.60.1"
#: 3.16, without what discovers machines in clouds, which takes most of its time to build.
_PROMETHEUS: Final = "github.com/prometheus/prometheus/cmd/{}@v0.316.0"
_WITHOUT_CLOUDS: Final = ("-tags", "remove_all_sd")
_AZURITE: Final = ROOT / "tools" / "azurite"

#: Those of the S3 server of the other tests, so that the AWS variables fit both.
S3_ACCESS_KEY: Final = "test-access-key"
S3_SECRET_KEY: Final = "test-secret-key"
AZURE_ACCOUNT: Final = "lakegctest"
AZURE_KEY: Final = base64.b64encode(hashlib.sha256(b"lakegc").digest() * 2).decode()

_START_TRIES: Final = 5
_PATIENCE_S: Final = 300


class ServerUnavailableError(Exception):
    """A server cannot be installed or started on this machine; the message says why."""


@dataclass
class Server:
    """One server process on 127.0.0.1.

    Attributes:
        name: for messages.
        command: makes the command line, given a port.
        log: file that gets all it prints.
        environment: variables added to those of this process.
        health: a path that is answered by 200 as soon as the server takes requests; empty where it
            does so as soon as it listens.
        port: where it listens; kept over a restart.
    """

    name: str
    command: Callable[[int], Sequence[str]]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    health: str = ""
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        """Its URL, without a slash at the end."""
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it takes requests; the second time at the same port."""
        for _ in range(_START_TRIES):
            port = self.port or _free_port()
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self.command(port),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self.environment,
                    # Some servers write where they are started, lakeFS gigabytes: not here.
                    cwd=self.log.parent,
                )
            if _ready(self._process, port, self.health):
                self.port = port
                return
        tail = self.log.read_text(errors="replace")[-2000:]
        raise ServerUnavailableError(f"{self.name} does not start: {tail}")

    def stop(self) -> None:
        """Stop it in order, if it runs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would, in the middle of whatever it does; ``start`` brings it back."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


@contextmanager
def versitygw(folder: Path, *options: str, versioning: bool = False) -> Iterator[Server]:
    """A real S3 server that keeps objects as files below ``folder``; one bucket is one directory.

    Args:
        folder: existing directory on a file system with extended attributes.
        options: more of versitygw's own global options.
        versioning: allow buckets to be versioned.
    """
    program = _go_program(_VERSITYGW)
    objects, versions = folder / "objects", folder / "versions"
    objects.mkdir(exist_ok=True)
    versions.mkdir(exist_ok=True)
    posix = ["posix", *(["--versioning-dir", str(versions)] if versioning else []), str(objects)]

    def command(port: int) -> Sequence[str]:
        return [
            str(program), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet", *options, *posix
        ]  # fmt: skip

    keys = {"ROOT_ACCESS_KEY": S3_ACCESS_KEY, "ROOT_SECRET_KEY": S3_SECRET_KEY}
    with running(Server("versitygw", command, folder / "versitygw.log", keys)) as server:
        yield server


@contextmanager
def minio(folder: Path) -> Iterator[Server]:
    """MinIO, a real S3 server with a format of its own below ``folder``."""
    program = _go_program(_MINIO)
    objects = folder / "objects"
    objects.mkdir(exist_ok=True)

    def command(port: int) -> Sequence[str]:
        return [str(program), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(objects)]

    given = {
        "MINIO_ROOT_USER": S3_ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": S3_SECRET_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    health = "/minio/health/cluster"
    with running(Server("MinIO", command, folder / "minio.log", given, health)) as server:
        yield server


@contextmanager
def azurite(folder: Path, *options: str) -> Iterator[Server]:
    """Microsoft's own emulator of Azure Blob, with the account ``AZURE_ACCOUNT``.

    Its blob endpoint is ``{server.endpoint}/{AZURE_ACCOUNT}``.
    """
    node, script = azurite_program()

    def command(port: int) -> Sequence[str]:
        return [
            node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port),
            "--location", str(folder), "--silent", "--disableTelemetry", *options,
        ]  # fmt: skip

    account = {"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"}
    with running(Server("Azurite", command, folder / "azurite.log", account)) as server:
        yield server


@contextmanager
def fake_gcs(folder: Path, *options: str) -> Iterator[Server]:
    """fake-gcs-server, which keeps its objects in memory."""
    program = _go_program(_FAKE_GCS)

    def command(port: int) -> Sequence[str]:
        return [
            str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port),
            "-public-host", f"127.0.0.1:{port}", "-backend", "memory", "-log-level", "error",
            *options,
        ]  # fmt: skip

    with running(Server("fake-gcs-server", command, folder / "fake-gcs.log")) as server:
        yield server


def rclone() -> Path:
    """The program.

    Raises:
        ServerUnavailableError: it cannot be built on this machine.
    """
    return _go_program(_RCLONE)


def promtool() -> Path:
    """The program that checks metrics and rules for Prometheus.

    Raises:
        ServerUnavailableError: it cannot be built on this machine.
    """
    return _go_program(_PROMETHEUS.format("promtool"), *_WITHOUT_CLOUDS)


@contextmanager
def prometheus(folder: Path, configuration: Path) -> Iterator[Server]:
    """A Prometheus with a configuration, whose data are below ``folder``."""
    program = _go_program(_PROMETHEUS.format("prometheus"), *_WITHOUT_CLOUDS)

    def command(port: int) -> Sequence[str]:
        return [
            str(program), f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip

    made = Server("Prometheus", command, folder / "prometheus.log", health="/-/ready")
    with running(made) as server:
        yield server


def _for_all_tests(start: Callable[[Path], AbstractContextManager[Server]], *needed: str) -> object:
    """A fixture: one server for all tests, started after the fixtures that it needs."""

    @pytest.fixture(scope="session")
    def server(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Server]:
        for name in needed:
            request.getfixturevalue(name)
        with ExitStack() as stack:
            try:
                started = stack.enter_context(start(tmp_path_factory.mktemp("server")))
            except ServerUnavailableError as error:
                pytest.fail(str(error), pytrace=False)
            yield started

    return server


#: Real S3 servers, for which the AWS variables hold credentials.
versitygw_server = _for_all_tests(versitygw, "aws_environment")
versioned_gateway = _for_all_tests(partial(versitygw, versioning=True), "aws_environment")
minio_server = _for_all_tests(minio, "aws_environment")
azurite_server = _for_all_tests(azurite)
fake_gcs_server = _for_all_tests(fake_gcs)


@pytest.fixture(scope="session")
def rclone_program() -> Path:
    """rclone, for all tests."""
    try:
        return rclone()
    except ServerUnavailableError as error:
        pytest.fail(str(error), pytrace=False)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, and stop it at the end."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ready(process: subprocess.Popen[bytes], port: int, health: str) -> bool:
    """Wait until a process takes requests; False when it ends instead."""
    for _ in range(_PATIENCE_S * 20):
        with suppress(OSError, HTTPException):
            if _answers(port, health):
                return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            return False
    process.kill()
    process.wait()
    return False


def _answers(port: int, health: str) -> bool:
    if not health:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    with closing(HTTPConnection("127.0.0.1", port, timeout=1)) as connection:
        connection.request("GET", health)
        return connection.getresponse().status == HTTPStatus.OK


def _go_program(package: str, *options: str) -> Path:
    """The program of a Go package, built with options when it is asked for the first time."""
    path, _, version = package.partition("@")
    name = path.rsplit("/", 1)[-1]
    folder = _CACHE / f"{name}-{version}"
    _install(folder, [go_tool(), "install", *options, package], environment={"GOBIN": str(folder)})
    return folder / name


def installed(name: str, command: Sequence[str], files: Path) -> Path:
    """The folder that a command of Go fills, run when it is asked for the first time.

    Args:
        name: of the folder.
        command: without ``go``; ``{folder}`` stands for that folder.
        files: a folder whose content is copied there before.
    """
    folder = _CACHE / name
    _install(folder, [go_tool(), *(one.format(folder=folder) for one in command)], files)
    return folder


def go_tool() -> str:
    """The command."""
    return _tool(
        "go", "Go 1.26 or newer", "versitygw, MinIO, fake-gcs-server, Prometheus and rclone"
    )


def azurite_program() -> tuple[str, Path]:
    """Node, and Azurite's own script, installed as ``tools/azurite/package-lock.json`` says."""
    lock = (_AZURITE / "package-lock.json").read_bytes()
    folder = _CACHE / f"azurite-{hashlib.sha256(lock).hexdigest()[:16]}"
    node = _tool("node", "Node 20 or newer", "Azurite")
    npm = _tool("npm", "npm, which comes with Node,", "Azurite")
    options = ["--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _install(folder, [npm, "ci", "--prefix", str(folder), *options], files=_AZURITE)
    return node, folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _tool(name: str, wanted: str, server: str) -> str:
    found = which(name)
    if found is None:
        raise ServerUnavailableError(
            f"The tests of real object stores need {wanted} to install {server}, and `{name}` is "
            "not on the PATH: install it, then run `make test-stores` again."
        )
    return found


def _install(
    folder: Path,
    command: Sequence[str],
    files: Path | None = None,
    environment: dict[str, str] | None = None,
) -> None:
    """Run an installation once, however many processes ask for it at the same time."""
    done = folder / "installed"
    if done.exists():
        return
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        if files is None:
            folder.mkdir()
        else:
            shutil.copytree(files, folder)
        result = subprocess.run(
            command, env=os.environ | (environment or {}), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if result.returncode:
            raise ServerUnavailableError(
                f"The tests of real object stores cannot install {folder.name}: "
                f"`{' '.join(command)}` failed: {(result.stderr or result.stdout).strip()[-1000:]}"
            )
        done.touch()
