"""Deletes marked objects in a task, batch by batch; each batch is recorded before the next is sent.

Each batch is compared with the store while the batch before it is deleted. Right before a batch is
sent, the task asks lakeFS for HEADs and rules, and the store for the lease. If branches have moved,
the task extends the delta mark, and looks again. If rules have changed, or the delta mark is too
old, the task stops, and the sweep takes a new one. If the lease is lost, task and sweep stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakegc_assets.engine.datasets import read_part
from lakegc_assets.engine.tasks import interrupted
from lakegc_assets.errors import LakegcError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.marked_objects import Stretch
from lakegc_assets.run.clocks import SUSPENSION, SYSTEM_CLOCKS, Clocks, Moment
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import EXPIRED
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.batch_guard import (
    CHECK_LIFETIME,
    CHECK_TIME,
    Look,
    fingerprint_of,
    judge,
    seen_now,
)
from lakegc_assets.sweep.delete_answers import (
    NOT_SENT,
    hopeless,
    is_refused_with_others,
    sort_answers,
)
from lakegc_assets.sweep.delta_extension import (
    AddedObjects,
    Extender,
    KnownCommits,
    TooMuchError,
    read_known,
)
from lakegc_assets.sweep.hold import read_hold
from lakegc_assets.sweep.lease_record import lost, sweep_of
from lakegc_assets.sweep.ledger import Outcome
from lakegc_assets.sweep.rate_limit import RateLimiter
from lakegc_assets.sweep.store_comparison import REWRITTEN, Compared, Marked, Prefetch, compare
from lakegc_assets.sweep.task_orders import (
    LOST,
    STALE,
    STOPPED,
    SUSPENDED,
    TAKEN,
    Orders,
    Portion,
    TaskResult,
    results_of,
    summed,
)

CONNECT_TIMEOUT: Final = 5.0
REQUEST_TIMEOUT: Final = CHECK_LIFETIME - CHECK_TIME - 2 * CONNECT_TIMEOUT
#: Requests with a single key have a shorter time-out, so that many of them fit after one look.
_SINGLE_TIMEOUT: Final = 10.0
_SINGLES_TIME: Final = CHECK_LIFETIME - _SINGLE_TIMEOUT - 2 * CONNECT_TIMEOUT
#: Seconds for which a comparison with the store holds; the rest of the time is for the look.
COMPARISON_LIFETIME: Final = CHECK_LIFETIME - CHECK_TIME
#: Most looks of a task before a batch, if answers are slow or branches move meanwhile.
_LOOKS: Final = 8
#: Most looks among these that may be too slow.
_SLOW_LOOKS: Final = 3


@dataclass(frozen=True)
class TaskClients:
    """Clients and clocks of a deleting task.

    Attributes:
        deleting: store of the namespace. Its client sends each request once and has short
            time-outs: a retry could be sent after the look has become too old.
        asking: the same store, for reads.
        artifacts: the store rooted at the attempt.
    """

    client: LakeFSClient
    deleting: ObjectStore
    asking: ObjectStore
    artifacts: ObjectStore
    clocks: Clocks = SYSTEM_CLOCKS

    @classmethod
    def of(cls, orders: Orders) -> TaskClients:
        """Open the real clients."""
        to = orders.connections
        once = dataclasses.replace(
            to.stores,
            max_attempts=1,
            connect_timeout_s=CONNECT_TIMEOUT,
            read_timeout_s=_SINGLE_TIMEOUT if orders.condition == "single" else REQUEST_TIMEOUT,
        )
        deleting = open_store(to.namespace_url, once)
        artifacts = to.open(orders.artifacts_url)
        return cls(to.client(), deleting, to.store(), artifacts, orders.clocks)


class CheckedBatch(NamedTuple):
    """A batch after the look at lakeFS and at the lease.

    Attributes:
        settled: outcomes of objects that need no delete, or must not be deleted.
        to_send: objects that may be sent now.
        outdated: objects to compare with the store again first.
    """

    settled: list[Outcome]
    to_send: list[Marked]
    outdated: list[Marked]


def delete_portion(orders: Orders, portion: Portion) -> list[TaskResult]:
    """Delete a portion and return its results; a task."""
    reach = TaskClients.of(orders)
    objects = (_read(reach.artifacts, stretch) for stretch in portion.stretches)
    return summed(DeletingTask(orders, portion.number, reach).run(objects))


def _read(artifacts: ObjectStore, stretch: Stretch) -> pa.Table:
    rows = read_part(artifacts, stretch.part, Marked._fields[:4])
    return rows.slice(stretch.begin, stretch.rows)


class DeletingTask:
    """One attempt of a deleting task."""

    def __init__(self, orders: Orders, number: int, reach: TaskClients) -> None:
        self._orders = orders
        self._number = number
        self._reach = reach
        self._pace = RateLimiter(
            reach.artifacts,
            orders.notes,
            number,
            orders.limits,
            orders.share,
            reach.clocks,
        )
        # The delta mark's monotonic clock means something only on the same machine and boot.
        self._elapsed = reach.clocks.elapsed
        here = orders.taken.boot == reach.clocks.boot_id()
        self._since = orders.taken.elapsed if here else self._elapsed()
        reach.clocks.resumed()
        # A process that was started for this task may have been suspended before it watched.
        unwatched = reach.clocks.watched_since() - orders.awake
        self._slept = here and unwatched > SUSPENSION
        self._checked = 0.0
        self._store_time = orders.taken.store_time
        self._deadline: Mapping[str, Any] = {}
        self._delta = orders.delta
        self._known: KnownCommits | None = None
        self._ranges: AbstractSet[str] = frozenset()
        #: Objects that extensions keep alive, and those among them in the current stretch.
        self._found: list[AddedObjects] = []
        self._spared: dict[str, str] = {}
        #: Keys that are sent one by one: the store refused them together with a locked key, or
        #: takes them in no other way.
        self._alone: set[str] = set()
        #: True while a batch may have been sent whose outcomes are not recorded.
        self._sent = False
        self._records = 0

    def run(self, stretches: Iterable[pa.Table]) -> Iterator[TaskResult]:
        """Delete objects, and yield the results after each batch.

        ``stretches``: address, size, last_modified and etag, ordered by address.
        """
        if taken := self._pace.begin():
            yield TaskResult(TAKEN, detail=taken)
            return
        failure = ""
        try:
            for objects in stretches:
                if (yield from self._batches(objects)):
                    return
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            # An interrupted task may get no answer. Without this note no later sweep waits for it.
            with suppress(LakegcError):
                if self._sent:
                    self._pace.unanswered()
                self._pace.end(failure)

    def _batches(self, objects: pa.Table) -> Generator[TaskResult, None, bool]:
        """Delete a stretch; return True if the task must end early."""
        self._spared = self._kept_alive(objects)
        with Prefetch(self._reach.asking, objects, self._reach.clocks) as prefetch:
            return (yield from self._compared_batches(objects, prefetch))

    def _compared_batches(
        self, objects: pa.Table, prefetch: Prefetch
    ) -> Generator[TaskResult, None, bool]:
        again: list[Marked] = []
        while True:
            if reason := "the sweep was interrupted" if interrupted() else self._pace.look():
                yield TaskResult(STOPPED, detail=reason)
                return True
            most = self._pace.most(self._orders.batch)
            repeated, again = again[:most], again[most:]
            following = prefetch.take(most - len(repeated))
            if not repeated and not following:
                return False
            prefetch.begin(most)
            self._pace.wait()
            batch = self._compared_anew(repeated, following)
            if ended := self._may_not_send(objects):
                yield ended
                return True
            ready = checked_batch(batch, self._checked - CHECK_LIFETIME, self._spared)
            self._sent = bool(ready.to_send)
            found = sort_answers(ready.to_send, self.send(ready.to_send), self._space_of)
            if found.unanswered:
                self._pace.unanswered()
            outcomes = [*ready.settled, *found.outcomes]
            if outcomes:
                self._record(outcomes)
            self._sent = False
            yield from results_of(outcomes)
            if found.failed:
                self._pace.failed(found.failed[0].error_code or "", slow=found.slow)
            elif ready.to_send:
                self._pace.succeeded()
            again = [*found.again, *ready.outdated, *again]
            if failure := hopeless(found.outcomes):
                self._pace.stop(f"{failure.error_code}: {failure.address}: {failure.detail}")
                return True

    def _kept_alive(self, objects: pa.Table) -> dict[str, str]:
        """Return the objects of a stretch that extensions so far keep alive, with reasons."""
        spared: dict[str, str] = {}
        for found in self._found:
            spared = found.spares(objects) | spared
        return spared

    def _compared_anew(
        self, repeated: Sequence[Marked], following: Sequence[Compared]
    ) -> list[Compared]:
        """Compare repeated objects, and those whose comparison is too old, with the store again."""
        since = self._elapsed() - COMPARISON_LIFETIME
        fresh = [compared for compared in following if compared.asked > since]
        old = [compared.marked for compared in following if compared.asked <= since]
        return [*fresh, *compare(self._reach.asking, [*repeated, *old], self._elapsed)]

    def _may_not_send(self, objects: pa.Table) -> TaskResult | None:
        """Look until a batch may be sent, following moved branches; else return the result."""
        slow, reason = 0, ""
        for _ in range(_LOOKS):
            look = self.look()
            if self._was_suspended():
                return TaskResult(STALE, detail=SUSPENDED)
            verdict, reason = judge(look, self._delta, self._orders.taken)
            if verdict == "send":
                return None
            if verdict == "lost":
                return TaskResult(LOST, detail=reason)
            if verdict == "extend":
                try:
                    self._extend(objects, look.heads)
                except TooMuchError as error:
                    return TaskResult(STALE, detail=f"{reason}: {error}")
                continue
            slow += 1
            if verdict == "stale" or slow == _SLOW_LOOKS:
                return TaskResult(STALE, detail=reason)
        return TaskResult(STALE, detail=f"{reason}, {_LOOKS} times in a row")

    def _was_suspended(self) -> bool:
        """Return True if objects may have been staged after the delta mark that it did not see."""
        return self._slept or self._reach.clocks.resumed() >= self._since

    def _is_late(self, seconds: float) -> bool:
        """Return True if it is too late to send: by the time since the look, or an interrupt."""
        late = self._elapsed() - self._checked >= seconds
        return late or self._was_suspended() or interrupted()

    def look(self) -> Look:
        """Read the current HEADs, rules, hold and lease."""
        orders, asking = self._orders, self._reach.asking
        self._checked = self._elapsed()
        heads, seen = seen_now(
            self._reach.client,
            orders.repository,
            protect_tags=orders.protect_tags,
            retain=orders.retain,
        )
        # The store's time is read after all slow requests, and before the lease.
        now = Moment.now(asking, self._reach.clocks)
        look = Look(
            seen=seen,
            heads=heads,
            now=now,
            lost=lost(asking, orders.lease, orders.number, now.store_time),
            held=read_hold(asking) is not None,
            took=self._elapsed() - self._checked,
        )
        self._store_time = now.store_time
        self._deadline = deadline_of(orders, look)
        return look

    def _extend(self, objects: pa.Table, seen: Mapping[str, str]) -> None:
        """Follow the branches that have moved, and spare the objects that they now hold.

        ``seen``: HEAD of each branch, as the look found it.

        Raises:
            TooMuchError: a task cannot find these objects.
        """
        orders = self._orders
        if orders.known is None:
            raise TooMuchError("this delta mark cannot be extended")
        if self._known is None:
            self._known, self._ranges = read_known(self._reach.artifacts, orders.known)
        extender = Extender(orders.connections, self._reach.client, orders.repository)
        self._known, found = extender.extend(self._known, self._ranges, seen)
        self._ranges |= found.ranges
        self._found.append(found)
        self._spared = found.spares(objects) | self._spared
        heads = fingerprint_of(self._known.heads, None, {}).heads
        self._delta = self._delta._replace(heads=heads)

    def send(self, batch: Sequence[Marked]) -> list[DeleteOutcome]:
        """Send the request of a batch, or one request for each key, while it is not too late.

        Single requests are needed for some conditions and some keys, and after the store has
        refused a request as a whole because one of its keys is locked: only single requests show
        which key is locked.
        """
        if self._orders.condition == "single":
            return self._send_singly(batch, _SINGLES_TIME)
        is_alone = self._reach.deleting.is_deleted_alone
        self._alone |= {marked.address for marked in batch if is_alone(marked.address)}
        if alone := [marked for marked in batch if marked.address in self._alone]:
            answers = self._send_singly(alone, CHECK_TIME)
            self._alone -= {answer.key for answer in answers}
            return answers
        if not batch or self._is_late(CHECK_TIME):
            return []
        answers = self._delete(batch)
        refused = {answer.key for answer in answers if is_refused_with_others(answer)}
        if refused:
            self._alone |= refused | {one.key for one in answers if one.error_code == NOT_SENT}
        return [answer for answer in answers if answer.key not in self._alone]

    def _send_singly(self, batch: Sequence[Marked], seconds: float) -> list[DeleteOutcome]:
        """Send a request for each key, until ``seconds`` after the look, or until a failure."""
        answers: list[DeleteOutcome] = []
        for marked in batch:
            self._pace.wait()
            if self._is_late(seconds):
                break
            answers += self._delete([marked])
            if answers[-1].outcome == "failed":
                break
        return answers

    def _delete(self, batch: Sequence[Marked]) -> list[DeleteOutcome]:
        condition = self._orders.condition
        self._pace.sent(len(batch))
        answers = self._reach.deleting.delete_many(
            [marked.address for marked in batch],
            {marked.address: marked.etag for marked in batch} if condition != "none" else None,
            singly=condition == "single",
            trash=self._orders.trash,
            **self._deadline,
        )
        if self._reach.deleting.watches_deadlines:
            # Keys that are left over at the deadline were not sent, and have not failed.
            answers = [answer for answer in answers if answer.error_code != EXPIRED] or answers
        return list(answers)

    def _space_of(self, marked: Marked, answer: DeleteOutcome) -> str:
        """Return the state of the space of an object that the store has just deleted."""
        protection, now = self._orders.protection, self._store_time
        by_settings = protection.space_of(answer.version, marked.last_modified, now)
        return answer.detail or by_settings

    def _record(self, outcomes: Sequence[Outcome]) -> None:
        name = f"{sweep_of(self._orders.lease)}-{self._orders.number:04d}-{self._number:05d}"
        name = f"{name}-{self._records:06d}"
        ledger.record(self._reach.artifacts, name, outcomes, self._reach.clocks)
        self._records += 1


def deadline_of(orders: Orders, look: Look) -> Mapping[str, Any]:
    """Return the deadline, by the store's clock, of requests that are sent after a look."""
    if orders.expires_s is None:
        return {}
    # The store's time was read within the look, so no more than the look's duration had passed.
    return {"expires_s": int(orders.expires_s - look.took), "since": look.now.store_time}


def checked_batch(
    batch: Sequence[Compared], since: float, spared: Mapping[str, str]
) -> CheckedBatch:
    """Sort a batch into objects to send, settled objects, and objects to compare again.

    ``since``: comparisons up to this time are outdated. ``spared``: objects to spare, with reasons.
    """
    ready = CheckedBatch([], [], [])
    for marked, state, asked in batch:
        reason = spared.get(marked.address) or (REWRITTEN if state == "rewritten" else None)
        if asked <= since:
            ready.outdated.append(marked)
        elif state == "missing":
            ready.settled.append(Outcome(marked.address, marked.size, "already_missing"))
        elif reason:
            ready.settled.append(Outcome(marked.address, marked.size, "spared", detail=reason))
        else:
            ready.to_send.append(marked)
    return ready
