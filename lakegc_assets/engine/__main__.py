"""``python -m lakegc_assets.engine``: makes, once, the archive that lets Spark start fast here.

Where none can be made (the folder cannot be written, this Java makes none), Spark starts without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from lakegc_assets.engine.class_archive import QUIET, archive_path
from lakegc_assets.engine.spark import (
    FILE_VARIABLE,
    LOCAL,
    OPTIONS,
    REQUIRED,
    prepare_environment,
    start_session,
)
from lakegc_assets.errors import ConfigurationError

# Folders that Spark would add to its class path, of which no archive can be made.
_FOLDERS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")


def main() -> None:
    """Make the archive, unless it is there."""
    path = archive_path()
    if path is None or os.access(path, os.F_OK):
        return
    sys.stderr.write("Making an archive of Spark's classes, with which it starts fast\n")
    for name in (*_FOLDERS, FILE_VARIABLE):
        os.environ.pop(name, None)
    with suppress(OSError, ConfigurationError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            new = Path(folder, path.name)
            _use_spark(f"-XX:ArchiveClassesAtExit={new} {QUIET}")
            # An empty file where Spark runs and its Java makes no archive: that is not tried again.
            new.touch()
            new.replace(path)


def _use_spark(options: str) -> None:
    """Do in a session what a stage of a run does, and wait until its JVM has ended."""
    prepare_environment()
    spark = start_session(LOCAL | REQUIRED | {OPTIONS: f"{LOCAL[OPTIONS]} {options}"})
    context = spark.sparkContext
    context.parallelize(range(4), 4).map(str).collect()
    rows = spark.createDataFrame([("a", 1)], "address string, size long")
    rows.groupBy("address").sum().collect()
    jvm = context._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001 - there is no public way
    spark.stop()
    # The end of its input is the end of the JVM, which then writes the archive.
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    main()
