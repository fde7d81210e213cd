"""The findings and the outcome of one run, for commands and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks.invariants import read_results, require_passed
from lakegc_assets.errors import RefusedError
from lakegc_assets.estate.run_state import (
    DELETED_OR_MISSING,
    MARKED,
    ON_HOLD,
    STOPPED,
    RunState,
    deleted_or_missing,
    state_of,
)
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.undo import undoable
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.approval import when
from lakegc_assets.sweep.status import Restored
from lakegc_assets.sweep.totals import deleted_in, space_in, space_lines

#: Facts of manifests that an outcome shows unchanged.
_LISTED = ("listed", "listed_bytes", "skipped_slices", "outside_data", "too_young", "spared")
_MARKED = ("objects", "bytes", "breakdown", "largest", "files", "checks")
#: Most reasons of a sweep that a report shows.
_REASONS = 10


def outcome_of(attempt: AttemptArtifacts, now_at: str = "") -> dict[str, Any]:
    """The findings and the outcome of a run, as JSON values.

    ``now_at``: the namespace of its repository now, in its canonical form; empty if not known.

    Raises:
        RefusedError: its mark did not finish.
        IntegrityError: its artifacts are damaged.
    """
    require_published(attempt)
    swept = attempt.manifest("swept_set") if attempt.has("swept_set") else None
    state = state_of(attempt, now_at)
    mark, sweep = _of_mark(attempt), _of_sweep(attempt, state, swept)
    put_back = swept.facts["put_back"] if swept else ()
    mark["warnings"] += swept.facts.get("warnings", ()) if swept else ()
    mark["warnings"] += [
        f"{row['address']} was needed after all and put back: {row['detail']}" for row in put_back
    ]
    at_mark = mark.pop("undo")
    deleted = deleted_in(sweep["outcomes"])[0] or sweep["deleted_or_missing"]
    if deleted and not swept:
        at_mark = f"{_preview(attempt)}. When the mark was made: {at_mark or 'not known'}"
    undo = _undo(at_mark, swept, state.restored)
    if swept and not deleted:
        undo = "nothing was deleted"
    return {**mark, **sweep, "undo": undo}


def _of_mark(attempt: AttemptArtifacts) -> dict[str, Any]:
    """The part of ``outcome_of`` about the mark; ``undo`` is as it was at that time."""
    report = attempt.manifest("gc_report")
    marked = attempt.manifest("deletion_candidates")
    candidates = marked.facts
    committed = attempt.manifest("committed_addresses").facts
    return {
        "repository": attempt.repository,
        "run": attempt.run,
        "attempt": attempt.attempt,
        "mode": attempt.manifest("store_listing").mode,
        "cutoff": report.cutoff.isoformat(),
        "mark_url": f"{report.namespace}/{mark_folder(attempt.run)}",
        "digest": marked.digest,
        "artifacts": attempt.url,
        "engine": report.facts.get("engine", "unknown"),
        "undo": report.facts.get("undo"),
        **{name: candidates[name] for name in _LISTED},
        "adopted": candidates.get("adopted"),
        **{name: report.facts[name] for name in _MARKED},
        "largest_paths": report.facts.get("largest_paths", {}),
        "warnings": [*report.facts["warnings"]],
        "read": {name: committed[name] for name in sorted(committed)},
    }


def _of_sweep(
    attempt: AttemptArtifacts, state: RunState, manifest: Manifest | None
) -> dict[str, Any]:
    """The part of ``outcome_of`` about the sweep, or about its absence."""
    swept = manifest.facts if manifest else None
    recorded = ledger.recorded(attempt) if state.outcomes else ledger.SWEPT.empty_table()
    back = state.restored
    return {
        "backup": swept.get("backup") if swept else None,
        "recovery": swept["recovery"] if swept else None,
        "restored": back
        and {
            "objects": back.objects,
            "bytes": back.size,
            "deleted": back.deleted,
            "on": back.at.isoformat(),
            "summary": str(back),
        },
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


def _undo(at_mark: str | None, swept: Manifest | None, back: Restored | None) -> str | None:
    """The possible or finished undo of a sweep; ``at_mark``: without a finished sweep."""
    if back is not None and back.whole:
        return str(back)
    undo = at_mark if swept is None else undoable(swept.facts, datetime.now(timezone.utc))
    return f"{back}; of the others: {undo}" if back else undo


def _preview(attempt: AttemptArtifacts) -> str:
    """The command that shows which objects of an unfinished sweep come back.

    A sweep records only at its end whether the store and its own settings kept what it deleted.
    """
    of_run = attempt.repository, "--run", attempt.run, "--all", "--dry-run"
    return f"`{command_line('restore', *of_run)}` shows which of the deleted objects come back"


def _space(swept: Mapping[str, Any] | None, rows: pa.Table) -> dict[str, Any] | None:
    """Freed and held space of deleted objects; None if nothing was deleted."""
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
    """The commands that continue a run, each after its purpose."""
    commands = []
    if found["objects"] and found["to_delete"]:
        begun = found["state"] != MARKED
        commands.append(("to go on" if begun else "to delete", found["to_delete"]))
    if found["state"] in {STOPPED, ON_HOLD}:
        undo = command_line("restore", found["repository"], "--run", found["run"], "--all")
        commands.append(("to undo", undo))
    return commands


def totals(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Objects and bytes of a mark: listed (or looked at), kept, and garbage."""
    listed, garbage = (found["listed"], found["listed_bytes"]), (found["objects"], found["bytes"])
    kept = (listed[0] - garbage[0], listed[1] - garbage[1])
    seen = "looked at" if found["mode"] == "committed" else "listed"
    return [(seen, *listed), ("kept", *kept), ("garbage", *garbage)]


def done_by_sweep(found: dict[str, Any]) -> Iterator[tuple[str, str, int, int | None]]:
    """Each outcome of a sweep and its parts: outcome, part, objects, bytes; the whole has no part.

    The bytes of a part are None if they are not counted.
    """
    for outcome, total in found["outcomes"].items():
        name = outcome.replace("_", " ")
        yield name, "", total["objects"], total["bytes"]
        if outcome == "deleted" and found["space"]:
            for words, objects, size in space_lines(found["space"]):
                yield name, words, objects, size
        if outcome == "spared":
            for because, objects in found["spared_by_sweep"].items():
                yield name, because, objects, None
        if outcome == "already_missing" and found["deleted_or_missing"]:
            yield name, DELETED_OR_MISSING, found["deleted_or_missing"], None
    if back := found["restored"]:
        yield "restored since", "", back["objects"], back["bytes"]


def places(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The places of a run, its digest, its engine, and the possible undo."""
    known = [(name, found[name]) for name in ("digest", "artifacts", "engine", "backup", "undo")]
    space = found["space"] and found["space"]["notice"]
    shown = [("mark", found["mark_url"]), *known, ("space", space)]
    return [(what, place) for what, place in shown if place]


def kept_because(found: dict[str, Any]) -> list[tuple[str, int]]:
    """Reasons why objects stay that nothing holds or that were not examined, with their number."""
    cutoff, adopted = datetime.fromisoformat(found["cutoff"]), found["adopted"]
    reasons = {
        f"not older than {cutoff:%Y-%m-%d %H:%M} UTC": found["too_young"],
        "not where lakeFS keeps objects": found["outside_data"],
        **found["spared"],
    }
    if adopted is not None:
        # Objects that our own mark would also have named.
        reasons[f"not named by mark {adopted['mark']}"] = adopted["not_named"]["objects"]
    return [(why, objects) for why, objects in reasons.items() if objects]


def require_published(attempt: AttemptArtifacts) -> None:
    """Refuse a mark that did not finish; the error names the check that stopped it, if any."""
    if attempt.has("gc_report"):
        return
    text = f"mark {attempt.run!r} of {attempt.repository!r} did not finish"
    if attempt.has("deletion_candidates"):
        try:
            require_passed(read_results(attempt, attempt.manifest("deletion_candidates")))
        except RefusedError as error:
            raise RefusedError(f"{text}: {error}") from error
    again = command_line("mark", attempt.repository, "--run", attempt.run)
    raise RefusedError(f"{text}: make it again with `{again}`")
