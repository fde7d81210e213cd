"""Knows what a mark may name, and what it must.

No mark names an object that was live all the time since the mark began, or one that came to be
since its listing did: what came to life meanwhile is for the delta mark of its sweep. Nor does it
overlook what was dead all the time and old enough, unless its report says why it stays. A published
mark never changes. Ages are those at which the latest mark takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.graveler.namespace import slice_time
from lakegc_assets.mark.publication import mark_folder
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.simulation.oracle import LossError, Oracle, Since, Way

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.mark_world import MarkWorld

#: What becomes live by a way while it was live by one of these goes on to be so.
_FROM: Final[dict[Way, tuple[Way, ...]]] = {
    "branch": ("branch", "staged", "dangling"),
    "dangling": ("dangling", "branch", "staged"),
    "staged": ("staged", "linkable"),
    "linkable": ("linkable",),
    "pinned": ("pinned",),
    "tagged": ("tagged",),
    "named": (),
}
#: An object is written to its slice so long after that was made, at most.
_SLICE: Final = timedelta(hours=25)
#: Lists that lack something cannot be told from whole ones.
_CUT: Final = frozenset({"cut page", "stale list"})


@dataclass
class MarkOracle(Oracle):
    """Watches a world in which marks are made.

    Attributes:
        held: since when each live object is so without a break that a mark could not see.
        born: when each object came to be.
        begun: when each mark was begun first, by run.
        listing: when the latest listing of each mark began, behind its cutoff, by run.
        lists: what each published mark names, by run.
        back: what is in the store again although a sweep had deleted it.
        committed: what commits had when each mark was begun first, by run.
        chosen: whether what a mark names was chosen with the second server, by run.
        servers: whether marks were published with the second server, and with the first.
    """

    world: MarkWorld
    held: dict[str, Since] = field(default_factory=dict)
    born: dict[str, Since] = field(default_factory=dict)
    begun: dict[str, Since] = field(default_factory=dict)
    listing: dict[str, Since] = field(default_factory=dict)
    lists: dict[str, frozenset[str]] = field(default_factory=dict)
    back: set[str] = field(default_factory=set)
    committed: dict[str, set[str]] = field(default_factory=dict)
    chosen: dict[str, bool] = field(default_factory=dict)
    servers: set[bool] = field(default_factory=set)

    def look(self) -> None:
        """See what is live now, and since when without a break."""
        before = self.live
        super().look()
        now = self.now()
        self.held = {
            address: min((self.since(address, way, before, now) for way in ways), default=now)
            for address, ways in self.live.items()
        }

    def linkable(self) -> set[str]:
        # Where objects of any age may be candidates, uploads that are on their way are not safe.
        return set() if self.world.trial else super().linkable()

    def since(
        self, address: str, way: Way, before: dict[str, dict[Way, Since]], now: Since
    ) -> Since:
        if way == "named":
            return self.live[address][way]
        if before.get(address, {}).keys() & _FROM[way]:
            return self.held[address]
        return now

    # Marks

    def begins(self, run: str) -> None:
        """The present actor begins a mark."""
        self.ages = self.world.epoch()
        self.begun.setdefault(run, self.now())
        if self.world.settings.get("mode") == "uncommitted":
            self.committed.setdefault(run, self._committed())
        self.look()
        self.world.say(f"begins the mark {run!r}")

    def lists_now(self, run: str) -> None:
        """A new attempt was written down: its cutoff is fixed, and it lists from now on."""
        self.listing[run] = self.now()

    def listed(self, run: str) -> None:
        """The summary of a mark was written: from now on anybody may sweep what its lists name."""
        folder = f"repo/{mark_folder(run)}deleted/"
        kept = self.world.buckets["lake"]
        files = [row_files.rows_of(one.data) for key, one in kept.items() if key.startswith(folder)]
        named = frozenset(row["address"] for rows in files for row in rows)
        if self.lists.setdefault(run, named) != named:
            raise LossError(f"mark {run!r} was published, and names others now")
        self.look()
        if self._of_another_server(run):
            return
        begun = self.begun[run]
        if self.world.settings.get("mode") == "uncommitted" and (
            more := sorted(named & self.committed[run])
        ):
            raise LossError(f"{more[0]} is marked, and a commit had it, in the mode uncommitted")
        for address in sorted(named):
            since = self.held.get(address)
            early = since is not None and since.step <= begun.step
            if since is not None and early and not self._hidden(address, begun):
                ways = ", ".join(sorted(self.live[address]))
                raise LossError(
                    f"{address} is marked, and was live all the time ({ways}, since step "
                    f"{since.step}; the mark began at step {begun.step})"
                )
            born = self.born.get(address)
            listing = self.listing[run]
            if born is not None and born.step > listing.step and address not in self.back:
                raise LossError(
                    f"{address} is marked, and came to be at step {born.step}, after its listing "
                    f"had begun at step {listing.step}"
                )
        self.world.say(f"publishes the mark {run!r}: {', '.join(sorted(named)) or 'nothing'}")

    def _of_another_server(self, run: str) -> bool:
        """Whether a mark was made with the other server, and that was the first.

        Raises:
            LossError: both collect.
        """
        world = self.world
        if world.unlike != "servers":
            return False
        self.servers.add(self.chosen[run])
        if len(self.servers) > 1 or (self.chosen[run] and world.server_known):
            raise LossError("an object may be marked, and two servers collect its namespace")
        return self.chosen[run]

    def _hidden(self, address: str, begun: Since) -> bool:
        """Whether what lakeFS hid from a mark keeps an object alive; its sweep looks again.

        Only lakeFS's list names dangling commits. What a list of staged objects lacks shows in the
        branches' diffs, but these are asked for after the HEADs: not if it is committed meanwhile,
        wherever that commit is then.
        """
        hidden = {what for what, _ in self.world.covered}
        ways = self.live[address]
        if ways.keys() == {"dangling"} and "cut file" in hidden:
            return True
        if ways.keys() - {"branch", "dangling"} or not hidden & {"cut rows", "no location"}:
            return False
        return min(since.step for since in ways.values()) > begun.step

    def finished_mark(self, url: str, manifest: dict[str, Any]) -> None:
        """The last manifest of a mark was written."""
        kept = self.world.buckets["artifacts"]
        folder = url.removeprefix("s3://artifacts/")
        before = kept.get(f"{folder}/deletion_candidates/manifest.json")
        if before is None or sha256(before.data).hexdigest() != manifest["previous"]:
            # Of a mark that was begun again meanwhile: no sweep takes it.
            self.world.say("the mark is broken")
            return
        run = str(manifest["run"])
        rows, spared = (self._rows(folder, part) for part in ("data", "spared"))
        named = frozenset(row["address"] for row in rows)
        if self.marked.setdefault(run, named) != named:
            raise LossError(f"mark {run!r} was finished, and names others now")
        if not self.chosen[run] and not _CUT & {what for what, _ in self.world.covered}:
            cutoff = datetime.fromisoformat(manifest["cutoff"])
            self._require_all(run, named | {row["address"] for row in spared}, cutoff)

    def _rows(self, folder: str, part: str) -> list[Mapping[str, Any]]:
        kept = self.world.buckets["artifacts"]
        manifest = self.world.manifest(f"{folder}/deletion_candidates/manifest.json")
        files = [kept[f"{folder}/{key}"].data for key, *_ in manifest["parts"][part]]
        return [row for data in files for row in row_files.rows_of(data)]

    def _require_all(self, run: str, told: frozenset[str] | set[str], cutoff: datetime) -> None:
        """Nothing that was dead all the time, and old enough, is overlooked."""
        mode = self.world.settings.get("mode")
        held = self._committed() if mode else set()
        for key, kept in self.world.buckets["lake"].items():
            address = key.removeprefix("repo/")
            if address in told or address in self.once_live or not address.startswith("data/"):
                continue
            if mode is not None and (address in held) is not (mode == "committed"):
                continue
            born = self.born.get(address)
            if born is not None and born.step >= self.begun[run].step:
                continue
            if kept.modified < cutoff and not self._late(address, born):
                raise LossError(f"{address} is dead, and the mark {run!r} overlooks it")

    def _committed(self) -> set[str]:
        """What commits have or had, active ones or not."""
        return {e.address for tree in self.world.lake.trees.values() for e in tree.values()}

    def _late(self, address: str, born: Since | None) -> bool:
        """Whether somebody wrote to a slice that gets no objects any more."""
        made = slice_time(address.split("/")[1])
        if address in self.back or born is None:
            return False
        assert made is not None
        return self.world.at(born) - made > _SLICE
