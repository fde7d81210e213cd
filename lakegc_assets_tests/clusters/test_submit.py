"""A mark and its sweep in processes that a real ``spark-submit`` starts for a Pipes client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.names import add_partition
from lakegc_assets.run.manifest import MARK_ASSETS
from lakegc_assets_tests.sessions import SMALL
from lakegc_assets_tests.site import Site
from lakegc_assets_tests.sweep.test_on_spark import MARK_JOBS, SWEEP_JOBS

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings(
        "ignore:AssetExecutionContext.[a-z_]+ is deprecated:DeprecationWarning"
    ),
]

_PATIENCE_S = 120


def submitted(folder: Path) -> GarbageCollection:
    """A component whose marks and sweeps ``spark-submit`` starts, as docs/clusters.md says it."""
    (folder / "events").mkdir()
    script = folder / "lakegc_remote.py"
    script.write_text(
        "import sys\nfrom lakegc_assets.pipes import main\n"
        "if __name__ == '__main__' and (status := main()):\n    sys.exit(status)\n"
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        **{name: value for name, value in SMALL.items() if name.startswith("spark.sql")},
    }
    command = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"),
        *(word for item in settings.items() for word in ("--conf", "=".join(item))),
        str(script),
    ]
    found: GarbageCollection = GarbageCollection.resolve_from_dict(
        {
            # Nothing commits here.
            "longest_commit_seconds": 0,
            "run_on": {
                "client": "dagster:PipesSubprocessClient",
                "arguments": {
                    "command": command,
                    "env": {"PYTHONPATH": str(Path(__file__).parents[2])},
                },
            },
        }
    )
    return found


def events(folder: Path) -> list[list[dict[str, Any]]]:
    """What Spark logged, for each application in their order."""
    logs = sorted((folder / "events").iterdir(), key=lambda log: log.stat().st_mtime)
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


def jobs(application: Sequence[dict[str, Any]]) -> int:
    return sum(event["Event"] == "SparkListenerJobStart" for event in application)


def processes(word: str) -> list[str]:
    """Processes whose command line holds a word, by what they are called with."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if word in line]


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_spark_submit_marks_and_sweeps_on_its_own_spark(site: Site, tmp_path: Path) -> None:
    """Every stage is there, in few jobs, and the subtraction is an anti-join of a plan."""
    told = site.tell("submitted")
    with dg.DagsterInstance.ephemeral() as instance:
        result = (
            submitted(tmp_path)
            .definitions()
            .resolve_job_def("gc")
            .execute_in_process(
                partition_key=add_partition(instance, "submitted", "wave-1"), instance=instance
            )
        )
    made = {
        event.asset_key.to_user_string(): event.materialization.metadata
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }
    assert [*made] == [*MARK_ASSETS, "storage_attribution", "swept_set"]
    engines = {metadata["engine"].value for metadata in made.values()}
    assert engines == {"spark (spark-submit configures it)"}
    assert all(one.passed for one in result.get_asset_check_evaluations())
    namespace = site.namespace("submitted")
    assert not (namespace / told.expired).exists()
    assert not (namespace / told.unreferenced).exists()
    assert (namespace / told.live).exists()
    assert (namespace / told.staged).exists()
    mark, sweep = events(tmp_path)
    assert 5 <= jobs(mark) <= MARK_JOBS
    assert 1 <= jobs(sweep) <= SWEEP_JOBS
    plans = [event.get("physicalPlanDescription", "") for event in mark]
    assert any("LeftAnti" in plan and "hash" in plan for plan in plans)


def test_a_run_that_is_cancelled_ends_the_processes_that_it_has_started(
    site: Site, tmp_path: Path
) -> None:
    site.tell("cancelled")
    script = str(tmp_path / "lakegc_remote.py")

    def cancel() -> None:
        # Python, which spark-submit leaves behind, has begun when there is an attempt.
        wait_for(lambda: list((site.folder / "artifacts/cancelled").rglob("*.json")))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=cancel)
    thread.start()
    with (
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(dg.DagsterExecutionInterruptedError),
    ):
        submitted(tmp_path).definitions().resolve_job_def("gc").execute_in_process(
            partition_key=add_partition(instance, "cancelled", "wave-1"), instance=instance
        )
    thread.join()
    wait_for(lambda: not processes(script))
    assert not site.published("cancelled")
