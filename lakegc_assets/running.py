"""Runs the jobs in this process, with the same definitions and the same instance as the UI."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterAssetCheckFailedError
from dagster._core.utils import make_new_run_id
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakegc_assets.artifacts import AttemptArtifacts, validate_run_id
from lakegc_assets.definitions import defs
from lakegc_assets.defs.partitions import add_partition
from lakegc_assets.defs.resources import CollectorResource, LakeFSResource, ObjectStoreResource
from lakegc_assets.errors import RefusedError
from lakegc_assets.lock import repository_lock
from lakegc_assets.mark.context import RunContext
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.mark.spark import LOCAL, REQUIRED

_POLL_SECONDS = 0.5


def dagster_home() -> Path:
    """``DAGSTER_HOME``, or ``.lakegc/dagster`` below the working directory."""
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(Path(".lakegc/dagster").resolve())))
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
    return home


def run_job(job: str, repository: str, run: str, settings: dict[str, Any]) -> None:
    """Run a job of the graph on one repository.

    Args:
        job: gc, gc_mark or gc_sweep.
        repository: lakeFS repository.
        run: id of the run.
        settings: configuration of the ``collector`` resource; what is absent has its default.

    Raises:
        RefusedError: a blocking check failed, with what it found; or the core refused.
        LakegcError: the core failed.
    """
    validate_run_id(run)
    dagster_home()
    definitions = defs()
    collector = CollectorResource(**settings)
    collector.settings()
    lakefs = _resource(definitions, "lakefs", LakeFSResource)
    namespace = lakefs.config().connect().writable_repository(repository).storage_namespace
    with dg.DagsterInstance.get() as instance, repository_lock(namespace):
        key = add_partition(instance, repository, run)
        run_id = make_new_run_id()
        with _progress(instance, run_id):
            try:
                definitions.resolve_job_def(job).execute_in_process(
                    partition_key=key,
                    instance=instance,
                    run_id=run_id,
                    run_config={
                        "resources": {"collector": {"config": settings}},
                        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
                    },
                )
            except DagsterAssetCheckFailedError as error:
                raise RefusedError(_failed_checks(instance, run_id) or str(error)) from error


def _resource(definitions: dg.Definitions, name: str, kind: type[Any]) -> Any:  # noqa: ANN401 - as declared
    found = (definitions.resources or {})[name]
    if not isinstance(found, kind):
        raise TypeError(f"resource {name} is a {type(found)}, not a {kind}")
    return found


def _failed_checks(instance: dg.DagsterInstance, run_id: str) -> str:
    """What the failed checks of a run found, a line each."""
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    failed = []
    for entry in entries:
        event = entry.dagster_event
        if event is not None:
            evaluation = event.asset_check_evaluation_data
            if not evaluation.passed:
                failed.append(f"{evaluation.check_name}: {evaluation.description}")
    return "\n".join(failed)


@contextmanager
def _progress(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Say on stderr which step runs and how many of its Spark tasks are done."""
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(instance, run_id, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(instance: dg.DagsterInstance, run_id: str, done: threading.Event) -> None:
    steps = {dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_SUCCESS}
    told = 0
    last = ""
    while True:
        finished = done.wait(_POLL_SECONDS)
        entries = instance.all_logs(run_id, of_type=steps)
        for entry in entries[told:]:
            event = entry.dagster_event
            if event is not None and event.event_type == dg.DagsterEventType.STEP_SUCCESS:
                _say(f"{event.step_key}: done")
        told = len(entries)
        if finished:
            return
        now = _spark_tasks()
        if now and now != last:
            _say(f"  {now}", end="\r" if sys.stderr.isatty() else "\n")
        last = now


def _spark_tasks() -> str:
    """Tasks of the active Spark stages that are done, in words; empty where none runs long."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - Spark has no public way to ask
    # While it starts and stops it is there, but its JVM is not.
    if context is None or getattr(context, "_jsc", None) is None:
        return ""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    total = sum(stage.numTasks for stage in stages if stage is not None)
    complete = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    # A line for each short stage would be noise.
    return f"{complete * 10 // total * 10} % of {total} tasks" if total >= 50 else ""  # noqa: PLR2004


def _say(text: str, end: str = "\n") -> None:
    sys.stderr.write(text + end)
    sys.stderr.flush()


def _attempt(repository: str, run: str) -> AttemptArtifacts:
    definitions = defs()
    collector = _resource(definitions, "collector", CollectorResource)
    stores = _resource(definitions, "stores", ObjectStoreResource)
    return collector.root(stores).attempt(repository, validate_run_id(run))


def outcome(repository: str, run: str) -> dict[str, Any]:
    """What a run found and what became of it, as JSON values.

    Raises:
        RefusedError: there is no such run, or its mark did not finish.
        IntegrityError: its artifacts are damaged.
    """
    attempt = _attempt(repository, run)
    if not attempt.has("gc_report"):
        raise RefusedError(f"mark {run!r} of {repository!r} did not finish: mark again")
    report = attempt.manifest("gc_report")
    candidates = attempt.manifest("deletion_candidates").facts
    committed = attempt.manifest("committed_addresses").facts
    swept = attempt.manifest("swept_set").facts if attempt.has("swept_set") else None
    return {
        "repository": repository,
        "run": run,
        "attempt": attempt.attempt,
        "cutoff": report.cutoff.isoformat(),
        "mark_url": f"{report.namespace}/{mark_folder(run)}",
        "artifacts": attempt.url,
        "listed": candidates["listed"],
        "listed_bytes": candidates["listed_bytes"],
        "outside_data": candidates["outside_data"],
        "too_young": candidates["too_young"],
        "spared": candidates["spared"],
        "objects": report.facts["objects"],
        "bytes": report.facts["bytes"],
        "breakdown": report.facts["breakdown"],
        "largest": report.facts["largest"],
        "files": report.facts["files"],
        "warnings": report.facts["warnings"],
        "read": {name: committed[name] for name in sorted(committed)},
        "swept": swept is not None,
        "outcomes": swept["outcomes"] if swept else {},
    }


@contextmanager
def local_context(repository: str, run: str) -> Iterator[RunContext]:
    """A run with a Spark session of its own, to ask its artifacts something."""
    definitions = defs()
    collector = _resource(definitions, "collector", CollectorResource)
    builder = SparkSession.builder
    for name, value in {**LOCAL, **REQUIRED}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield RunContext(
            repository=repository,
            run=validate_run_id(run),
            settings=collector.settings(),
            lakefs=_resource(definitions, "lakefs", LakeFSResource).config(),
            root=collector.root(_resource(definitions, "stores", ObjectStoreResource)),
            spark=spark,
        )
    finally:
        spark.stop()


def known_runs() -> list[dict[str, Any]]:
    """The repositories of the server with their namespaces and the runs in the artifacts."""
    definitions = defs()
    collector = _resource(definitions, "collector", CollectorResource)
    root = collector.root(_resource(definitions, "stores", ObjectStoreResource))
    client = _resource(definitions, "lakefs", LakeFSResource).config().connect()
    return [
        {
            "repository": repository.id,
            "storage_namespace": repository.storage_namespace,
            "read_only": repository.read_only,
            "runs": root.runs(repository.id),
        }
        for repository in client.repositories()
    ]
