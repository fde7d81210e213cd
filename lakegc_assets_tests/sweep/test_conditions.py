"""A store's word that it deletes on a condition is believed only after it was tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_conditions
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.lease_record import FOLDER, LEASE, PROBES


class Stubborn(LocalStore):
    """Honours a condition only where it is told to, or not as it says."""

    def __init__(self, root: Path, *honours: Literal["bulk", "single"], **lies: str) -> None:
        super().__init__(root, root.as_uri())
        self.honours = honours
        self.lies = lies

    def delete_many(
        self,
        keys: Iterable[str],
        etags: Mapping[str, str] | None = None,
        *,
        singly: bool = False,
        expires_s: float | None = None,
        since: datetime | None = None,
        trash: str | None = None,  # noqa: ARG002 - nothing is kept
    ) -> Sequence[DeleteOutcome]:
        asked = list(keys)
        if etags and not singly and "in_bulk" in self.lies:
            return [DeleteOutcome(key, "failed", self.lies["in_bulk"], "no") for key in asked]
        if ("single" if singly else "bulk") not in self.honours:
            etags = None
        changed = [key for key in asked if key.endswith("-changed")]
        if changed and "answers" in self.lies:
            code = self.lies["answers"]
            return [DeleteOutcome(key, "failed", code, "no") for key in asked]
        outcomes = super().delete_many(asked, etags, expires_s=expires_s, since=since)
        if changed and self.lies.get("says") == "spared":
            return [DeleteOutcome(o.key, "spared") if o.key in changed else o for o in outcomes]
        return outcomes


def left(store: ObjectStore) -> list[str]:
    return [key for batch in store.list() for key in batch["key"].to_pylist()]


@pytest.mark.parametrize(
    ("honours", "found"),
    [(("bulk", "single"), "bulk"), (("bulk",), "bulk"), (("single",), "single"), ((), "none")],
)
def test_what_a_store_honours_is_found_out(
    tmp_path: Path, honours: tuple[Literal["bulk", "single"], ...], found: str
) -> None:
    store = Stubborn(tmp_path, *honours)
    assert probe_conditions(store, PROBES) == found
    assert left(store) == []


def test_probes_go_where_only_batches_refuse_a_condition(tmp_path: Path) -> None:
    """So Azure answers batches on an account that keeps versions, whatever the etag."""
    store = Stubborn(tmp_path, "single", in_bulk="ConditionNotMet")
    assert probe_conditions(store, PROBES) == "single"
    assert left(store) == []


def test_a_store_that_only_says_so_is_found_out(tmp_path: Path) -> None:
    assert probe_conditions(Stubborn(tmp_path, says="spared"), PROBES) == "none"


@pytest.mark.parametrize("code", ["MalformedXML", "NotImplemented", "AccessDenied"])
def test_a_store_that_refuses_conditions_honours_none(tmp_path: Path, code: str) -> None:
    assert probe_conditions(Stubborn(tmp_path, "bulk", "single", answers=code), PROBES) == "none"


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "Timeout"])
def test_a_store_that_does_not_answer_is_not_judged(tmp_path: Path, code: str) -> None:
    with pytest.raises(StorageError, match=f"not known whether .*: {code}"):
        probe_conditions(Stubborn(tmp_path, "bulk", answers=code), PROBES)


def test_local_files(tmp_path: Path) -> None:
    assert probe_conditions(open_store(str(tmp_path)), PROBES) == "bulk"


def test_moto_honours_single_deletes_only(s3_server: str, s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}/n s/%41", StoreConfig(endpoint_url=s3_server))
    assert probe_conditions(store, PROBES) == "single"
    assert left(store) == []


def test_what_a_killed_probe_left_goes_and_nothing_else(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    others = [LEASE, "data/x", f"{FOLDER}hold.json", "_lakefs/retention/gc/probe-x"]
    for key in [*others, f"{FOLDER}probe-old/bulk-changed"]:
        store.put(key, b"x")
    probe_conditions(store, PROBES)
    assert sorted(left(store)) == sorted(others)
