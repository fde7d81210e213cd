"""Which repositories have partition keys, and which of them jobs take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.names import Names, partition_key
from lakegc_assets.defs.policy import StoresSection
from lakegc_assets.defs.sensors import is_included
from lakegc_assets_tests.defs.daemon import code_location, ticked


@dataclass
class Location:
    """A code location whose component has the sensor; a server with repositories."""

    instance: dg.DagsterInstance
    there: set[str]
    component: GarbageCollection = field(default_factory=GarbageCollection)
    cursor: str | None = None
    name: str = ""
    said: str = ""

    @property
    def names(self) -> Names:
        return self.component.names()

    def repositories(self) -> Iterator[SimpleNamespace]:
        for name in sorted(self.there):
            yield SimpleNamespace(id=name, read_only=False)

    def tick(self, *, dies: bool = False) -> int:
        """One tick; how many partitions of repositories were added and deleted.

        Args:
            dies: before the cursor is written.
        """
        server = SimpleNamespace(config=lambda: SimpleNamespace(connect=lambda: self))
        sensor = self.component.definitions().resolve_sensor_def(self.names.of("gc_repositories"))
        with dg.build_sensor_context(
            self.instance, cursor=self.cursor, resources={self.names.of("lakefs"): server}
        ) as context:
            if self.name:
                # Nothing that Dagster offers to tests takes it.
                context._code_location_origin = code_location(self.name)
            result = sensor.evaluate_tick(context)
        self.said = result.skip_message or ""
        changed = 0
        for change in result.dynamic_partitions_requests or ():
            keys = list(change.partition_keys)
            changed += len(keys) if change.partitions_def_name.endswith("repository") else 0
            if isinstance(change, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(change.partitions_def_name, keys)
            else:
                for key in keys:
                    self.instance.delete_dynamic_partition(change.partitions_def_name, key)
        if not dies:
            self.cursor = result.cursor
        return changed

    @property
    def keys(self) -> set[str]:
        return set(self.instance.get_dynamic_partitions(self.names.of("repository")))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def _run(instance: dg.DagsterInstance, repository: str) -> None:
    tags = dict(partition_key(repository, "r").keys_by_dimension)
    instance.create_run_for_job(
        _something, tags={f"dagster/partition/{name}": key for name, key in tags.items()}
    )


@dg.job
def _something() -> None: ...


def test_two_locations_without_names_leave_each_others_keys_alone(
    instance: dg.DagsterInstance,
) -> None:
    here, there = Location(instance, {"a", "shared"}), Location(instance, {"b", "shared"})
    assert [here.tick(), there.tick()] == [2, 1]
    for _ in range(3):
        assert [here.tick(), there.tick()] == [0, 0]
    assert here.keys == {"a", "b", "shared"}
    # What one has made goes with its repository; the other server's repository comes back once.
    here.there = set()
    assert [here.tick(), there.tick(), here.tick(), there.tick()] == [2, 1, 0, 0]
    assert here.keys == {"b", "shared"}


def test_a_location_with_a_component_of_the_same_name_is_warned_of(tmp_path: Path) -> None:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        here = Location(instance, {"a"}, name="here")
        named = Location(instance, {"a"}, GarbageCollection(name="eu"), name="here")
        now = datetime.now(timezone.utc)
        ticked(instance, "gc_repositories", "here", now)
        ticked(instance, "gc_repositories", "gone", now - timedelta(hours=1))
        ticked(instance, "gc_schedule", "other", now)
        ticked(instance, "us_gc_repositories", "other", now)
        for one in (here, named):
            one.tick()
            one.tick()
            assert one.said == "nothing is new: 1 repository"
        ticked(instance, "gc_repositories", "there", now)
        here.tick()
        assert "the component in the code location 'there' has no `name`, either" in here.said
        assert "Give each of them a `name` of its own" in here.said
        named.tick()
        assert named.said == "nothing is new: 1 repository"
        ticked(instance, "eu_gc_repositories", "there", now)
        named.tick()
        assert "in the code location 'there' is called 'eu', too" in named.said


def test_a_key_that_somebody_else_made_is_never_removed(instance: dg.DagsterInstance) -> None:
    location = Location(instance, {"a"})
    location.tick()
    instance.add_dynamic_partitions("repository", ["by-hand", "later"])
    location.there.add("later")
    location.tick()
    location.there = {"a"}
    location.tick()
    assert location.keys == {"a", "by-hand", "later"}


def test_a_sensor_that_remembers_nothing_takes_the_keys_of_its_server_for_its_own(
    instance: dg.DagsterInstance,
) -> None:
    """As after a person has reset its cursor."""
    instance.add_dynamic_partitions("repository", ["a", "elsewhere"])
    location = Location(instance, {"a", "b"})
    location.tick()
    location.there = {"b"}
    location.tick()
    assert location.keys == {"b", "elsewhere"}


def test_a_daemon_that_is_killed_before_it_writes_the_cursor_removes_nothing_of_others(
    instance: dg.DagsterInstance,
) -> None:
    location = Location(instance, {"a"})
    location.tick()
    location.there |= {"b"}
    location.tick(dies=True)
    location.there = {"a"}
    for _ in range(2):
        location.tick()
    # Nobody knows whose key it is.
    assert location.keys == {"a", "b"}


def test_what_is_excluded_gets_no_key_and_loses_one_that_no_run_was_about(
    instance: dg.DagsterInstance,
) -> None:
    location = Location(instance, {"used", "unused", "wanted"})
    location.tick()
    _run(instance, "used")
    location.component = GarbageCollection(include=["*"], exclude=["used", "unused", "new"])
    location.there.add("new")
    location.tick()
    assert location.keys == {"used", "wanted"}
    assert location.tick() == 0


def test_named_components_have_keys_of_their_own(instance: dg.DagsterInstance) -> None:
    eu = Location(instance, {"a", "b"}, GarbageCollection(name="eu"))
    us = Location(instance, {"a", "c"}, GarbageCollection(name="us"))
    for _ in range(2):
        eu.tick()
        us.tick()
    assert (eu.keys, us.keys) == ({"a", "b"}, {"a", "c"})
    assert instance.get_dynamic_partitions("repository") == []


def _launchpad(component: GarbageCollection, job: str, repository: str) -> dict[str, Any]:
    found = component.definitions().resolve_job_def(job).partitioned_config
    assert found is not None
    config = found.get_run_config_for_partition_key(partition_key(repository, "r"))
    shown: dict[str, Any] = config["resources"]["collector"]["config"]
    return shown


def test_the_launchpad_of_an_excluded_repository_shows_what_lets_it_be_collected() -> None:
    component = GarbageCollection(exclude=["scratch-*"])
    assert "collect_excluded" not in _launchpad(component, "gc", "wanted")
    assert _launchpad(component, "gc", "scratch-1")["collect_excluded"] is False


def test_a_killed_run_goes_on_where_its_repository_is_collected_or_the_run_says_so() -> None:
    policies = GarbageCollection(exclude=["scratch-*"]).policies()
    for repository, said, goes_on in (
        ("wanted", {}, True),
        ("scratch-1", {}, False),
        ("scratch-1", {"collect_excluded": True}, True),
    ):
        config = {"resources": {"eu_collector": {"config": said}}}
        tags = {"dagster/partition/repository": repository}
        run = dg.DagsterRun(job_name="eu_gc", run_config=config, tags=tags)
        assert is_included(policies, Names("eu"), run) is goes_on


def test_a_mark_that_another_location_has_listed_to_be_approved_stays_listed(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    component = GarbageCollection(stores=StoresSection(artifact_root=str(tmp_path)))
    definitions = component.definitions()
    instance.add_dynamic_partitions("waiting", ["elsewhere|wave"])
    cursor = None
    for _ in range(2):
        with dg.build_sensor_context(
            instance, cursor=cursor, resources=definitions.resources
        ) as context:
            result = definitions.resolve_sensor_def("gc_waiting").evaluate_tick(context)
        cursor = result.cursor
        assert not result.dynamic_partitions_requests
