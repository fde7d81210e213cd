"""Runs the embedded lakeFS: in a thread of a test, or as a separate process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shlex import quote
from threading import Thread
from time import sleep, time
from types import TracebackType
from typing import Any

import click
import uvicorn

from lakegc_assets.embedded import tasks
from lakegc_assets.embedded.app import make_app
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.config import ENDPOINT_VARIABLE, KEY_VARIABLE, SECRET_VARIABLE
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.files import flush, locked, open_directories, temporary_name
from lakegc_assets.storage.files import replace as replace_file

_START_SECONDS = 120


class EmbeddedLakeFS:
    """A lakeFS server in this process, for the duration of the ``with`` block.

    Args:
        data_dir: its state, and its objects without a store; made if it is missing.
        store: ``s3://bucket[/prefix]``, or None for local files and ``local://`` namespaces.
        port: 0 for a free one.
        settings: fields of ``ServerSettings``.

    Attributes:
        lake: the server's parts, for tests that need more than the API.
    """

    def __init__(
        self,
        data_dir: Path | str,
        store: str | None = None,
        *,
        port: int = 0,
        **settings: Any,  # noqa: ANN401 - the fields of ServerSettings have many types
    ) -> None:
        self._settings = ServerSettings(Path(data_dir), store, **settings)
        self._port = port
        self._thread: Thread | None = None
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None

    @property
    def endpoint(self) -> str:
        """The server's URL, without ``/api/v1``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def access_key(self) -> str:
        """The access key id of its user."""
        return self._settings.access_key

    @property
    def secret_key(self) -> str:
        """The secret access key of its user."""
        return self._settings.secret_key

    @property
    def objects_dir(self) -> Path:
        """The folder of ``local://`` namespaces."""
        return self._settings.objects_dir

    @property
    def store_config(self) -> StoreConfig:
        """The settings with which other code reads the objects of its repositories."""
        return replace(self._settings.store_config, local_root=str(self.objects_dir))

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which ``lakegc`` and ``lakectl`` find it and its local objects."""
        return _environment(self._settings, self.endpoint)

    def __enter__(self) -> EmbeddedLakeFS:  # noqa: PYI034 - typing has no Self in Python 3.10
        self._socket = _listen("127.0.0.1", self._port)
        self._port = self._socket.getsockname()[1]
        self.lake = Lake(self._settings)
        tasks.end_interrupted(self.lake)
        self._server = _server(self.lake)
        self._thread = Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        deadline = time() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time() > deadline:
                raise LakegcError(
                    f"the embedded lakeFS of {self._settings.data_dir} did not start at "
                    f"{self.endpoint}: see the error output of this process, and start it again"
                )
            sleep(0.005)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server and self._thread and self._socket:
            self._server.should_exit = True
            self._thread.join()
            self._socket.close()
        self.lake.close()


def _numbers(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each setting that is a number."""
    for name, what in reversed(ServerSettings.numbers().items()):
        command = click.option(
            f"--{name.replace('_', '-')}",
            type=click.IntRange(1),
            default=getattr(ServerSettings, name),
            show_default=True,
            help=what,
        )(command)
    return command


@click.command("embedded")
@click.option(
    "--data",
    "data_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the server's state and, without --store, of its objects.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, help="Port to listen on; 0 for a free one."
)
@click.option(
    "--store", help="s3://bucket[/prefix] for objects; the AWS variables configure the access."
)
@click.option(
    "--access-key", help="Access key of the only user; by default generated at the first start."
)
@click.option(
    "--secret-key", help="Secret of the only user; by default generated at the first start."
)
@click.option("--clock-offset", default=0.0, help="Seconds that the server's clock is ahead.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice([fault.value for fault in Fault]),
    help="Copy a behaviour of today's lakeFS that endangers data; may be repeated.",
)
@click.option(
    "--layout",
    type=click.Choice([layout.value for layout in Layout]),
    default=ServerSettings.layout.value,
    show_default=True,
    help="Place of the objects of new repositories; the flat ones are those of older lakeFS.",
)
@_numbers
def embedded(
    data_dir: Path,
    host: str,
    port: int,
    store: str | None,
    access_key: str | None,
    secret_key: str | None,
    clock_offset: float,
    faults: tuple[str, ...],
    layout: str,
    **numbers: int,
) -> None:
    """Run a small lakeFS server, for trials and tests only."""

    def ahead() -> float:
        return time() + clock_offset

    with ExitStack() as stack:
        try:
            listening = stack.enter_context(_listen(host, port))
            data_dir.mkdir(parents=True, exist_ok=True)
            access_key, secret_key = server_credentials(data_dir, access_key, secret_key)
            settings = ServerSettings(
                data_dir,
                store,
                access_key=access_key,
                secret_key=secret_key,
                clock=ahead if clock_offset else time,
                faults=frozenset(map(Fault, faults)),
                layout=Layout(layout),
                **numbers,  # type: ignore[arg-type] # all of them are numbers
            )
            lake = Lake(settings)
        except (LakegcError, OSError) as error:
            raise click.ClickException(str(error)) from None
        stack.callback(lake.close)
        tasks.end_interrupted(lake)
        endpoint = f"http://{host}:{listening.getsockname()[1]}"
        server = _server(lake, ready=lambda: click.echo(_banner(settings, endpoint)))
        server.run([listening])


def main(argv: list[str] | None = None) -> None:
    """Run the command ``embedded``."""
    embedded.main(args=argv, prog_name="lakegc embedded")


class _Server(uvicorn.Server):
    """Calls ``ready`` after its start."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def _server(lake: Lake, ready: Callable[[], None] = lambda: None) -> _Server:
    config = uvicorn.Config(
        make_app(lake),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        # The server's clock may differ from the machine's.
        date_header=False,
        server_header=False,
        # A collector has long steps between two calls.
        timeout_keep_alive=300,
        timeout_graceful_shutdown=5,
    )
    return _Server(config, ready)


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise LakegcError(
            f"cannot listen on {host}:{port} ({error}): choose another --port, or 0 for a free one"
        ) from error
    listening.listen(128)
    return listening


def server_credentials(
    data_dir: Path, access_key: str | None, secret_key: str | None
) -> tuple[str, str]:
    """Given, earlier or new credentials, in this order; kept in a file only the user can read."""
    path = data_dir / "credentials.json"
    with ExitStack() as stack:
        directory = open_directories(stack, data_dir, (), create=True)[-1]
        # If two first starts run at the same time, the second one uses the credentials of the
        # first.
        stack.enter_context(locked(directory, required=False))
        known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        fresh = ServerSettings(data_dir)
        keys = {
            "access_key": access_key or known.get("access_key") or fresh.access_key,
            "secret_key": secret_key or known.get("secret_key") or fresh.secret_key,
        }
        if keys != known:
            _write_private(directory, path.name, json.dumps(keys))
    return keys["access_key"], keys["secret_key"]


def _write_private(directory: int, name: str, text: str) -> None:
    """Write a file that only its user can read: completely or, after a crash, not at all."""
    temporary = temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory), "w") as file:
        file.write(text)
        file.flush()
        flush(file.fileno())
    replace_file(directory, temporary, name)
    flush(directory)


def _environment(settings: ServerSettings, endpoint: str) -> dict[str, str]:
    found = {
        ENDPOINT_VARIABLE: endpoint,
        KEY_VARIABLE: settings.access_key,
        SECRET_VARIABLE: settings.secret_key,
    }
    if not settings.store:
        found["LAKEGC_LOCAL_ROOT"] = str(settings.objects_dir.absolute())
    return found


def _banner(settings: ServerSettings, endpoint: str) -> str:
    """One line for programs, and the lines to paste into another shell."""
    variables = _environment(settings, endpoint).items()
    ready = (
        f"lakeFS for trials and tests is ready: endpoint={endpoint} "
        f"access_key={settings.access_key} secret_key={settings.secret_key}"
    )
    exports = (f"export {name}={quote(value)}" for name, value in variables)
    return "\n".join((ready, "To use it, paste this into another shell:", *exports))
