"""Explains one object by a mark: the reason why the mark names it, or does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, read_parts
from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import LakegcError
from lakegc_assets.graveler.namespace import UnresolvableAddressError
from lakegc_assets.lakefs.client import branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import DiffEntry
from lakegc_assets.mark import references, relations
from lakegc_assets.mark.addresses import in_data, live_spellings
from lakegc_assets.mark.commits import RULE
from lakegc_assets.mark.comparison_relations import MISSING, STAGED
from lakegc_assets.mark.earlier_marks import FORGOTTEN
from lakegc_assets.mark.holders import path_holder, paths_in, ranges_naming, unreachable_holder
from lakegc_assets.mark.incremental_listing import GONE
from lakegc_assets.mark.inventory import MODE as INVENTORY
from lakegc_assets.mark.live_ranges import every_range
from lakegc_assets.mark.marked_objects import require_candidates
from lakegc_assets.mark.metaranges import pairs_of
from lakegc_assets.mark.reasons import missing_from, sentence
from lakegc_assets.mark.session_folder import SessionFolder
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import HASHES, address_hashes, hash_table
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.wording import counted

#: Seconds of one core to look at a row.
_ROW_S: Final = 1e-6
#: Maximum number of staged paths with other sizes that are asked for an object.
_OTHERS: Final = 10_000
_AT_ONCE: Final = 1_000
_THREADS: Final = 16
_CANDIDATES: Final = "deletion_candidates"
_LISTING: Final = "store_listing"
_NOTHING: Final = "the mark has no record of it"


@dataclass(frozen=True)
class Explanation:
    """Explanation of one object by a mark."""

    address: str
    #: candidate, spared, swept, live, too young, outside data, not adopted, or unknown.
    verdict: str
    because: str
    facts: dict[str, Any] = field(default_factory=dict)


def explain_object(ctx: RunContext, address: str) -> Explanation:
    """Explain one object by a mark.

    ``address``: relative to the namespace, or a full address inside it.

    Raises:
        RefusedError: the mark is unknown, or did not finish.
        IntegrityError: an artifact of it is missing or damaged.
    """
    ctx = ctx.connect()
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    require_candidates(attempt)
    chain = attempt.chain(_CANDIDATES, ctx.connections.namespace_url)
    spellings = [address]
    if "://" in address:
        spellings = live_spellings(ctx.connections.namespace(), address)[1:]
    if not spellings:
        return Explanation(address, "unknown", f"it is not below {ctx.connections.namespace_url}")
    # A full address may be percent-encoded or not: the spelling for which an object exists counts.
    with ctx.frames() as frames:
        work = SessionFolder(ctx, frames, attempt.url)
        found = [_explained(_Asked(work, attempt, chain, one)) for one in spellings]
    return next((one for one in found if one.verdict != "unknown"), found[0])


@dataclass(frozen=True)
class _Asked:
    """One address, with the artifacts of the mark."""

    work: SessionFolder
    attempt: AttemptArtifacts
    chain: dict[str, Manifest]
    address: str

    def is_because(self, verdict: str, because: str, **facts: object) -> Explanation:
        """An explanation of the address."""
        return Explanation(self.address, verdict, because, facts)

    def row(self, asset: str, part: str = "data") -> dict[str, Any] | None:
        """The row of an asset with this address."""
        return row_of(self.work.ctx, self.attempt, self.address, asset, part)

    @cached_property
    def listed(self) -> dict[str, Any] | None:
        """The row of the listing with this address."""
        return self.row(_LISTING)

    def has_hash(self, asset: str, part: str) -> bool:
        """Return whether a set of hashes contains the hash of this address."""
        parts = self.chain[asset].parts.get(part, ())
        if not any(one.rows for one in parts):
            return False
        hashes = hash_table(address_hashes(pa.array([self.address], pa.string())))
        live, mine = self.work.read(parts, HASHES), self.work.frames.create(hashes)
        found = relations.with_hashes(live, mine)
        return bool(self.work.collect(found, HASHES, f"look into {asset}"))

    def staging_area(self, size: int | None = None) -> tuple[str, str] | None:
        """Branch and path at which the address is staged now."""
        return staging_areas(self.work.ctx, {self.address}, size).get(self.address)

    @property
    def adopted_mark(self) -> str | None:
        """The foreign mark that the run adopted."""
        adopted = self.chain[_CANDIDATES].facts.get("adopted")
        return str(adopted["mark"]) if adopted else None


def row_of(
    ctx: RunContext, attempt: AttemptArtifacts, address: str, asset: str, part: str = "data"
) -> dict[str, Any] | None:
    """The row of a finished asset with an address; None without one.

    Raises:
        IntegrityError: a file differs from the manifest.
    """
    parts = attempt.manifest(asset).parts[part]
    costs = [one.rows * _ROW_S for one in parts]
    task = partial(_find, ctx.connections, attempt.url, address)
    most = ctx.settings.address_num_partitions
    found = ctx.tasks.run_grouped(f"look into {asset}", task, parts, costs, most)
    return next((row for row in found if row is not None), None)


def _find(
    connections: Connections, url: str, address: str, parts: Sequence[Part]
) -> dict[str, Any] | None:
    for table in read_parts(connections.open(url), parts):
        rows = table.filter(pc.equal(table["address"], address))
        if rows.num_rows:
            row: dict[str, Any] = rows.slice(0, 1).to_pylist()[0]
            return row
    return None


def _explained(asked: _Asked) -> Explanation:
    """The first explanation that applies; each function returns None if it does not apply."""
    live = (_committed, _staged, _referenced)
    whole = missing_from(asked.chain[_LISTING]) == MISSING
    # An object that a partial listing lacks may exist, and may be needed.
    remaining = (_not_listed, *live) if whole else (*live, _not_listed)
    steps = (_candidate, _named_by_adopted, _spared, _swept_since, *remaining)
    found = next((one for function in steps if (one := function(asked)) is not None), None)
    if found is not None or asked.listed is None:
        return found or asked.is_because("unknown", _NOTHING)
    written, cutoff = asked.listed["last_modified"].astimezone(), asked.chain[_LISTING].cutoff
    if written >= cutoff:
        because = f"it was written at {written.isoformat()}, after the cutoff {cutoff}"
        return asked.is_because("too young", because)
    if (mark := asked.adopted_mark) is not None:
        because = f"mark {mark!r}, which this run adopted, does not name it"
        return asked.is_because("not adopted", because)
    return asked.is_because("unknown", _NOTHING)


def _candidate(asked: _Asked) -> Explanation | None:
    row = asked.row(_CANDIDATES)
    if row is None:
        return None
    facts = {"size": row["size"], "reason": row["reason"]}
    if row["reason"] == "unreferenced":
        because, more = _unreferenced(asked)
        facts |= more
    else:
        facts |= {"commit": row["commit_id"], "branch": row["branch"]}
        on = f" in the first-parent history of branch {row['branch']!r}" if row["branch"] else ""
        because = f"the expired commit {row['commit_id']}{on} held it last"
        if _is_forgotten(asked, row["commit_id"]):
            because = (
                f"commit {row['commit_id']}{on} held it last, as an earlier mark recorded; lakeFS "
                "does not name that commit any more"
            )
    # The mark is a snapshot: an object may have come to life since then.
    if (staged := asked.staging_area(row["size"])) is not None:
        branch, path = staged
        facts |= {"staged": {"branch": branch, "path": path}}
        because += f"; since then it was staged on branch {branch!r} at {path!r}"
    return asked.is_because("candidate", because, **facts)


def _unreferenced(asked: _Asked) -> tuple[str, dict[str, Any]]:
    """Explain an unreferenced object: an unreachable commit held it, or no commit did."""
    then, work = "when it was marked, it was staged nowhere", asked.work
    if every_range(asked.chain[_LISTING], asked.chain["active_commits"].facts["rules"]):
        return f"it was never committed, and {then}", {}
    try:
        held = unreachable_holder(work.ctx, asked.attempt, asked.address)
    except LakegcError as error:
        because = f"no commit that the mark knew held it, and {then}. It is unknown if another "
        return f"{because}commit held it: {error}", {}
    if held is None:
        return f"it was never committed, and {then}", {}
    by = f"by {held.commit}" if held.commit else "by a commit that lakeFS does not list"
    because = (
        f"it was committed at {held.path!r} {by}, of a branch that was deleted or set elsewhere: "
        f"no branch and no tag leads to that commit. {then.capitalize()}"
    )
    return because, held._asdict()


def _is_forgotten(asked: _Asked, commit: str) -> bool:
    """Return whether only an earlier mark knew a commit."""
    if FORGOTTEN not in asked.chain["active_commits"].parts:
        return False
    rows = asked.attempt.read("active_commits", FORGOTTEN, ["commit_id"])
    return commit in rows["commit_id"].to_pylist()


def _named_by_adopted(asked: _Asked) -> Explanation | None:
    """Explain an object that an adopted mark names although it is not dead."""
    mark = asked.adopted_mark
    row = asked.row(_CANDIDATES, "kept") if mark else None
    if row is None:
        return None
    staged = _staged(asked) if row["kind"] == STAGED else None
    because = staged.because if staged else sentence(row)
    facts = {name: row[name] for name in ("kind", "commit_id", "branch") if row[name]}
    because = f"mark {mark!r}, which this run adopted, names it, but {because}"
    return asked.is_because("spared", because, **facts)


def _spared(asked: _Asked) -> Explanation | None:
    row = asked.row(_CANDIDATES, "spared")
    return asked.is_because("spared", row["why"]) if row else None


def _swept_since(asked: _Asked) -> Explanation | None:
    """Explain an object that was carried forward from an earlier listing, and swept after that."""
    ctx, listing = asked.work.ctx, asked.chain[_LISTING]
    runs = [run for run, _ in listing.facts.get("swept_since", ())]
    if not runs or asked.row(_LISTING, "carried") is None:
        return None
    for run in runs:
        swept = row_of(ctx, ctx.root.attempt(ctx.repository, run), asked.address, "swept_set")
        if swept is None or swept["outcome"] not in GONE:
            continue
        done = "deleted it" if swept["outcome"] == GONE[0] else "found it missing"
        because = f"the sweep of run {run!r} {done}, before this mark was made"
        live = (ask(asked) for ask in (_committed, _staged, _referenced))
        if (held := next(filter(None, live), None)) is not None:
            return replace(held, because=f"{held.because}; but {because}: it is gone")
        return asked.is_because("swept", because, run=run)
    return None


def _not_listed(asked: _Asked) -> Explanation | None:
    address, listing = asked.address, asked.chain[_LISTING]
    if address.startswith("_lakefs/"):
        because = "it belongs to lakeFS itself, and nothing below _lakefs/ is ever listed"
        return asked.is_because("outside data", because)
    folder = "/".join(address.split("/")[:2]) + "/"
    if folder in listing.facts.get("skipped_slices", ()):
        because = "its slice was made after the cutoff, so it was not listed"
        return asked.is_because("too young", because)
    if asked.listed is None:
        because = "the store did not hold it when it was listed"
        if listing.mode == "committed":
            because = (
                "it was not requested, or the store did not hold it: in the mode committed, a mark "
                "requests only objects that expired commits name and active ones do not"
            )
        elif listing.facts.get("mode") == INVENTORY:
            because = "the inventory report that the mark has read does not name it, so it stays"
        return asked.is_because("unknown", because)
    if not in_data(pa.array([address], pa.string()))[0].as_py():
        because = (
            "it is neither at the root nor in the folders of data/ where lakeFS writes objects"
        )
        return asked.is_because("outside data", because)
    return None


def _committed(asked: _Asked) -> Explanation | None:
    """Explain an object that an active commit holds; names a HEAD if one holds it."""
    if not asked.has_hash("committed_addresses", "data"):
        return None
    ctx, connections, address = asked.work.ctx, asked.work.connections, asked.address
    live = asked.attempt.read("committed_addresses", "ranges", ["range_id", "entries"])
    suspected = ranges_naming(ctx, live, {address})
    holding = [i for i in suspected if paths_in(connections, i, {address})]
    if not holding:
        same_hash = asked.is_because("live", "its hash is that of a live address: it stays")
        return _below_a_path(asked) or same_hash
    active = asked.attempt.read("active_commits")
    ids = set(active["metarange_id"].to_pylist())
    held = pairs_of(ctx, ids, holding)["metarange_id"]
    of_commits = pc.is_in(active["metarange_id"], held.combine_chunks().dictionary_decode())
    commits = active.filter(of_commits).to_pylist()
    if not commits:
        because = "a range below _lakefs/ holds it, and there are no rules"
        if asked.chain[_LISTING].mode == "uncommitted":
            because = "a range below _lakefs/ holds it: in the mode uncommitted each counts as live"
        return asked.is_because("live", because)
    row = min(commits, key=lambda c: (c["kind"] != "head", c.get(RULE) is not None, c["commit_id"]))
    on = f" of branch {row['branch']!r}" if row["branch"] else ""
    facts = {"commit": row["commit_id"], "branch": row["branch"], "kind": row["kind"]}
    because = f"the active commit {row['commit_id']}{on} holds it ({row['kind']})"
    if rule := row.get(RULE):
        facts |= {RULE: rule}
        because = f"{because[:-1]}; {rule})"
    if len(commits) > 1:
        because += f", and {counted(len(commits) - 1, 'other active commit')}"
    return asked.is_because("live", because, **facts, commits=len(commits))


def _below_a_path(asked: _Asked) -> Explanation | None:
    """Explain an object below a path of rules, which a commit keeps that is not active."""
    held = path_holder(asked.work.ctx, asked.attempt, asked.address)
    if held is None:
        return None
    on = f" of branch {held.branch!r}" if held.branch else ""
    because = f"commit {held.commit}{on} holds it at {held.path!r} ({held.rule})"
    return asked.is_because("live", because, **held._asdict())


def _staged(asked: _Asked) -> Explanation | None:
    if not asked.has_hash("uncommitted_snapshot", "hashes"):
        return None
    if asked.row("uncommitted_snapshot") is None:
        return asked.is_because("live", "its hash is that of a staged address: it stays")
    if (staged := asked.staging_area()) is None:
        return asked.is_because("live", "it was staged when the mark was made, and is not any more")
    branch, path = staged
    because = f"it is staged on branch {branch!r} at {path!r}"
    return asked.is_because("live", because, branch=branch, path=path)


def _referenced(asked: _Asked) -> Explanation | None:
    """Explain an object that another repository names."""
    if not asked.has_hash("committed_addresses", "referenced"):
        return None
    row = asked.row("committed_addresses", "references")
    if row is None:
        return asked.is_because("live", relations.SAME_HASH)
    facts = {name: row[name] for name in ("repository", "held")}
    return asked.is_because("live", references.sentence(**facts), **facts)


def staging_areas(
    ctx: RunContext, addresses: Collection[str], size: int | None = None
) -> dict[str, tuple[str, str]]:
    """Branch and path at which objects are staged now, by their addresses.

    ``size``: of the objects, in bytes, if known; limits the requests for paths of other sizes.
    """
    client, repository, namespace = ctx.client, ctx.repository, ctx.connections.namespace()
    staged: Iterable[tuple[str, DiffEntry]] = (
        (branch.id, change)
        for branch in client.branches(repository)
        for change in client.diff_branch(repository, branch.id)
        if change.type != "removed"
    )
    if size is not None:
        every = sorted(staged, key=lambda one: one[1].size_bytes not in {size, None})
        alike = sum(change.size_bytes in {size, None} for _, change in every)
        staged = every[: alike + _OTHERS]

    def served(one: tuple[str, DiffEntry]) -> list[str]:
        try:
            found = client.stat(repository, branch_ref(one[0]), one[1].path).physical_address
            return live_spellings(namespace, found)
        except (NotFoundError, UnresolvableAddressError):
            return []

    found: dict[str, tuple[str, str]] = {}
    waiting = iter(staged)
    while len(found) < len(addresses) and (batch := list(islice(waiting, _AT_ONCE))):
        for (branch, change), spellings in zip(
            batch, thread_map(served, batch, _THREADS), strict=True
        ):
            for address in spellings:
                if address in addresses:
                    found.setdefault(address, (branch, change.path))
    return found
