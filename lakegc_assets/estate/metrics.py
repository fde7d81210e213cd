"""Metrics of all repositories in Prometheus's text format.

They are read from the artifacts, so that they outlive every process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.estate.repository_state import (
    STATES,
    UNREADABLE,
    WAITING,
    OldRuns,
    Runs,
    Standing,
    Unread,
    known_names,
    read_changed_runs,
    standing,
    standing_of,
)
from lakegc_assets.estate.run_state import NOTHING, ON_HOLD, RunManifests, Total
from lakegc_assets.run.artifacts import ArtifactRoot, is_name
from lakegc_assets.run.manifest import MARK_ASSETS, Manifest
from lakegc_assets.sweep.ledger import ASSET as SWEPT
from lakegc_assets.sweep.ledger import DONE
from lakegc_assets.sweep.totals import DELETED, read_totals

#: The stages that have durations; ``storage_attribution`` is not a part of the mark.
STAGES: Final = (*MARK_ASSETS, "storage_attribution", SWEPT)
#: Outcomes of an object in a sweep.
OUTCOMES: Final = (*DONE, "failed")
_THREADS: Final = 4


@dataclass(frozen=True)
class RepositoryMetrics:
    """Metrics of one repository. Unknown values are None, or absent."""

    #: The state of the repository.
    standing: Standing
    #: Total of all its sweeps, also pruned and killed ones, and also of objects that were put back:
    #: it never decreases. None if a run cannot be read.
    deleted: Total | None = None
    #: Totals of the sweep that recorded something last, by outcome.
    swept: Mapping[str, Total] = field(default_factory=dict)
    #: Objects that nothing holds and that the last mark spares.
    spared: int | None = None
    #: Manifests of the stages of the last mark, and of the last finished sweep, by name.
    stages: Mapping[str, Manifest] = field(default_factory=dict)
    #: Objects of the last mark and of the mark of lakeFS's collector with which it was compared, by
    #: who names them: ``both``, ``ours``, ``theirs``. Empty without a comparison.
    compared: Mapping[str, int] = field(default_factory=dict)
    #: Engine of the last mark: embedded or spark.
    engine: str | None = None
    #: Number of unreadable runs.
    unreadable: int = 0
    #: Reasons why some values are not known, in sentences.
    problems: Sequence[str] = ()
    #: Seconds without a mark after which it is stale; None if it is not collected.
    max_age_s: float | None = None


def repository_metrics(
    root: ArtifactRoot, repository: str, mode: str, now: datetime, known: OldRuns | None = None
) -> RepositoryMetrics:
    """The metrics of one repository; for an unreadable one, only that it is unreadable.

    ``known``: old runs that earlier calls have read.
    """
    if not is_name(repository):
        return RepositoryMetrics(standing(root, repository, mode, now))
    try:
        runs = read_changed_runs(root, repository, known or OldRuns(), now)
        stands = standing_of(repository, runs, mode, now)
    except Exception as error:  # noqa: BLE001 - no error may hide the metrics of other repositories
        because = f"its artifacts cannot be read: {error}"
        return RepositoryMetrics(Standing(repository, UNREADABLE, because), problems=[because])
    # If a run was pruned while the runs were read, it is in the totals by now, with its attempt.
    deleted, problems = _deleted(root, repository, runs)
    if stands.state == UNREADABLE:
        problems.append(stands.because)
    last = runs.marks[-1] if runs.marks else None
    report = last.report.facts if last is not None and last.report is not None else {}
    swept = {one.recorded: one.outcomes for one in runs.states.values() if one.recorded is not None}
    return RepositoryMetrics(
        stands,
        deleted,
        swept[max(swept)] if swept else {},
        sum(last.candidates.facts["spared"].values()) if last and last.candidates else None,
        _stages(runs, last),
        _compared(report.get("compared", {})),
        str(report.get("engine", "")).partition(" ")[0] or None,
        len(_unreadable(runs)),
        problems,
    )


def _deleted(root: ArtifactRoot, repository: str, runs: Runs) -> tuple[Total | None, list[str]]:
    """Totals of all sweeps; None, with the reasons, if a part cannot be read.

    A smaller total would look like a restart of the counter, and then be counted twice.
    """
    # Read after the runs, so that it includes runs that a prune has removed since.
    try:
        pruned = read_totals(root, repository)
    except LakegcError as error:
        return None, [str(error)]
    objects, size = pruned.objects, pruned.bytes
    for run, attempt in runs.attempts.items():
        state = runs.states.get(run)
        if state is None or pruned.counts(run, attempt):
            continue
        if state.unread:
            return None, [f"run {run}: {state.unread}"]
        for name in DELETED:
            total = state.outcomes.get(name, NOTHING)
            objects, size = objects + total.objects, size + total.size
    unread = [one for one in _unreadable(runs) if not pruned.counts(one.run, one.attempt)]
    if unread:
        return None, [f"run {unread[0].run} cannot be read: {unread[0].error}"]
    return Total(objects, size), []


def _unreadable(runs: Runs) -> list[Unread]:
    """The unreadable runs, without the remains of a prune in progress."""
    return [one for one in runs.unread if not isinstance(one.error, RefusedError)]


def _compared(found: Mapping[str, Any]) -> dict[str, int]:
    if not found or "problem" in found:
        return {}
    return {
        "both": found["both"]["objects"],
        "ours": found["only_run"]["total"]["objects"],
        "theirs": found["only_other"]["total"]["objects"],
    }


def _stages(runs: Runs, last: RunManifests | None) -> dict[str, Manifest]:
    """The manifest of each stage, if it is readable."""
    manifests: list[Manifest] = []
    if last is not None:
        for asset in STAGES[:-1]:
            with suppress(IntegrityError):
                if (found := last.attempt.recorded_if_finished(asset)) is not None:
                    manifests.append(found)
    sweeps = [one.swept for one in runs.read if one.swept is not None]
    if sweeps:
        manifests.append(max(sweeps, key=lambda one: one.finished))
    return {one.asset: one for one in manifests}


#: Samples of a repository: the values of the labels, then the value of the sample.
_Samples = Callable[[RepositoryMetrics], Iterable[tuple[Any, ...]]]
#: Name, help, labels in addition to ``repository``, and samples.
_Described = tuple[str, str, tuple[str, ...], _Samples]


def _pair(name: str, help_: str, samples: _Samples, *labels: str) -> tuple[_Described, _Described]:
    """Two gauges, objects and bytes, of samples whose values are totals; None if unknown."""

    def of(part: str) -> _Samples:
        return lambda row: [
            (*values, getattr(total, part)) for *values, total in samples(row) if total is not None
        ]

    return (
        (f"{name}_objects", f"Objects {help_}.", labels, of("objects")),
        (f"{name}_bytes", f"Bytes of the objects {help_}.", labels, of("size")),
    )


def _waiting(one: Standing) -> Total | None:
    return _total(one.garbage, one.garbage_size) if one.state == WAITING else NOTHING


def _total(objects: int | None, size: int | None) -> Total | None:
    return None if objects is None or size is None else Total(objects, size)


def _known(value: object) -> list[tuple[Any]]:
    return [] if value is None else [(value,)]


_GAUGES: Final[tuple[_Described, ...]] = (
    ("repository_state", "1 for the state of the repository, 0 for all others.", ("state",),
     lambda r: [(state, r.standing.state == state) for state in STATES]),
    ("on_hold", "1 where an alarm has left a hold: no sweep starts.", (),
     lambda r: [(r.standing.state == ON_HOLD,)]),
    ("unreadable_runs", "Runs whose artifacts are damaged or cannot be read.", (),
     lambda r: [(r.unreadable,)]),
    ("last_success_timestamp_seconds", "End of the last mark or sweep.", ("stage",),
     lambda r: [
         (stage, at.timestamp())
         for stage, at in (("mark", r.standing.last_mark), ("sweep", r.standing.last_sweep))
         if at is not None
     ]),
    *_pair("stored", "in the last listing of the store, without those that sweeps have deleted",
           lambda r: [(_total(r.standing.objects, r.standing.size),)]),
    *_pair("garbage", "of the last mark that no sweep of it has finished with",
           lambda r: [(_total(r.standing.garbage, r.standing.garbage_size),)]),
    *_pair("awaiting_approval", "of a mark that waits for approval",
           lambda r: [(_waiting(r.standing),)]),
    ("mark_spared_objects", "Objects that nothing holds and that the last mark spares.", (),
     lambda r: _known(r.spared)),
    *_pair("last_sweep", "of the last sweep, by outcome",
           lambda r: [(one, r.swept.get(one, NOTHING)) for one in OUTCOMES if r.swept], "outcome"),
    ("stage_duration_seconds", "Duration of a stage of the last mark, or of the last sweep.",
     ("stage",),
     lambda r: [
         (name, (one.finished - one.started).total_seconds()) for name, one in r.stages.items()
     ]),
    ("stage_requests", "Requests of this stage to lakeFS and stores, by HTTP method.",
     ("stage", "server", "method"),
     lambda r: [
         (name, *kind.split(" ", 1), count)
         for name, one in r.stages.items()
         for kind, count in sorted(one.facts.get("requests_by_kind", {}).items())
     ]),
    ("compared_objects", ("Objects of the last mark and of the mark of lakeFS's collector that it "
     "was compared with, by the mark that names them."), ("named_by",),
     lambda r: list(r.compared.items())),
    ("engine_info", "1 for the engine of the last mark.", ("engine",),
     lambda r: [(r.engine, 1)] if r.engine else []),
    ("mark_max_age_seconds", "Seconds without a mark after which the repository is stale.", (),
     lambda r: _known(r.max_age_s)),
)  # fmt: skip
_COUNTERS: Final[tuple[_Described, ...]] = (
    ("deleted_objects", "Objects that all sweeps have deleted.", (),
     lambda r: _known(r.deleted and r.deleted.objects)),
    ("deleted_bytes", "Bytes of the objects that all sweeps have deleted.", (),
     lambda r: _known(r.deleted and r.deleted.size)),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class EstateMetrics(Collector):
    """The metrics of all repositories, as a collector of Prometheus's client library."""

    #: Metrics of each repository.
    repositories: Sequence[RepositoryMetrics]
    #: Time when the artifacts were read.
    at: datetime
    #: Reasons why something could not be read.
    problems: Sequence[str] = ()
    #: Name of the component of these repositories, or empty.
    component: str = ""

    def collect(self) -> Iterator[Metric]:
        """Each metric with the samples of all repositories."""
        for name, help_, label, sample in (
            ("build_info", "Version of lakegc_assets that has read the artifacts.", "version",
             (version("lakegc-assets"), 1)),
            ("collection_timestamp_seconds", "Time at which the artifacts were read.", "",
             (self.at.timestamp(),)),
            ("collection_problems", "Artifacts that could not be read; the log names them.", "",
             (len(self.problems),)),
        ):  # fmt: skip
            labels = [label] if label else []
            yield self._metric(GaugeMetricFamily, name, help_, labels, [sample])
        for kind, of_kind in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, help_, more, samples in of_kind:
                rows = [
                    (row.standing.repository, *sample)
                    for row in self.repositories
                    for sample in samples(row)
                ]
                yield self._metric(kind, name, help_, ["repository", *more], rows)

    def _metric(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        help_: str,
        labels: Iterable[str],
        samples: Iterable[tuple[Any, ...]],
    ) -> Metric:
        common = {"component": self.component} if self.component else {}
        made = kind(f"lakegc_{name}", help_, labels=[*common, *labels])
        for *values, value in samples:
            made.add_metric([*common.values(), *values], value)
        return made


def estate_metrics(
    root: ArtifactRoot,
    names: Collection[str],
    mode_of: Callable[[str], str],
    max_age_of: Callable[[str], float | None],
    now: datetime,
    component: str = "",
    *,
    known: OldRuns | None = None,
) -> EstateMetrics:
    """The metrics of all repositories that are known or have artifacts.

    ``names`` are always in the result. ``mode_of``: the mode (``approval.MODES``) of a repository,
    in which marks are swept that no person started. ``max_age_of``: its ``max_age_s``. ``known``:
    old runs that earlier calls have read.
    """
    found, problems = known_names(root, names)

    def look(name: str) -> RepositoryMetrics:
        metrics = repository_metrics(root, name, mode_of(name), now, known)
        return replace(metrics, max_age_s=max_age_of(name))

    rows = thread_map(look, found, _THREADS)
    more = [f"{row.standing.repository}: {said}" for row in rows for said in row.problems]
    return EstateMetrics(rows, now, [*problems, *more], component)


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with only this collector, without metrics of Python and of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def text_of(collector: Collector) -> bytes:
    """The metrics in Prometheus's text format."""
    return generate_latest(registry_of(collector))
