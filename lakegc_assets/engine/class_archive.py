"""The class data archive of Spark's JVM: its classes as they are once loaded, for a fast start.

``python -m lakegc_assets.engine``, which is a part of ``make setup``, makes it in the user's cache
folder. A session on this machine uses it if it is there, and it can be deleted without harm.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final

import pyspark

from lakegc_assets.engine.folders import cache_folder

#: Spark's JVM here mostly starts tasks: only what runs ten times as often as usual, as the loops of
#: large joins do, is left to the slow compiler, and one thread collects garbage.
FAST: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000 -XX:+UseSerialGC"
)
#: Whatever is wrong with an archive, the JVM does without it, and there is nothing to warn of.
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
#: A script that loads what goes into the archive.
TRAINING: Final = Path(__file__).with_name("archive_training.py")
# What options of a JVM can name without quotes; a colon would part two archives.
_PLAIN: Final = re.compile(r"[\w/.+@~-]+")


def archive_options() -> str:
    """The options with which a JVM uses its archive; empty where there is none of its own."""
    path = archive_path()
    if path is None or not os.access(path, os.R_OK):
        return ""
    # An empty file says that none can be made. A JVM runs what is in it, whoever has put it there.
    status = path.stat()
    safe = status.st_uid in {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH
    if not status.st_size or not safe:
        return ""
    return f"-XX:SharedArchiveFile={path} -Xshare:auto {QUIET}"


def archive_path() -> Path | None:
    """The path of the archive for this Java and this Spark; None where none can be made."""
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars").resolve()
    folder = cache_folder()
    if folder is None:
        return None
    try:
        # A JVM takes no archive of other files, not even of equal ones that are newer.
        spark = (pyspark.__version__, str(jars), jars.stat().st_mtime_ns)
        made_of = (_java(), *spark, FAST, TRAINING.read_bytes())
    except (OSError, IndexError, UnicodeError):
        return None
    key = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    path = folder / f"spark-{key}.jsa"
    return path if _PLAIN.fullmatch(str(path)) else None


def _java() -> str:
    """The version of the Java that Spark would start, read without starting it.

    Raises:
        OSError, IndexError, UnicodeError: there is none, or it does not say.
    """
    chosen = os.environ.get("JAVA_HOME")
    java = Path(chosen, "bin/java") if chosen else Path(shutil.which("java") or "")
    home = java.resolve().parents[1]
    return f"{home}\n{(home / 'release').read_text(encoding='utf-8')}"
