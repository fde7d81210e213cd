"""The sensor that keeps a file of metrics, as the component's file asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pydantic
import pytest
from dagster.components.resolved.errors import ResolutionException

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets_tests.left import root_at, swept


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def test_the_file_is_written_at_each_tick_and_has_what_dagster_knows(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    root = root_at(tmp_path)
    swept(root, "good", "m1")
    file = tmp_path / "lakegc.prom"
    definitions = GarbageCollection.resolve_from_yaml(
        f"""
        name: eu
        stores: {{artifact_root: {root.url}}}
        exclude: [good]
        metrics: {{textfile: {file}}}
        """
    ).definitions()
    instance.add_dynamic_partitions("eu_repository", ["new"])
    sensor = definitions.resolve_sensor_def("eu_gc_metrics")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.minimum_interval_seconds == 300
    with dg.build_sensor_context(instance, resources=definitions.resources) as context:
        reported = sensor.evaluate_tick(context)
    assert reported.skip_message == f"{file}: 1 repository"
    text = file.read_text()
    assert 'lakegc_deleted_bytes_total{component="eu",repository="good"} 4000.0' in text
    assert 'state="never run"} 1.0' in text
    # What is not collected cannot be stale.
    assert 'lakegc_mark_max_age_seconds{component="eu",repository="new"} 1.2096e+06' in text
    assert 'max_age_seconds{component="eu",repository="good"}' not in text
    swept(root, "good", "m2", 7)
    with dg.build_sensor_context(instance, resources=definitions.resources) as context:
        sensor.evaluate_tick(context)
    assert 'lakegc_deleted_bytes_total{component="eu",repository="good"} 8000.0' in file.read_text()


def test_a_file_that_nobody_would_read_is_refused_with_its_line() -> None:
    with pytest.raises(
        (pydantic.ValidationError, ResolutionException), match=r"its name must end in \.prom"
    ):
        GarbageCollection.resolve_from_yaml("metrics: {textfile: /tmp/lakegc.txt}")
    with pytest.raises(
        (pydantic.ValidationError, ResolutionException), match="is not from 30 to 86,400"
    ):
        GarbageCollection.resolve_from_yaml("metrics: {textfile: /a.prom, every_seconds: 1}")
