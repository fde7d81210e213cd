"""A set of candidates and all that the checks compare it with, found when it is first asked for.

There are four passes, each of which is one call of the tasks whatever the size: over the candidates
(``candidates``), over what lakeFS names (``told``), over the ranges of HEADs (``heads``), and over
the listing, together with the questions to lakeFS (``listed``, ``served``). What is compared by
hashes is compared exactly before a run is stopped for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.checks import candidates, kept, listed, served, told
from lakegc_assets.checks import heads as held
from lakegc_assets.checks.hashing import Hashes, as_hashes, hash_strings, hash_text
from lakegc_assets.checks.scratch import Scratch, in_any
from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.selection import Selection

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class CheckResult:
    """What one invariant says.

    Attributes:
        name: of the invariant, which is the name of its asset check.
        passed: whether it holds.
        blocking: whether a run must stop where it does not.
        summary: what was found and what to do about it.
        facts: figures, as JSON values.
    """

    name: str
    passed: bool
    blocking: bool
    summary: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A set of candidates, and what it is compared with.

    Attributes:
        ctx: the run.
        client: the lakeFS server.
        connections: how tasks reach lakeFS and the store.
        attempt: the artifacts.
        chain: manifests up to ``deletion_candidates``, checked.
        selection: what is to be deleted.
    """

    ctx: RunContext
    client: LakeFSClient
    connections: Connections
    attempt: AttemptArtifacts
    chain: Mapping[str, Manifest]
    selection: Selection

    @cached_property
    def scratch(self) -> Scratch:
        """Where the passes write what the next ones need."""
        folder = f"deletion_candidates/checking/{secrets.token_hex(8)}/"
        return Scratch(self.connections, self.attempt.url, folder)

    def close(self) -> None:
        """Remove what the passes have written."""
        if "scratch" in self.__dict__:
            self.scratch.remove()

    @cached_property
    def looked(self) -> candidates.Looked:
        """The first pass: the candidates."""
        pieces = self.selection.pieces(candidates.TASK_ROWS)
        orders = [candidates.Look(self.scratch, piece) for piece in pieces]
        cost = self.selection.rows * candidates.ROW_S
        return candidates.united(
            self.ctx.tasks.run("check candidates", candidates.look, orders, cost)
        )

    @cached_property
    def heads(self) -> dict[str, str]:
        """HEAD of each branch now, hidden ones too."""
        found = {b.id: b.commit_id for b in self.client.branches(self.ctx.repository)}
        default = self.client.repository(self.ctx.repository).default_branch
        if default not in found:
            raise IntegrityError(
                f"the list of branches of {self.ctx.repository!r} lacks its default branch "
                f"{default!r}: it is not complete. Run again",
            )
        return found

    @cached_property
    def tags(self) -> dict[str, str]:
        """The commits of tags that are not active."""
        rows = self.attempt.read("active_commits", "tags").to_pylist()
        return {row["tag"]: row["commit_id"] for row in rows if not row["active"]}

    @cached_property
    def told(self) -> told.Told:
        """The second pass: the ranges of commits, and what is staged."""
        lists = self.chain["uncommitted_snapshot"].facts["files"]
        commits = sorted({*self.heads.values(), *self.tags.values()})
        items = [(commit, True) for commit in commits] + [(key, False) for key in lists]
        costs = [told.COMMIT_S if commit else told.LIST_S for _, commit in items]
        orders = [
            told.Ask(
                self.scratch,
                self.ctx.repository,
                [name for name, commit in group if commit],
                [name for name, commit in group if not commit],
                self.looked.hashes,
            )
            for group in bin_pack(items, costs, self.ctx.settings.range_num_partitions)
        ]
        return told.united(
            self.ctx.tasks.run("check what lakeFS names", told.ask, orders, sum(costs))
        )

    @cached_property
    def head_ranges(self) -> dict[str, list[str]]:
        """The ranges of HEADs, each with the branches that have it."""
        found: dict[str, list[str]] = {}
        for branch, commit in sorted(self.heads.items()):
            for range_id in self.told.ranges[commit]:
                found.setdefault(range_id, []).append(branch)
        return found

    @property
    def by_name(self) -> bool:
        """Whether the listing is only of what expired ranges name, and not of the store."""
        return self.chain["store_listing"].mode == "committed"

    @cached_property
    def before(self) -> int:
        """Entries of before this, in microseconds since 1970, should be listed.

        Where nothing is listed, the store is asked for what HEADs hold by itself: all of it counts.
        """
        if self.by_name:
            return int(np.iinfo(np.int64).max)
        start = datetime.fromisoformat(str(self.chain["store_listing"].facts["start"]))
        since = start - self.ctx.settings.clock_skew - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    @cached_property
    def unlisted(self) -> Hashes:
        """The folders of slices that are too new for candidates, and were not listed."""
        folders = self.chain["store_listing"].facts.get("skipped_slices", ())
        return np.unique(as_hashes(map(hash_text, folders)))

    @cached_property
    def witnessed(self) -> held.Heads:
        """The third pass: what HEADs and tags hold."""
        entries = {i: count for of in self.told.ranges.values() for i, count in of.items()}
        ranges = kept.wanted(self.connections, entries)
        groups = kept.spread_wanted(ranges, self.ctx.settings.address_num_partitions)
        looked = self.looked
        orders = [
            held.Witness(
                self.scratch,
                group,
                frozenset(self.head_ranges),
                looked.hashes,
                looked.looks,
                self.before,
                self.unlisted,
            )
            for group in groups
        ]
        cost = sum(map(kept.seconds, ranges))
        return held.united(self.ctx.tasks.run("check what HEADs hold", held.look_at, orders, cost))

    @cached_property
    def _last(self) -> tuple[list[listed.Compared], list[str]]:
        """The fourth pass: what the listing has, and what lakeFS serves."""
        listing = self.chain["store_listing"].parts["data"]
        costs = [part.rows * listed.ROW_S for part in listing]
        most = self.ctx.settings.address_num_partitions
        looked = self.looked
        # Each task goes through all that should be listed, and is worth at least as much else.
        repeated = sum(part.rows for part in self.witnessed.expected) * listed.EXPECTED_S
        tasks = min(most, 1 + int(sum(costs) / repeated)) if repeated else most
        groups = bin_pack(listing, costs, tasks)
        orders: list[listed.Compare | served.Question] = [
            listed.Compare(
                self.scratch,
                group,
                looked.hashes,
                looked.left,
                self.witnessed.expected,
                self.chain["store_listing"].cutoff,
            )
            for group in groups
        ]
        asked = [i for i in sorted(self.head_ranges) if self.witnessed.ranges[i].alike]
        places = [(i, self.head_ranges[i]) for i in asked]
        weights = [
            served.seconds(of.entries, of.alike * len(branches))
            for i, branches in places
            for of in [self.witnessed.ranges[i]]
        ]
        orders += [
            served.Question(self.scratch, self.ctx.repository, group, looked.looks, looked.hashes)
            for group in bin_pack(places, weights, most)
        ]
        cost = sum(costs) + len(groups) * repeated + sum(weights)
        answers = self.ctx.tasks.run("check what is listed and served", _do, orders, cost)
        compared = [answer for answer in answers if isinstance(answer, listed.Compared)]
        return compared, [a for answer in answers if isinstance(answer, list) for a in answer]

    @property
    def compared(self) -> Sequence[listed.Compared]:
        """What the parts of the listing have."""
        return self._last[0]

    @property
    def served(self) -> Sequence[str]:
        """What lakeFS serves and may be a candidate, by its hash."""
        return self._last[1]

    def having(self, hashes: Hashes) -> pa.Array:
        """The candidates that have one of some hashes, which are sorted."""
        tables = (self.addresses(part) for part in self.looked.left)
        found = [rows.filter(pa.array(in_any([hashes], hash_strings(rows)))) for rows in tables]
        return pa.chunked_array(found, pa.string()).combine_chunks()

    def among(self, addresses: Sequence[str]) -> pa.Array:
        """The candidates among some addresses, compared as they are."""
        wanted = pa.array(sorted(set(addresses)), pa.string())
        likely = self.having(np.unique(hash_strings(wanted)))
        return likely.filter(pc.is_in(likely, wanted))

    def addresses(self, part: Part) -> pa.ChunkedArray:
        """The addresses in a file of ``looked.left``."""
        return read_part(self.scratch.artifacts(), part, ["address"])["address"]


def _do(order: listed.Compare | served.Question) -> listed.Compared | list[str]:
    if isinstance(order, listed.Compare):
        return listed.compare(order)
    return served.serve(order)
