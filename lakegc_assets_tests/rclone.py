"""rclone on the stores of the tests, with the commands of docs/rclone.md as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakegc_assets_tests.storage.servers import ROOT

PAGE: Final = ROOT / "docs" / "rclone.md"
_COMMANDS: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Which of the commands of a section make the remote of a store.
REMOTES: Final = {"S3": (0, 1), "Azure": (1,), "GCS": (0,)}


def commands() -> dict[str, list[str]]:
    """The commands of the page by the heading they are under."""
    sections = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0]: _COMMANDS.findall(text) for text in sections}


@dataclass(frozen=True)
class Rclone:
    """The page, with a store behind it.

    Attributes:
        program: rclone itself.
        folder: where the commands run.
        store: the heading that the remote is made by.
        variables: what the page takes as given.
    """

    program: Path
    folder: Path
    store: str
    variables: Mapping[str, str]

    def run(self, *commands_: str) -> str:
        """Run commands of the page one after the other; what they print.

        Raises:
            AssertionError: one of them failed.
        """
        told = commands()
        remote = [told[self.store][number] for number in REMOTES[self.store]]
        # What a developer's machine has set is none of theirs.
        known = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        path = f"{self.program.parent}:{known['PATH']}"
        result = subprocess.run(
            ["bash", "-eu", "-c", "\n".join([*remote, *told["Names"], *commands_])],
            cwd=self.folder,
            env={**known, "PATH": path, "RCLONE_CONFIG": "/dev/null", **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout
