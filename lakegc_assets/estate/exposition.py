"""Metrics of repositories in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakegc_assets.estate.metrics import EstateMetrics, RepositoryMetrics
from lakegc_assets.estate.repository_state import STATES, WAITING
from lakegc_assets.estate.run_state import ON_HOLD, Total
from lakegc_assets.sweep.ledger import DONE

#: What became of an object of a sweep.
OUTCOMES: Final = (*DONE, "failed")
_NOTHING: Final = Total(0, 0)
_Sample = tuple[Sequence[str], float]


class EstateCollector(Collector):
    """The metrics of the last look at all repositories, as Prometheus's library asks for them."""

    def __init__(
        self, found: EstateMetrics, max_age_s: Mapping[str, float], component: str = ""
    ) -> None:
        """Take the metrics that the artifacts give.

        ``max_age_s`` has the seconds without a mark after which each repository is stale;
        ``component`` is the name of the component of these repositories, or empty.
        """
        self._found = found
        self._max_age_s = max_age_s
        self._common = {"component": component} if component else {}

    def collect(self) -> Iterator[Metric]:
        """Each metric with the samples of all repositories."""
        rows = self._found.repositories
        yield self._gauge(
            "build_info", "Version of lakegc_assets that has read the artifacts.", ["version"],
            [([version("lakegc-assets")], 1)],
        )  # fmt: skip
        yield self._gauge(
            "collection_timestamp_seconds", "When the artifacts were read.", [],
            [([], _seconds(self._found.at))],
        )  # fmt: skip
        yield self._gauge(
            "collection_problems", "What could not be read of the artifacts: see the log.", [],
            [([], len(self._found.problems))],
        )  # fmt: skip
        yield from self._standings(rows)
        yield from self._totals(rows)
        yield from self._last_run(rows)

    def _standings(self, rows: Sequence[RepositoryMetrics]) -> Iterator[Metric]:
        yield self._gauge(
            "repository_state", "1 for the state of the repository, 0 for all others.",
            ["repository", "state"],
            [([_name(r), state], r.standing.state == state) for r in rows for state in STATES],
        )  # fmt: skip
        yield self._gauge(
            "on_hold", "1 where an alarm has left a hold: no sweep starts.", ["repository"],
            [([_name(r)], r.standing.state == ON_HOLD) for r in rows],
        )  # fmt: skip
        yield self._gauge(
            "unreadable_runs", "Runs whose artifacts are damaged or cannot be read.",
            ["repository"], [([_name(r)], r.unreadable) for r in rows],
        )  # fmt: skip
        yield self._gauge(
            "last_success_timestamp_seconds", "When the last mark or sweep was finished.",
            ["repository", "stage"],
            [
                ([_name(r), stage], _seconds(at))
                for r in rows
                for stage, at in (("mark", r.standing.last_mark), ("sweep", r.standing.last_sweep))
                if at is not None
            ],
        )  # fmt: skip
        yield self._gauge(
            "mark_max_age_seconds", "Without a mark for longer the repository is stale.",
            ["repository"],
            [([_name(r)], self._max_age_s[_name(r)]) for r in rows if _name(r) in self._max_age_s],
        )  # fmt: skip

    def _totals(self, rows: Sequence[RepositoryMetrics]) -> Iterator[Metric]:
        for what, help_, totals in (
            ("stored", "that the store held when it was listed last, without what was swept", [
                (r, _total(r.standing.objects, r.standing.size)) for r in rows
            ]),
            ("garbage", "that the last mark names and no sweep of it is done with", [
                (r, _total(r.standing.garbage, r.standing.garbage_size)) for r in rows
            ]),
            ("awaiting_approval", "of a mark that waits for a person", [
                (r, _waiting(r)) for r in rows
            ]),
        ):  # fmt: skip
            known = [([_name(r)], total) for r, total in totals if total is not None]
            yield from self._pair(what, help_, ["repository"], known)
        deleted = [(r, r.deleted) for r in rows if r.deleted is not None]
        yield self._counter(
            "deleted_objects", "Objects that all sweeps have deleted.",
            [([_name(r)], total.objects) for r, total in deleted],
        )  # fmt: skip
        yield self._counter(
            "deleted_bytes", "Bytes of the objects that all sweeps have deleted.",
            [([_name(r)], total.size) for r, total in deleted],
        )  # fmt: skip

    def _last_run(self, rows: Sequence[RepositoryMetrics]) -> Iterator[Metric]:
        yield self._gauge(
            "mark_spared_objects", "Objects that nothing holds and the last mark leaves alone.",
            ["repository"], [([_name(r)], r.spared) for r in rows if r.spared is not None],
        )  # fmt: skip
        yield from self._pair(
            "last_sweep", "by what became of them in the last sweep", ["repository", "outcome"],
            [
                ([_name(r), outcome], r.swept.get(outcome, _NOTHING))
                for r in rows if r.swept for outcome in OUTCOMES
            ],
        )  # fmt: skip
        yield self._gauge(
            "stage_duration_seconds", "How long a stage of the last mark, or the last sweep, took.",
            ["repository", "stage"],
            [([_name(r), name], one.seconds) for r in rows for name, one in r.stages.items()],
        )  # fmt: skip
        yield self._gauge(
            "stage_requests", "Requests that it sent to lakeFS and stores, by HTTP method.",
            ["repository", "stage", "server", "method"],
            [
                ([_name(r), name, *kind.split(" ", 1)], count)
                for r in rows
                for name, one in r.stages.items()
                for kind, count in sorted(one.requests.items())
            ],
        )  # fmt: skip
        yield self._gauge(
            "compared_objects", "Objects of the last mark and of the one of lakeFS's collector "
            "that it was compared with, by which of the two names them.",
            ["repository", "named_by"],
            [([_name(r), who], n) for r in rows for who, n in r.compared.items()],
        )  # fmt: skip
        yield self._gauge(
            "engine_info", "1 for the engine of the last mark.", ["repository", "engine"],
            [([_name(r), r.engine], 1) for r in rows if r.engine],
        )  # fmt: skip

    def _pair(
        self, name: str, help_: str, labels: Sequence[str],
        totals: Sequence[tuple[Sequence[str], Total]],
    ) -> Iterator[Metric]:  # fmt: skip
        """Two gauges: objects, and their bytes."""
        yield self._gauge(
            f"{name}_objects", f"Objects {help_}.", labels,
            [(values, total.objects) for values, total in totals],
        )  # fmt: skip
        yield self._gauge(
            f"{name}_bytes", f"Bytes of the objects {help_}.", labels,
            [(values, total.size) for values, total in totals],
        )  # fmt: skip

    def _gauge(
        self, name: str, help_: str, labels: Sequence[str], samples: Iterable[_Sample]
    ) -> Metric:
        made = GaugeMetricFamily(f"lakegc_{name}", help_, labels=[*self._common, *labels])
        for values, value in samples:
            made.add_metric([*self._common.values(), *values], value)
        return made

    def _counter(self, name: str, help_: str, samples: Iterable[_Sample]) -> Metric:
        labels = [*self._common, "repository"]
        made = CounterMetricFamily(f"lakegc_{name}", help_, labels=labels)
        for values, value in samples:
            made.add_metric([*self._common.values(), *values], value)
        return made


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with nothing else: neither Python's metrics nor those of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def text_of(collector: Collector) -> bytes:
    """Prometheus's text format."""
    return generate_latest(registry_of(collector))


def _name(row: RepositoryMetrics) -> str:
    return row.standing.repository


def _total(objects: int | None, size: int | None) -> Total | None:
    return None if objects is None or size is None else Total(objects, size)


def _waiting(row: RepositoryMetrics) -> Total | None:
    one = row.standing
    return _total(one.garbage, one.garbage_size) if one.state == WAITING else _NOTHING


def _seconds(moment: datetime) -> float:
    return moment.astimezone(timezone.utc).timestamp()
