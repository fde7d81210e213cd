"""``marked_in_time``: the check that each repository has a recent mark.

It is a check, since a freshness policy evaluates an asset as a whole: a repository that is marked
often would hide the stale ones.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeAlias

import dagster as dg

from lakegc_assets.defs.collection import Collection, collected, remembered
from lakegc_assets.defs.failures import shown
from lakegc_assets.defs.metadata import table
from lakegc_assets.defs.names import REPOSITORY, REPOSITORY_TAG, Names
from lakegc_assets.defs.notices import ways_of
from lakegc_assets.defs.policy import Policies
from lakegc_assets.defs.round_robin import RoundRobin
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.estate.notices import Document, Outbox, document
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.command_line import command_line, in_dagster, printing
from lakegc_assets.run.history import earlier
from lakegc_assets.wording import counted

REPOSITORIES: Final = "repositories"
CHECK: Final = "marked_in_time"
_THREADS: Final = 8
#: Jobs of which a successful run has made a mark.
_MARKING: Final = ("gc", "gc_mark")
#: Last successful runs of a job among which one made a mark.
_RUNS: Final = 10
#: End of the last mark in the artifacts, and the reason if it is unknown.
_Found: TypeAlias = tuple[datetime | None, str]
_DESCRIPTION: Final = "Each repository was marked no longer ago than its `stale_after_days`."


@dataclass(frozen=True)
class Freshness:
    """The age of a repository's last mark: recent or stale, in words, and the mark's end."""

    passed: bool
    sentence: str
    last: datetime | None


@dataclass(frozen=True)
class Known:
    """A repository, as lakeFS described it last.

    If lakeFS never described it, ``made`` is the time when it was first seen, and ``namespace`` is
    None.
    """

    name: str
    made: datetime
    namespace: str | None = None

    @classmethod
    def of(cls, repository: Repository) -> "Known":
        """The repository, as lakeFS describes it now."""
        made = datetime.fromtimestamp(repository.creation_date, timezone.utc)
        namespace = StorageNamespace.parse(repository.storage_namespace).url()
        return cls(repository.id, made, namespace)

    def to_json(self) -> list[str | None]:
        """JSON for the cursor."""
        return [self.made.isoformat(), self.namespace]


def _freshness(
    collection: Collection, known: Known, ends: Iterable[datetime | None], note: str = ""
) -> Freshness:
    """The age of the last mark of a repository, from the known ends of its marks.

    ``note``: says which marks are unknown.
    """
    days = collection.policies.of(known.name).stale_after_days
    # An earlier mark is of another repository with the same name, which was deleted.
    last = max((one for one in ends if one is not None and one >= known.made), default=None)
    ago = collection.now() - (last or known.made)
    said = f"was marked {_days(ago)} ago" if last else f"was made {_days(ago)} ago and never marked"
    passed = ago <= timedelta(days=days)
    schedule = collection.names.of("gc_schedule")
    then = "" if passed else f": look at its last runs, and whether {schedule} is on{note}"
    return Freshness(passed, f"{known.name} {said}, {days:g} days are allowed{then}", last)


def _last_report(root: ArtifactRoot, known: Known) -> tuple[datetime | None, str]:
    """The end of the last mark with undamaged artifacts; or the reason why it is unknown."""
    try:
        marks = earlier(root, known.name, "gc_report", known.namespace, but="")
    except LakegcError as error:
        return None, f". Its artifacts cannot be read: {error}"
    return (marks[0].manifest.finished if marks else None), ""


def _last_run(instance: dg.DagsterInstance, names: Names, repository: str) -> datetime | None:
    """The end of the last run of Dagster that marked a repository; not of one of a few assets."""
    report = names.key("gc_report")
    ends = [
        record.end_time
        for job in _MARKING
        for record in instance.get_run_records(
            dg.RunsFilter(
                job_name=names.of(job),
                tags={REPOSITORY_TAG: repository},
                statuses=[dg.DagsterRunStatus.SUCCESS],
            ),
            limit=_RUNS,
        )
        if (chosen := record.dagster_run.asset_selection) is None or report in chosen
    ]
    return max(
        (datetime.fromtimestamp(end, timezone.utc) for end in ends if end is not None), default=None
    )


def _days(time: timedelta) -> str:
    return f"{max(time / timedelta(days=1), 0):.1f} days"


def repositories_spec(names: Names) -> dg.AssetSpec:
    """The asset of the check, which Dagster only observes."""
    return dg.AssetSpec(
        names.key(REPOSITORIES),
        description="The repositories of the lakeFS server. Nothing here makes or changes them.",
        group_name=names.of("gc"),
        kinds={"lakefs"},
        partitions_def=names.repositories,
    )


def staleness_check(collection: Collection) -> dg.AssetChecksDefinition:
    """The check, for evaluation by hand."""
    names = collection.names

    @dg.asset_check(
        asset=names.key(REPOSITORIES),
        name=CHECK,
        description=_DESCRIPTION,
        required_resource_keys=names.all_of("lakefs", "stores", "collector"),
    )
    def marked_in_time(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with printing(names.source), shown():
            resources = collection.of(context)
            known = collected(resources.lakefs.config(), collection.policies)
            there = [Known.of(one) for one in known]
            found, _ = _judge(there, resources.root, context.instance, collection, {}, _all)
        return dg.AssetCheckResult(severity=dg.AssetCheckSeverity.WARN, **_check_result(found))

    return marked_in_time


def _judge(
    there: Sequence[Known],
    root: ArtifactRoot | None,
    instance: dg.DagsterInstance,
    collection: Collection,
    marked: dict[str, str],
    look: Callable[[Sequence[str], Callable[[str], _Found]], Mapping[str, _Found]],
) -> tuple[dict[str, Freshness], dict[str, Freshness]]:
    """The age of the last mark of each repository, by name; and of those that were not read.

    For most repositories, Dagster's records answer with one or two queries. The artifacts need one
    or two reads for each run, so they are read only if the records show no recent mark.

    Args:
        there: repositories.
        root: of the artifacts; None if it is unknown, and then artifacts do not count.
        instance: of Dagster.
        collection: of the component.
        marked: ends of marks that artifacts have shown, by repository; changed here.
        look: calls a function for repositories, as many as there is time for.
    """
    known = {one.name: one for one in there}

    def last_run(name: str) -> datetime | None:
        return _last_run(instance, collection.names, name)

    runs = dict(zip(known, thread_map(last_run, list(known), _THREADS), strict=True))
    ends = {
        name: [runs[name], *([datetime.fromisoformat(marked[name])] if name in marked else ())]
        for name in known
    }
    found = {name: _freshness(collection, one, ends[name]) for name, one in known.items()}
    stale = [name for name, one in found.items() if not one.passed]
    if root is None:
        return found, {}
    looked = look(stale, lambda name: _last_report(root, known[name]))
    later = {name: found.pop(name) for name in stale if name not in looked}
    for name, (end, note) in looked.items():
        found[name] = _freshness(collection, known[name], [*ends[name], end], note)
        if end is not None:
            marked[name] = end.isoformat()
    return found, later


def _all(names: Sequence[str], look: Callable[[str], _Found]) -> dict[str, _Found]:
    return dict(zip(names, thread_map(look, names, _THREADS), strict=True))


def _check_result(
    found: Mapping[str, Freshness], silence: str = "", more: str = ""
) -> dict[str, Any]:
    """The result of the check: passed or not, a sentence, and a table of stale repositories.

    It does not pass if lakeFS has never listed its repositories. ``silence``: its error; ``more``:
    which repositories are read later.
    """
    stale = {name: one for name, one in sorted(found.items()) if not one.passed}
    of = counted(len(found), "repository", "repositories")
    verb = "was" if 1 in {len(stale), len(found)} else "were"
    said = f"{len(stale)} of {of} {verb} not marked for too long"
    if stale:
        said += f": {', '.join(stale)}"
    rows = [
        (name, "never" if one.last is None else f"{one.last:%Y-%m-%d %H:%M} UTC", one.sentence)
        for name, one in stale.items()
    ]
    said += f"{silence}{more}"
    return {
        "passed": not stale and bool(found or not silence),
        "description": said,
        "metadata": {
            "what": said,
            "stale": table(("repository", "last mark", "what"), rows),
        },
    }


def staleness_sensor(collection: Collection) -> dg.SensorDefinition:
    """``gc_staleness``: evaluates the check, and reports changes, and the result once a day.

    It does not fail for reasons that stop other sensors, since people hear of these from it. It
    makes resources in the tick, and continues without those that cannot be made.
    """
    names = collection.names

    @collection.sensor(
        "gc_staleness",
        3600,
        "Finds repositories without a recent mark, from the artifacts and Dagster's own records, "
        "and posts or mails a notice about each.",
    )
    def staleness(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        memory = remembered(context)
        reported = memory.get("stale", [])
        outbox = Outbox(ways_of(collection.notices), memory.get("waiting", {}), collection.now())
        there, root, silence = _look(context, collection, memory.get("known", {}))
        names_there = sorted(one.name for one in there)
        turns = RoundRobin(names.of("gc_staleness"), memory, collection.now())
        marked = dict(memory.get("marked", {}))
        found, later = _judge(there, root, context.instance, collection, marked, turns.look)
        # Repositories that were not read keep their state; the next tick continues with them.
        found |= {name: one for name, one in later.items() if name in reported}
        more = (
            f". {counted(len(later), 'more is', 'more are')} read by the next ticks"
            if later
            else ""
        )
        stale = sorted(name for name, one in found.items() if not one.passed)
        for name in stale:
            if name not in reported:
                sentence = f"{found[name].sentence}{silence}"
                outbox.add(name, document=_notice(name, sentence, collection.policies))
        outbox.deliver(context.log)
        day = collection.now().date().isoformat()
        known = {one.name: one.to_json() for one in there}
        cursor = {
            "known": known,
            "stale": stale,
            "day": day,
            "waiting": outbox.waiting,
            "marked": {name: marked[name] for name in names_there if name in marked},
            **turns.to_json(names_there),
        }
        # Dagster refuses a second result of a check of one partition, so the check has no
        # partition.
        report = (stale, day) != (reported, memory.get("day"))
        evaluation = dg.AssetCheckEvaluation(
            asset_key=names.key(REPOSITORIES),
            check_name=CHECK,
            severity=dg.AssetCheckSeverity.WARN,
            **_check_result(found, silence, more),
        )
        return dg.SensorResult(
            asset_events=[evaluation] if report else [],
            skip_reason=outbox.reason(
                f"{counted(len(there), 'repository', 'repositories')}{silence}{more}"
            ),
            cursor=json.dumps(cursor, sort_keys=True),
            dynamic_partitions_requests=[names.repositories.build_add_request(names_there)],
        )

    return staleness


def _look(
    context: dg.SensorEvaluationContext,
    collection: Collection,
    before: dict[str, list[str | None]],
) -> tuple[list[Known], ArtifactRoot | None, str]:
    """Known repositories, the root of their artifacts, and the error of lakeFS, if any."""
    names, policies, root = collection.names, collection.policies, None
    try:
        root = collection.root()
    except LakegcError as error:
        context.log.warning("the artifacts are not read: %s", error)
    try:
        there = collected(collection.lakefs(), collection.policies)
        return [Known.of(repository) for repository in there], root, ""
    except LakegcError as error:
        known = [
            Known(name, datetime.fromisoformat(str(made)), namespace)
            for name, (made, namespace) in before.items()
            if policies.collects(name)
        ]
        keys = context.instance.get_dynamic_partitions(names.of(REPOSITORY))
        new = [n for n in keys if n not in before and policies.collects(n)]
        silence = f". lakeFS does not list its repositories: {error}"
        context.log.warning("%s", silence.removeprefix(". "))
        return [*known, *(Known(name, collection.now()) for name in new)], root, silence


def _notice(repository: str, sentence: str, policies: Policies) -> Document:
    return document(
        "stale",
        f"{repository} was not marked for too long",
        sentence,
        f"look at its last runs and at the ticks of {in_dagster('gc_schedule')}; "
        f"`{command_line('mark', repository)}` marks it now",
        repository=repository,
        owners=policies.of(repository).owners,
    )
