"""The asset of leftovers: the figures of what was found, and a warning for each closed place."""

from __future__ import annotations

import dagster as dg
import pytest

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.policy import StoresSection
from lakegc_assets_tests.files import age
from lakegc_assets_tests.site import Site


def test_the_job_shows_what_is_left_over(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.tell("alpha")
    site.client.create_repository("other", "local://team/other")
    stray = site.server.objects_dir / "team/old"
    stray.mkdir(parents=True)
    (stray / "dummy").write_bytes(b"12345")
    age(stray, 31)
    stores = StoresSection(namespace_roots=["local://team", "mem://x"])
    component = GarbageCollection(stores=stores)
    with dg.DagsterInstance.ephemeral() as instance:
        job = component.definitions().resolve_job_def("gc_leftovers")
        result = job.execute_in_process(instance=instance)
    (made,) = result.asset_materializations_for_node("estate_leftovers")
    shown = made.metadata
    assert shown["leftover namespaces"].value == 1
    assert shown["bytes in leftover namespaces"].value == 5
    assert shown["places that could not be looked at"].value == 1
    table = shown["namespaces"]
    assert isinstance(table, dg.TableMetadataValue)
    assert table.records[0].data["namespace"] == "local://team/old"
    assert table.records[0].data["stays"] == "may be removed"
    assert shown["uploads that never ended"].value == "nothing"
    assert "mem://x could not be read" in capsys.readouterr().err
