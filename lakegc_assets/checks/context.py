"""A set of candidates and the data that the checks compare it with, computed at first use.

Tasks read the commits and lists that lakeFS names (``live_set``) and the entries in the ranges of
HEADs (``witness``), as datasets of whole addresses. Relations compare these datasets with the
candidates and the listing. This process receives only counts and the addresses in messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from lakegc_assets.checks import live_set, relations, served_addresses
from lakegc_assets.checks.live_set import ADDRESSES, pinned_addresses, write_addresses
from lakegc_assets.checks.logged_commits import kept_commits, path_commits
from lakegc_assets.checks.paths import SPANS, Below, entries_below
from lakegc_assets.checks.witness import ENTRIES, KIND, Witnessed, witnessed
from lakegc_assets.engine.datasets import Part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.engine.relation import union_all
from lakegc_assets.engine.session import Dataset, Session
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.models import Branch, Tag
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.history import Earlier, dataset_of
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.run.scratch import Folder
from lakegc_assets.run.table_cache import forget_damaged

T = TypeVar("T")

#: Number of addresses in a message.
EXAMPLES: Final = 5
#: Names of the violations in relations: the names of the invariants.
OUTSIDE: Final = "inside_namespace"
SPECIAL: Final = "not_special"
NOT_OLD: Final = "older_than_cutoff"
HELD: Final = "none_head_reachable"
STAGED: Final = "none_staged"
SERVED: Final = "none_shadowed"
PINNED: Final = "none_pinned"
RETAINED: Final = "none_retained"
TAGGED: Final = "tagged_commits_whole"

CANDIDATES: Final = schema("address string, size bigint, etag string")
_STORE: Final = schema("address string, size bigint, last_modified timestamp")
_SWEPT: Final = schema("address string, outcome string")
#: Addresses of HEADs that the listing lacks or lists in another size: the listed size, or null.
UNLIKE: Final = schema("address string, listed bigint")
_COUNTS: Final = schema("check string, name string, objects bigint")
_TOTAL: Final = schema("objects bigint")


@dataclass(frozen=True)
class CheckResult:
    """The result of one invariant, whose name is that of its asset check."""

    name: str
    passed: bool
    #: The findings, and the action that they need.
    summary: str
    #: Figures, as JSON values.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: True if a violation must stop the run.
    blocking: bool = True


@dataclass
class Case:
    """A set of candidates, and the data that it is compared with."""

    ctx: RunContext
    frames: Session
    attempt: AttemptArtifacts
    #: Manifests up to ``deletion_candidates``, checked.
    chain: Mapping[str, Manifest]
    #: Files of the candidates that are to be deleted.
    parts: Sequence[Part]

    @cached_property
    def scratch(self) -> Folder:
        """Temporary datasets of this evaluation."""
        folder = f"deletion_candidates/checking/{secrets.token_hex(8)}/"
        return Folder(self.ctx.connections, self.attempt.url, folder)

    def close(self) -> None:
        """Remove the temporary datasets."""
        if "scratch" in self.__dict__:
            self.scratch.remove()

    # Commits and lists that lakeFS names

    @cached_property
    def heads(self) -> dict[str, str]:
        """Current HEAD of each branch, including hidden branches."""
        found = self._commits_by_name(self.ctx.client.branches)
        default = self.ctx.client.repository(self.ctx.repository).default_branch
        if default not in found:
            raise IntegrityError(
                f"the list of branches of {self.ctx.repository!r} lacks its default branch "
                f"{default!r}: it is not complete, or the repository was just deleted. If "
                "`lakegc repositories` still lists it, run again",
            )
        return found

    @cached_property
    def active(self) -> set[str]:
        """The ids of the active commits of the mark."""
        rows = self.attempt.rows(self.chain["active_commits"], columns=["commit_id"])
        return set(rows["commit_id"].to_pylist())

    @cached_property
    def tags(self) -> dict[str, str]:
        """The commits of tags that are not active."""
        rows = self.attempt.read("active_commits", "tags").to_pylist()
        return {row["tag"]: row["commit_id"] for row in rows if not row["active"]}

    @cached_property
    def _tags_now(self) -> dict[str, str]:
        return self._commits_by_name(self.ctx.client.tags)

    def _commits_by_name(self, pages: Callable[..., Iterator[Branch | Tag]]) -> dict[str, str]:
        """Return the commit of each branch or tag; list again until a listing adds no name."""
        found: dict[str, str] = {}
        while True:
            after = next(reversed(found), "")
            more = {ref.id: ref.commit_id for ref in pages(self.ctx.repository, after=after)}
            if more.keys() <= found.keys():
                return found
            found |= more

    @cached_property
    def retained(self) -> set[str]:
        """The commits that the ``retain`` rules keep now, regardless of their age."""
        retain, repository = self.ctx.settings.retained, self.ctx.repository
        if not retain or self.chain["active_commits"].facts["rules"] is None:
            return set()
        return kept_commits(self.ctx.client, repository, self.heads, self._tags_now, retain)

    @cached_property
    def below(self) -> Below:
        """Entries of inactive commits that the path rules of ``retain`` keep."""
        retain, active = self.ctx.settings.retained, self.chain["active_commits"]
        if not retain.paths or active.facts["rules"] is None:
            return Below({}, SPANS.empty_table())
        found = path_commits(
            *(self.ctx.client, self.ctx.repository, self.heads, self._tags_now),
            Rules.parse(active.facts["rules"]),
            retain,
            self.chain["store_listing"].start,
        )
        metaranges = {
            pattern: {of for commit, of in commits.items() if of and commit not in self.active}
            for pattern, commits in found.items()
        }
        most = self.ctx.settings.range_num_partitions
        return entries_below(self.ctx.connections, self.ctx.tasks, metaranges, most)

    @cached_property
    def live_set(self) -> live_set.LiveSet:
        """The ranges of commits, and the staged addresses."""
        lists = self.chain["uncommitted_snapshot"].facts["files"]
        roles: dict[str, set[live_set.Role]] = {}
        for commit in self.heads.values():
            roles.setdefault(commit, set()).add("head")
        for commit in self.tags.values():
            roles.setdefault(commit, set()).add("tag")
        for commit in self.retained:
            roles.setdefault(commit, set()).add("retained")
        for commit in roles.keys() & self.active:
            roles[commit].add("active")
        items = [*sorted(roles.items()), *((key, frozenset[live_set.Role]()) for key in lists)]
        costs = [live_set.COMMIT_S if of else live_set.LIST_S for _, of in items]
        task = partial(live_set.read_live_set, self.scratch, self.ctx.repository)
        label, most = "check what lakeFS names", self.ctx.settings.range_num_partitions
        return live_set.united(self.ctx.tasks.run_grouped(label, task, items, costs, most))

    @cached_property
    def head_ranges(self) -> set[str]:
        """The ids of the ranges of HEADs."""
        return set(self.live_set.of("head"))

    # Entries of ranges

    @cached_property
    def _entries(self) -> dict[str, int]:
        of_commits = {i: count for of in self.live_set.ranges.values() for i, count in of.items()}
        entries, first_paths = {**self.below.entries, **of_commits}, self.live_set.first_paths
        # Versions of one range begin with the same path, and name nearly the same addresses.
        ordered = sorted(entries, key=lambda i: (first_paths.get(i, b""), i))
        return {range_id: entries[range_id] for range_id in ordered}

    @cached_property
    def _pairs(self) -> DataFrame:
        """The ranges of each commit (``live_set.PAIRS``)."""
        return self.dataset(self.live_set.pairs, live_set.PAIRS)

    @property
    def _most(self) -> int:
        return self.ctx.settings.address_num_partitions

    @cached_property
    def witnessed(self) -> Witnessed:
        """Entries of the ranges of HEADs and tags, read by the witness."""
        return witnessed(self.ctx.connections, self.ctx.tasks, self._entries, self._most)

    def _named(self, columns: Sequence[str]) -> DataFrame:
        """Some columns of the addresses that HEADs name (``witness.named``)."""
        return self.witnessed.frame(self.frames, self.head_ranges, columns, summarized=True)

    def from_cache(self, compute: Callable[[], T]) -> T:
        """Compute a result from cached entries; compute it again if the cache was damaged."""
        try:
            return compute()
        except IntegrityError:
            slots = self.witnessed.slots.values()
            if not forget_damaged(self.ctx.tasks, self.ctx.connections, KIND, slots, self._most):
                raise
            del self.witnessed
            return compute()

    # Frames

    def dataset(self, parts: Sequence[Part], schema: pa.Schema = ADDRESSES) -> DataFrame:
        """Read files of the attempt as a data frame."""
        return self.frames.read(Dataset(self.attempt.url, parts, schema))

    @cached_property
    def candidates(self) -> DataFrame:
        """The candidates: objects to delete."""
        return self.dataset(self.parts, CANDIDATES)

    @property
    def rows(self) -> int:
        """The number of candidates."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def store(self) -> DataFrame:
        """Store DF: the listing."""
        return self.dataset(self.chain["store_listing"].parts["data"], _STORE)

    @cached_property
    def there(self) -> DataFrame:
        """Store DF without objects that were carried forward and have been swept since.

        A HEAD may need such an object: its branch may have been made from an old commit since.
        """
        listing = self.chain["store_listing"]
        if not (runs := listing.facts.get("swept_since", ())):
            return self.store
        attempts = [self.ctx.root.attempt(self.ctx.repository, run) for run, _ in runs]
        found = [Earlier(one, one.manifest("swept_set")) for one in attempts]
        (swept,) = dataset_of(found, _SWEPT)
        carried = listing.parts["carried"]
        anew = [part for part in listing.parts["data"] if part not in carried]
        listed, taken = (self.dataset(parts, _STORE) for parts in (anew, carried))
        return relations.still_there(listed, taken, self.frames.read(swept))

    @property
    def by_name(self) -> bool:
        """Return True if only addresses of expired ranges were looked up, not the whole store."""
        return self.chain["store_listing"].mode == "committed"

    @property
    def inventory(self) -> str | None:
        """The inventory report that replaces the listing; None if the store was listed."""
        return self.chain["store_listing"].facts.get("inventory")

    @property
    def _before(self) -> datetime | None:
        """The time before which an entry must be listed; None if all entries must exist.

        In the mode ``committed`` the store is asked for single objects, so every entry counts.
        """
        if self.by_name:
            return None
        facts = self.chain["store_listing"].facts
        start = datetime.fromisoformat(str(facts.get("inventory_begun", facts["start"])))
        return start - self.ctx.settings.clock_skew

    def expected(self) -> DataFrame:
        """Addresses of HEADs that the store must have, without slices that were not listed."""
        found = relations.expected(self._named(["address", "modified"]), self._before)
        return self._in_listed_slices(found)

    def _in_listed_slices(self, addresses: DataFrame) -> DataFrame:
        folders = self.chain["store_listing"].facts.get("skipped_slices", ())
        if not folders:
            return addresses
        unlisted = pa.table([pa.array(folders, pa.string())], names=["folder"])
        return relations.outside_slices(addresses, self.frames.create(unlisted))

    @cached_property
    def unlike(self) -> Sequence[Part]:
        """Files of ``UNLIKE``; none if single objects were looked up by name."""
        if self.by_name or not self.head_ranges:
            return []

        def compare() -> Sequence[Part]:
            entries = self._named(["address", "modified", "size"])
            found = relations.unlike(entries, self.there, self._before)
            return self.write(self._in_listed_slices(found), UNLIKE, "check what is listed")

        return self.from_cache(compare)

    @cached_property
    def _sizes_differ(self) -> bool:
        """True if an object of a HEAD is listed with another size than its entry declares."""
        if not self.unlike:
            return False
        found = self.dataset(self.unlike, UNLIKE).where("listed is not null")
        if self.total(found, "count sizes that differ") > 0:
            return True
        # An object that was swept since had a size when it was listed, too.
        return self.there is not self.store and self.from_cache(self._sizes_differed) > 0

    def _sizes_differed(self) -> int:
        entries = self._named(["address", "modified", "size"])
        found = relations.unlike(entries, self.store, self._before).where("listed is not null")
        return self.total(found, "count sizes that differed when they were listed")

    # Violations

    def wrong(self) -> dict[str, DataFrame]:
        """Addresses of candidates that violate an invariant by themselves, by invariant."""
        return {
            OUTSIDE: relations.outside(self.candidates),
            SPECIAL: relations.special(self.candidates),
            NOT_OLD: relations.not_old(
                self.candidates, self.store, self.chain["store_listing"].cutoff
            ),
        }

    def named(self) -> dict[str, DataFrame]:
        """Addresses that no candidate may have, by invariant; only of datasets that have rows."""
        # This comes first: it reads the cache as well, and may remove damaged files from it.
        served_now = self.served
        found = {HELD: self._named(["address"])} if self.head_ranges else {}
        retained = []
        if range_ids := self.live_set.of("retained").keys() - self.head_ranges:
            retained.append(self.witnessed.frame(self.frames, range_ids, ["address"]))
        if self.below.entries:
            columns = [KIND.id_column, "number", "address"]
            entries = self.witnessed.frame(self.frames, self.below.entries, columns)
            spans = self.frames.create(self.below.spans)
            retained.append(relations.within(entries, spans))
        if retained:
            found[RETAINED] = union_all(*retained)
        if self.live_set.staged:
            found[STAGED] = self.dataset(self.live_set.staged)
        if served_now:
            found[SERVED] = self.dataset(served_now)
        if self._pinned:
            found[PINNED] = self.dataset(self._pinned)
        if self.tags:
            columns = [KIND.id_column, "address"]
            entries = self.witnessed.frame(self.frames, self.live_set.of("tag"), columns)
            tags = self._texts(self.tags.items(), ("name", "commit_id"))
            found[TAGGED] = relations.of_tags(entries, self._pairs, tags)
        return found

    @cached_property
    def _pinned(self) -> Sequence[Part]:
        return write_addresses(self.scratch, pinned_addresses(self.ctx.connections.store()))

    @cached_property
    def counts(self) -> dict[str, dict[str | None, int]]:
        """The number of violating candidates, by invariant and by the tag that names them."""
        if not self.rows:
            return {}
        rows = self.from_cache(
            lambda: self.frames.collect_rows(self._counts(), _COUNTS, "check candidates")
        )
        found: dict[str, dict[str | None, int]] = {}
        for row in rows:
            found.setdefault(row["check"], {})[row["name"]] = row["objects"]
        return found

    def _counts(self) -> DataFrame:
        wrong = [relations.named(frame, check) for check, frame in self.wrong().items()]
        if names := [relations.named(frame, check) for check, frame in self.named().items()]:
            wrong.append(relations.found(union_all(*names), self.candidates))
        return relations.counts(union_all(*wrong))

    @cached_property
    def questions(self) -> Sequence[Part]:
        """Files of ``QUESTIONS``: places where a HEAD entry looks like a candidate."""
        if not self.rows or not self.head_ranges:
            return []
        heads = self._texts(self.heads.items(), ("branch", "commit_id"))
        lost = [self.dataset(self.unlike, UNLIKE).where("listed is null")] if self.unlike else []
        confirming = [self.store] if self._sizes_differ else []
        unused = ["modified"] if lost else ["modified", "address"]
        columns = [name for name in ENTRIES.names if name not in unused]

        def find() -> Sequence[Part]:
            held = self.witnessed.frame(self.frames, self.head_ranges, columns)
            given = held, self.candidates, self._pairs, heads, lost, confirming
            label = "check entries that look like candidates"
            return self.write(relations.questions(*given), served_addresses.QUESTIONS, label)

        return self.from_cache(find)

    @cached_property
    def served(self) -> Sequence[Part]:
        """Files of the addresses that lakeFS serves where a HEAD entry looks like a candidate."""
        cost = sum(part.rows for part in self.questions) * served_addresses.QUESTION_S
        task = partial(served_addresses.ask, self.scratch, self.ctx.repository)
        pieces = served_addresses.pieces_of(self.questions)
        answers = self.ctx.tasks.run("check what is served", task, pieces, cost)
        return [part for answer in answers for part in answer]

    # Computing

    def _texts(self, pairs: Iterable[tuple[str, str]], names: Sequence[str]) -> DataFrame:
        """Create a data frame of two string columns."""
        columns = list(zip(*pairs, strict=True)) or [(), ()]
        arrays = [pa.array(column, pa.string()) for column in columns]
        return self.frames.create(pa.table(arrays, names=list(names)))

    def write(self, frame: DataFrame, schema: pa.Schema, what: str) -> list[Part]:
        """Compute a data frame, and write its rows to temporary files of this evaluation."""
        return self.frames.write(frame, self.attempt.url, self.scratch.name, schema, what)

    def total(self, frame: DataFrame, what: str) -> int:
        """Count the rows of a data frame."""
        (row,) = self.frames.collect_rows(relations.total(frame), _TOTAL, what)
        return int(row["objects"])

    def first(self, frame: DataFrame, most: int = EXAMPLES) -> list[str | None]:
        """Return the first addresses of a data frame, in order."""
        rows = self.frames.collect(relations.first(frame, most), ADDRESSES, "find examples")
        found: list[str | None] = rows["address"].to_pylist()
        return found

    def examples(self, check: str) -> list[str | None]:
        """Return some candidates that violate an invariant."""
        wrong = self.wrong()
        if check in wrong:
            return self.first(wrong[check])
        return self.from_cache(
            lambda: self.first(
                relations.found(relations.named(self.named()[check], check), self.candidates)
            )
        )
