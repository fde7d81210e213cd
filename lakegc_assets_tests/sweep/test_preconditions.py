"""Whatever is not as it should be stops a sweep before its first delete, and it says why."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.installation import MARKER
from lakegc_assets.mark.listing import list_store
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.mark.ranges import KIND
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.clocks import Clocks
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, signed
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.table_cache import Decoded, TableCache
from lakegc_assets.storage.opening import open_store
from lakegc_assets.sweep import lease
from lakegc_assets.sweep import sweep as sweeping
from lakegc_assets.sweep.hold import HOLD
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.sweep.others import forget


@dataclass(frozen=True)
class StoreAhead(Clocks):
    """The store's clock is ahead of ours."""

    by: timedelta = timedelta(minutes=6)

    def of_store(self, store: Any) -> datetime:
        return super().of_store(store) + self.by


def refused(ctx: RunContext, lake: SmallLake, kind: type[LakegcError], words: str) -> None:
    """The sweep stops so, and has deleted nothing."""
    before = lake.keys()
    with pytest.raises(kind, match=words):
        sweep(ctx)
    assert lake.keys() == before


def attempt_of(lake: SmallLake) -> AttemptArtifacts:
    return lake.root.attempt(REPOSITORY, RUN)


def asset_folder(lake: SmallLake, asset: str) -> Path:
    return Path(attempt_of(lake).url) / asset


def data_file(lake: SmallLake, asset: str = "deletion_candidates") -> Path:
    return next((asset_folder(lake, asset) / "data").glob("*.parquet"))


def summary_file(lake: SmallLake, run: str = RUN) -> Path:
    return lake.objects / mark_folder(run) / "summary.json"


def rewrite(path: Path, content: bytes) -> None:
    """Put another file in its place: what is in the namespace is also in other lakes."""
    path.unlink()
    path.write_bytes(content)


def alter_summary(lake: SmallLake, **values: object) -> None:
    path = summary_file(lake)
    rewrite(path, json.dumps(json.loads(path.read_text()) | values).encode())


def alter_manifest(lake: SmallLake, asset: str, **values: Any) -> Manifest:
    path = asset_folder(lake, asset) / "manifest.json"
    altered = replace(Manifest.from_bytes(path.read_bytes(), str(path)), **values)
    path.write_bytes(altered.to_bytes())
    return altered


def alter_candidate(lake: SmallLake, columns: Sequence[str] = ("address", "hash")) -> None:
    """Put another object's address, or its hash, in place of a candidate's."""
    path = data_file(lake)
    table = pq.read_table(path)
    addresses = table["address"].to_pylist()
    addresses[0] = addresses[0][:-1] + ("0" if addresses[0][-1] != "0" else "1")
    other = pa.array(addresses)
    for name, column in (("address", other), ("hash", signed(address_hashes(other)))):
        if name in columns:
            index = table.schema.get_field_index(name)
            table = table.set_column(index, table.schema.field(name), column)
    pq.write_table(table, path)


def test_an_unknown_mark(lake: SmallLake, spark: Session) -> None:
    refused(lake.context(spark, "other"), lake, RefusedError, "there is no mark 'other'")


def test_a_mark_of_lakefs_that_failed(lake: SmallLake, spark: Session) -> None:
    path = summary_file(lake, "failed")
    path.parent.mkdir(parents=True)
    summary = json.loads(summary_file(lake).read_text()) | {"run_id": "failed", "success": False}
    path.write_text(json.dumps(summary))
    refused(lake.context(spark, "failed"), lake, RefusedError, "mark 'failed' of 'repo' failed")


def test_a_mark_of_a_repository_that_was_made_anew_in_the_same_place(
    lake: SmallLake, spark: Session
) -> None:
    forget(lake, REPOSITORY)
    (lake.objects / "_lakefs/dummy").unlink()
    # Creation dates are whole seconds, and those of the lake are of some time ago.
    lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
    refused(lake.context(spark), lake, RefusedError, "is collected by another lakeFS server")
    (lake.objects / MARKER).unlink()
    words = "was made anew, or restored, in .*: mark it under a new id. 0 of .* deleted$"
    refused(lake.context(spark), lake, IntegrityError, words)


def test_a_mark_that_did_not_finish(lake: SmallLake, spark: Session) -> None:
    (asset_folder(lake, "gc_report") / "manifest.json").unlink()
    refused(lake.context(spark), lake, RefusedError, "did not finish")


def test_a_mark_id_that_exists_is_not_marked_again(lake: SmallLake, spark: Session) -> None:
    with pytest.raises(RefusedError, match="'mark-1' exists already"):
        list_store(lake.context(spark))
    summary_file(lake).unlink()
    with pytest.raises(RefusedError, match="exists already and is frozen"):
        list_store(lake.context(spark))


def test_a_mark_id_of_lakefs_is_not_taken(lake: SmallLake, spark: Session) -> None:
    shutil.copytree(summary_file(lake).parent, summary_file(lake, "theirs").parent)
    with pytest.raises(RefusedError, match="mark id 'theirs' exists already"):
        list_store(lake.context(spark, "theirs"))
    refused(lake.context(spark, "theirs"), lake, RefusedError, "there is no mark 'theirs'")


@pytest.mark.parametrize("damage", ["cut", "missing", "altered"])
def test_candidates_that_are_not_those_of_the_manifest(
    lake: SmallLake, spark: Session, damage: str
) -> None:
    path = data_file(lake)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "missing":
        path.unlink()
    else:
        # Of the same length, and a parquet file all the same.
        content = path.read_bytes()
        path.write_bytes(content.replace(b"unreferenced", b"UNREFERENCED"))
        assert path.read_bytes() != content
    refused(lake.context(spark), lake, IntegrityError, "should have|is not what its manifest says")


def test_candidates_in_a_file_that_no_manifest_names(
    lake: SmallLake, marked: Marked, spark: Session
) -> None:
    """They are not read: nobody has marked them."""
    path = data_file(lake)
    rows = pq.read_table(path).slice(0, 1)
    live = pa.array([min(marked.live)], rows.schema.field("address").type)
    index = rows.schema.get_field_index("address")
    extra = rows.set_column(index, rows.schema.field(index), live)
    pq.write_table(extra, path.with_name("part-extra.parquet"))
    sweep(lake.context(spark))
    assert lake.keys() == marked.live


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["address", "hash"], "but its manifest says"),
        (["hash"], "has hashes of other addresses"),
        (["address"], "has hashes of other addresses"),
    ],
    ids=["whole", "its hash", "its address"],
)
def test_candidates_altered_together_with_the_manifests(
    lake: SmallLake, spark: Session, columns: Sequence[str], words: str
) -> None:
    """By its hash it is told what came back to life."""
    alter_candidate(lake, columns)
    content = data_file(lake).read_bytes()
    path = asset_folder(lake, "deletion_candidates") / "manifest.json"
    parts = Manifest.from_bytes(path.read_bytes(), str(path)).parts
    (part,) = parts["data"]
    told = part._replace(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    altered = alter_manifest(lake, "deletion_candidates", parts={**parts, "data": [told]})
    alter_manifest(lake, "gc_report", previous=altered.sha256)
    refused(lake.context(spark), lake, IntegrityError, words)


@pytest.mark.parametrize("asset", ["store_listing", "active_commits", "deletion_candidates"])
def test_an_altered_manifest_breaks_the_chain(lake: SmallLake, spark: Session, asset: str) -> None:
    alter_manifest(lake, asset, digest="1-0")
    refused(lake.context(spark), lake, IntegrityError, "does not follow the one before it")


@pytest.mark.parametrize("asset", ["store_listing", "deletion_candidates"])
def test_a_manifest_that_counts_other_rows_than_its_files_have(
    lake: SmallLake, spark: Session, asset: str
) -> None:
    alter_manifest(lake, asset, rows=1)
    refused(lake.context(spark), lake, IntegrityError, "has 1 rows, and its files have [0-9]+: ")


def test_a_later_cutoff_in_the_last_manifest(lake: SmallLake, spark: Session) -> None:
    path = asset_folder(lake, "gc_report") / "manifest.json"
    cutoff = Manifest.from_bytes(path.read_bytes(), "").cutoff + timedelta(hours=1)
    alter_manifest(lake, "gc_report", cutoff=cutoff)
    refused(lake.context(spark), lake, IntegrityError, "does not follow the one before it")


def test_a_damaged_manifest(lake: SmallLake, spark: Session) -> None:
    path = asset_folder(lake, "uncommitted_snapshot") / "manifest.json"
    path.write_bytes(path.read_bytes()[:-5])
    refused(lake.context(spark), lake, IntegrityError, "is damaged")


def test_a_manifest_of_another_attempt(lake: SmallLake, spark: Session) -> None:
    alter_manifest(lake, "store_listing", attempt="another")
    refused(lake.context(spark), lake, IntegrityError, "belongs to")


@pytest.mark.parametrize(
    "values",
    [
        {"num_deleted_objects": 1},
        {"run_id": "other"},
        {"cutoff_time": "2026-01-01T00:00:00.000Z"},
        {"start_time": "2026-01-01T00:00:00.000Z"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_summary_that_was_altered(
    lake: SmallLake, spark: Session, values: dict[str, object]
) -> None:
    alter_summary(lake, **values)
    refused(lake.context(spark), lake, IntegrityError, "does not say what the mark found")


def test_a_summary_that_says_the_mark_failed(lake: SmallLake, spark: Session) -> None:
    alter_summary(lake, success=False)
    refused(lake.context(spark), lake, RefusedError, "failed: mark again")


def test_a_summary_that_is_missing_or_damaged(lake: SmallLake, spark: Session) -> None:
    path = summary_file(lake)
    rewrite(path, path.read_bytes()[:-9])
    refused(lake.context(spark), lake, IntegrityError, "is damaged")
    path.unlink()
    refused(lake.context(spark), lake, IntegrityError, "does not say what the mark found")


def test_a_repository_that_moved(lake: SmallLake, spark: Session) -> None:
    shutil.copytree(lake.objects, lake.objects.with_name("elsewhere"))
    with lake.server.lake.state.write() as db:
        db.execute("UPDATE repositories SET namespace = 'local://elsewhere'")
    refused(lake.context(spark), lake, IntegrityError, "the repository is at local://elsewhere now")


def test_a_namespace_inside_of_ours(lake: SmallLake, spark: Session) -> None:
    lake.client.create_repository("inner", f"local://{REPOSITORY}/data")
    refused(lake.context(spark), lake, IntegrityError, "overlap")


def test_a_hold(lake: SmallLake, spark: Session) -> None:
    hold = lake.objects / HOLD
    hold.parent.mkdir(parents=True, exist_ok=True)
    hold.write_text('{"alarm": "look first"}')
    refused(
        lake.context(spark),
        lake,
        RefusedError,
        r"on hold, and is not swept: look first\n.*`lakegc hold repo`",
    )


def test_a_hold_that_cannot_be_read(lake: SmallLake, spark: Session) -> None:
    """Nobody can tell what it says, so it stops all sweeps, too."""
    hold = lake.objects / HOLD
    hold.parent.mkdir(parents=True, exist_ok=True)
    hold.write_bytes(b"\xff\xfe")
    refused(lake.context(spark), lake, RefusedError, "on hold")


def test_a_sweep_on_another_machine(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PATIENCE", timedelta(0))
    store = open_store(f"local://{REPOSITORY}", lake.server.store_config)
    owner = {"host": "elsewhere", "started_by": "Dagster run 4711"}
    with repository_lease(store, owner, duration=timedelta(hours=1)):
        words = r"the lease of local://repo: a sweep by somebody on elsewhere \(Dagster run 4711"
        refused(lake.context(spark), lake, RefusedError, words)


def test_a_store_that_ignores_conditions_that_are_required(
    lake: SmallLake, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "probe_conditions", lambda *_: "none")
    ctx = lake.context(spark, require_conditional_deletes=True)
    refused(ctx, lake, RefusedError, "local://repo ignores the condition of conditional deletes")
    assert not (lake.objects / HOLD).exists()


def test_a_clock_of_lakefs_that_is_off(lake: SmallLake, spark: Session) -> None:
    lake.calendar.days_ago = 1 / 24
    refused(lake.context(spark), lake, RefusedError, "the clock of the lakeFS server differs")


def test_a_clock_of_the_store_that_is_off(lake: SmallLake, spark: Session) -> None:
    ctx = replace(lake.context(spark), clocks=StoreAhead())
    refused(ctx, lake, RefusedError, "the clock of the object store differs")


def test_rules_that_make_no_sense(lake: SmallLake, spark: Session) -> None:
    with lake.server.lake.state.write() as db:
        rules = json.dumps({"default_retention_days": -1, "branches": []})
        db.execute("UPDATE repositories SET rules = ?", (rules,))
    refused(lake.context(spark), lake, LakegcError, "-1")


def _lose_metarange(lake: SmallLake, marked: Marked) -> None:
    commit = lake.client.commit(REPOSITORY, marked.commits["first"])
    (lake.objects / "_lakefs" / commit.meta_range_id).unlink()
    shutil.rmtree(lake.folder / "artifacts" / REPOSITORY / "_cache")
    lake.client.create_branch(REPOSITORY, "rescue", commit.id)


def _lie_in_the_cache(lake: SmallLake, marked: Marked) -> None:
    """Let the cache of decoded ranges hold nothing of what an old commit needs."""
    lake.client.create_branch(REPOSITORY, "rescue", marked.commits["first"])
    (folder,) = (lake.folder / "artifacts" / REPOSITORY / "_cache").iterdir()
    cache = TableCache(lake.root.open(REPOSITORY, "_cache", folder.name), KIND)
    gone = signed(address_hashes(pa.array(["data/gone/gone"])))[0]
    lies = [
        Decoded(
            range_id,
            pa.table(
                {
                    "hash": pa.repeat(gone, slot.rows),
                    "size": [10**9] * slot.rows,
                    "etag_hash": [0] * slot.rows,
                }
            ),
            slot.facts,
        )
        for range_id, slot in cache.slots().items()
    ]
    assert lies
    shutil.rmtree(folder / "ranges")
    cache.write(lies)


@pytest.mark.parametrize(
    ("plant", "kind", "words"),
    [
        (_lose_metarange, IntegrityError, "which a commit needs, is missing"),
        (_lie_in_the_cache, RefusedError, "none_head_reachable: 4 candidates"),
    ],
)
def test_what_an_old_commit_needs_cannot_be_read_or_is_read_wrongly(
    lake: SmallLake,
    spark: Session,
    marked: Marked,
    plant: Callable[[SmallLake, Marked], None],
    kind: type[LakegcError],
    words: str,
) -> None:
    plant(lake, marked)
    before = lake.keys()
    with pytest.raises(Exception, match=words) as raised:
        sweep(lake.context(spark))
    assert lake.keys() == before
    assert isinstance(raised.value, kind) or kind.__name__ in str(raised.value)
