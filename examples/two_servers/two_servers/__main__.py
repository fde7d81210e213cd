"""``python -m two_servers``: both servers, and Dagster's interface on http://127.0.0.1:3000."""

import os
import subprocess
import sys
from pathlib import Path

from lakegc_assets.cli.jobs import dagster_home
from two_servers.lakes import lakes

_PROJECT = Path(__file__).parents[1]


def main() -> int:
    """Run until interrupted; the status of Dagster."""
    folder = _PROJECT / ".state"
    with lakes(folder) as variables:
        os.environ.update(variables, DAGSTER_HOME=str(folder / "dagster"))
        dagster_home()
        command = [str(Path(sys.executable).with_name("dg")), "dev"]
        return subprocess.run(command, cwd=_PROJECT, check=False).returncode  # noqa: S603 - a program of this environment


if __name__ == "__main__":
    sys.exit(main())
