"""``python -m lakegc_assets.pipes``: makes a mark or a sweep for a Dagster that runs elsewhere.

A Pipes client (``spark-submit``, a job of EMR or Databricks) starts this process with a
``RemoteRun``. The process runs the same assets and checks as the graph, in a Dagster instance that
ends with the process. It reports their materializations, results and log. The exit status is 0 if
the process could report the end of the run. An error that was raised on purpose, such as a refusal,
is also reported with 0, and Dagster's run then fails. The status is 1 after an interrupt or any
other error, and 2 if no Pipes client started the process.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
import dagster_pipes

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.failures import Stopped
from lakegc_assets.defs.jobs import run_in_process
from lakegc_assets.defs.names import EXCEEDS_TAG, WAITS_TAG, add_partition
from lakegc_assets.defs.run_on import RemoteRun, Report, event_message, of_error
from lakegc_assets.errors import LakegcError

_JOB: Final = "remote"
_POLL_S: Final = 1.0


def _s3() -> Any:  # noqa: ANN401 - boto3 has no types
    import boto3  # noqa: PLC0415 - few processes need it

    return boto3.client("s3")


def _gcs() -> Any:  # noqa: ANN401 - nor has Google's client, which this package does not need
    from google.cloud.storage import Client  # type: ignore[import-untyped] # noqa: PLC0415

    return Client()


#: Readers of the Pipes context, writers of Pipes messages, and readers of the parameters of both.
_CONTEXTS: Final[dict[str, Callable[[], dagster_pipes.PipesContextLoader]]] = {
    "default": dagster_pipes.PipesDefaultContextLoader,
    "s3": lambda: dagster_pipes.PipesS3ContextLoader(_s3()),
    "gcs": lambda: dagster_pipes.PipesGCSContextLoader(_gcs()),
    "dbfs": dagster_pipes.PipesDbfsContextLoader,
    "volumes": dagster_pipes.PipesUnityCatalogVolumesContextLoader,
}
_MESSAGES: Final[dict[str, Callable[[], dagster_pipes.PipesMessageWriter[Any]]]] = {
    "default": dagster_pipes.PipesDefaultMessageWriter,
    "s3": lambda: dagster_pipes.PipesS3MessageWriter(_s3()),
    "gcs": lambda: dagster_pipes.PipesGCSMessageWriter(_gcs()),
    "dbfs": dagster_pipes.PipesDbfsMessageWriter,
    "volumes": dagster_pipes.PipesUnityCatalogVolumesMessageWriter,
}
_PARAMETERS: Final[dict[str, Callable[[], dagster_pipes.PipesParamsLoader]]] = {
    "environment": dagster_pipes.PipesEnvVarParamsLoader,
    "arguments": dagster_pipes.PipesCliArgsParamsLoader,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the assets that Dagster requests, and report them.

    Args:
        arguments: of the command line; None for the arguments of this process.

    Returns:
        The exit status.
    """
    options = _options(arguments)
    parameters = _PARAMETERS[options.parameters]()
    if not parameters.is_dagster_pipes_process():
        sys.stderr.write(
            "no Pipes client of Dagster has started this: set run_on in the component's file, and "
            "let Dagster run the job (docs/clusters.md)\n"
        )
        return 2
    with (
        dagster_pipes.open_dagster_pipes(
            context_loader=_CONTEXTS[options.context](),
            message_writer=_MESSAGES[options.messages](),
            params_loader=parameters,
        ) as pipes,
        _ending_with_its_parent(),
    ):
        return _reported(pipes)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lakegc_assets.pipes")
    for name, choices in (
        ("context", _CONTEXTS),
        ("messages", _MESSAGES),
        ("parameters", _PARAMETERS),
    ):
        parser.add_argument(f"--{name}", choices=list(choices), default=next(iter(choices)))
    # Pipes adds options of its own.
    return parser.parse_known_args(arguments)[0]


def _reported(pipes: dagster_pipes.PipesContext) -> int:
    """Make the assets, report the end of the run, and return the exit status."""
    with dg.DagsterInstance.ephemeral(settings={"telemetry": {"enabled": False}}) as instance:
        try:
            work = RemoteRun.from_json(pipes.extras)
            try:
                _execute(work, pipes, instance)
            finally:
                _report_events(pipes, instance)
            report = Report(tags=_tags(pipes, instance))
        except Stopped as stopped:
            report = Report(stopped=of_error(stopped.error))
        except LakegcError as error:
            report = Report(stopped=of_error(error))
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as error:
            pipes.log.warning("interrupted: %s", error)
            return 1
    pipes.report_custom_message(report.to_json())
    return 0


def _execute(
    work: RemoteRun, pipes: dagster_pipes.PipesContext, instance: dg.DagsterInstance
) -> None:
    """Make the assets and their checks, as a job of the component.

    Raises:
        Stopped: the run raised an error on purpose.
    """
    component = GarbageCollection(**work.component)
    if work.place:
        component.place = Path(work.place)
    names = component.names()
    job = dg.define_asset_job(
        names.of(_JOB),
        selection=names.selection(*work.assets),
        executor_def=dg.in_process_executor,
    )
    definitions = dg.Definitions.merge(component.definitions(), dg.Definitions(jobs=[job]))
    run_in_process(
        definitions,
        names,
        _JOB,
        _Forwarding(pipes),
        {"resources": {names.of("collector"): {"config": dict(work.config)}}},
        partition_key=add_partition(instance, work.repository, work.run, names),
        instance=instance,
        run_id=pipes.run_id,
        tags=dict(work.tags),
    )


def _report_events(pipes: dagster_pipes.PipesContext, instance: dg.DagsterInstance) -> None:
    """Report all materializations and check results of the run, also of a run that failed."""
    for entry in instance.all_logs(pipes.run_id):
        event = entry.dagster_event
        if event is not None and event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            made = event.step_materialization_data.materialization
            pipes.report_custom_message(event_message(made))
        if event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            pipes.report_custom_message(event_message(event.asset_check_evaluation_data))


def _tags(pipes: dagster_pipes.PipesContext, instance: dg.DagsterInstance) -> dict[str, str]:
    """The tags that say what the run waits for, if the run has them."""
    run = instance.get_run_by_id(pipes.run_id)
    found = run.tags if run is not None else {}
    return {tag: found[tag] for tag in (WAITS_TAG, EXCEEDS_TAG) if tag in found}


class _Forwarding(logging.Handler):
    """Sends the log of assets and checks to Dagster, without the events of this instance."""

    def __init__(self, pipes: dagster_pipes.PipesContext) -> None:
        super().__init__(logging.INFO)
        self._pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        metadata = getattr(record, "dagster_meta", {})
        if metadata.get("dagster_event") is None:
            message = metadata.get("orig_message") or record.getMessage()
            self._pipes.log.log(record.levelno, "%s", message)


@contextmanager
def _ending_with_its_parent() -> Iterator[None]:
    """Interrupt this process after its parent process has ended.

    A signal ends ``spark-submit``, but not the Python process that it started.
    """
    parent, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


if __name__ == "__main__" and (status := main()):
    sys.exit(status)
