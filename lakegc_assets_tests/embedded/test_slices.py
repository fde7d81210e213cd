"""Slices: replaced by age and count, newest first, one writer each; and the older flat layouts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS, embedded
from lakegc_assets.embedded.lake.layouts import Layout, Slices, Xids, set_layout
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.embedded.api import Api, Repo
from lakegc_assets_tests.embedded.conftest import NOW, Clock
from lakegc_assets_tests.embedded.test_durability import process
from lakegc_assets_tests.lake import STAGES, running, tell_history
from lakegc_assets_tests.sessions import Session

FORMS = {
    Layout.FLAT_DATA: r"data/[\w-]{22}",
    Layout.FLAT_ROOT: r"[0-9a-f]{32}",
    Layout.SHARDED: r"data/![0-9a-f]{2}/[0-9a-f]/[0-9a-v]{20}/[0-9a-v]{20}",
}


def relative(answer: Any) -> str:
    """The relative address in an answer about ``local://repo``."""
    return str(answer["physical_address"]).removeprefix("local://repo/")


def stored(server: EmbeddedLakeFS) -> set[str]:
    """What the store holds of ``local://repo``, but for lakeFS's own files."""
    keys = [
        key
        for batch in open_store("local://repo", server.store_config).list()
        for key in batch["key"].to_pylist()
    ]
    assert len(keys) == len(set(keys))
    return {key for key in keys if not key.startswith("_lakefs/")}


@pytest.fixture
def small_slices(tmp_path: Path, clock: Clock) -> Iterator[EmbeddedLakeFS]:
    with EmbeddedLakeFS(
        tmp_path / "small", clock=clock, slice_max_objects=2, slice_max_age=60
    ) as server:
        yield server


def test_slices_are_replaced_by_age_and_by_count_and_newer_ones_list_first(
    small_slices: EmbeddedLakeFS, clock: Clock
) -> None:
    made: list[str] = []
    with Api.of(small_slices) as api:
        repo = api.repository()

        def put(count: int) -> None:
            made.extend(relative(repo.put("a", b"")).split("/")[1] for _ in range(count))

        put(5)
        clock.now += 59
        put(1)
        clock.now += 1
        put(1)
        clock.now += 3600
        put(1)
    numbers = [made.index(name) for name in made]
    assert numbers == [0, 0, 2, 2, 4, 4, 6, 7]
    order = list(dict.fromkeys(made))
    store = open_store("local://repo", small_slices.store_config)
    assert store.list_prefixes("data/").prefixes == [f"data/{name}/" for name in reversed(order)]
    times = [slice_time(name) for name in order]
    assert [time.timestamp() - int(NOW) for time in times if time] == [0, 0, 0, 60, 3660]


def test_a_clock_that_is_set_back_opens_a_new_slice(
    small_slices: EmbeddedLakeFS, clock: Clock
) -> None:
    with Api.of(small_slices) as api:
        repo = api.repository()
        newer = relative(repo.put("a", b""))
        clock.now -= 30
        older = relative(repo.put("b", b""))
    assert newer.split("/")[1] < older.split("/")[1]


def test_each_repository_has_slices_of_its_own() -> None:
    slices = Slices(Xids(), 60, 2, lambda _: Layout.SLICES)
    addresses = [slices.new_address(name, NOW) for name in "abab"]
    names = [address.split("/")[1] for address in addresses]
    assert names[0] == names[2] != names[1] == names[3]


def test_threads_never_get_the_same_address_nor_overfill_a_slice() -> None:
    slices = Slices(Xids(), 3600, 7, lambda _: Layout.SLICES)
    found: list[str] = []

    def work() -> None:
        found.extend([slices.new_address("repo", NOW) for _ in range(500)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 2000
    counts: dict[str, int] = {}
    for address in found:
        counts[address.split("/")[1]] = counts.get(address.split("/")[1], 0) + 1
    assert max(counts.values()) == 7
    assert len(counts) == 2000 // 7 + 1


def test_processes_on_one_state_share_credentials_and_write_different_slices_at_once(
    tmp_path: Path,
) -> None:
    def work(api: Api, addresses: list[str], number: int) -> None:
        repo = Repo(api, "repo")
        addresses += [relative(repo.put(f"{number}/{n}", f"{number}, {n}")) for n in range(12)]

    written: list[list[str]] = [[], []]
    with ExitStack() as stack:
        options = ("--slice-max-objects", "5", "--slice-max-age", "600")
        apis, _, lines = zip(
            *(stack.enter_context(process(tmp_path, *options)) for _ in written), strict=True
        )
        assert len({line.partition("access_key")[2] for line in lines}) == 1
        repo = apis[0].repository()
        threads = [
            threading.Thread(target=work, args=(api, addresses, number))
            for number, (api, addresses) in enumerate(zip(apis, written, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(repo.list(amount=1000)) == 24
        repo.commit()
        assert all(not Repo(api, "repo").staged() for api in apis)
        assert [Repo(api, "repo").read("1/11") for api in apis] == [b"1, 11"] * 2
    slices = [{address.split("/")[1] for address in addresses} for addresses in written]
    assert [len(of_one) for of_one in slices] == [3, 3]
    assert len(set().union(*slices)) == 6


@pytest.mark.parametrize("layout", FORMS)
def test_a_repository_puts_every_kind_of_object_where_its_layout_says(
    server: EmbeddedLakeFS, api: Api, layout: Layout
) -> None:
    body = {"name": "repo", "storage_namespace": "local://repo"}
    api.call("POST", "/repositories", 201, json=body, headers={"X-Lakegc-Layout": layout.value})
    repo = Repo(api, "repo")
    uploaded = relative(repo.put("a", b"1"))
    dated = relative(repo.put("old", b"1", headers={"X-Lakegc-Mtime": "1000"}))
    repo.commit()
    copy = {"params": {"dest_path": "b"}, "json": {"src_path": "a"}}
    copied = relative(repo.call("POST", "/branches/main/objects/copy", 201, **copy))
    where = {"path": "l"}
    handed = relative(repo.call("GET", "/branches/main/staging/backing", params=where))
    assert all(re.fullmatch(FORMS[layout], address) for address in (uploaded, dated, copied))
    plain, _, token = handed.rpartition(",")
    assert re.fullmatch(FORMS[layout], plain)
    assert len(token) == 43
    assert [repo.read(path) for path in ("a", "b", "old")] == [b"1", b"1", b"1"]
    assert stored(server) == {uploaded, dated, copied}


@pytest.mark.conformance
def test_the_collector_sweeps_all_that_is_dead_in_a_repository_of_all_layouts(
    tmp_path: Path, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as lake:
        in_turn = cycle(Layout)
        monkeypatch.setattr(lake.server.lake.slices, "layout_of", lambda _: next(in_turn))
        groups, _ = tell_history(lake)
        dead = set().union(*groups.values())
        live = lake.keys() - dead
        for found in (dead, live):
            assert {address.count("/") for address in found} == {0, 1, 2, 4}
        for stage in (*STAGES, sweep):
            stage(lake.context(spark))
        assert lake.keys() == live


def test_an_upgraded_repository_goes_on_in_slices(tmp_path: Path) -> None:
    with EmbeddedLakeFS(tmp_path, layout=Layout.FLAT_ROOT) as old, Api.of(old) as api:
        first = relative(api.repository().put("a", b"1"))
    with EmbeddedLakeFS(tmp_path) as server, Api.of(server) as api:
        repo = Repo(api, "repo")
        second = relative(repo.put("b", b"2"))
        with server.lake.state.write() as db:
            set_layout(db, "repo", Layout.SLICES)
        third = relative(repo.put("c", b"3"))
        assert [address.count("/") for address in (first, second, third)] == [0, 0, 2]
        assert stored(server) == {first, second, third}
        repo.commit()
        assert [repo.read(path) for path in "abc"] == [b"1", b"2", b"3"]


def test_a_repository_of_the_same_name_has_a_layout_of_its_own(api: Api) -> None:
    body = {"name": "repo", "storage_namespace": "local://first"}
    api.call("POST", "/repositories", 201, json=body, headers={"X-Lakegc-Layout": "flat-root"})
    api.call("DELETE", "/repositories/repo", 204)
    assert relative(api.repository().put("a", b"")).startswith("data/")


def test_an_unknown_layout_is_refused(api: Api) -> None:
    body = {"name": "repo", "storage_namespace": "local://repo"}
    refused = api.call("POST", "/repositories", 400, json=body, headers={"X-Lakegc-Layout": "heap"})
    assert "slices, flat-data, flat-root, sharded" in refused["message"]


@pytest.mark.parametrize("name", list(ServerSettings.numbers()))
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigurationError, match=f"{name} is 0"):
        ServerSettings(tmp_path, **settings)


def test_the_command_has_an_option_for_every_number() -> None:
    options = {option.name: option.default for option in embedded.params}
    for name in ServerSettings.numbers():
        assert options[name] == getattr(ServerSettings, name)
    assert "slice_max_age" in options
