"""The Spark session of the mark and the sweep: its settings, and what a cluster needs besides."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakegc_assets.engine.class_archive import FAST, archive_options
from lakegc_assets.engine.folders import temporary_files
from lakegc_assets.engine.package_code import package_digest
from lakegc_assets.errors import ConfigurationError

_PACKAGE: Final = Path(__file__).parents[1]
_LOG: Final = f"-Dlog4j2.configurationFile={(_PACKAGE / 'log4j2.properties').as_uri()}"

#: The setting that holds the options of the driver's JVM.
OPTIONS: Final = "spark.driver.extraJavaOptions"
#: Names a file of settings in the form of ``spark-defaults.conf``.
FILE_VARIABLE: Final = "LAKEGC_SPARK_CONF"
#: Names a Spark Connect server, in settings and in the environment: Spark's own names.
REMOTE: Final = "spark.remote"
REMOTE_VARIABLE: Final = "SPARK_REMOTE"
#: Each is set for a program by what has started Spark for it, with all that is configured.
_DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"
_SUBMITTED: Final = {"PYSPARK_GATEWAY_PORT": "spark-submit", _DATABRICKS: "Databricks"}
#: Times are UTC on every machine, and a batch for Python is no larger than a page of a listing.
REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",
    # Addresses are packed so well that a table of a few megabytes can take gigabytes of the driver.
    "spark.sql.autoBroadcastJoinThreshold": "1m",
    # Adaptive execution has a limit of its own, which counts where a cluster sets it.
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "1m",
    # What is sent to all tasks waits for those before it, however long these take.
    "spark.sql.broadcastTimeout": "36000",
    # A file that is missing or damaged stops the run, whatever the cluster's default is.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # A sum that is too large, or a value that is none, is an error and not another value.
    "spark.sql.ansi.enabled": "true",
    # A join whose condition could mean either side is an error, and not one with every row.
    "spark.sql.analyzer.failAmbiguousSelfJoin": "true",
    "spark.sql.selfJoinAutoResolveAmbiguity": "true",
    # What rows are grouped by is a column of what is counted.
    "spark.sql.retainGroupColumns": "true",
    # Names of columns are no patterns, and times have a zone.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
#: Addresses begin alike, so that to sort them for a join takes several times as long as to hash one
#: side: it is hashed where each partition of it has so little, also what is put together of small
#: ones. Where one has more, both sides are sorted, and spill. The table of a partition, which does
#: not, takes many times what that takes packed, in each task that runs at a time.
_HASHED: Final = 8 << 20
#: Of all tasks of one JVM together, with the memory that ``LOCAL`` gives it.
_HASHED_IN_ALL: Final = 2 * _HASHED


def _hashed_joins(tasks: int) -> dict[str, str]:
    """Settings by which joins hash small partitions, where so many tasks of a JVM run at a time."""
    names = ("maxShuffledHashJoinLocalMapThreshold", "advisoryPartitionSizeInBytes")
    most = str(min(_HASHED, _HASHED_IN_ALL // tasks))
    return {f"spark.sql.adaptive.{name}": most for name in names}


#: For a session on this machine, where nothing else is configured.
LOCAL: Final = {
    "spark.master": "local[*]",
    "spark.app.name": "lakegc",
    # Joins spill.
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    OPTIONS: f"{_LOG} {FAST}",
    # So many that partitions of some ten million rows are small enough for that.
    "spark.sql.shuffle.partitions": "200",
    **_hashed_joins(os.cpu_count() or 1),
    # Each small answer over TCP to a task in Python waits 40 ms for an acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
}
#: Of these, what is of use on a cluster too.
_ANYWHERE: Final = {
    **_hashed_joins(1),
    **{name: LOCAL[name] for name in ("spark.app.name", "spark.ui.showConsoleProgress")},
    OPTIONS: _LOG,
    # The copy of a task that deletes or backs up ends at once, and Spark then kills the first one.
    "spark.speculation": "false",
}
# Spark's own expression leaves out the keys of Azure accounts, among others.
_REDACTED: Final = "(?i)secret|password|token|access[._]?key|account[._]?key|[._]sas"
_SECRET: Final = re.compile(_REDACTED)
#: What says where a secret is, and holds none.
_PLACE: Final = re.compile(r"(?i)(file|path|dir|provider|type|endpoint|uri|enabled)$")
_SETTING: Final = re.compile(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)")

_shipped: set[str] = set()


def session_settings() -> dict[str, str]:
    """The settings of a new session: for this machine, or as the file says that is named.

    ``LAKEGC_SPARK_CONF`` names a file in the form of Spark's own ``spark-defaults.conf``. What it
    sets replaces ``LOCAL``, of which only a few remain where its ``spark.master`` is a cluster, and
    nothing where ``spark.remote``, or else the variable ``SPARK_REMOTE``, names a Spark Connect
    server, or where this process was started by ``spark-submit`` or as a job of Databricks.

    Raises:
        ConfigurationError: the file cannot be read, or holds a secret, which Spark would show.
    """
    path = os.environ.get(FILE_VARIABLE)
    given = _read_settings(Path(path).expanduser()) if path else {}
    if remote := given.get(REMOTE) or os.environ.get(REMOTE_VARIABLE):
        settings = {REMOTE: remote}
    elif _submitted_by():
        settings = {}
    elif is_cluster(given.get("spark.master", LOCAL["spark.master"])):
        settings = _ANYWHERE | {"spark.redaction.regex": _REDACTED}
    else:
        tasks = _tasks(given.get("spark.master", LOCAL["spark.master"]))
        options = f"{LOCAL[OPTIONS]} {archive_options()}".rstrip()
        settings = LOCAL | _hashed_joins(tasks) | {OPTIONS: options}
    return settings | given | REQUIRED


def is_cluster(master: str) -> bool:
    """Return whether tasks of a session with this master or remote may run on other machines."""
    return re.fullmatch(r"local(\[.*\])?", master) is None


def _tasks(master: str) -> int:
    """The number of tasks that run at a time with a master of this machine."""
    if master == "local":
        return 1
    number = re.match(r"local\[(\d+)", master)
    return max(1, int(number[1])) if number else os.cpu_count() or 1


def configured_by() -> str:
    """The variable or program that configures Spark; empty where none does."""
    names = (FILE_VARIABLE, REMOTE_VARIABLE)
    return next((name for name in names if os.environ.get(name)), "") or _submitted_by()


def _submitted_by() -> str:
    """The launcher that started Spark for this process; empty where it starts its own."""
    return next((who for name, who in _SUBMITTED.items() if os.environ.get(name)), "")


def place_of(settings: Mapping[str, str]) -> str:
    """The place where a session with these settings runs tasks: Connect server or master."""
    # What follows a semicolon in the URL of a Connect server may be a token.
    return settings.get(REMOTE, "").partition(";")[0] or settings.get("spark.master", "")


def prepare_environment() -> None:
    """Let Spark run with this interpreter and on this machine, unless more is said.

    On a cluster tasks run with ``PYSPARK_PYTHON``, or with ``spark.pyspark.python`` of the file of
    settings, which must be a path on its nodes.

    Raises:
        ConfigurationError: as for ``session_settings``.
    """
    settings = session_settings()
    python = settings.get("spark.pyspark.python", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    if not is_cluster(place_of(settings)):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def start_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, started with these settings if there is none.

    Args:
        settings: else ``session_settings``.

    Raises:
        ConfigurationError: as for ``session_settings``; or Spark does not start.
    """
    builder = SparkSession.builder
    for name, value in (session_settings() if settings is None else settings).items():
        builder = builder.config(name, value)
    with starting():
        return builder.getOrCreate()


@contextmanager
def starting() -> Iterator[None]:
    """Let a start of Spark come to its end, and say in a sentence why there is no session.

    Only now the environment is prepared: a process that loads the definitions may run others', too.

    Raises:
        ConfigurationError: Spark does not start here, with what to do about it; or as for
            ``session_settings``.
    """
    prepare_environment()
    try:
        with _interrupts_wait():
            yield
    except (PySparkException, Py4JError) as error:
        raise spark_failure(error) from error


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Raise an interrupt at the end of what is done here.

    PySpark's start, broken off before it knows its JVM, leaves one behind that waits for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def note(number: int, _frame: object) -> None:
        waiting.append(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # One without a handler ends this process, which ends the JVM too.
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # A session that was started has a handler of its own.
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


def spark_failure(error: PySparkException | Py4JError) -> ConfigurationError:
    """Why Spark did not start, and what to do about it."""
    place = place_of(session_settings())
    if place.startswith("sc://"):
        return ConfigurationError(
            f"the Spark Connect server {place} does not answer: {error}. Is it there, and of the "
            "version of this pyspark? See docs/clusters.md"
        )
    if isinstance(error, Py4JError):
        # Java's own sentence is in the first line that starts with a colon; traces follow it.
        lines = str(error).splitlines()
        said = next((line[2:] for line in lines if line.startswith(": ")), lines[0])
        return ConfigurationError(
            f"Spark did not start with {place}: {said}. Is its master "
            "there, and of the version of this pyspark? See docs/clusters.md",
        )
    return ConfigurationError(
        f"Spark did not start: {error}. It needs Java 17, 21 or 25: install one, or let JAVA_HOME "
        "name it",
    )


def prepare_session(spark: SparkSession) -> None:
    """Give a session what the tasks rely on, whatever else configured it.

    Where tasks run on other machines, or through Spark Connect, this package is sent to them, ahead
    of one that may be installed there: tasks run the very code that started them. What it depends
    on must be on the nodes.
    """
    for name, value in REQUIRED.items():
        spark.conf.set(name, value)
    session = _session_of_artifacts(spark)
    if runs_elsewhere(spark) and not _outlives_us(spark) and session not in _shipped:
        # Unpacked where tasks import from; out of a zip, numba could not keep what it compiles.
        spark.addArtifacts(f"{_archive()}#{_PACKAGE.name}", archive=True)
        _shipped.add(session)


def _session_of_artifacts(spark: SparkSession) -> str:
    """The name of what artifacts are sent to: the session on Connect, else the application."""
    if is_connect(spark):
        return str(cast("Any", spark).session_id)
    return str(spark.conf.get("spark.app.id", "")) or str(id(spark))


def _outlives_us(spark: SparkSession) -> bool:
    """Return whether the application goes on without this process, as that of a Databricks cluster.

    It takes one archive of a name, and executors that come later would not find that of a process
    that has ended: their tasks would fail, whoever has started them.
    """
    return not is_connect(spark) and _DATABRICKS in os.environ


def runs_elsewhere(spark: SparkSession) -> bool:
    """Return whether tasks of a session may run on other machines, or with other files."""
    return is_connect(spark) or is_cluster(master_of(spark))


def code_of_tasks(spark: SparkSession) -> str:
    """The digest that ``require_code`` takes, for tasks of a session."""
    return package_digest() if runs_elsewhere(spark) else ""


def master_of(spark: SparkSession) -> str:
    """The master of a session; empty where that is unknown."""
    return str(spark.conf.get("spark.master", ""))


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _archive() -> str:
    """This package as a zip, which is there until this process ends: executors come for it."""
    with temporary_files():
        folder = Path(tempfile.mkdtemp(prefix="lakegc-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__")
        content = shutil.copytree(_PACKAGE, folder / "content", ignore=ignored)
        return shutil.make_archive(str(folder / _PACKAGE.name), "zip", content)


def _read_settings(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{FILE_VARIABLE}: {path} cannot be read: {error}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate((line.strip() for line in lines), start=1):
        if not line or line.startswith(("#", "!")):
            continue
        found = _SETTING.fullmatch(line)
        if found is None or not found[1].startswith("spark.") or line.endswith("\\"):
            raise ConfigurationError(
                f"{path}, line {number}: this is not a setting of Spark and its value in one line"
            )
        if _SECRET.search(found[1]) and not _PLACE.search(found[1]):
            raise ConfigurationError(
                f"{path}, line {number}: {found[1]} is a secret, and Spark shows its settings to "
                "everybody who sees its processes or its UI: docs/clusters.md says where "
                "credentials belong"
            )
        settings[found[1]] = found[2]
    return settings
