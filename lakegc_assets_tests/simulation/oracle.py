"""Knows what is live by definition, and compares what was deleted with it.

An object is live while a branch serves it, a commit inside its retention holds it, it is staged,
its address may still be linked, or a restore pins it. Deleting it is a loss, unless it came to life
inside the window that docs/safety.md names: after the HEADs were read before the batch; or, for
what is staged, pinned, or left by a branch that came and went, after the delta mark began and after
the last suspension of who sends it. What is lost in the window must be back, or named by an alarm,
before its sweep ends well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from lakegc_assets.run.clocks import NEVER
from lakegc_assets.sweep.lease_record import LeaseRecord
from lakegc_assets.sweep.task_orders import LOST, STALE, TaskResult
from lakegc_assets_tests.simulation.client import NAMESPACE
from lakegc_assets_tests.simulation.scheduler import Actor

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.world import World

#: By which way an object is live.
Way = Literal["branch", "tagged", "dangling", "staged", "linkable", "pinned", "named"]
#: The moment against which ages are taken.
START: Final = 1_767_225_600.0 - 600.0
#: The window of a batch, and that of what is staged by hand, in seconds.
BATCH_S: Final = 60.0
STAGED_S: Final = 600.0
#: How much of a lease must be left when HEADs are read, in seconds.
LEFT_S: Final = 59.0
#: What tasks say that a check has kept from deleting something.
_KEPT: Final = frozenset({"spared", STALE, LOST})
#: What the calls of a simulation may take on top.
_SLACK_S: Final = 5.0


class LossError(BaseException):
    """Something live was deleted outside of the window, or another promise was broken.

    No error that the code under test may handle.
    """


class Since(NamedTuple):
    """When something began: at which step, and at what time."""

    step: int
    time: float


class Sent(NamedTuple):
    """A request that deletes.

    Attributes:
        actor: who sent it.
        run: whose mark it carries out.
        keys: that it names.
        compared: no later than the first of its objects was compared with the store, in seconds.
        look: when the HEADs were read before it.
        delta: when its delta mark began.
        at: when it was sent.
        readings: steps in which its task got the first and the last page of all HEADs.
        heads: of all branches in the last of these, with the first page and with the last.
        rules: that its task was told last.
        thawed: when its process was suspended last, or that of its driver before it began.
    """

    actor: Actor
    run: str
    keys: tuple[str, ...]
    compared: float
    look: Since
    delta: Since
    at: Since
    readings: tuple[tuple[int, int], ...]
    heads: tuple[Mapping[str, str], ...] = ()
    rules: Mapping[str, int] | None = None
    thawed: float = NEVER


class Gone(NamedTuple):
    """Something live that was deleted inside the window."""

    key: str
    sent: Sent
    at: Since


@dataclass
class Finished:
    """A sweep that ended well: its run, when its last look began, and what it says."""

    run: str
    after: Since
    manifest: dict[str, Any]
    url: str


@dataclass
class Oracle:
    """Watches a world.

    Attributes:
        marked: keys of each mark, by run.
        live: since when each live address is so, by each way.
        lone: when an address that only dangling commits hold was on a branch, from and to.
        moments: when delta marks began, by the machine and its clock.
        window: what was deleted although it was live, inside the window.
        alarms: what alarms have named, with the step.
        finished: sweeps that ended well.
        thawed: when a process was last suspended.
        deletes: when each key was deleted.
        brought: when an object was last brought back.
        pinned: since when a restore pins an object.
        unlisted: the last step in which a stale list lacked the pin of an object, which no store
            does that keeps what is asked of it (docs/safety.md).
        rewritten: when somebody wrote other content to the key of a marked object.
        linked: what is served although nothing lists it since somebody linked it by hand.
        named: since when another repository names an object.
        jumped: the last step in which the store's clock jumped, and in which it jumped back.
        once_live: all that was ever live.
        sweeps: by token of the lease, the step of its first batch.
        promises: whether to watch lease, rounds and hold too, not only losses.
        ages: the moment against which ages are taken, in seconds since 1970.
        close: how often a check stopped a batch that held something live.
    """

    world: World
    marked: dict[str, frozenset[str]] = field(default_factory=dict)
    live: dict[str, dict[Way, Since]] = field(default_factory=dict)
    lone: dict[str, tuple[Since, Since]] = field(default_factory=dict)
    moments: dict[tuple[str, float], Since] = field(default_factory=dict)
    window: list[Gone] = field(default_factory=list)
    alarms: dict[str, int] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    thawed: dict[str, float] = field(default_factory=dict)
    deletes: dict[str, Since] = field(default_factory=dict)
    brought: dict[str, Since] = field(default_factory=dict)
    pinned: dict[str, Since] = field(default_factory=dict)
    unlisted: dict[str, int] = field(default_factory=dict)
    rewritten: dict[str, Since] = field(default_factory=dict)
    linked: set[str] = field(default_factory=set)
    named: dict[tuple[str, str], Since] = field(default_factory=dict)
    jumped: int = -1
    set_back: int = -1
    once_live: set[str] = field(default_factory=set)
    sweeps: dict[str, int] = field(default_factory=dict)
    promises: bool = True
    ages: float = START
    close: int = 0

    def now(self) -> Since:
        """The present step and time."""
        return Since(self.world.scheduler.steps, self.world.scheduler.now)

    def look(self) -> None:
        """See what is live now."""
        lake, now, found = self.world.lake, self.now(), dict[str, set[Way]]()
        shadowing = lake.shadowing()
        ways: list[tuple[Way, Iterable[str]]] = [
            ("branch", lake.held_by(lake.on_branches(self.ages))),
            ("dangling", lake.held_by(lake.dangling(self.ages))),
            ("tagged", lake.held_by(self._tagged())),
            ("staged", lake.staged_addresses()),
            ("staged", shadowing & self.linked),
            ("branch", shadowing - self.linked),
            ("linkable", self.linkable()),
            ("pinned", self.pinned),
            ("named", self._named(now)),
        ]
        for way, addresses in ways:
            for address in addresses:
                found.setdefault(address, set()).add(way)
        self._note(found, now)

    def linkable(self) -> set[str]:
        epoch = self.world.epoch()
        return {address for address, until in self.world.lake.handed.items() if epoch < until}

    def _tagged(self) -> set[str]:
        protected = self.world.settings.get("protect_tags")
        return set(self.world.lake.tags.values()) if protected else set()

    def _named(self, now: Since) -> set[str]:
        """What other repositories name now."""
        self.named = {
            (name, address): self.named.get((name, address), now)
            for name, other in self.world.others.items()
            for address in other.named_in(NAMESPACE, self.ages)
        }
        return {address for _, address in self.named}

    def _note(self, found: dict[str, set[Way]], now: Since) -> None:
        earlier, self.live = self.live, {}
        self.once_live |= found.keys()
        for address, ways in found.items():
            known = earlier.get(address, {})
            since: dict[Way, Since] = {way: known.get(way, now) for way in ways}
            if "staged" in ways and "staged" not in known and "linkable" in known:
                since["staged"] = known["linkable"]
            if "dangling" in ways and "branch" not in ways and "branch" in known:
                self.lone[address] = (known["branch"], now)
            if "named" in ways:
                # What one repository hands over to another is named by that since then.
                times = (at for (_, one), at in self.named.items() if one == address)
                since["named"] = min(times)
            self.live[address] = since

    # Deletes

    def sent(self, keys: Sequence[str], lease: LeaseRecord | None, *, hold: bool) -> Sent:
        """A request that deletes objects of the namespace is sent; lease and hold as they are."""
        actor = self.world.scheduler.current
        assert actor is not None
        orders: Any = actor.facts.get("orders")
        if orders is None:
            raise LossError(f"{keys} are deleted, and by no task")
        run = str(actor.facts["run"])
        if more := set(keys) - self.marked[run]:
            raise LossError(f"{sorted(more)} are deleted, and no mark names them")
        delta = self.moments[orders.taken.boot, orders.taken.elapsed]
        look = Since(*actor.facts.get("look", (delta.step, delta.time)))  # type: ignore[misc]
        asked = actor.process.asked or {}
        compared = min(asked.get(key, look.time) for key in keys)
        readings = tuple(actor.facts.get("readings", ()))  # type: ignore[arg-type,var-annotated]
        self.world.say(f"asks for deletes of {', '.join(keys)}")
        heads: Any = actor.facts.get("heads", ())
        rules: Any = actor.facts.get("rules")
        suspended: Any = actor.facts["suspended"]
        thawed = max(suspended, actor.process.thawed)
        told = readings, heads, rules, thawed
        sent = Sent(actor, run, tuple(keys), compared, look, delta, self.now(), *told)
        if self.promises:
            self._require_lease(sent, orders, lease, hold=hold)
            if look.time - compared > BATCH_S + _SLACK_S:
                raise LossError(f"{keys[0]} is deleted, and was compared long before the look")
        self.sweeps.setdefault(orders.lease, sent.at.step)
        return sent

    def _require_lease(
        self, sent: Sent, orders: Any, lease: LeaseRecord | None, *, hold: bool
    ) -> None:
        """A batch is sent under the lease of its sweep, in its round, and while there is no hold.

        What is asked for before a batch may change until it is sent, so only what was so when its
        look began, and still is, counts.
        """
        seen: Any = sent.actor.facts.get("seen", (None, False))
        before: LeaseRecord | None = seen[0]
        held: bool = seen[1]
        if hold and held:
            raise LossError(f"{sent.keys[0]} is deleted, and there is a hold")
        for other, step in self.sweeps.items():
            if (
                other != orders.lease
                and step < sent.look.step
                and (self.sweeps.get(orders.lease, step) < step)
            ):
                raise LossError(f"{sent.keys[0]} is deleted, and another sweep deletes, too")
        if before is None or lease is None:
            return
        if before.token == lease.token != orders.lease:
            raise LossError(f"{sent.keys[0]} is deleted, and another sweep has the lease")
        if before.token == orders.lease:
            if before.round > orders.number:
                raise LossError(f"{sent.keys[0]} is deleted in a round that is over")
            left = (before.expires - self.world.store_time()).total_seconds()
            if self.jumped >= sent.look.step:
                return
            if before == lease and left + (sent.at.time - sent.look.time) < LEFT_S:
                raise LossError(f"{sent.keys[0]} is deleted, and the lease has run out")

    def ended_task(self, results: Sequence[TaskResult]) -> None:
        """A task has ended: it came close if a check kept it from what is live."""
        outcomes = {one.outcome for one in results}
        self.world.covered.update(("task", outcome) for outcome in outcomes)
        actor = self.world.scheduler.current
        assert actor is not None
        live = self.live.keys() & self.marked[str(actor.facts["run"])]
        self.close += bool(outcomes & _KEPT and live - self.deletes.keys())

    def deleted(self, key: str, sent: Sent) -> None:
        """The store has carried out a delete."""
        now = self.now()
        self._require_same(key, sent)
        self.deletes[key] = now
        ways = self.live.get(key)
        self.world.say(
            f"  {key} is gone" + (f", and it is live: {', '.join(ways)}" if ways else "")
        )
        if not ways:
            return
        if bad := [way for way, since in ways.items() if not self._excused(key, way, since, sent)]:
            raise LossError(
                f"{key} was deleted, and is live ({', '.join(bad)}, since step "
                f"{min(ways[way].step for way in bad)}; HEADs were read at step {sent.look.step}, "
                f"the delta mark began at step {sent.delta.step})"
            )
        self.window.append(Gone(key, sent, now))

    def _require_same(self, key: str, sent: Sent) -> None:
        """What is another object by now stays, if that was so before it was compared."""
        again = self.rewritten.get(key)
        if again is None or self.brought.get(key, again) > again:
            return
        if again.time < sent.compared or self.world.goes_by_etags:
            raise LossError(f"{key} is deleted, and was written again at step {again.step}")

    def brought_back(self, key: str) -> None:
        """The store has given a deleted object back."""
        self.deletes.pop(key, None)
        self.brought[key] = self.now()
        self.world.say(f"  {key} is back")

    def _excused(self, key: str, way: Way, since: Since, sent: Sent) -> bool:
        now = self.world.scheduler.now
        # What is to end by a clock ends late where that is set back.
        kept = self.world.promises.deadlines and self.set_back < sent.look.step
        if way in {"branch", "tagged"}:
            if since.step < sent.look.step and not (way == "branch" and self._unseen(key, sent)):
                return False
            late = now if kept else sent.at.time
            frozen = not kept and self.thawed.get(sent.actor.process.name, -1.0) >= sent.look.time
            return frozen or late - sent.look.time <= BATCH_S + _SLACK_S
        # What was there when its process was suspended is for another delta mark to see.
        if since.step < sent.delta.step or since.time < sent.thawed:
            return way == "pinned" and self.unlisted.get(key, -1) >= sent.delta.step
        if way in {"staged", "named"}:
            frozen = not kept and self.thawed.get(sent.actor.process.name, -1.0) >= sent.look.time
            late = now if kept else sent.at.time
            frozen = frozen or self.set_back >= sent.delta.step
            return frozen or late - since.time <= STAGED_S + _SLACK_S
        if way == "dangling":
            begun, ended = self.lone.get(key, (since, since))
            # What came and went between two readings is not seen. An answer of the step in which
            # somebody changed something is what it was after that.
            return not any(
                begun.step <= first and last < ended.step for first, last in sent.readings
            )
        return way == "pinned"

    def _unseen(self, key: str, sent: Sent) -> bool:
        """Whether neither the HEADs nor the rules showed that an object was live, each when read.

        Rules may have kept it until the HEADs were read, and a HEAD since then, when the rules were
        others again: lakeFS tells no two things at a time.
        """
        if not sent.heads or sent.rules is None or key in self.world.lake.shadowing():
            return False
        then = self.world.lake.copy()
        then.rules = sent.rules
        for heads in sent.heads:
            then.branches = dict(heads)
            if key in then.held_by(then.on_branches(START)):
                return False
        return True

    # Alarms and ends

    def written(self, url: str, key: str, data: bytes) -> None:
        """A hold, or the manifest of a sweep, was written."""
        if key.endswith("hold.json"):
            for one in json.loads(data)["objects"]:
                self.alarms.setdefault(one["address"], self.now().step)
            self.world.say("  ALARM: a hold is written")
            return
        actor = self.world.scheduler.current
        assert actor is not None
        after = actor.facts["moment"]
        assert isinstance(after, Since)
        self.finished.append(Finished(str(actor.facts["run"]), after, json.loads(data), url))
        self.world.say("  the sweep has ended well")

    def end(self) -> None:
        """Compare what is left with what was promised."""
        # Whatever was killed when: a lease that nobody can read would stop all sweeps.
        self.world.lease_and_hold()
        for gone in self.window:
            self._require_alarm(gone)
        for done in self.finished:
            self.require_outcomes(done)

    def _require_alarm(self, gone: Gone) -> None:
        brought = self.brought.get(gone.key)
        if brought is not None and gone.at < brought:
            # It came back. Whatever deleted it again has a loss of its own in the window.
            return
        live = self.live.get(gone.key)
        there = f"repo/{gone.key}" in self.world.buckets["lake"]
        if there or not live or gone.key in self.alarms or live.keys() == {"pinned"}:
            return
        since = min(since for way, since in live.items() if way != "pinned")
        for done in self.finished:
            if done.run != gone.sent.run or since.step >= done.after.step:
                continue
            if not live.keys() & {"branch", "tagged", "staged", "named"}:
                continue
            # Where no deadline ends it, the network may hold a request back for any time.
            if gone.at.step > done.after.step and not self.world.promises.deadlines:
                continue
            raise LossError(
                f"{gone.key} was deleted at step {gone.at.step} although it was live since step "
                f"{since.step}, and its sweep ended well: its last look began at step "
                f"{done.after.step}"
            )

    def _needed(self, key: str, when: Since) -> bool:
        """Whether a branch has had an object since before then."""
        return self.live.get(key, {}).get("branch", when) < when

    def require_outcomes(self, done: Finished) -> None:
        # What is another object by now stays for a true reason.
        self.once_live |= self.rewritten.keys()
        outcomes = self.world.outcomes(done.url)
        if self.world.digest_of(done.url, "gc_report") != done.manifest["previous"]:
            raise LossError(f"the sweep of {done.run!r} is of another attempt of its mark")
        told = [address for address, _, _ in outcomes]
        if len(told) != len(set(told)) or set(told) != self.marked[done.run]:
            raise LossError(f"mark {done.run!r} has outcomes for {sorted(told)}")
        there = self.world.buckets["lake"]
        for address, outcome, why in outcomes:
            exists = f"repo/{address}" in there
            if outcome in {"deleted", "already_missing"} and exists:
                brought = self.brought.get(address)
                if brought is None or (brought < done.after and self._needed(address, done.after)):
                    raise LossError(f"{address} is said to be {outcome}, and is there")
            elif outcome == "put_back" and address not in self.brought:
                raise LossError(f"{address} is said to be put back, and never was")
            elif outcome == "spared" and address not in self.once_live:
                if why != "it looks like what a branch has now":
                    raise LossError(f"{address} was dead all the time, and spared: {why}")
            elif outcome == "failed":
                raise LossError(f"{address} has failed, and the sweep ended well")
