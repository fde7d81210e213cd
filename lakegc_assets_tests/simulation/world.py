"""One world: a lake, a store, clocks, processes, faults, and the notes that the oracle needs."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final

from lakegc_assets.mark.installation import MARKER
from lakegc_assets.run.clocks import NEVER
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.sweep.hold import HOLD, Hold
from lakegc_assets.sweep.lease import leased_to_prune
from lakegc_assets.sweep.lease_record import LEASE, LeaseRecord
from lakegc_assets_tests.simulation.choices import Choices
from lakegc_assets_tests.simulation.client import NAMESPACE, REPOSITORY, SimClient
from lakegc_assets_tests.simulation.lake import Lake
from lakegc_assets_tests.simulation.oracle import LossError, Oracle, Sent
from lakegc_assets_tests.simulation.pruning import require_another_copy
from lakegc_assets_tests.simulation.row_files import RowFiles
from lakegc_assets_tests.simulation.scheduler import PAUSES, EndlessError, Process, Scheduler
from lakegc_assets_tests.simulation.store import Bucket, Kept, SimStore, StorePromises, etag_of

#: The store's time when the virtual one is 0.
BASE: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_BASE_S: Final = BASE.timestamp()
PREFIX: Final = "repo/"
#: By how much a clock jumps, in seconds: what is allowed, twice, and what is refused; the last is
#: more than all that a cutoff leaves.
JUMPS: Final = (200.0, -200.0, 4000.0, -4000.0, 100_000.0)
#: By which part of a second a machine's clock is wrong after a second.
_DRIFT: Final = 0.002
_READS: Final = ("freeze", "slow", "unavailable", "kill")
_CALLS: Final = {
    "branches": (*_READS, "cut list"),
    "prepare_commits": (*_READS, "cut file", "order-dependent walk"),
    "prepare_uncommitted": (*_READS, "no location", "cut rows"),
}
_OPS: Final = {
    "list": (*_READS, "cut page", "stale list"),
    "time": (*_READS, "clock jumps"),
    "put": (*_READS, "lost answer"),
    "undelete": (*_READS, "lost answer"),
    "delete": ("freeze", "late", "kill", "lost answer", "partial", "SlowDown", "late"),
}


@lru_cache(maxsize=16_384)
def _date(seconds: float) -> datetime:
    """A virtual time as a date; most are those of a step that others have, too."""
    return BASE + timedelta(seconds=seconds)


@lru_cache(maxsize=1024)
def _lease(data: bytes) -> LeaseRecord:
    return LeaseRecord.from_bytes(data, LEASE)


@lru_cache(maxsize=4096)
def _digits(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


class World:
    """A world in which an interleaving runs.

    Args:
        choices: of the interleaving.
        lake: its repository.
        buckets: objects by bucket and key.
        switch: how probable it is that another actor goes on at a step.
        fault: how probable a fault is.
        tell: is told of what happens, in words; None for nobody.
        files: of rows, among the objects; None for none yet.
    """

    #: What guards.py switches off in all worlds.
    shadow_rule = diff_witness = retries_off = conditions = True
    notices_suspensions = True
    tampered = earlier_marks = False

    def __init__(
        self,
        choices: Choices,
        lake: Lake,
        buckets: Mapping[str, Mapping[str, Kept]],
        switch: float = 0.0,
        fault: float = 0.0,
        tell: Callable[[str], None] | None = None,
        files: RowFiles | None = None,
    ) -> None:
        self.choices, self.lake = choices, lake
        self.buckets = {name: Bucket(bucket) for name, bucket in buckets.items()}
        self.files = RowFiles() if files is None else files
        self._versions: dict[str, list[tuple[str, Kept]]] = {}
        #: By URL; and by URL and seconds those of clients that send each request once.
        self.stores: dict[str | tuple[str, float], SimStore] = {}
        self.telling = tell
        self.scheduler = Scheduler(choices, switch, fault, self.say)
        self.promises = StorePromises()
        self.covered: Counter[tuple[str, str]] = Counter()
        self.oracle = Oracle(self)
        self.faulty: frozenset[str] = frozenset()
        self.changes: tuple[str, ...] = ()
        self.early = False
        self.settings: dict[str, Any] = {}
        self.unlike = ""
        self.others: dict[str, Lake] = {}
        self.telling_ids = True
        #: Whether the last list of branches was cut.
        self.cut = False
        #: Seconds by which the store's clock is wrong.
        self.store_ahead = 0.0
        #: Of one extension; below 1 all of them are too much for a task.
        self.most_metaranges = 200
        #: What mattered to a collector behind each change, where an exploration compares worlds.
        self.moods: list[int] = []
        self._serials = 0
        self._network = Process("the network", "network", 0.0)
        self._tokens = 0

    def forget(self) -> None:
        """Let go of what points to each other, once nobody asks any more: so it is freed at once.

        To find it among all else that is unused takes a tenth of all time.
        """
        for one in (self.scheduler, self.oracle, *self.stores.values(), self):
            vars(one).clear()

    # Time

    def epoch(self) -> float:
        """The true time, in seconds since 1970."""
        return _BASE_S + self.scheduler.now

    def store_time(self) -> datetime:
        """The store's time."""
        return _date(self.scheduler.now + self.store_ahead)

    def lake_time(self) -> datetime:
        """The lakeFS server's time."""
        return _date(self.scheduler.now)

    def wall(self) -> datetime:
        """The wall clock of the present process."""
        wall = self.process.wall
        return self.lake_time() + timedelta(seconds=wall) if wall else self.lake_time()

    def elapsed(self, at: float | None = None) -> float:
        """The present machine's seconds since it was started, now or at a time."""
        process, rate = self.process, 1.0
        if self.unlike == "drift":
            rate += _DRIFT if zlib.crc32(process.boot.encode()) & 1 else -_DRIFT
        return (self.scheduler.now if at is None else at) * rate + process.ahead

    def thawed(self) -> float:
        """When the last suspension of the present process ended, by its machine's clock."""
        return self.elapsed(self.process.thawed) if self.notices_suspensions else NEVER

    # Who

    @property
    def process(self) -> Process:
        """That of the present actor."""
        actor = self.scheduler.current
        assert actor is not None
        return actor.process

    def knows_gone(self, name: str) -> bool:
        """Whether a process was killed, where that can be known."""
        return self.unlike == "gone" and name in self.scheduler.killed

    @property
    def is_second(self) -> bool:
        """Whether the present process works with another server, that has the namespace too."""
        return False

    @property
    def own(self) -> Lake:
        """The repository, as the server has it with which the present process works."""
        return self.lake

    def installation(self, *, second: bool) -> str | None:
        """The id that a server tells."""
        return ("first", "second")[second] if self.telling_ids else None

    def serial(self) -> str:
        """A name that nothing else has."""
        self._serials += 1
        return f"s{self._serials:05d}"

    def token_hex(self, size: int = 16) -> str:
        """Random digits that are the same whenever the choices are."""
        self._tokens += 1
        return _digits(self._tokens)[: 2 * size]

    def say(self, what: str) -> None:
        """Tell people what happens."""
        if self.telling is not None:
            actor = self.scheduler.current
            name = actor.name if actor else "-"
            self.telling(f"{self.scheduler.now:8.1f}s  {name:<22} {what}")

    # Calls

    def store(self, url: str, once: float | None = None) -> SimStore:
        """The store at a URL; for a client that sends each request once, after how many seconds."""
        of = url if once is None else (url, once)
        known = self.stores.get(of)
        if known is None:
            bucket, _, prefix = url.removeprefix("s3://").partition("/")
            prefix = f"{prefix.strip('/')}/" if prefix else ""
            kept = self.buckets.setdefault(bucket, Bucket())
            known = SimStore(self, kept, prefix, url.rstrip("/"), once)
            self.stores[of] = known
        return known

    def ask(self, op: str, what: str) -> str:
        """Before a call is answered: others may go on, and something may fail; what, if not all.

        Raises:
            StorageError: there is no answer.
            LakeFSError: there is no answer.
        """
        scheduler = self.scheduler
        if what == MARKER and self.unlike != "servers":
            # Where there is one server, nothing happens between two looks at its marker.
            return ""
        code = scheduler.step(what)
        if self.telling is not None:
            self.say(f"> {op} {what}")
        if not code:
            return ""
        options = [
            name
            for name in (_CALLS.get(what, _READS) if op == "lakefs" else _OPS.get(op, _READS))
            if name in self.faulty
        ]
        if not options:
            return ""
        fault = options[code % len(options)]
        self.covered[fault, what if op == "lakefs" else op] += 1
        self.say(f"  ! {fault}")
        return self._befall(fault, op, what)

    def _befall(self, fault: str, op: str, what: str) -> str:
        scheduler = self.scheduler
        if fault == "freeze":
            scheduler.freeze(self.process, PAUSES[self.choices.pick(len(PAUSES))])
            self.process_frozen()
        elif fault == "kill":
            scheduler.kill(self.process)
        elif fault == "slow":
            scheduler.meanwhile()
            scheduler.sleep(PAUSES[self.choices.pick(len(PAUSES))])
        elif fault == "clock jumps":
            self._jump(JUMPS[self.choices.pick(len(JUMPS))])
        elif fault == "unavailable":
            if op == "lakefs":
                raise SimClient.unavailable(what)
            raise StoreUnavailableError(f"{what}: no answer")
        else:
            return fault
        return ""

    def _jump(self, seconds: float) -> None:
        """Let the store's clock be wrong, or that of the present machine."""
        if not self.choices.pick(2):
            self.process.wall = seconds
            return
        if seconds < self.store_ahead:
            self.oracle.set_back = self.scheduler.steps
        self.oracle.jumped = self.scheduler.steps
        self.store_ahead = seconds

    def process_frozen(self) -> None:
        """Note that the present process was suspended until now."""
        self.oracle.thawed[self.process.name] = self.scheduler.now

    def later(self, seconds: float, effect: Callable[[], object]) -> None:
        """Let something happen later, whatever becomes of who asked for it."""

        def arrive() -> None:
            self.scheduler.sleep(seconds)
            self.say("a request arrives late")
            effect()

        self.scheduler.spawn("the network", self._network, arrive)

    def write_directly(
        self, key: str, data: bytes, modified: datetime | None = None, of: str = REPOSITORY
    ) -> Kept:
        """Write an object of a namespace as lakeFS does, or as a writer does."""
        when = modified or self.store_time()
        kept = Kept(data, etag_of(data), when, len(data))
        self.buckets["lake"][f"{of}/{key}"] = kept
        return kept

    def keep(self, key: str, kept: Kept, trash: str | None = None) -> str | None:
        """Keep what is deleted, where the store does; names what is kept."""
        if trash is not None and self.promises.trash:
            moved = f"{trash}{key.removeprefix(PREFIX)}"
            self.buckets["lake"][PREFIX + moved] = kept
            return moved
        if not self.promises.versions:
            return None
        version = self.serial()
        self._versions.setdefault(key, []).append((version, kept))
        return version

    def bring_back(self, key: str, etag: str = "", version: str | None = None) -> bool:
        """Let a kept object be at its key again, where nothing is; whether there is one."""
        bucket, kept = self.buckets["lake"], self._versions.get(key, [])
        if key in bucket:
            return False
        if self.promises.trash:
            # As a file has its name back: it is looked for in all folders of the trash.
            own, version = key.removeprefix(PREFIX), None
            moved = [k for k in bucket.between(PREFIX + TRASH, None, None) if k.endswith(f"/{own}")]
            kept = [(name, bucket[name]) for name in moved]
        for name, one in reversed(kept):
            if etag in {"", one.etag} and version in {None, name}:
                bucket.pop(name, None)
                bucket[key] = one
                self.came_back(key.removeprefix(PREFIX))
                return True
        return False

    def came_back(self, key: str) -> None:
        """The store has given an object back."""
        self.oracle.brought_back(key)

    def outcomes(self, url: str) -> list[tuple[str, str, str | None]]:
        """What a sweep that ended well says became of each object: address, outcome and why."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        kept = self.buckets[bucket]
        manifest = json.loads(kept[f"{prefix}/swept_set/manifest.json"].data)
        rows: list[tuple[str, str, str | None]] = []
        for key, *_ in manifest["parts"]["data"]:
            found = self.files.rows(kept[f"{prefix}/{key}"].data)
            rows += [(row["address"], row["outcome"], row["detail"]) for row in found]
        return rows

    def digest_of(self, url: str, asset: str) -> str:
        """Of the manifest of an asset of an attempt."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        kept = self.buckets[bucket][f"{prefix}/{asset}/manifest.json"]
        return hashlib.sha256(kept.data).hexdigest()

    # Notes for the oracle

    @property
    def goes_by_etags(self) -> bool:
        """Whether deletes are conditional."""
        return self.promises.etags or self.promises.single

    def takes_moment(self) -> None:
        """The present actor reads the clocks, and goes by all that it reads from now on."""
        actor, now = self.scheduler.current, self.oracle.now()
        if actor is not None:
            self.oracle.moments[actor.process.boot, self.elapsed()] = now
            actor.facts["moment"] = now
            actor.near = True
            self.say("begins a delta mark, or a look")

    def compares_clocks(self) -> None:
        """The present actor compares the clocks: a prune does, before it looks what is needed."""
        actor = self.scheduler.current
        if actor is not None:
            actor.facts["needed"] = self.scheduler.steps

    def asks(self, keys: Any, begun: float) -> None:
        """The present process has asked for some objects, from a time on."""
        actor = self.scheduler.current
        if actor is not None and actor.process.asked is not None:
            actor.process.asked.update((str(key), begun) for key in keys)

    def looks(self) -> None:
        """The present actor begins to read the HEADs."""
        actor = self.scheduler.current
        if actor is not None:
            actor.facts["look"] = (self.scheduler.steps, self.scheduler.now)
            actor.facts["seen"] = self.lease_and_hold()
            self.say("reads the HEADs")

    def has_looked(self, begun: int, first: Mapping[str, str]) -> None:
        """The present actor has read the HEADs, from a step on, in which they were these."""
        actor = self.scheduler.current
        if actor is not None:
            actor.facts["heads"] = (first, dict(self.lake.branches))
            readings = actor.facts.setdefault("readings", [])
            assert isinstance(readings, list)
            readings.append((begun, self.scheduler.steps))

    def tells_rules(self, rules: Mapping[str, int] | None) -> None:
        """The present actor is told the rules."""
        actor = self.scheduler.current
        if actor is not None:
            actor.facts["rules"] = rules

    def lease_and_hold(self) -> tuple[LeaseRecord | None, bool]:
        """The lease of the repository, and whether there is a hold."""
        lake = self.buckets["lake"]
        kept = lake.get(PREFIX + LEASE)
        record = _lease(kept.data) if kept else None
        hold = lake.get(PREFIX + HOLD)
        return record, hold is not None and Hold(hold.data.decode()).acceptance is None

    def sent(self, store: SimStore, keys: Sequence[str]) -> Sent | None:
        """A request that deletes is sent."""
        if store.url != NAMESPACE or keys[0].startswith("_lakefs/"):
            return None
        lease, hold = self.lease_and_hold()
        return self.oracle.sent(keys, lease, hold=hold)

    def deleted(self, store: SimStore, key: str, sent: object) -> None:
        """A delete was carried out."""
        if isinstance(sent, Sent) and store.url == NAMESPACE:
            self.oracle.deleted(key, sent)
        elif store.url == NAMESPACE and key.startswith(TRASH):
            require_another_copy(self, key.removeprefix(TRASH).partition("/")[2], "trash")

    def alone(self, ctx: Any) -> AbstractContextManager[Any]:
        """Keeps others from the repository while somebody prunes."""
        return leased_to_prune(ctx)

    def pause(self, seconds: float) -> None:
        """As ``time.sleep``."""
        self.scheduler.step("wakes up")
        self.scheduler.sleep(seconds)

    def unlisted(self, store: SimStore, keys: Sequence[str]) -> None:
        """Keys below the root of a store that a stale list lacks."""

    def written(self, store: SimStore, key: str, data: bytes) -> None:
        """An object was written."""
        if key.endswith(("hold.json", "swept_set/manifest.json")):
            self.oracle.written(store.url, key, data)

    def changed(self) -> None:
        """The lake has changed."""
        self.lake.version += 1
        if self.choices.planned:
            lake, gone = self.lake, sorted(self.oracle.deletes)
            now = f"{sorted(lake.branches.items())}{lake.staged}{lake.rules}{gone}"
            self.moods.append(zlib.crc32(now.encode()))
        self.oracle.look()


@dataclass(frozen=True)
class Result:
    """How an interleaving ended.

    Attributes:
        choices: that were made.
        world: as it was at its end.
        failure: what promise was broken; None if none was.
    """

    choices: Sequence[int]
    world: World
    failure: str | None


def run_to_end(world: World, *then: Callable[[], None]) -> Result:
    """Let all actors of the present world run, then something else, and see what was promised."""
    failure = None
    try:
        world.scheduler.run()
        for one in then:
            one()
        world.oracle.end()
    except (LossError, EndlessError) as error:
        failure = f"{type(error).__name__}: {error}"
    return Result(world.choices.made, world, failure)
