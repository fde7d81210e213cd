"""``gc_waiting``: the list of marks that wait for a person, and a notice about each of them."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple

import dagster as dg

from lakegc_assets.checks.invariants import candidate_share_of, read_results
from lakegc_assets.defs.automation_state import add_failing, failing_sensors
from lakegc_assets.defs.collection import Collection, changes, remembered
from lakegc_assets.defs.names import (
    ENDED,
    EXCEEDS_TAG,
    REPOSITORY,
    REPOSITORY_TAG,
    RUN_TAG,
    WAITING,
    location_of,
    partition_key,
)
from lakegc_assets.defs.notices import APPROVABLE, link_to_run, ways_of
from lakegc_assets.defs.policy import Policy
from lakegc_assets.defs.round_robin import RoundRobin
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.notices import Document, Outbox, document
from lakegc_assets.estate.repository_state import UNREADABLE, Standing, standing
from lakegc_assets.estate.repository_state import WAITING as WAITING_STATE
from lakegc_assets.estate.run_state import REFUSED
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.command_line import command_line, in_dagster
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep.approval import approving
from lakegc_assets.wording import counted, human_bytes, minute

#: Time after which a repository is read again although no run has changed: another machine may
#: have marked or approved.
_LOOK: Final = timedelta(hours=1)
#: Time after which an unreadable repository is read again: the error may have been transient.
_AGAIN: Final = timedelta(minutes=5)
_IN_PROGRESS: Final = [one for one in dg.DagsterRunStatus if one not in ENDED]


class _Waiting(NamedTuple):
    """A waiting mark: the state of its repository, its candidates, and their listed share."""

    standing: Standing
    mark: Manifest
    share: float


def waiting_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_waiting``, which maintains partition keys and notices, and starts nothing."""
    policies, names = collection.policies, collection.names

    @collection.sensor(
        "gc_waiting",
        60,
        f"Maintains the list of marks that {names.of('gc_approve')} can approve. Posts or mails a "
        f"notice about each of them, and if {names.of('gc_waves')} has failed for an hour.",
        *("stores", "collector"),
        running=True,
    )
    def waiting(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        moment, memory = collection.now(), remembered(context)
        outbox = Outbox(ways_of(collection.notices), memory.get("pending", {}), moment)
        listed = set(context.instance.get_dynamic_partitions(names.of(WAITING)))
        before = memory.get("listed", [])
        # Another code location may have listed marks of another server.
        ours = listed.intersection(before)
        if not memory:
            # The first tick, perhaps since a person has reset the cursor.
            ours = _with_artifacts(collection.of(context).root, listed)
        known = sorted(context.instance.get_dynamic_partitions(names.of(REPOSITORY)))
        turns = RoundRobin(names.of("gc_waiting"), memory, moment)
        turns.put_changed_first(context.instance)
        found, unclear = set[str](), set(known)
        if due := turns.due(known, _LOOK):
            root = collection.of(context).root
            marks, unclear = _look(context, collection, root, known, turns, due)
            found = set(marks)
            for key in sorted(found.difference(before)):
                made = _notice(context.instance, collection, marks[key])
                outbox.add(key, document=made)
        current = found | {key for key in ours if key.split("|")[0] in unclear}
        # Keys of marks contain a bar; those of sensors do not.
        outbox.waiting = {
            k: one for k, one in outbox.waiting.items() if k in current or "|" not in k
        }
        location = location_of(context.code_location_origin)
        failing = failing_sensors(context.instance, location, moment, {names.of("gc_waves")})
        owners = policies.for_all.owners
        sensors = add_failing(outbox, failing, memory.get("sensors", []), owners)
        outbox.deliver(context.log)
        cursor = {
            "listed": sorted(current),
            "pending": outbox.waiting,
            "sensors": sensors,
            **turns.to_json(known),
        }
        return dg.SensorResult(
            skip_reason=outbox.reason(
                f"{counted(len(current), 'mark waits', 'marks wait')} for approval"
            ),
            cursor=json.dumps(cursor, sort_keys=True),
            dynamic_partitions_requests=changes(names.waiting, current - listed, ours - current),
        )

    return waiting


def _with_artifacts(root: ArtifactRoot, keys: Iterable[str]) -> set[str]:
    """The partition keys whose runs have artifacts here."""
    runs: dict[str, list[str]] = {}
    for repository, _, run in (key.partition("|") for key in keys):
        runs.setdefault(repository, []).append(run)
    found = set[str]()
    for repository, marks in runs.items():
        with suppress(LakegcError):
            found |= {
                f"{repository}|{run}" for run in set(marks).intersection(root.runs(repository))
            }
    return found


def _look(
    context: dg.SensorEvaluationContext,
    collection: Collection,
    root: ArtifactRoot,
    known: Sequence[str],
    turns: RoundRobin,
    due: Sequence[str],
) -> tuple[dict[str, _Waiting], set[str]]:
    """The waiting marks by partition key, and the repositories whose state is unclear.

    Raises:
        LakegcError: no repository at all can be read.
    """

    def look(name: str) -> _Waiting | LakegcError | None:
        try:
            stands = standing(root, name, collection.policies.of(name).sweep, collection.now())
            unread = stands.state == UNREADABLE
            return LakegcError(stands.because) if unread else _waiting_mark(root, stands)
        except LakegcError as error:
            return error

    looked = turns.look(due, look)
    turns.require_any(looked)
    problems = {name: one for name, one in looked.items() if isinstance(one, LakegcError)}
    if len(problems) == len(known):
        raise next(iter(problems.values()))
    for name in problems:
        turns.looked[name] -= int((_LOOK - _AGAIN).total_seconds())
    unclear = {name for name in known if name not in looked}.union(problems)
    found: dict[str, _Waiting] = {}
    for name, one in looked.items():
        if isinstance(one, LakegcError):
            context.log.warning("%s: %s", name, one)
        elif one is not None:
            tags = {REPOSITORY_TAG: name, RUN_TAG: one.mark.run}
            runs = context.instance.get_runs(dg.RunsFilter(tags=tags, statuses=_IN_PROGRESS))
            if not all(map(collection.names.is_forecast, runs)):
                # The run that made the mark may be about to sweep it.
                unclear.add(name)
            else:
                found[str(partition_key(name, one.mark.run))] = one
    return found, unclear


def _waiting_mark(root: ArtifactRoot, standing: Standing) -> _Waiting | None:
    """The mark that waits for approval; None if none waits.

    Raises:
        LakegcError: its artifacts cannot be read.
    """
    if standing.state not in (WAITING_STATE, REFUSED) or standing.run is None:
        return None
    attempt = root.attempt(standing.repository, standing.run)
    # The notice only needs its figures: missing rows must not hide other marks.
    candidates = attempt.recorded("deletion_candidates")
    if standing.state == REFUSED:
        results = read_results(attempt, candidates)
        if [one.name for one in results if one.blocking and not one.passed] != [APPROVABLE]:
            return None
    listed = candidates.facts["listed"]
    share = candidates.rows / listed if listed else 1.0
    with suppress(LakegcError):
        share = candidate_share_of(attempt, candidates)
    return _Waiting(standing, candidates, share)


def _notice(instance: dg.DagsterInstance, collection: Collection, waiting: _Waiting) -> Document:
    """The notice about a waiting mark: size, age, limits, run, and the command to approve it."""
    standing, mark, share = waiting
    tags = {REPOSITORY_TAG: mark.repository, RUN_TAG: mark.run}
    runs = instance.get_runs(dg.RunsFilter(tags=tags))
    run = next((one for one in runs if not collection.names.is_forecast(one)), None)
    size = sum(total["bytes"] for total in mark.facts["by_reason"].values())
    # The title says that it waits, and `what_to_do` how it is approved.
    reason = run.tags.get(EXCEEDS_TAG) if run else None
    why = f". It waits, {reason}" if reason else ""
    if standing.state == REFUSED:
        why = f". {standing.because}"
    arguments = approving(mark)
    if standing.state == REFUSED:
        arguments += ["--max-candidate-share", f"{min(share + 0.005, 1):.2f}"]
    policy = collection.policies.of(mark.repository)
    return document(
        "waiting",
        f"{mark.repository}, mark {mark.run} waits for approval",
        f"It names {counted(mark.rows, 'object')}, {human_bytes(size)}, {share:.1%} of what was "
        f"listed, and was made on {minute(mark.finished)}. {_limits(policy)}{why}",
        f"look at its report, then launch {in_dagster('gc_approve')}, or "
        f"`{command_line('approve', *arguments)}`",
        link_to_run(collection.notices, run.run_id if run else None),
        repository=mark.repository,
        run=mark.run,
        objects=mark.rows,
        bytes=size,
        share=round(share, 6),
        marked=mark.finished.isoformat(),
        dagster_run=run.run_id if run else None,
        owners=policy.owners,
    )


def _limits(policy: Policy) -> str:
    """The limits within which the repository's policy allows a sweep, in words."""
    if policy.sweep != "auto":
        return f"`sweep` is `{policy.sweep}`, max_candidate_share {policy.max_candidate_share:g}"
    shown = policy.auto.model_dump(exclude_none=True)
    if shown["required"] == "nothing":
        del shown["required"]
    kept = ", ".join(f"{name} {value}" for name, value in shown.items())
    return f"`sweep` is `auto`, with the limits {kept or 'none'}"
