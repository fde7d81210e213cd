"""What a server prints when it is ready is all that the next command needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.embedded.api import Api

# What any command of the collector does first: it calls the server, and opens the namespace.
_FIRST_STEPS = """\
import os
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
(repository,) = LakeFSConfig().connect().repositories()
config = StoreConfig(local_root=os.environ["LAKEGC_LOCAL_ROOT"])
store = open_store(repository.storage_namespace, config)
print(repository.id, store.head("_lakefs/dummy").key)
"""


def test_the_lines_that_are_printed_can_be_pasted_into_another_shell(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lakegc_assets.embedded", "--data", "the data", "--port", "0"]
    keys = ["--access-key", "it's mine", "--secret-key", '$HOME "`x`"']
    with subprocess.Popen(
        [*command, *keys], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        try:
            endpoint = running.stdout.readline().split("endpoint=")[1].split()[0]
            assert "another shell" in running.stdout.readline()
            exports = [running.stdout.readline() for _ in range(4)]
            with Api(endpoint, "it's mine", '$HOME "`x`"') as api:
                api.repository()
            done = subprocess.run(
                ["sh", "-c", f'{"".join(exports)}"$0" -c "$1"', sys.executable, _FIRST_STEPS],
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            running.kill()
    assert (done.stdout, done.stderr) == ("repo _lakefs/dummy\n", "")


def test_a_server_on_s3_has_no_local_objects(tmp_path: Path) -> None:
    local, on_s3 = EmbeddedLakeFS(tmp_path), EmbeddedLakeFS(tmp_path, "s3://bucket")
    assert local.environment.keys() - on_s3.environment.keys() == {"LAKEGC_LOCAL_ROOT"}
