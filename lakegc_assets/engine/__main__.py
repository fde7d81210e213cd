"""``python -m lakegc_assets.engine``: creates the class archive for a fast start of Spark, once.

If the folder is not writable, or this Java creates no archive, Spark starts without one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from lakegc_assets.engine.class_archive import QUIET, TRAINING, archive_path
from lakegc_assets.engine.spark_frames import FOR_FEW_ROWS
from lakegc_assets.engine.spark_session import (
    FILE_VARIABLE,
    LOCAL,
    OPTIONS,
    REMOTE_VARIABLE,
    REQUIRED,
)

# Variables that add folders to Spark's class path, of which no archive can be made, or that make
# Spark run elsewhere.
_UNSET: Final = (
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"),
    FILE_VARIABLE,
    REMOTE_VARIABLE,
)
#: Archives that stay, the last used ones: each installation makes one of almost 200 MB.
_KEPT: Final = 4


def main() -> None:
    """Create the archive, unless it exists."""
    path = archive_path()
    if path is None or os.access(path, os.F_OK):
        return
    sys.stderr.write("Making an archive of Spark's classes, with which it starts fast\n")
    with suppress(OSError, subprocess.CalledProcessError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            new = Path(folder, path.name)
            options = f"-XX:ArchiveClassesAtExit={new} {QUIET}"
            use_spark(TRAINING, options, json.dumps(FOR_FEW_ROWS))
            # If Spark runs and its Java makes no archive, an empty file prevents another try.
            new.touch()
            new.replace(path)
        for other in sorted(path.parent.glob("spark-*.jsa"), key=_time)[:-_KEPT]:
            other.unlink(missing_ok=True)


def _time(path: Path) -> float:
    return path.stat().st_mtime


def use_spark(script: Path, options: str, *arguments: str) -> None:
    """Run a script with the Spark session of a run; its JVM has ended when this returns."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    settings = LOCAL | REQUIRED | {OPTIONS: f"{LOCAL[OPTIONS]} {options}"}
    options_of_settings = [f"--conf={name}={value}" for name, value in settings.items()]
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    subprocess.run(  # noqa: S603 - Spark's own program
        [str(Path(home, "bin", "spark-submit")), *options_of_settings, str(script), *arguments],
        check=True,
        env={"SPARK_LOCAL_IP": "127.0.0.1", **environment, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
