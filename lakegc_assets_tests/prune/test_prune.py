"""Which runs a prune removes from the artifacts, which it keeps, and what a kill leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.prune import prune as module
from lakegc_assets.prune import removing
from lakegc_assets.prune.prune import NoRecords, Pruned, prune
from lakegc_assets.prune.removing import PRUNING
from lakegc_assets.recovery.backups import BEGIN
from lakegc_assets.run.artifacts import MARK_ASSETS, ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.lock import repository_lock
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.approval import Approval
from lakegc_assets.sweep.hold import HOLD, write_hold
from lakegc_assets_tests.lake import REPOSITORY, RUN, STAGES, SmallLake
from lakegc_assets_tests.prune.past import DAY, contents, long_ago
from lakegc_assets_tests.sessions import Session

KEEP = 30 * DAY
NOW = datetime.now(timezone.utc)
OLD = "old"


class Records(NoRecords):
    """Records that say when they were asked to forget a run."""

    def __init__(self, busy: str = "", dies: bool = False) -> None:  # noqa: FBT001, FBT002 - a test's
        self.forgotten: list[str] = []
        self.busy, self.dies = busy, dies

    def last(self, run: str) -> tuple[datetime | None, str]:
        return None, self.busy if run == OLD else ""

    def forget(self, run: str) -> None:
        if self.dies:
            raise KeyboardInterrupt
        self.forgotten.append(run)


@dataclasses.dataclass(frozen=True)
class Estate:
    """A lake with one mark of now and some runs of long ago, of which ``OLD`` may go."""

    lake: SmallLake
    spark: Session
    folder: Path

    @property
    def root(self) -> ArtifactRoot:
        return self.lake.root

    def context(self, **settings: object) -> RunContext:
        return self.lake.context(self.spark, "none", **settings)

    def prune(
        self, records: NoRecords | None = None, *, dry_run: bool = False, **settings: object
    ) -> Pruned:
        return prune(self.context(**settings), KEEP, records or NoRecords(), dry_run=dry_run)

    def kept(self, records: NoRecords | None = None, **settings: object) -> dict[str, str]:
        """Why each run stays; empty for those that are gone now."""
        found = self.prune(records, dry_run=False, **settings)
        return {run.run: run.kept for run in found.runs}

    def namespace(self) -> Any:
        return self.context().connect()[1].store()

    def of(self, run: str = OLD) -> dict[str, bytes]:
        return contents(self.root, REPOSITORY, run)


@pytest.fixture
def estate(lake: SmallLake, spark: Session, tmp_path: Path) -> Estate:
    for run, days in ((OLD, 90), ("later-1", 80), ("later-2", 70)):
        long_ago(lake.root, run, days)
    return Estate(lake, spark, tmp_path)


def again(estate: Estate, **more: Any) -> None:
    """Make the old run anew, in another way."""
    for path in sorted(Path(estate.root.url, REPOSITORY, OLD).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    long_ago(estate.root, OLD, 90, **more)


def test_an_old_run_that_nothing_needs_goes_as_a_whole(estate: Estate) -> None:
    before = estate.of()
    records = Records()
    dry = estate.prune(records, dry_run=True)
    assert [(one.run, bool(one.kept)) for one in dry.runs] == [
        (OLD, False),
        ("later-1", True),
        ("later-2", True),
        (RUN, True),
    ]
    assert dry.runs[0].files == len(before) - 1
    assert estate.of() == before
    assert records.forgotten == []
    found = estate.kept(records)
    assert (found[OLD], found["later-1"]) == ("", "it is one of the last 3 marks")
    assert found[RUN] == "it is 0 days old"
    assert estate.of() == {}
    assert records.forgotten == [OLD]
    assert OLD not in estate.kept()


def test_the_next_mark_is_what_it_would_have_been(estate: Estate, spark: Session) -> None:
    ctx = estate.lake.context(spark, "mark-2")
    for stage in STAGES:
        stage(ctx)
    before = ctx.root.attempt(REPOSITORY, "mark-2").manifest("deletion_candidates")
    assert estate.kept()[OLD] == ""
    later = estate.lake.context(spark, "mark-3")
    for stage in STAGES:
        stage(later)
    attempt = later.root.attempt(REPOSITORY, "mark-3")
    assert attempt.manifest("deletion_candidates").digest == before.digest
    assert attempt.manifest("store_listing").facts["mode"] == "optimized"


def _approved(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS)
    attempt = estate.root.attempt(REPOSITORY, OLD)
    mark = attempt.recorded("gc_report").sha256
    ends = NOW + DAY
    approval = Approval(REPOSITORY, OLD, mark, "1-0", "Ada", NOW - 60 * DAY, ends, 0.5)
    _write(estate, "approvals/20260101T000000000000.json", approval.to_bytes())
    return "its sweep is approved by Ada until"


def _swept_by_half(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS)
    _write(estate, "swept_set/ledger/a.parquet", b"whatever")
    return "its sweep did not finish: `lakegc sweep repo --run old` goes on"


def _published_by_half(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS[:-1])
    real = estate.namespace().get(f"_lakefs/retention/gc/unified/{RUN}/summary.json")
    estate.namespace().put(f"_lakefs/retention/gc/unified/{OLD}/summary.json", real)
    return "its mark was published, but not reported"


def _restored_by_half(estate: Estate) -> str:
    _write(estate, "restored_set/20260101T000000Z-ab/begin.json", b"{}")
    return "its restore 20260101T000000Z-ab did not finish"


def _pinned(estate: Estate) -> str:
    pin = Pin("a", NOW + DAY, OLD, "restored", 1)
    write_pin(estate.namespace(), pin, pa.array(["data/x"]))
    return "objects of it are pinned"


def _undoable(estate: Estate) -> str:
    kept = {"kind": "soft_delete", "days": 100, "notice": "", "until": None}
    again(estate, recovery=kept)
    return "what its sweep deleted can be had back (soft delete) until"


def _undoable_for_ever(estate: Estate) -> str:
    again(estate, recovery={"kind": "versions", "days": None, "notice": "", "until": None})
    return "what its sweep deleted can be had back (versions), until when is not known"


def _in_trash(estate: Estate) -> str:
    until = (NOW - DAY).isoformat()
    again(estate, recovery={"kind": "trash", "days": 7, "notice": "", "until": until})
    _write(estate, "swept_set/0123456789abcdef/0001/known/part.parquet", b"")
    path = estate.lake.objects / TRASH / "20260101T000000Z-168h-0123456789abcdef/data/x"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"the only copy")
    return "the trash still holds what its sweep deleted"


def _backed_up(estate: Estate) -> str:
    path = estate.folder / "backups" / REPOSITORY / OLD / BEGIN
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return "its backup is at file://"


def _swept_with_backup(estate: Estate) -> str:
    again(estate, backup=f"file://{estate.folder}/elsewhere/{REPOSITORY}/{OLD}")
    return f"its backup is at file://{estate.folder}/elsewhere/repo/old, and backup_url is file:"


def _damaged(estate: Estate) -> str:
    _write(estate, "gc_report/manifest.json", b"{")
    return "nobody can tell what of it is needed"


def _of_another_version(estate: Estate) -> str:
    again(estate, recovery={"kind": "versions"})
    return "nobody can tell what of it is needed: 'days'"


def _without_a_file(estate: Estate) -> str:
    key = next(name for name in estate.of() if "uncommitted_snapshot/data" in name)
    Path(estate.root.url, REPOSITORY, OLD, key).unlink()
    return "a listing of "


def _unnamed(estate: Estate) -> str:
    Path(estate.root.url, REPOSITORY, OLD, "attempt.json").write_text("[]")
    return "nobody can tell what of it is needed"


def _elsewhere(estate: Estate) -> str:
    again(estate, namespace="local://another")
    return "it is of local://another"


def _held(estate: Estate) -> str:
    write_hold(estate.namespace(), {"alarm": "something is gone"})
    return f"the repository is on hold: look at local://{REPOSITORY}/{HOLD} first"


def _written_lately(estate: Estate) -> str:
    attempt = estate.root.attempt(REPOSITORY, OLD)
    attempt.store().put("restored_set/20990101T000000Z-a/manifest.json", b"")
    return "it is 0 days old"


def _write(estate: Estate, key: str, data: bytes) -> None:
    """Write a file of the attempt that is as old as the others."""
    attempt = estate.root.attempt(REPOSITORY, OLD)
    attempt.store().put(key, data)
    then = time.time() - 90 * 86_400
    os.utime(Path(attempt.url, key), (then, then))


REASONS: list[Callable[[Estate], str]] = [
    _approved,
    _swept_by_half,
    _published_by_half,
    _restored_by_half,
    _pinned,
    _undoable,
    _undoable_for_ever,
    _in_trash,
    _backed_up,
    _swept_with_backup,
    _damaged,
    _of_another_version,
    _without_a_file,
    _unnamed,
    _elsewhere,
    _held,
    _written_lately,
]


@pytest.mark.parametrize("reason", REASONS)
def test_what_somebody_needs_stays_as_it_is(
    estate: Estate, reason: Callable[[Estate], str]
) -> None:
    why = reason(estate)
    before = estate.of()
    found = estate.kept(backup_url=f"file://{estate.folder}/backups")
    assert found[OLD].startswith(why)
    assert estate.of() == before


def test_what_somebody_needed_goes_when_that_is_over(estate: Estate) -> None:
    kept = {"kind": "soft_delete", "days": 60, "notice": "", "until": None}
    again(estate, recovery=kept)
    _write(estate, "restored_set/20260101T000000Z-ab/begin.json", b"{}")
    _write(estate, "restored_set/20260101T000000Z-ab/manifest.json", b"{}")
    pin = Pin("a", NOW - DAY, OLD, "restored", 1)
    write_pin(estate.namespace(), pin, pa.array(["data/x"]))
    assert estate.kept()[OLD] == ""


def test_a_run_goes_whose_backup_has_gone(estate: Estate) -> None:
    url = f"file://{estate.folder}/backups"
    again(estate, backup=f"{url}/{REPOSITORY}/{OLD}")
    (estate.folder / "backups").mkdir()
    assert "and backup_url is not set" in estate.kept()[OLD]
    again(estate)
    _write(estate, "backup/portions/0/part-1.parquet", b"")
    assert estate.kept()[OLD].startswith("a backup of it was begun, and backup_url is not set")
    assert estate.kept(backup_url=url)[OLD] == ""


def test_a_run_stays_that_dagster_says_is_not_over(estate: Estate) -> None:
    before = estate.of()
    assert estate.kept(Records(busy="it runs"))[OLD] == "it runs"
    assert estate.of() == before


def test_approvals_that_no_listing_shows_but_their_folder_keep_a_run(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    _approved(estate)
    real = LocalStore.list

    def listed(store: LocalStore, *more: Any, **named: Any) -> Iterator[Any]:
        for page in real(store, *more, **named):
            rest = page.filter(pc.invert(pc.starts_with(page["key"], "approvals/")))
            if rest.num_rows:
                yield rest

    monkeypatch.setattr(LocalStore, "list", listed)
    assert estate.kept()[OLD].startswith("nobody can tell whether its sweep is approved")


@pytest.mark.parametrize("method", ["list", "list_prefixes"])
@pytest.mark.parametrize("reason", [_approved, _swept_by_half, _restored_by_half])
def test_one_listing_that_is_empty_for_no_reason_makes_nothing_go(
    estate: Estate,
    monkeypatch: pytest.MonkeyPatch,
    reason: Callable[[Estate], str],
    method: str,
) -> None:
    reason(estate)
    before = estate.of()
    real = getattr(LocalStore, method)
    hidden = ("approvals/", "swept_set/", "restored_set/")

    def listed(store: LocalStore, prefix: str = "", *more: Any, **named: Any) -> Any:
        found = real(store, prefix, *more, **named)
        if OLD not in store.url:
            return found
        if method == "list_prefixes":
            kept = [p for p in found.prefixes if not p.startswith(hidden)]
            return found._replace(prefixes=kept)
        if prefix:
            return iter(())
        return found

    monkeypatch.setattr(LocalStore, method, listed)
    assert estate.kept()[OLD]
    monkeypatch.undo()
    assert estate.of() == before


def test_a_listing_that_lacks_files_is_not_believed(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = estate.of()
    real = LocalStore.list

    def cut(store: LocalStore, prefix: str = "", *more: Any, **named: Any) -> Iterator[Any]:
        for page in real(store, prefix, *more, **named):
            yield page.slice(0, page.num_rows - 1) if OLD in store.url else page

    monkeypatch.setattr(LocalStore, "list", cut)
    assert "so nobody can tell what else is there" in estate.kept()[OLD]
    monkeypatch.undo()
    assert estate.of() == before


class _Killed(BaseException):
    """A process that ends here."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, after: int, *, before: bool) -> Iterator[list[str]]:
    """Kill whoever changes the old run for the so-many-th time, just before or after it does."""
    calls: list[str] = []

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def change(store: LocalStore, *arguments: Any, **named: Any) -> Any:
            if f"/{REPOSITORY}/{OLD}" not in store.url:
                return real(store, *arguments, **named)
            calls.append(name)
            if len(calls) == after and before:
                raise _Killed
            found = real(store, *arguments, **named)
            if len(calls) == after:
                raise _Killed
            return found

        return change

    with monkeypatch.context() as patch:
        for name in ("put", "put_if_absent", "delete_many"):
            patch.setattr(LocalStore, name, deadly(name))
        yield calls


@pytest.mark.parametrize("before", [True, False])
def test_whoever_is_killed_leaves_what_the_next_prune_ends(
    estate: Estate,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,  # noqa: FBT001 - a parameter
) -> None:
    whole = estate.of()
    monkeypatch.setattr(module, "repository_lock", lambda _: repository_lock(secrets.token_hex(4)))
    for after in range(1, 9):
        for name, data in whole.items():
            path = Path(estate.root.url, REPOSITORY, OLD, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        age_all(estate)
        with dying(monkeypatch, after, before=before) as calls:
            try:
                estate.prune()
            except _Killed:
                died = True
            else:
                died = False
        left = estate.of()
        if "attempt.json" in left:
            # Who looks at it meanwhile finds all of it.
            assert left.items() >= whole.items()
        elif left:
            assert PRUNING in left
            with pytest.raises(RefusedError):
                estate.root.attempt(REPOSITORY, OLD)
        records = Records()
        estate.prune(records)
        assert estate.of() == {}
        assert records.forgotten == ([OLD] if left else [])
        if not died:
            assert len(calls) < after
            return
    pytest.fail("a removal takes more steps than were looked at")


def age_all(estate: Estate) -> None:
    then = time.time() - 90 * 86_400
    for path in Path(estate.root.url, REPOSITORY, OLD).rglob("*"):
        os.utime(path, (then, then))


def test_records_are_forgotten_before_the_last_file_goes(estate: Estate) -> None:
    with pytest.raises(KeyboardInterrupt):
        estate.prune(Records(dies=True))
    assert list(estate.of()) == [PRUNING]
    records = Records()
    assert estate.prune(records, dry_run=True).left == [OLD]
    assert (records.forgotten, list(estate.of())) == ([], [PRUNING])
    assert estate.prune(records).left == [OLD]
    assert (records.forgotten, estate.of()) == ([OLD], {})


def test_a_run_that_was_begun_again_under_the_id_of_one_that_went_stays(estate: Estate) -> None:
    with pytest.raises(KeyboardInterrupt):
        estate.prune(Records(dies=True))
    attempt = estate.root.new_attempt(REPOSITORY, OLD)
    attempt.store().put("store_listing/data/part-1.parquet", b"rows")
    before = estate.of()
    assert estate.kept()[OLD] == "it is 0 days old"
    assert estate.of() == before


def test_a_run_that_is_begun_again_meanwhile_stays(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(estate, assets=MARK_ASSETS[:2])
    real = removing.remove_run

    def late(root: ArtifactRoot, repository: str, run: str, *more: Any) -> None:
        root.new_attempt(repository, run)
        real(root, repository, run, *more)

    monkeypatch.setattr(removing, "remove_run", late)
    before = estate.of()
    with pytest.raises(RefusedError, match="was begun again: it stays"):
        estate.prune()
    after = estate.of()
    assert {k: v for k, v in after.items() if k != "attempt.json"} == {
        k: v for k, v in before.items() if k != "attempt.json"
    }


def test_names_that_dagster_knows_are_asked_for_where_they_can_be_runs(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records()
    monkeypatch.setattr(records, "names", lambda: {OLD, "../repo", "a|b", "", "unknown"})
    monkeypatch.setattr(ArtifactRoot, "runs", lambda _root, _repository: [RUN])
    assert estate.kept(records) == {OLD: "it is one of the last 3 marks", RUN: "it is 0 days old"}


def test_a_folder_that_no_prune_has_left_is_not_touched(estate: Estate) -> None:
    Path(estate.root.url, REPOSITORY, OLD, "attempt.json").unlink()
    before = estate.of()
    assert OLD not in estate.kept()
    assert estate.of() == before


def test_nobody_prunes_while_somebody_works_on_the_repository(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = estate.of()
    asked: list[str] = []

    def held(_: object, owner: Mapping[str, str], **_more: object) -> object:
        asked.append(owner["doing"])
        raise RefusedError("another sweep holds its lease")

    monkeypatch.setattr(module, "repository_lease", held)
    with pytest.raises(RefusedError, match="another sweep"):
        estate.prune()
    assert (asked, estate.of()) == (["prune"], before)
    # Who only looks keeps nobody out, and is not kept out.
    with repository_lock(f"local://{REPOSITORY}"):
        assert estate.prune(dry_run=True).runs[0].kept == ""


def test_a_store_that_does_not_answer_stops_the_prune_before_anything_goes(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = estate.of()
    real = LocalStore.get

    def get(store: LocalStore, key: str) -> bytes:
        if key == "active_commits/manifest.json" and "later-2" in store.url:
            raise StorageError("it does not answer")
        return real(store, key)

    monkeypatch.setattr(LocalStore, "get", get)
    with pytest.raises(LakegcError, match="it does not answer"):
        estate.prune()
    assert estate.of() == before


def test_of_a_repository_that_was_never_marked_there_is_nothing_to_tell(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        pytest.fail("nobody needs a lease of it")

    monkeypatch.setattr(module, "repository_lease", unwanted)
    monkeypatch.setattr(ArtifactRoot, "runs", lambda _root, _repository: [])
    assert estate.prune() == Pruned([], [])


def test_too_short_a_time_is_refused(estate: Estate) -> None:
    with pytest.raises(ConfigurationError, match="2 are the least"):
        prune(estate.context(), timedelta(hours=47), NoRecords(), dry_run=True)


def test_a_sweep_that_the_present_mark_leaves_out_stays(estate: Estate) -> None:
    attempt = estate.root.attempt(REPOSITORY, RUN)
    manifest = json.loads(attempt.store().get("store_listing/manifest.json"))
    old = estate.root.attempt(REPOSITORY, OLD).attempt
    manifest["facts"]["swept_since"] = [[OLD, old]]
    attempt.store().put("store_listing/manifest.json", json.dumps(manifest).encode())
    assert estate.kept()[OLD] == f"run {RUN!r} leaves out what its sweep deleted"


def test_the_ledger_tells_that_the_trash_is_there_where_a_listing_does_not(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_trash(estate)
    place = f"{TRASH}20260101T000000Z-168h-0123456789abcdef/data/x"
    attempt = estate.root.attempt(REPOSITORY, OLD)
    outcome = ledger.Outcome("data/x", 13, "deleted", version=place)
    ledger.record(attempt.store(), "a", [outcome])
    age_all(estate)
    real = LocalStore.list_prefixes

    def nothing(store: LocalStore, prefix: str = "", *more: Any) -> Any:
        found = real(store, prefix, *more)
        return found._replace(prefixes=[]) if prefix == TRASH else found

    monkeypatch.setattr(LocalStore, "list_prefixes", nothing)
    assert estate.kept()[OLD] == "the trash still holds what its sweep deleted"
    (estate.lake.objects / place).unlink()
    assert estate.kept()[OLD] == ""
