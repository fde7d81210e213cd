"""Runs the jobs in this process, with the definitions and the Dagster instance of the UI."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4
from weakref import WeakSet

import dagster as dg
import pydantic
from sqlalchemy import Engine, event
from sqlalchemy.engine import Dialect

from lakegc_assets.cli import options, output
from lakegc_assets.cli.site import Site
from lakegc_assets.definitions import component
from lakegc_assets.defs.failures import Stopped
from lakegc_assets.defs.jobs import left_to_do, run_in_process
from lakegc_assets.defs.names import WAITING, Names, add_partition, partition_key
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.engine.progress import PROGRESS
from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.estate.run_outcome import require_published
from lakegc_assets.retention.rules_file import parse_retain
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.settings import refusal
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.ledger import ASSET
from lakegc_assets.sweep.status import require_unswept, restored
from lakegc_assets.wording import escaped

#: Prints messages on standard error; standard output is for results.
say = partial(output.say, err=True)
_PACKAGE = Path(__file__).parents[1]
#: Jobs that need a published mark.
_OF_A_MARK = ("gc_backup", "gc_sweep", "gc_restore")
_STEPS = {
    dg.DagsterEventType.STEP_START: "started",
    dg.DagsterEventType.STEP_SUCCESS: "done",
    dg.DagsterEventType.STEP_FAILURE: "failed",
}


def dagster_home() -> Path:
    """``DAGSTER_HOME``, or ``.lakegc/dagster`` below the working directory, ready for use.

    An instance that has run with Dagster's defaults keeps them: our settings would end long runs of
    others.
    """
    home = options.dagster_home()
    if "?" in str(home) or unquote(str(home)) != str(home):
        raise ConfigurationError(
            f"no Dagster instance can be made at {home}: Dagster makes a URL of that path, in "
            "which '?', and '%' before two digits, have another meaning. Set DAGSTER_HOME to "
            "another folder"
        )
    os.environ["DAGSTER_HOME"] = str(home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not any((home / name).exists() for name in ("dagster.yaml", "history")):
            shutil.copyfile(_PACKAGE / "dagster.yaml", home / "dagster.yaml")
    except OSError as error:
        raise ConfigurationError(
            f"no Dagster instance can be made at {home} ({error}): set DAGSTER_HOME to a folder "
            "that can be written"
        ) from error
    return home


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """The instance that the UI shows; the output of this process goes only to the terminal."""
    home = dagster_home()
    logs = {"module": "dagster.core.storage.noop_compute_log_manager"}
    logs["class"] = "NoOpComputeLogManager"
    # In spite of its name, ``local_temp`` makes a complete instance in a folder.
    with (
        kept_connections(home),
        dg.DagsterInstance.local_temp(str(home), {"compute_logs": logs}) as instance,
    ):
        yield instance


@contextmanager
def _recorded() -> Iterator[None]:
    """Explain errors of Dagster's database, for example of a full disk or a damaged file.

    Raises:
        LakegcError: with the folder of the database, and the action to take.
    """
    try:
        yield
    except Exception as error:
        # SQLAlchemy, which Dagster uses, keeps the error of the database in ``orig``.
        cause = getattr(error, "orig", None)
        if not isinstance(cause, sqlite3.Error):
            raise
        raise LakegcError(
            f"Dagster cannot record runs in {options.dagster_home()} ({cause}): make room there, "
            "or set DAGSTER_HOME to another folder. Then run the same command again"
        ) from error


def run_job(
    job: str,
    repository: str,
    run: str,
    settings: dict[str, Any],
    asked: dict[str, Any] | None = None,
) -> None:
    """Run a job of the graph on one repository.

    If the publication of a mark was interrupted after its summary was written, only its report is
    made; the mark does not begin again.

    Args:
        job: plain name.
        repository: name.
        run: its id.
        settings: configuration of the ``collector`` resource, as values or as text.
        asked: configuration of assets and other steps, by plain names.

    Raises:
        ConfigurationError: there is no such repository, a name or setting is wrong, or Spark does
            not start here.
        RefusedError: a blocking check failed, with its finding; or the core refused.
        LakegcError: the core failed.
        KeyboardInterrupt: the run was interrupted.
    """
    partition_key(repository, run)
    settings = checked(settings)
    site = Site.defined()
    # Only the waits are used: the run itself checks that all settings fit together.
    waits = site.collector.model_copy(update=settings)
    site = replace(site, lakefs=replace(site.lakefs, wait_s=waits.lakefs_wait_seconds))
    namespace = site.namespace(repository)
    wait = timedelta(seconds=waits.lease_wait_seconds)
    # A remote process takes the lock itself, even on this machine.
    held = nullcontext() if component().run_on else repository_lock(namespace, wait, say)
    with _recorded(), open_instance() as instance, held:
        # Checked before anything is started, which takes a while.
        if job in (*_OF_A_MARK, "gc_approve"):
            attempt = site.attempt(repository, run)
        if job in _OF_A_MARK:
            require_published(attempt)
            if job == "gc_sweep":
                _say_swept(attempt)
        left = _left(site, namespace, job, repository, run)
        say(f"{job} of {repository}, run {run}")
        names = component().names()
        key = str(add_partition(instance, repository, run, names))
        with _waiting(instance, names, key) if job == "gc_approve" else nullcontext():
            _execute(job, key, settings, asked or {}, left, instance)


@contextmanager
def _waiting(instance: dg.DagsterInstance, names: Names, key: str) -> Iterator[None]:
    """Keep a mark in the partitions of ``gc_approve`` while the context is open.

    If the mark still waits afterwards, ``gc_waiting`` lists it again.
    """
    instance.add_dynamic_partitions(names.of(WAITING), [key])
    try:
        yield
    finally:
        instance.delete_dynamic_partition(names.of(WAITING), key)


def _say_swept(attempt: AttemptArtifacts) -> None:
    """Say that a mark was swept already: another sweep only shows its record.

    Refuses if objects of it were restored since, which no sweep of this mark deletes again.
    """
    if not attempt.has(ASSET):
        return
    back = None
    with suppress(LakegcError):
        back = restored(attempt)
    if back is not None:
        require_unswept(attempt)
    say(f"mark {attempt.run} was swept already: this shows its record")


def checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the types of the resource; a ``ConfigurationError`` if one is wrong."""
    known = CollectorResource.model_fields
    unknown = sorted(settings.keys() - known.keys())
    if unknown:
        near = sorted({like for name in unknown for like in get_close_matches(name, known)})
        meant = f": did you mean {' or '.join(near)}?" if near else ""
        raise ConfigurationError(
            f"there is no setting {', '.join(unknown)}{meant or ':'} docs/operations.md lists all "
            "of them, under Settings"
        )
    if not settings.keys().isdisjoint(("artifact_root", "name")):
        raise ConfigurationError(
            "--set cannot change artifact_root and name, since other commands would not find the "
            "run: set LAKEGC_ARTIFACT_ROOT, or `name` in the component's file"
        )
    settings = {
        name: [text for text in re.split(r"[,\s]+", value) if text]
        if isinstance(value, str) and known[name].annotation == list[str]
        else value
        for name, value in settings.items()
    }
    if isinstance(text := settings.get("retain"), str):
        settings["retain"] = parse_retain(text, "retain").to_json()
    try:
        collector = CollectorResource(**settings)
    except pydantic.ValidationError as error:
        raise refusal(error) from error
    collector.settings()
    return {name: getattr(collector, name) for name in settings}


def _left(site: Site, namespace: str, job: str, repository: str, run: str) -> tuple[str, ...]:
    """The assets that an interrupted publication still needs; empty if the whole job must run."""
    try:
        attempt = site.root.attempt(repository, run)
    except RefusedError:
        return ()
    left = left_to_do(job, attempt, lambda: open_store(namespace, site.stores))
    if left:
        say(f"mark {run} was published, but its report was not finished: this run finishes it")
    return left


def _execute(
    job: str,
    key: str,
    settings: dict[str, Any],
    asked: dict[str, Any],
    left: tuple[str, ...],
    instance: dg.DagsterInstance,
) -> None:
    asked_of = component()
    names = asked_of.names()
    config = {
        "resources": {names.of("collector"): {"config": settings}},
        "ops": {names.of(name): {"config": given} for name, given in asked.items()},
    }
    run_id = str(uuid4())
    try:
        with progress_printed():
            run_in_process(
                asked_of.definitions(),
                names,
                job,
                _Steps(),
                config,
                partition_key=key,
                asset_selection=[names.key(one) for one in left] or None,
                instance=instance,
                run_id=run_id,
            )
    except Stopped as stopped:
        raise stopped.error from stopped
    except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as error:
        # Dagster records a failure, which ``gc_resume`` would continue if it was between two steps.
        if (run := instance.get_run_by_id(run_id)) is not None:
            instance.report_run_canceled(run, "The command was interrupted.")
        raise KeyboardInterrupt(*error.args) from error


@contextmanager
def progress_printed() -> Iterator[None]:
    """Print the progress of a long step."""
    printing, level = logging.StreamHandler(), PROGRESS.level
    printing.setFormatter(_Escaped("    %(message)s"))
    PROGRESS.addHandler(printing)
    PROGRESS.setLevel(logging.INFO)
    try:
        yield
    finally:
        PROGRESS.removeHandler(printing)
        PROGRESS.setLevel(level)


class _Escaped(logging.Formatter):
    """Formats lines without control sequences for the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class _Steps(logging.Handler):
    """Prints the start and the end of each step of a run, from Dagster's events."""

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        # Dagster calls this within the run, which must continue if nobody reads the output.
        with suppress(OSError):
            self._say(record)

    def _say(self, record: logging.LogRecord) -> None:
        event: dg.DagsterEvent | None = getattr(record, "dagster_meta", {}).get("dagster_event")
        if event is None or event.step_key is None or event.event_type not in _STEPS:
            return
        words = _STEPS[event.event_type]
        if event.event_type is dg.DagsterEventType.STEP_START:
            self._started[event.step_key] = record.created
        elif event.step_key in self._started:
            words += f" in {record.created - self._started[event.step_key]:.1f} s"
        say(f"  {self._made_by(event):<22} {words}")

    @staticmethod
    def _made_by(event: dg.DagsterEvent) -> str:
        """The step, with the name of its asset: a backup must not look like a sweep."""
        step, backs_up = event.step_key or "", event.job_name.endswith("gc_backup")
        return step.replace("swept_set", "backup") if backs_up else step


class _Connection(sqlite3.Connection):
    """A connection that ``close`` returns to the pool, so that SQLAlchemy can reuse it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of its base
        super().__init__(*arguments, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        self.ready: list[_Connection] | None = None

    def cursor(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of its base
        made = super().cursor(*arguments, **options)
        self._cursors.add(made)
        return made

    def close(self) -> None:
        """Roll back, close all cursors, and return the connection to the pool."""
        if self.ready is None:
            super().close()
            return
        for cursor in list(self._cursors):
            cursor.close()
        self.rollback()
        self.ready.append(self)


@contextmanager
def kept_connections(folder: Path) -> Iterator[None]:
    """Keep this process's connections to SQLite databases below a folder open in the context.

    A run reads and writes them some five hundred times. Dagster opens and closes a connection each
    time, and no setting changes that. Each new connection reads the whole schema, and closing the
    last one checkpoints the database's log. That took longer than the stages of a small run.
    """
    ready: dict[str, list[_Connection]] = defaultdict(list)

    def connect(
        dialect: Dialect, _record: object, arguments: list[Any], options: dict[str, Any]
    ) -> _Connection | None:
        if dialect.name != "sqlite" or not Path(arguments[0]).is_relative_to(folder):
            return None
        free = ready[arguments[0]]
        with suppress(IndexError):
            return free.pop()
        made = sqlite3.connect(*arguments, **options, factory=_Connection)
        made.ready = free
        return made

    event.listen(Engine, "do_connect", connect)
    try:
        yield
    finally:
        event.remove(Engine, "do_connect", connect)
        for connection in [one for free in ready.values() for one in free]:
            connection.ready = None
            connection.close()
