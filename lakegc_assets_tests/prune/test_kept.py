"""Which runs a prune keeps, and that it believes no listing that shows too little."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.recovery.backup_creation import PLACES, BackupPlace
from lakegc_assets.recovery.backups import BEGIN, MANIFEST, PRUNING
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.manifest import MARK_ASSETS, PROTECTION_VERSION
from lakegc_assets.run.pins import Pin, write_pin
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.storage.values import Recovery
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.approval import Approval
from lakegc_assets.sweep.hold import write_hold
from lakegc_assets_tests.files import age
from lakegc_assets_tests.lake import REPOSITORY, RUN
from lakegc_assets_tests.prune.estate import AGE, NOW, OLD, Estate, Records, again, write_old
from lakegc_assets_tests.prune.past import DAY, long_ago


def _approved(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS)
    attempt = estate.root.attempt(REPOSITORY, estate.old)
    mark = attempt.recorded("gc_report").sha256
    ends = NOW + DAY
    approval = Approval(REPOSITORY, estate.old, mark, "1-0", "Ada", NOW - 60 * DAY, ends, 0.5)
    write_old(estate, "approvals/20260101T000000000000.json", approval.to_bytes())
    return "its sweep is approved by Ada until"


def _swept_by_half(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS)
    write_old(estate, "swept_set/ledger/a.parquet", b"whatever")
    return f"its sweep did not finish: `lakegc sweep repo --run {estate.old}` continues it"


def _swept_by_half_by_an_earlier_version(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS, protection=PROTECTION_VERSION - 1)
    write_old(estate, "swept_set/ledger/a.parquet", b"whatever")
    return "its sweep did not finish, and only the version of lakegc that made its mark"


def _published_by_half(estate: Estate) -> str:
    again(estate, assets=MARK_ASSETS[:-1])
    real = estate.namespace().get(f"_lakefs/retention/gc/unified/{RUN}/summary.json")
    estate.namespace().put(f"_lakefs/retention/gc/unified/{estate.old}/summary.json", real)
    return "its mark was published, but not reported"


def _published_by_half_by_an_earlier_version(estate: Estate) -> str:
    _published_by_half(estate)
    again(estate, assets=MARK_ASSETS[:-1], protection=PROTECTION_VERSION - 1)
    return "its mark was published, but not reported, and only the version of lakegc that"


def _restored_by_half(estate: Estate) -> str:
    for name in ("begin", "manifest"):
        write_old(estate, f"restored_set/20251231T000000Z-ab/{name}.json", b"{}")
    write_old(estate, "restored_set/20260101T000000Z-ab/begin.json", b"{}")
    return "its restore 20260101T000000Z-ab did not finish"


def _pinned(estate: Estate) -> str:
    pin = Pin("a", NOW + DAY, estate.old, "restored", 1)
    write_pin(estate.namespace(), pin, pa.array(["data/x"]))
    return "restored objects of it are pinned"


def _undoable(estate: Estate) -> str:
    kept = {"kind": "soft_delete", "days": 100, "notice": "", "until": None}
    again(estate, recovery=kept)
    return "objects that its sweep deleted can be restored (soft delete) until"


def _undoable_though_late(estate: Estate) -> str:
    """Stores let go a day or two behind their rules."""
    again(estate, recovery={"kind": "soft_delete", "days": AGE - 1, "notice": "", "until": None})
    return "objects that its sweep deleted can be restored (soft delete) until"


def _undoable_though_found_missing(estate: Estate) -> str:
    """An earlier try of the sweep has deleted it."""
    kept = {"kind": "soft_delete", "days": 100, "notice": "", "until": None}
    again(estate, recovery=kept, outcomes={"already_missing": {"objects": 1, "bytes": 1}})
    return "objects that its sweep deleted can be restored (soft delete) until"


def _undoable_for_ever(estate: Estate) -> str:
    again(estate, recovery={"kind": "versions", "days": None, "notice": "", "until": None})
    return "objects that its sweep deleted can be restored (versions), until when is not known"


def _perhaps_undoable(estate: Estate) -> str:
    again(estate, perhaps_kept=1)
    return "the store may have kept objects that an earlier try of its sweep deleted"


def _in_trash(estate: Estate) -> str:
    until = (NOW - DAY).isoformat()
    again(estate, recovery={"kind": "trash", "days": 7, "notice": "", "until": until})
    write_old(estate, "swept_set/0123456789abcdef/0001/known/part.parquet", b"")
    path = estate.lake.objects / TRASH / "20260101T000000Z-168h-0123456789abcdef/data/x"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"the only copy")
    return "the trash still holds objects that its sweep deleted"


def _backed_up(estate: Estate) -> str:
    path = estate.folder / "backups" / REPOSITORY / estate.old / BEGIN
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return "its backup is at file://"


def _swept_with_backup(estate: Estate) -> str:
    again(estate, backup=f"file://{estate.folder}/elsewhere/{REPOSITORY}/{estate.old}")
    return (
        f"its backup was made at file://{estate.folder}/elsewhere/repo/{estate.old}, "
        "and backup_url is file:"
    )


def _damaged(estate: Estate) -> str:
    write_old(estate, "gc_report/manifest.json", b"{")
    return "it is not known whether it is needed"


def _of_another_version(estate: Estate) -> str:
    again(estate, recovery={"kind": "versions"})
    return "it is not known whether it is needed (KeyError: 'days')"


def _change(estate: Estate, asset: str, change: dict[str, Any]) -> None:
    key = f"{asset}/manifest.json"
    found = json.loads(estate.root.attempt(REPOSITORY, estate.old).store().get(key))
    write_old(estate, key, json.dumps(found | change).encode())


def _with_a_listing_of_another_version(estate: Estate) -> str:
    _change(estate, "store_listing", {"facts": {}})
    return "it is not known whether it is needed (KeyError: 'start')"


def _of_two_namespaces(estate: Estate) -> str:
    _change(estate, "gc_report", {"namespace": "local://the-other"})
    return "its assets are of different namespaces"


def _without_a_file(estate: Estate) -> str:
    key = next(name for name in estate.of() if "uncommitted_snapshot/data" in name)
    (estate.artifacts() / key).unlink()
    return "a listing of "


def _unnamed(estate: Estate) -> str:
    (estate.artifacts() / "attempt.json").write_text("[]")
    return "it is not known whether it is needed"


def _elsewhere(estate: Estate) -> str:
    again(estate, namespace="local://another")
    return "it is of local://another"


def _held(estate: Estate) -> str:
    write_hold(estate.namespace(), {"alarm": "something is gone"})
    return f"the repository is on hold: `lakegc hold {REPOSITORY}"


def _written_lately(estate: Estate) -> str:
    attempt = estate.root.attempt(REPOSITORY, estate.old)
    attempt.store().put("restored_set/20990101T000000Z-a/manifest.json", b"")
    return "it is 0 days old"


#: Those by which no other run stays.
REASONS: list[Callable[[Estate], str]] = [
    _approved,
    _swept_by_half,
    _swept_by_half_by_an_earlier_version,
    _published_by_half,
    _published_by_half_by_an_earlier_version,
    _restored_by_half,
    _pinned,
    _undoable,
    _undoable_though_late,
    _undoable_though_found_missing,
    _undoable_for_ever,
    _perhaps_undoable,
    _in_trash,
    _backed_up,
    _swept_with_backup,
    _damaged,
    _of_another_version,
    _with_a_listing_of_another_version,
    _of_two_namespaces,
    _without_a_file,
    _unnamed,
    _elsewhere,
]


@pytest.mark.parametrize(
    "reasons",
    [REASONS, [_held], [_written_lately]],
    ids=["many", "a hold", "it is young"],
)
def test_what_somebody_needs_stays_as_it_is(
    estate: Estate, reasons: list[Callable[[Estate], str]]
) -> None:
    """Each of many runs for a reason of its own, in one prune."""
    why: dict[str, str] = {}
    for reason in reasons:
        one = replace(estate, old=reason.__name__[1:].replace("_", "-"))
        long_ago(one.root, one.old, AGE)
        why[one.old] = reason(one)
    before = {run: estate.of(run) for run in why}
    found = estate.kept(backup_url=f"file://{estate.folder}/backups")
    assert {run: found[run][: len(text)] for run, text in why.items()} == why
    assert {run: estate.of(run) for run in why} == before


def test_what_somebody_needed_goes_when_that_is_over(estate: Estate) -> None:
    kept = {"kind": "soft_delete", "days": 60, "notice": "", "until": None}
    again(estate, recovery=kept)
    write_old(estate, "restored_set/20260101T000000Z-ab/begin.json", b"{}")
    write_old(estate, "restored_set/20260101T000000Z-ab/manifest.json", b"{}")
    pin = Pin("a", NOW - DAY, OLD, "restored", 1)
    write_pin(estate.namespace(), pin, pa.array(["data/x"]))
    assert estate.kept()[OLD] == ""


def test_a_run_goes_whose_backup_has_gone(estate: Estate) -> None:
    url = f"file://{estate.folder}/backups"
    again(estate, backup=f"{url}/{REPOSITORY}/{OLD}")
    (estate.folder / "backups").mkdir()
    assert "and backup_url is not set" in estate.kept()[OLD]
    again(estate)
    write_old(estate, "backup/portions/0/part-1.parquet", b"")
    assert estate.kept()[OLD].startswith("a backup of it was begun, and backup_url is not set")
    write_old(estate, f"{PLACES}0.json", BackupPlace(url).to_bytes())
    assert estate.kept(backup_url=url)[OLD] == ""


def test_a_run_stays_whose_backup_an_earlier_version_made_nobody_knows_where(
    estate: Estate,
) -> None:
    url = f"file://{estate.folder}/backups"
    (estate.folder / "backups").mkdir()
    write_old(estate, "backup/20260101T000000-ab/journal/part-1.parquet", b"")
    assert estate.kept(backup_url=url)[OLD].startswith("a backup of it was begun by an earlier")
    # Its sweep used the backup, so it says where that was.
    again(estate, backup=f"{url}/{REPOSITORY}/{OLD}")
    assert estate.kept(backup_url=url)[OLD] == ""


def test_a_run_stays_whose_backup_is_at_another_place_than_backup_url(estate: Estate) -> None:
    url, other = (f"file://{estate.folder}/{name}" for name in ("backups", "others"))
    for name in ("backups", "others"):
        (estate.folder / name / REPOSITORY / "another").mkdir(parents=True)
    for number, place in enumerate((url, other)):
        write_old(estate, f"{PLACES}{number}.json", BackupPlace(place).to_bytes())
    begun = estate.folder / "others" / REPOSITORY / OLD / BEGIN
    begun.parent.mkdir(parents=True)
    begun.write_text("{}")
    told = estate.kept(backup_url=url)[OLD]
    assert told.startswith(
        f"its backup is at {other}/repo/old: `lakegc backups prune --url {other}"
    )
    begun.unlink()
    begun.parent.rmdir()
    begun.parent.parent.rmdir()
    assert estate.kept(backup_url=url)[OLD] == ""


def test_a_run_stays_whose_backup_is_at_a_place_that_does_not_answer(estate: Estate) -> None:
    url, other = f"file://{estate.folder}/backups", "mem://elsewhere"
    (estate.folder / "backups").mkdir()
    write_old(estate, f"{PLACES}0.json", BackupPlace(other).to_bytes())
    told = estate.kept(backup_url=url)[OLD]
    assert told.startswith(f"a backup of it was begun at {other}, and it is not known whether that")
    write_old(estate, f"{PLACES}1.json", b"{")
    assert "1.json is damaged" in estate.kept(backup_url=url)[OLD]


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
    assert estate.kept()[OLD].startswith("it is not known whether its sweep is approved")


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
    seen = f"^({'|'.join(hidden)})"

    def listed(store: LocalStore, prefix: str = "", *more: Any, **named: Any) -> Any:
        found = real(store, prefix, *more, **named)
        if OLD not in store.url:
            return found
        if method == "list_prefixes":
            kept = [p for p in found.prefixes if not p.startswith(hidden)]
            return found._replace(prefixes=kept)
        pages = (p.filter(pc.invert(pc.match_substring_regex(p["key"], seen))) for p in found)
        return (page for page in pages if page.num_rows)

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
    assert "so it is not known what else is there" in estate.kept()[OLD]
    monkeypatch.undo()
    assert estate.of() == before


def test_names_that_dagster_knows_are_asked_for_where_they_can_be_runs(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records()
    monkeypatch.setattr(records, "names", lambda: {OLD, "../repo", "a|b", "", "unknown"})
    monkeypatch.setattr(ArtifactRoot, "runs", lambda _root, _repository: [RUN])
    assert estate.kept(records) == {OLD: "it is one of the last 3 marks", RUN: "it is 0 days old"}


def test_a_sweep_that_the_present_mark_leaves_out_stays(estate: Estate) -> None:
    attempt = estate.root.attempt(REPOSITORY, RUN)
    manifest = json.loads(attempt.store().get("store_listing/manifest.json"))
    old = estate.root.attempt(REPOSITORY, OLD).attempt
    manifest["facts"]["swept_since"] = [[OLD, old]]
    attempt.store().put("store_listing/manifest.json", json.dumps(manifest).encode())
    assert estate.kept()[OLD] == f"the listing of run {RUN!r} leaves out objects that it deleted"


def test_the_ledger_tells_that_the_trash_is_there_where_a_listing_does_not(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_trash(estate)
    place = f"{TRASH}20260101T000000Z-168h-0123456789abcdef/data/x"
    attempt = estate.root.attempt(REPOSITORY, OLD)
    outcome = ledger.Outcome("data/x", 13, "deleted", version=place)
    ledger.record(attempt.store(), "a", [outcome])
    age(estate.artifacts(), AGE)
    real = LocalStore.list_prefixes

    def nothing(store: LocalStore, prefix: str = "", *more: Any) -> Any:
        found = real(store, prefix, *more)
        return found._replace(prefixes=[]) if prefix == TRASH else found

    monkeypatch.setattr(LocalStore, "list_prefixes", nothing)
    assert estate.kept()[OLD] == "the trash still holds objects that its sweep deleted"
    (estate.lake.objects / place).unlink()
    assert estate.kept()[OLD] == ""


@pytest.mark.parametrize(
    ("recorded", "present", "stays"),
    [
        (("versions", 60), ("versions", 100), True),
        (("versions", 100), ("versions", 5), True),
        (("versions", 60), ("versions", None), True),
        (("versions", 60), ("unknown", None), True),
        (("unknown", 60), ("versions", 100), True),
        (("versions", 60), ("soft_delete", 100), False),
        (("soft_delete", 60), ("versions", 100), False),
        (("soft_delete", 60), ("versions", None), False),
    ],
)
def test_a_rule_of_versions_holds_for_what_was_deleted_before_it(
    estate: Estate,
    monkeypatch: pytest.MonkeyPatch,
    recorded: tuple[str, float],
    present: tuple[Any, float | None],
    stays: bool,  # noqa: FBT001 - a parameter
) -> None:
    """It may be longer than the one of the sweep, or lifted; other settings do not change that."""
    kind, days = recorded
    again(estate, recovery={"kind": kind, "days": days, "notice": "", "until": None})
    monkeypatch.setattr(LocalStore, "recovery", lambda _: Recovery(*present, "its rules of today"))
    assert bool(estate.kept()[OLD]) == stays


@pytest.mark.parametrize("key", [BEGIN, MANIFEST, PRUNING])
def test_a_backup_that_no_listing_shows_keeps_its_run(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    path = estate.folder / "backups" / REPOSITORY / OLD / key
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    real = LocalStore.list_prefixes

    def listed(store: LocalStore, prefix: str = "", *more: Any) -> Any:
        found = real(store, prefix, *more)
        return found._replace(prefixes=[]) if "backups" in store.url else found

    monkeypatch.setattr(LocalStore, "list_prefixes", listed)
    found = estate.kept(backup_url=f"file://{estate.folder}/backups")
    assert found[OLD].startswith("its backup is at file://")


def test_a_run_is_as_young_as_its_last_record(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records()
    monkeypatch.setattr(records, "last", lambda run: (NOW - DAY if run == OLD else None, ""))
    assert estate.kept(records)[OLD] == "it is 1 day old"
