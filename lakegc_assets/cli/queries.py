"""Queries of repositories and their runs, from the artifacts and from lakeFS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks.evaluation import read_results, require_passed
from lakegc_assets.cli.site import Site
from lakegc_assets.defs.names import partition_key
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.estate.guards import Guards, read_guards
from lakegc_assets.estate.repository_state import UNREADABLE
from lakegc_assets.estate.run_state import (
    MARKED,
    ON_HOLD,
    STOPPED,
    RunManifests,
    deleted_or_missing,
    run_state,
    state_of,
)
from lakegc_assets.estate.run_state import sweep_command as command_of
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.mark.adoption import require_adoptable
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.recovery.restore.selection import known_ref
from lakegc_assets.recovery.undo_window import undoable
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, Manifest
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import known_repository
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.approval import when
from lakegc_assets.sweep.status import Restored
from lakegc_assets.sweep.totals import space_in

#: Facts of manifests that an outcome shows as they are.
_LISTED = ("listed", "listed_bytes", "skipped_slices", "outside_data", "too_young", "spared")
_MARKED = ("objects", "bytes", "breakdown", "largest", "files", "checks")
#: Reasons of a sweep that a report has.
_REASONS = 10
_THREADS = 8


def outcome(repository: str, run: str) -> dict[str, Any]:
    """The findings and the outcome of a run, as JSON values."""
    attempt = Site.defined().attempt(repository, run)
    require_published(attempt)
    report = attempt.manifest("gc_report")
    candidates = attempt.manifest("deletion_candidates").facts
    committed = attempt.manifest("committed_addresses").facts
    state = state_of(attempt)
    back = state.restored
    manifest = attempt.manifest("swept_set") if attempt.has("swept_set") else None
    swept = manifest.facts if manifest else None
    recorded = ledger.recorded(attempt) if state.outcomes else ledger.SWEPT.empty_table()
    return {
        "repository": repository,
        "run": run,
        "attempt": attempt.attempt,
        "mode": attempt.manifest("store_listing").mode,
        "cutoff": report.cutoff.isoformat(),
        "mark_url": f"{report.namespace}/{mark_folder(run)}",
        "artifacts": attempt.url,
        "engine": report.facts.get("engine", "unknown"),
        "backup": swept.get("backup") if swept else None,
        "recovery": swept["recovery"] if swept else None,
        "undo": _undo(report, swept, back),
        "restored": back
        and {
            "objects": back.objects,
            "bytes": back.size,
            "deleted": back.deleted,
            "on": back.at.isoformat(),
            "summary": str(back),
        },
        **{name: candidates[name] for name in _LISTED},
        "adopted": candidates.get("adopted"),
        **{name: report.facts[name] for name in _MARKED},
        "largest_paths": report.facts.get("largest_paths", {}),
        "warnings": [
            *report.facts["warnings"],
            *(
                f"{row['address']} was needed after all and put back: {row['detail']}"
                for row in (swept["put_back"] if swept else ())
            ),
        ],
        "read": {name: committed[name] for name in sorted(committed)},
        "state": state.state,
        "because": state.because,
        "to_delete": state.command or None,
        "swept": swept is not None,
        "swept_on": when(manifest) if manifest else None,
        "outcomes": {
            name: {"objects": total.objects, "bytes": total.size}
            for name, total in state.outcomes.items()
        },
        "space": _space(swept, recorded),
        "spared_by_sweep": _spared(recorded),
        "deleted_or_missing": deleted_or_missing(attempt, recorded).num_rows,
    }


def sweep_command(repository: str, run: str) -> str:
    """The command that sweeps a published mark."""
    return command_of(Site.defined().attempt(repository, run))


def _space(swept: Mapping[str, Any] | None, rows: pa.Table) -> dict[str, Any] | None:
    """Freed and held space of deleted objects; None where nothing was deleted."""
    if not pc.any(pc.equal(rows["outcome"], "deleted")).as_py():
        return None
    recorded = (swept or {}).get("space") or {}
    return {**space_in(rows), "notice": recorded.get("notice")}


def _spared(rows: pa.Table) -> dict[str, int]:
    """The number of spared objects by reason, the most frequent reasons only."""
    details = rows.filter(pc.equal(rows["outcome"], "spared"))["detail"]
    counted = Counter({one["values"]: one["counts"] for one in details.value_counts().to_pylist()})
    found = {why or "no reason is recorded": count for why, count in counted.most_common(_REASONS)}
    rest = counted.total() - sum(found.values())
    return found | ({"other reasons": rest} if rest else {})


def commands_of(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The commands that go on with a run, each behind what it is for."""
    commands = []
    if found["objects"] and found["to_delete"]:
        begun = found["state"] != MARKED
        commands.append(("to go on" if begun else "to delete", found["to_delete"]))
    if found["state"] in {STOPPED, ON_HOLD}:
        undo = command_line("restore", found["repository"], "--run", found["run"], "--all")
        commands.append(("to undo", undo))
    return commands


def kept_because(found: dict[str, Any]) -> list[tuple[str, int]]:
    """Why a mark keeps objects that nothing holds or that it did not look at, and how many."""
    cutoff, adopted = datetime.fromisoformat(found["cutoff"]), found["adopted"]
    reasons = {
        f"not older than {cutoff:%Y-%m-%d %H:%M} UTC": found["too_young"],
        "not where lakeFS keeps objects": found["outside_data"],
        **found["spared"],
    }
    if adopted is not None:
        # What a run of its own would have marked besides.
        reasons[f"not named by mark {adopted['mark']}"] = adopted["not_named"]["objects"]
    return [(why, objects) for why, objects in reasons.items() if objects]


def require_published(attempt: AttemptArtifacts) -> None:
    """Refuse a mark that did not finish, with the check that stopped it if one did."""
    if attempt.has("gc_report"):
        return
    text = f"mark {attempt.run!r} of {attempt.repository!r} did not finish"
    if attempt.has("deletion_candidates"):
        try:
            require_passed(read_results(attempt, attempt.manifest("deletion_candidates")))
        except RefusedError as error:
            raise RefusedError(f"{text}: {error}") from error
    raise RefusedError(f"{text}: mark again")


def address_at(repository: str, ref: str, path: str) -> str:
    """The full address of the object that lakeFS shows at a path of a branch, tag or commit."""
    partition_key(repository, "any")
    client = Site.defined().lakefs.connect()
    known_repository(client, repository)
    try:
        found = client.stat(repository, known_ref(client, repository, ref), path)
    except NotFoundError as error:
        raise RefusedError(
            f"lakeFS shows nothing at {path!r} of {ref!r}. What is not there any more a commit may "
            "have had: give its id in place of the branch"
        ) from error
    return found.physical_address


def adoptable(repository: str, run: str, mark_id: str) -> None:
    """Refuse a mark of lakeFS's collector that no run can be made of, before anything is started.

    Raises as ``require_adoptable``.
    """
    partition_key(repository, run)
    site = Site.defined()
    require_adoptable(site.store(repository), site.root, repository, run, mark_id)


def _undo(report: Manifest, swept: Mapping[str, Any] | None, back: Restored | None) -> str | None:
    """The possible or finished undo of a sweep; older marks have none."""
    if back is not None and back.whole:
        return str(back)
    if swept is not None:
        undo = undoable(swept, datetime.now(timezone.utc))
        return f"{back}; of the others: {undo}" if back else undo
    return report.facts.get("undo")


def known_runs() -> list[dict[str, Any]]:
    """The repositories of the server with their namespaces and the runs in the artifacts."""
    site = Site.defined()
    found = list(site.lakefs.connect().repositories())

    def look(repository: Repository) -> dict[str, Any]:
        guards = read_guards(repository.storage_namespace, site.stores)
        return {
            "repository": repository.id,
            "storage_namespace": repository.storage_namespace,
            "read_only": repository.read_only,
            "on_hold": guards.hold is not None,
            "runs": [
                _described(site.root, repository.id, run, guards)
                for run in _by_begin(site.root, repository.id)
            ],
        }

    return thread_map(look, found, _THREADS)


def last_marked(repository: str) -> str | None:
    """The run whose mark was begun last of those that finished one; None where none did."""
    partition_key(repository, "any")
    root = Site.defined().root
    for run in reversed(_by_begin(root, repository)):
        with suppress(LakegcError):
            if root.attempt(repository, run).has("gc_report"):
                return run
    return None


def _by_begin(root: ArtifactRoot, repository: str) -> list[str]:
    """The runs of a repository, the one whose mark was begun last as the last."""
    return sorted(root.runs(repository), key=lambda run: (_begun(root, repository, run), run))


def _begun(root: ArtifactRoot, repository: str, run: str) -> str:
    """The id of the present attempt of a run, which sorts by time; empty where there is none."""
    try:
        return root.attempt(repository, run).attempt
    except LakegcError:
        return ""


def _described(root: ArtifactRoot, repository: str, run: str, guards: Guards) -> dict[str, str]:
    """The state of a run; unreadable, with the reason, where it is unknown."""
    try:
        found = run_state(RunManifests.of(root.attempt(repository, run)), guards)
    except LakegcError as error:
        because = str(error)
        return {"run": run, "state": UNREADABLE, "summary": UNREADABLE, "because": because}
    return {
        "run": run, "state": found.state, "summary": found.summary, "because": found.because
    }  # fmt: skip
