"""The class data archive of Spark's JVM: its loaded classes, for a fast start.

``python -m lakegc_assets.engine``, a part of ``make setup``, creates it in the user's cache folder.
A session on this machine uses it if it exists. It can be deleted without harm.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from lakegc_assets.engine.folders import cache_folder

#: Spark's JVM here mostly starts tasks. So only code that runs ten times as often as usual, such as
#: the loops of large joins, goes to the slow compiler, and one thread collects garbage.
FAST: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000 -XX:+UseSerialGC"
)
#: If anything is wrong with an archive, the JVM runs without it, and a warning is of no use.
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
#: A script that loads the classes of the archive.
TRAINING: Final = Path(__file__).with_name("archive_training.py")
# Paths that a JVM option takes without quotes; a colon would separate two archives.
_PLAIN: Final = re.compile(r"[\w/.+@~-]+")


def archive_options() -> str:
    """Return the JVM options for the archive; empty without an archive of this user or of root."""
    path = archive_path()
    if path is None or not os.access(path, os.R_OK):
        return ""
    # An empty file tells that this Java makes none. A JVM runs the code of its archive, so only
    # this user or root may own it.
    status = path.stat()
    safe = status.st_uid in {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH
    if not status.st_size or not safe:
        return ""
    with suppress(OSError):
        # Another installation removes the archives that were not used for the longest time.
        path.touch()
    return f"-XX:SharedArchiveFile={path} -Xshare:auto {QUIET}"


def archive_path() -> Path | None:
    """Return the path of the archive for this Java and this Spark; None if none is possible."""
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars").resolve()
    folder = cache_folder()
    if folder is None:
        return None
    try:
        # A JVM refuses an archive of other jars, even of equal jars with newer times.
        spark = (pyspark.__version__, str(jars), jars.stat().st_mtime_ns)
        made_of = (_java(), *spark, FAST, TRAINING.read_bytes())
    except (OSError, IndexError, UnicodeError):
        return None
    key = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    path = folder / f"spark-{key}.jsa"
    return path if _PLAIN.fullmatch(str(path)) else None


def _java() -> str:
    """Return the version of the Java that Spark would start, read without starting it.

    Raises:
        OSError, IndexError, UnicodeError: there is no Java, or it has no readable version.
    """
    chosen = os.environ.get("JAVA_HOME")
    java = Path(chosen, "bin/java") if chosen else Path(shutil.which("java") or "")
    home = java.resolve().parents[1]
    return f"{home}\n{(home / 'release').read_text(encoding='utf-8')}"
