"""lakeFS itself on this machine, over a store: built from its source in a pinned version.

``LAKEFS`` may name the program of another version, which then is run instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import requests

from lakegc_assets_tests.storage.servers import ROOT, Server, installed, running

ACCESS_KEY: Final = "AKIALAKEGCTESTS00000"
SECRET_KEY: Final = "lakegc-tests-secret-key-of-forty-signs00"
_MODULE: Final = ROOT / "tools" / "lakefs"
_VERSION: Final = "1.84.0"
_PACKAGE: Final = "github.com/treeverse/lakefs"


def lakefs_program() -> Path:
    """The server that ``LAKEFS`` names, or one built the first time, which takes some minutes.

    Raises:
        ServerUnavailableError: it cannot be built on this machine.
    """
    if named := os.environ.get("LAKEFS"):
        return Path(named).resolve()
    version = f"-X {_PACKAGE}/pkg/version.Version={_VERSION}"
    # It has a module of its own, since Go installs none by its name whose go.mod replaces others.
    command = ["build", "-C", "{folder}", "-mod=mod", "-ldflags", version, "-o", "{folder}/lakefs"]
    folder = installed(f"lakefs-{_VERSION}", [*command, f"{_PACKAGE}/cmd/lakefs"], _MODULE)
    return folder / "lakefs"


@contextmanager
def lakefs(
    folder: Path, blockstore: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[Server]:
    """A server with one user, whose state is below ``folder``.

    Args:
        folder: existing directory.
        blockstore: of its configuration.
        environment: more variables of its process.
    """
    program = lakefs_program()

    def command(port: int) -> Sequence[str]:
        configuration = {
            "listen_address": f"127.0.0.1:{port}",
            "logging": {"level": "WARN"},
            "database": {"type": "local", "local": {"path": str(folder / "state")}},
            "auth": {"encrypt": {"secret_key": "lakegc-tests"}},
            "blockstore": dict(blockstore),
            # Servers of one user share a cache otherwise, and take each other's files out of it.
            "committed": {"local_cache": {"dir": str(folder / "cache")}},
            "stats": {"enabled": False},
        }
        file = folder / "lakefs.yaml"
        # JSON is YAML.
        file.write_text(json.dumps(configuration))
        return [str(program), "--config", str(file), "run"]

    # Older versions refuse a configuration with names that they do not know.
    quiet = {
        "LAKEFS_USAGE_REPORT_ENABLED": "false", "LAKEFS_EMAIL_SUBSCRIPTION_ENABLED": "false"
    }  # fmt: skip
    log = folder / "lakefs.log"
    server = Server("lakeFS", command, log, {**quiet, **environment}, "/_health")
    with running(server):
        key = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        user = {"username": "tests", "key": key}
        url = f"{server.endpoint}/api/v1/setup_lakefs"
        requests.post(url, json=user, timeout=60).raise_for_status()
        yield server
