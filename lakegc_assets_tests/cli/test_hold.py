"""A sweep raises an alarm; the command ``hold`` explains it, and lets sweeps start again."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest
from click.testing import Result

from lakegc_assets.cli.jobs import open_instance
from lakegc_assets.definitions import defs
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets_tests.cli.calling import lakegc, say
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Completed, Site


@pytest.fixture(scope="module")
def reported(site: Site) -> Completed:
    return site.tell("held")


@pytest.fixture(scope="module")
def alarm(site: Site, spark: Session, reported: Completed) -> Result:
    """What a sweep said, of which one object came back to life when it was deleted for good."""
    mark_outside(site, "held", "m1", spark)
    first = next(c.id for c in site.client.log("held", "main") if c.message == "first")
    delete_many = LocalStore.delete_many

    def delete(store: LocalStore, keys: list[str], *args: Any, **more: Any) -> list[DeleteOutcome]:
        found = list(delete_many(store, keys, *args, **more))
        if reported.expired in keys:
            site.client.create_branch("held", "rescue", first)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", delete)
        return lakegc("sweep", "held", "--run", "m1", "--set", "trash_days=0")


def test_the_alarm_says_in_three_lines_what_happened_and_what_to_do(
    alarm: Result, reported: Completed
) -> None:
    say(alarm, 1, "failed: 1 object of mark 'm1' is gone, and is needed. Not put back: ")
    lines = alarm.stderr[alarm.stderr.index("failed: ") :].splitlines()
    assert "First restore the objects: `lakegc restore held --run m1 --all" in lines[1]
    assert "The lost objects and the next steps: `lakegc hold held`" in lines[2]
    assert "After the acceptance: `lakegc sweep held --run m1 --set trash_days=0`" in lines[2]
    assert lines[3].startswith(f"  {reported.expired}  an active commit holds it now: ")
    assert "branch 'rescue', path 'a'" in lines[3]
    assert lines[4].startswith("All objects: ")
    assert "hold.json is removed" not in alarm.stderr


@pytest.mark.usefixtures("alarm")
def test_a_refusal_says_the_same(reported: Completed) -> None:
    refused = lakegc("sweep", "held", "--run", "m1")
    say(refused, 3, "'held' is on hold since ", "`lakegc hold held`", reported.expired)


@pytest.mark.usefixtures("alarm")
def test_the_hold_is_shown_with_what_is_lost_and_what_can_be_done(reported: Completed) -> None:
    shown = lakegc("hold", "held")
    found = json.loads(lakegc("hold", "held", "--json").stdout)
    say(shown, 0, f"'held' is on hold, and is not swept. Hold {found['id']}",
        "now: 1 gone, and nothing keeps it", reported.expired, found["accept"],
        "settings of the store, for later deletes: local://held: deleted files are moved into",
    )  # fmt: skip
    off = lakegc("hold", "held", "--set", "trash_days=0")
    say(off, 0, "for later deletes: trash_days is 0, so deleted files are not moved into")
    assert found["accept"] == f"lakegc hold held --accept --id {found['id']}"
    (one,) = found["alarms"]
    (lost,) = one["objects"]
    assert (lost["address"], lost["state"], lost["branch"]) == (
        reported.expired,
        "gone, and nothing keeps it",
        "rescue",
    )


@pytest.mark.usefixtures("alarm")
def test_the_job_shows_the_hold_and_accepts_only_the_one_that_is_named(
    site: Site, reported: Completed
) -> None:
    """Of a user of Dagster's interface, who needs no shell for it."""
    job = defs().resolve_job_def("gc_accept_hold")
    found = json.loads(lakegc("hold", "held", "--json").stdout)
    assert job.partitioned_config is not None
    shown = job.partitioned_config.get_run_config_for_partition_key("held")
    assert shown == {"ops": {"accept_hold": {"config": {"accept": "", "by": ""}}}}

    def run(**config: Any) -> dg.ExecuteInProcessResult:
        with open_instance() as instance:
            instance.add_dynamic_partitions("repository", ["held"])
            return job.execute_in_process(
                partition_key="held",
                instance=instance,
                run_config={"ops": {"accept_hold": {"config": config}}},
                raise_on_error=False,
            )

    looked = run()
    assert looked.success
    (event,) = looked.filter_events(lambda one: one.is_successful_output)
    metadata = event.step_output_data.metadata
    assert metadata["state"].value == "on hold"
    assert metadata["hold"].value == found["id"]
    assert reported.expired in str(metadata["what is known"].value)
    for config, said in (
        ({"accept": found["id"]}, "the name of the person who accepts the loss is missing"),
        ({"accept": "0" * 16, "by": "ada"}, f"is {found['id']} now, not 0"),
    ):
        refused = run(**config)
        (failure,) = refused.filter_events(lambda one: one.is_step_failure)
        assert failure.step_failure_data.user_failure_data is not None
        assert said in str(failure.step_failure_data.user_failure_data.description)
    assert json.loads(lakegc("hold", "held", "--json").stdout)["id"] == found["id"]

    before = (site.namespace("held") / HOLD).read_bytes()
    try:
        assert run(accept=found["id"], by="ada").success
        again = json.loads(lakegc("hold", "held", "--json").stdout)
        assert (again["state"], again["by"]) == ("accepted", "ada")
        # Who starts it again behind a kill reads that it is done.
        assert run(accept=found["id"], by="ada").success
    finally:
        (site.namespace("held") / HOLD).write_bytes(before)


@pytest.mark.usefixtures("alarm")
def test_it_is_accepted_when_a_person_says_so_and_sweeps_start_again(
    site: Site, spark: Session, reported: Completed
) -> None:
    hold = json.loads(lakegc("hold", "held", "--json").stdout)["id"]
    say(lakegc("hold", "held", "--accept", answer="n\n"), 1, "accept the loss of the rest")
    say(lakegc("hold", "held", "--accept", "--yes", "--id", "0" * 16), 3, f"is {hold} by now")
    assert json.loads(lakegc("hold", "held", "--json").stdout)["id"] == hold

    done = lakegc("hold", "held", "--accept", "--yes", "--by", "ada", "--json")
    say(done, 0)
    found = json.loads(done.stdout)
    assert (found["state"], found["id"], found["by"]) == ("accepted", hold, "ada")
    assert found["lost"] == {"m1": [reported.expired]}
    say(lakegc("hold", "held"), 0, "'held' is not on hold: ada has accepted it on ", "1 lost")
    say(lakegc("hold", "held", "--accept", "--yes", "--id", hold), 0, "ada has accepted it")
    say(lakegc("hold", "held", "--accept", "--yes"), 3, "is not on hold: nothing to accept")
    assert "on hold" not in lakegc("repositories").stdout
    say(lakegc("sweep", "held", "--run", "m1", "--set", "trash_days=0"), 0, "state      swept")
    # The next mark knows what is lost, too.
    mark_outside(site, "held", "m2", spark)


def test_a_repository_without_a_hold(site: Site) -> None:
    site.tell("free")
    say(lakegc("hold", "free"), 0, "'free' is not on hold: sweeps may start")
    assert json.loads(lakegc("hold", "free", "--json").stdout) == {
        "repository": "free", "state": "no hold",
    }  # fmt: skip
    say(lakegc("hold", "nobody"), 2, "there is no repository 'nobody'")
