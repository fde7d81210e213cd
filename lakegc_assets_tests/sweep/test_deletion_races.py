"""Changes of an object between the look and its delete, and deletes that are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakegc_assets.storage.values import DeleteOutcome
from lakegc_assets.sweep.task_orders import Orders
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.sweep.deleting import (
    Time,
    fill,
    keys,
    meddling,
    names,
    orders,
    plant,
    recorded,
    run,
    s3_orders,
    s3_time,
    slow_answers,
    time,
)

__all__ = ["orders", "s3_orders", "s3_time", "time"]


def test_an_object_that_was_rewritten_is_spared(bare: SmallLake, orders: Orders) -> None:
    """Whatever it holds now, and although the deletes are not conditional."""
    addresses = plant(bare, 3)
    task = run(orders, addresses)
    content = (bare.objects / addresses[1]).read_bytes()
    orders.connections.store().put(addresses[1], content)
    assert names(task) == ["spared", "deleted", "deleted"]
    assert recorded(orders) == dict.fromkeys(addresses, "deleted") | {addresses[1]: "spared"}
    assert set(addresses) & bare.keys() == {addresses[1]}


@pytest.mark.parametrize("condition", ["bulk", "none"])
def test_only_the_condition_spares_what_is_rewritten_after_the_look(
    bare: SmallLake, orders: Orders, condition: Any
) -> None:
    addresses = plant(bare, 3)

    def rewrite(keys: Sequence[str]) -> None:
        if addresses[1] in keys:
            orders.connections.store().put(addresses[1], b"written again")

    conditional = replace(orders, condition=condition)
    reach, _ = meddling(conditional, rewrite)
    list(run(conditional, addresses, reach=reach))
    spared = {addresses[1]} if condition == "bulk" else set()
    assert set(addresses) & bare.keys() == spared
    assert {a for a, outcome in recorded(orders).items() if outcome == "spared"} == spared


def test_single_deletes_are_conditional_where_bulk_ones_are_not(s3_orders: Orders) -> None:
    """Moto honours the condition of single deletes only."""
    addresses = list(fill(s3_orders, 5))
    store = s3_orders.connections.store()

    def happen(keys: Sequence[str]) -> None:
        if addresses[3] in keys:
            store.put(addresses[3], b"written again")
        if addresses[4] in keys:
            store.delete_many([addresses[4]])

    single = replace(s3_orders, condition="single")
    reach, _ = meddling(single, happen)
    list(run(single, addresses, reach=reach))
    expected = dict.fromkeys(addresses, "deleted")
    expected |= {addresses[3]: "spared", addresses[4]: "already_missing"}
    assert recorded(s3_orders) == expected
    assert keys(s3_orders) == {addresses[3]}


def test_single_deletes_stop_when_the_look_is_old(s3_orders: Orders, s3_time: Time) -> None:
    """Each batch is begun again with a new look; no key is lost on the way."""
    addresses = list(fill(s3_orders, 4))
    single = replace(s3_orders, condition="single", batch=4)
    sent: list[float] = []

    def take_time(_keys: Sequence[str]) -> None:
        sent.append(s3_time.now)
        s3_time.now += 25

    reach, _ = meddling(single, take_time, s3_time)
    assert names(run(single, addresses, reach=reach)) == ["deleted", "deleted"]
    assert recorded(s3_orders) == dict.fromkeys(addresses, "deleted")
    assert [at - sent[0] for at in sent] == [0, 25, 50, 75]


def test_keys_that_take_a_request_of_their_own_are_sent_while_the_look_is_new(
    s3_orders: Orders, s3_time: Time
) -> None:
    """Many of them take longer than a batch; the other keys of their batch follow."""
    store = s3_orders.connections.store()
    odd = [f"data/s/{n}%41" for n in range(3)]
    plain = list(fill(s3_orders, 2))
    for address in odd:
        store.put(address, b"content")
    sent: list[tuple[Sequence[str], float]] = []

    def take_time(keys: Sequence[str]) -> None:
        sent.append((keys, s3_time.now))
        s3_time.now += 10

    whole = replace(s3_orders, condition="none", batch=5)
    reach, _ = meddling(whole, take_time, s3_time)
    list(run(whole, [*plain, *odd], reach=reach))
    assert recorded(s3_orders) == dict.fromkeys([*plain, *odd], "deleted")
    assert [list(keys) for keys, _ in sent] == [[odd[0]], [odd[1]], [odd[2]], plain]


@pytest.mark.parametrize("condition", ["none", "single"])
def test_a_delete_carries_what_is_left_of_its_minute(
    bare: SmallLake, orders: Orders, time: Time, condition: Any
) -> None:
    """From the time that the store told in the look, whenever it is sent."""
    addresses = plant(bare, 4)
    slow_answers(bare, time, [14, 3])
    dated = replace(orders, condition=condition, expires_s=60)

    def take_time(_keys: Sequence[str]) -> None:
        time.now += 2

    reach, store = meddling(dated, take_time, time)
    list(run(dated, addresses, reach=reach))
    left = [call["expires_s"] for call in store.calls]
    assert left == ([46, 57] if condition == "none" else [46, 46, 57, 57])
    told = [call["since"] for call in store.calls]
    assert told == sorted(told)
    assert len(set(told)) == 2
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")


def test_what_the_store_refused_as_late_is_sent_again(
    bare: SmallLake, orders: Orders, time: Time
) -> None:
    """With a new look before it."""
    addresses = plant(bare, 2)
    looks: list[str] = []
    rules = "/settings/gc_rules"
    bare.on_request = lambda _, path: looks.append(path) if path.endswith(rules) else None
    dated = replace(orders, expires_s=60)
    reach, store = meddling(dated, lambda _keys: None, time)
    late = [[DeleteOutcome(a, "failed", "Expired", "too late") for a in addresses]]
    send = store.delete_many

    def refuse_once(keys: Sequence[str], *args: Any, **more: Any) -> Sequence[DeleteOutcome]:
        return late.pop() if late else send(keys, *args, **more)

    store.delete_many = refuse_once  # type: ignore[method-assign]
    assert names(run(dated, addresses, reach=reach)) == ["deleted"]
    assert len(looks) == 2
    assert recorded(orders) == dict.fromkeys(addresses, "deleted")
