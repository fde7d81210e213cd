"""The Spark session of the mark and the sweep: its settings, and its code on a cluster."""

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

#: The setting for the options of the driver's JVM.
OPTIONS: Final = "spark.driver.extraJavaOptions"
#: The variable that names a file of settings in the form of ``spark-defaults.conf``.
FILE_VARIABLE: Final = "LAKEGC_SPARK_CONF"
#: Spark's own names for a Spark Connect server, in settings and in the environment.
REMOTE: Final = "spark.remote"
REMOTE_VARIABLE: Final = "SPARK_REMOTE"
#: Variables that a launcher of a configured Spark sets for its program.
_DATABRICKS: Final = "DATABRICKS_RUNTIME_VERSION"
_SUBMITTED: Final = {"PYSPARK_GATEWAY_PORT": "spark-submit", _DATABRICKS: "Databricks"}
#: Settings of every session. Times are UTC on every machine, and a batch for Python is no larger
#: than a page of a listing.
REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",
    # Addresses compress well: a table of a few megabytes can take gigabytes of the driver's memory.
    "spark.sql.autoBroadcastJoinThreshold": "1m",
    # Adaptive execution has its own limit, which takes effect if a cluster sets it.
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "1m",
    # A broadcast waits for the jobs before it, however long they take.
    "spark.sql.broadcastTimeout": "36000",
    # A missing or damaged file stops the run, whatever the cluster's default is.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # An overflow or an invalid value is an error, not another value.
    "spark.sql.ansi.enabled": "true",
    # An ambiguous join condition is an error, not a join with every row.
    "spark.sql.analyzer.failAmbiguousSelfJoin": "true",
    "spark.sql.selfJoinAutoResolveAmbiguity": "true",
    # The grouping columns are columns of the result.
    "spark.sql.retainGroupColumns": "true",
    # Column names are no patterns, and times have a zone.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
#: The oldest major version of classic Spark that has the methods which are used here.
_OLDEST_CLASSIC: Final = 4
#: Bytes of a partition up to which joins hash. Addresses share prefixes, so sorting them for a join
#: takes several times as long as hashing one side. A join hashes a side if each of its partitions,
#: also a coalesced one, is so small. Else it sorts both sides, and spills. A hash table cannot
#: spill, takes many times the compressed size of its partition, and exists once per running task.
_HASHED: Final = 8 << 20
#: The same for all parallel tasks of one JVM together, with the memory that ``LOCAL`` gives it.
_HASHED_IN_ALL: Final = 2 * _HASHED


def _hashed_joins(tasks: int) -> dict[str, str]:
    """Return settings for joins that hash small partitions, with ``tasks`` parallel tasks."""
    names = ("maxShuffledHashJoinLocalMapThreshold", "advisoryPartitionSizeInBytes")
    most = str(min(_HASHED, _HASHED_IN_ALL // tasks))
    return {f"spark.sql.adaptive.{name}": most for name in names}


#: By default PySpark tells the JVM, for each operation on a column, the line of the program that
#: makes it, and the JVM adds its own stack trace, for the messages of errors in queries. No message
#: of this package shows them.
_UNTRACED: Final = {
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
#: Settings of a session on this machine, if Spark is not configured.
LOCAL: Final = {
    **_UNTRACED,
    "spark.master": "local[*]",
    "spark.app.name": "lakegc",
    # Joins spill beyond it.
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The form of the plan that each query writes for the UI, which is off.
    "spark.sql.ui.explainMode": "simple",
    # PySpark may wait for ever for the rows of a thread that has died for want of memory.
    OPTIONS: f"{_LOG} {FAST} -XX:+ExitOnOutOfMemoryError",
    # Enough partitions that some ten million rows are hashed, not sorted.
    "spark.sql.shuffle.partitions": "200",
    **_hashed_joins(os.cpu_count() or 1),
    # Over Unix sockets PySpark 4.3 prints a stack trace for each worker that was idle for a minute.
    "spark.python.unix.domain.socket.enabled": "false",
}
#: The settings that are useful on a cluster, too.
_ANYWHERE: Final = {
    **_UNTRACED,
    **_hashed_joins(1),
    **{name: LOCAL[name] for name in ("spark.app.name", "spark.ui.showConsoleProgress")},
    OPTIONS: _LOG,
    # A speculative copy of a task that deletes or backs up ends at once, and Spark then kills the
    # first attempt.
    "spark.speculation": "false",
}
# Spark's own expression misses the keys of Azure accounts, among others.
_REDACTED: Final = "(?i)secret|password|token|access[._]?key|account[._]?key|[._]sas"
_SECRET: Final = re.compile(_REDACTED)
#: Names of settings that tell the place of a secret, and hold none.
_PLACE: Final = re.compile(r"(?i)(file|path|dir|provider|type|endpoint|uri|enabled)$")
_SETTING: Final = re.compile(r"(\S+?)(?:\s*[=:]\s*|\s+)(.*)")

_shipped: set[str] = set()


def session_settings() -> dict[str, str]:
    """Return the settings of a new session, for this machine or from a named file.

    ``LAKEGC_SPARK_CONF`` names a file in the form of ``spark-defaults.conf``. Its settings override
    ``LOCAL``. If its ``spark.master`` is a cluster, only a few settings of ``LOCAL`` apply. None of
    them apply for a Spark Connect server, named by ``spark.remote`` or else by ``SPARK_REMOTE``, or
    in a process that ``spark-submit`` or a Databricks job has started.

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
    """Return True if tasks of a session with this master or remote may run on other machines."""
    return re.fullmatch(r"local(\[.*\])?", master) is None


def _tasks(master: str) -> int:
    """Return the number of parallel tasks of a local master."""
    if master == "local":
        return 1
    number = re.match(r"local\[(\d+)", master)
    return max(1, int(number[1])) if number else os.cpu_count() or 1


def configured_by() -> str:
    """Return the variable or program that configures Spark; empty for none."""
    names = (FILE_VARIABLE, REMOTE_VARIABLE)
    return next((name for name in names if os.environ.get(name)), "") or _submitted_by()


def _submitted_by() -> str:
    """Return the launcher that started Spark for this process; empty for none."""
    return next((who for name, who in _SUBMITTED.items() if os.environ.get(name)), "")


def place_of(settings: Mapping[str, str]) -> str:
    """Return the place of a session's tasks: Connect server or master."""
    # After a semicolon the URL of a Connect server may have a token.
    return settings.get(REMOTE, "").partition(";")[0] or settings.get("spark.master", "")


def prepare_environment() -> None:
    """Set variables so that Spark uses this interpreter and this machine, unless they are set.

    Tasks on a cluster use ``PYSPARK_PYTHON``, or ``spark.pyspark.python`` in the file of settings,
    which must be a path on its nodes.

    Raises:
        ConfigurationError: as for ``session_settings``.
    """
    settings = session_settings()
    python = settings.get("spark.pyspark.python", sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", python)
    if not is_cluster(place_of(settings)):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def start_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process; start it with these settings if there is none.

    Args:
        settings: None for ``session_settings``.

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
    """Protect a start of Spark from interrupts, and explain a failure.

    The environment is prepared only now: a process that loads the definitions may run other code.

    Raises:
        ConfigurationError: Spark does not start here, with advice; or as for
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
    """Delay an interrupt to the end of the block.

    An interrupted start of PySpark leaves a JVM behind that waits for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def note(number: int, _frame: object) -> None:
        waiting.append(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A signal without a handler ends this process, and so the JVM.
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # A started session has set its own handler.
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


def spark_failure(error: PySparkException | Py4JError) -> ConfigurationError:
    """Return the error with the reason why Spark did not start, and advice."""
    place = place_of(session_settings())
    if place.startswith("sc://"):
        return ConfigurationError(
            f"the Spark Connect server {place} does not answer: {error}. Check that it runs, "
            "with the version of this pyspark: docs/clusters.md"
        )
    if isinstance(error, Py4JError):
        # Java's own sentence is in the first line that starts with a colon; traces follow it.
        lines = str(error).splitlines()
        said = next((line[2:] for line in lines if line.startswith(": ")), lines[0])
        return ConfigurationError(
            f"Spark did not start with {place}: {said}. Check that its master runs, with the "
            "version of this pyspark: docs/clusters.md",
        )
    return ConfigurationError(
        f"Spark did not start: {error}. It needs Java 17, 21 or 25: install one, or set JAVA_HOME "
        "to its folder",
    )


def prepare_session(spark: SparkSession) -> None:
    """Prepare a session for tasks, whatever else configured it.

    If tasks run on other machines or through Spark Connect, this package is sent to them, unless
    the application outlives this process. It takes precedence over an installed one, so tasks run
    exactly the code of their starter. Its dependencies must be on the nodes.

    Raises:
        ConfigurationError: Spark is too old, or does not permit a required setting.
    """
    if not is_connect(spark) and int(spark.version.partition(".")[0]) < _OLDEST_CLASSIC:
        raise ConfigurationError(
            f"this is Spark {spark.version}, and outside of Spark Connect lakegc needs Spark "
            f"{_OLDEST_CLASSIC}.0 or newer: choose a newer release of the cluster, or the engine "
            "embedded"
        )
    for name, value in REQUIRED.items():
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            raise ConfigurationError(
                f"this Spark does not permit {name}={value}, without which its results could "
                "differ, as on serverless compute: use a cluster that permits all required "
                f"settings, or the engine embedded. docs/clusters.md lists them ({error})"
            ) from error
    session = _session_of_artifacts(spark)
    if runs_elsewhere(spark) and not _outlives_us(spark) and session not in _shipped:
        # Unpacked in a folder of Python's path; numba cannot cache compiled code in a zip.
        spark.addArtifacts(f"{_archive()}#{_PACKAGE.name}", archive=True)
        _shipped.add(session)


def _session_of_artifacts(spark: SparkSession) -> str:
    """Return the id that artifacts belong to: the session on Connect, else the application."""
    if is_connect(spark):
        return str(cast("Any", spark).session_id)
    return str(spark.conf.get("spark.app.id", "")) or str(id(spark))


def _outlives_us(spark: SparkSession) -> bool:
    """Return True if the application outlives this process, as on a Databricks cluster.

    It takes one archive of a name, and later executors would not find the archive of a process that
    has ended: tasks of every user would fail.
    """
    return not is_connect(spark) and _DATABRICKS in os.environ


def runs_elsewhere(spark: SparkSession) -> bool:
    """Return True if tasks of a session may run on other machines, or with other files."""
    return is_connect(spark) or is_cluster(master_of(spark))


def code_of_tasks(spark: SparkSession) -> str:
    """Return the digest for ``require_code`` in tasks of a session; empty for local tasks."""
    return package_digest() if runs_elsewhere(spark) else ""


def master_of(spark: SparkSession) -> str:
    """Return the master of a session; empty if it is unknown."""
    return str(spark.conf.get("spark.master", ""))


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _archive() -> str:
    """Return this package as a zip, which executors can fetch until this process ends."""
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
                f"{path}, line {number}: write a setting of Spark and its value in one line"
            )
        if _SECRET.search(found[1]) and not _PLACE.search(found[1]):
            raise ConfigurationError(
                f"{path}, line {number}: {found[1]} is a secret, and Spark shows its settings to "
                "everybody who sees its processes or its UI: docs/clusters.md says where "
                "credentials belong"
            )
        settings[found[1]] = found[2]
    return settings
