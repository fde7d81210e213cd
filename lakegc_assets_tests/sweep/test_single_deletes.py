"""Keys that S3 deletes one by one: each takes one request, which counts for the rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.rate_limit import Limits
from lakegc_assets.sweep.task_orders import Orders
from lakegc_assets_tests.sweep.deleting import (
    Time,
    fill,
    keys,
    reach_at,
    recorded,
    run,
    s3_orders,
    s3_time,
)

__all__ = ["s3_orders", "s3_time"]

_ODD = ["data/s/a%41", "data/s/a+b", "data/s/two  blanks"]


@dataclass
class Counting:
    """A store that counts the keys of each call, and is too busy for one call about this key."""

    store: ObjectStore
    busy: str | None = None
    calls: list[Sequence[str]] = field(default_factory=list)

    watches_deadlines = False

    def is_deleted_alone(self, key: str) -> bool:
        return self.store.is_deleted_alone(key)

    def delete_many(
        self, keys: Sequence[str], etags: Mapping[str, str] | None = None, **more: Any
    ) -> Sequence[DeleteOutcome]:
        self.calls.append(keys)
        if [self.busy] == list(keys):
            self.busy = None
            return [DeleteOutcome(keys[0], "failed", "SlowDown", "later")]
        return self.store.delete_many(keys, etags, **more)


def _calls(orders: Orders, time: Time, busy: str | None = None) -> list[Sequence[str]]:
    """The calls that delete 20 objects, of which 3 have odd keys."""
    store = orders.connections.store()
    etags = fill(orders, 17) | {key: store.put(key, b"odd") for key in _ODD}
    reach = reach_at(orders, time)
    counting = Counting(reach.deleting, busy)
    reach = replace(reach, deleting=cast("ObjectStore", counting))
    list(run(orders, sorted(etags), etags, reach))
    assert keys(orders) == set()
    assert recorded(orders) == dict.fromkeys(etags, "deleted")
    return counting.calls


def test_a_batch_is_one_request_and_one_for_each_odd_key(s3_orders: Orders, s3_time: Time) -> None:
    calls = _calls(replace(s3_orders, batch=20), s3_time)
    assert sorted(map(len, calls)) == [1, 1, 1, 17]


def test_single_deletes_keep_the_rate_of_requests(s3_orders: Orders, s3_time: Time) -> None:
    """Of four requests, the last is sent after three pauses of half a second."""
    slow = replace(s3_orders, batch=20, limits=Limits(keys=10**6, requests=2))
    begun = s3_time.now
    assert len(_calls(slow, s3_time)) == 4
    assert s3_time.now - begun >= 1.5


def test_an_odd_key_that_fails_takes_one_more_request(s3_orders: Orders, s3_time: Time) -> None:
    calls = _calls(replace(s3_orders, batch=20), s3_time, busy=_ODD[1])
    assert sorted(map(len, calls)) == [1, 1, 1, 1, 17]
    assert [calls.count([key]) for key in _ODD] == [1, 2, 1]
