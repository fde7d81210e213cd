"""What stops a run before it begins: shared namespaces, clocks, used ids, and other runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import ReadOnlyRepositoryError
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.publication import mark_folder, read_summary, require_unused
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets_tests import recorded
from lakegc_assets_tests.replay import Answer, ReplayServer, paged
from lakegc_assets_tests.sessions import Session

REPOSITORIES = ("GET", "/repositories")
MINUTES = timedelta(minutes=1)


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    recorded.load("emptyrepo")
    with ReplayServer("emptyrepo") as found:
        yield found


@pytest.fixture
def ctx(server: ReplayServer, s3_server: str, spark: Session, tmp_path: Path) -> RunContext:
    return recorded.context(server, s3_server, tmp_path, spark, clock_skew_seconds=300)


@pytest.mark.parametrize(
    "answer",
    [(404, {"message": "repository not found"}), (400, {"message": "invalid repository id"})],
)
def test_a_name_that_no_repository_has_or_can_have_is_wrong_usage(
    answer: tuple[int, dict[str, str]], server: ReplayServer, ctx: RunContext
) -> None:
    server.overrides["GET", "/repositories/NO_SUCH_NAME"] = answer
    with pytest.raises(ConfigurationError, match="there is no repository 'NO_SUCH_NAME'"):
        replace(ctx, repository="NO_SUCH_NAME").connect()


def test_the_error_about_a_deleted_repository_says_what_is_left_of_it(
    server: ReplayServer, ctx: RunContext
) -> None:
    ctx.root.open("deleted", "first").put("attempt.json", b"{}")
    for name in ("deleted", "never"):
        server.overrides["GET", f"/repositories/{name}"] = (404, {"message": "not found"})
    with pytest.raises(ConfigurationError) as raised:
        replace(ctx, repository="deleted").connect()
    assert f"{ctx.root.url}/deleted has runs of a repository of this name" in str(raised.value)
    assert "`lakegc report deleted --run first` still shows a run" in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"`lakegc repositories` lists them$"):
        replace(ctx, repository="never").connect()


def add_repository(server: ReplayServer, namespace: str, storage: str = "") -> None:
    found: list[dict[str, Any]] = server.recording.body("repositories")["results"]
    made = {"id": "another", "storage_namespace": namespace, "storage_id": storage}
    other = {**found[0], **made}
    server.overrides[REPOSITORIES] = lambda asked: paged([other, *found], "id", asked.params)


@pytest.mark.parametrize(
    "namespace",
    [
        "s3://lab/emptyrepo",
        "s3a://lab/emptyrepo/",
        "s3://lab",
        "s3://lab/emptyrepo/data/inner",
        "s3://lab/%65mptyrepo/data/inner",
    ],
)
def test_repositories_that_share_a_namespace_are_refused(
    namespace: str, server: ReplayServer, ctx: RunContext
) -> None:
    add_repository(server, namespace)
    with pytest.raises(IntegrityError, match=r"'emptyrepo' .* and 'another' .* overlap"):
        ctx.connect()
    with pytest.raises(IntegrityError, match="Neither can be collected"):
        list_store(ctx)
    assert ctx.root.runs("emptyrepo") == []


def test_two_storages_of_a_server_may_be_one_store(server: ReplayServer, ctx: RunContext) -> None:
    add_repository(server, "s3://lab/emptyrepo", "second")
    with pytest.raises(IntegrityError, match=r"overlap.*'emptyrepo' in its storage '' .* 'second'"):
        ctx.connect()


def test_a_namespace_that_may_be_anywhere_is_refused_with_its_repository(
    server: ReplayServer, ctx: RunContext
) -> None:
    """An access point is another name of some bucket, perhaps of this one."""
    add_repository(server, "s3://point-abc-s3alias/x")
    with pytest.raises(ConfigurationError, match=r"'another' shares .*'emptyrepo'.*point-abc"):
        ctx.connect()


@pytest.mark.parametrize("namespace", ["s3://lab/emptyrepo2", "s3://other/emptyrepo", "gs://lab"])
def test_neighbours_do_not_share_a_namespace(
    namespace: str, server: ReplayServer, ctx: RunContext
) -> None:
    add_repository(server, namespace)
    assert ctx.connect().connections.namespace_url == "s3://lab/emptyrepo"


def test_a_read_only_repository_is_refused(server: ReplayServer, ctx: RunContext) -> None:
    found = server.recording.body("repository")
    server.overrides["GET", "/repositories/emptyrepo"] = Answer(200, {**found, "read_only": True})
    with pytest.raises(ReadOnlyRepositoryError):
        ctx.connect()


@pytest.mark.parametrize("minutes", [-6, 6])
@pytest.mark.parametrize(
    ("clock", "name"), [("lakefs_skew", "lakeFS server"), ("store_skew", "object store")]
)
def test_a_clock_that_is_off_is_refused(
    clock: str, name: str, minutes: int, ctx: RunContext
) -> None:
    moment = ctx.clocks.now()
    off = replace(ctx, clocks=recorded.FixedClocks(moment, **{clock: minutes * MINUTES}))
    with pytest.raises(RefusedError, match=f"the clock of the {name} differs .* by 0:06:00"):
        list_store(off)
    assert ctx.root.runs("emptyrepo") == []


def test_a_wait_for_lakefs_is_no_difference_of_clocks(ctx: RunContext) -> None:
    times = [ctx.clocks.now()]

    class Waiting(Clocks):
        def now(self) -> datetime:
            return times[-1]

        def of_store(self, store: ObjectStore) -> datetime:  # noqa: ARG002 - the protocol's
            return times[-1]

        def of_lakefs(self, client: LakeFSClient) -> datetime:  # noqa: ARG002 - the protocol's
            times.append(times[-1] + 10 * MINUTES)
            return times[-1]

    there = replace(ctx, clocks=Waiting()).connect()
    assert there.check_clocks(there.client, there.connections.store()) == times[0]
    assert len(times) == 2


def test_the_clock_of_the_store_begins_the_run(ctx: RunContext) -> None:
    moment = ctx.clocks.now()
    near = recorded.FixedClocks(moment, lakefs_skew=-5 * MINUTES, store_skew=5 * MINUTES)
    safe = ctx.settings.changed(allow_unsafe_min_age=False, min_age_hours=30)
    listing = list_store(replace(ctx, clocks=near, settings=safe))
    assert listing.facts["start"] == (moment + 5 * MINUTES).isoformat()
    assert listing.facts["grace_period_seconds"] == 86400
    assert moment + 5 * MINUTES - listing.cutoff == timedelta(hours=31) + 10 * MINUTES
    assert (listing.started, listing.finished) == (moment, moment)


def test_a_mark_id_that_is_in_use_is_refused(ctx: RunContext) -> None:
    store = ctx.connect().connections.store()
    require_unused(store, ctx.run, "unified")
    key = mark_folder(ctx.run) + "summary.json"
    summary = {
        "run_id": ctx.run,
        "success": False,
        "first_slice": "",
        "start_time": "",
        "cutoff_time": "",
        "num_deleted_objects": 0,
    }
    store.put(key, json.dumps(summary).encode())
    for stage in (lambda: require_unused(store, ctx.run, "unified"), lambda: list_store(ctx)):
        with pytest.raises(RefusedError, match="mark id 'run1' exists already in s3://lab/emp"):
            stage()
    for damaged in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000):
        store.put(key, damaged)
        with pytest.raises(IntegrityError, match=r"summary\.json is damaged"):
            read_summary(store, ctx.run)


HOLD = """
import sys
from lakegc_assets.run.lock import repository_lock
with repository_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_keeps_the_repository(tmp_path: Path) -> None:
    url = f"s3://lab/{tmp_path.name}-{tmp_path.parent.name}"
    command = [sys.executable, "-c", HOLD, url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        reported = f"another run holds {url} on this machine: process {holder.pid} "
        with pytest.raises(RefusedError, match=reported), repository_lock(url):
            pass
        with repository_lock(url + "/other"):
            pass
        holder.kill()
        holder.wait()
    with repository_lock(url), repository_lock(url):
        result = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        assert "RefusedError: another run holds" in result.stderr
    result = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("held\n", 0)
