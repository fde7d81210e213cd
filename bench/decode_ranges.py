"""Measures the entries per second that each of the three readers of ranges decodes on one core."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench._pages import NAMESPACE
from bench._run import BUCKET
from lakegc_assets.checks.witness import witness
from lakegc_assets.graveler.decode import decode_range
from lakegc_assets.graveler.entry import AddressType, Entry, Timestamp
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.graveler.ranges import read_range, write_range


def entries_per_second(
    read: Callable[[bytes, str], Any], data: bytes, name: str, entries: int, rounds: int
) -> float:
    """Entries per second in the best of some rounds, by CPU time of this process."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        read(data, name)
        best = min(best, time.process_time() - start)
    return entries / best


def synthetic_entry(number: int) -> Entry:
    return Entry(
        address=f"data/ft6u4f9ksduedv02f91g/{number * 0x9E3779B97F4A7C15 % 2**100:020x}",
        last_modified=Timestamp(1_795_236_036 + number, 123_456_789),
        size=number % 1_000_000,
        e_tag=f"{number * 0xD6E8FEB86659FD93 % 2**128:032x}",
        address_type=AddressType.RELATIVE,
        content_type="application/octet-stream",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=200_000, help="in the range (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="the best one counts (%(default)s)")
    options = parser.parse_args()
    start = time.process_time()
    info, data = write_range(
        (f"table/day={number // 1000:05}/part-{number % 1000:05}.parquet", synthetic_entry(number))
        for number in range(options.entries)
    )
    written = options.entries / (time.process_time() - start)
    print(f"range     {options.entries:>12,} entries, {len(data):,} bytes")
    print(f"write     {written:>12,.0f} entries/s")
    decode_range(data, info.id)
    second = partial(witness, namespace=StorageNamespace.parse(f"s3://{BUCKET}/{NAMESPACE}"))
    readers: list[tuple[str, Callable[[bytes, str], Any], int]] = [
        ("fast", decode_range, options.rounds),
        ("witness", second, options.rounds),
        ("slow", read_range, 1),
    ]
    second(data, info.id)
    for label, read, rounds in readers:
        rate = entries_per_second(read, data, info.id, options.entries, rounds)
        print(f"{label:<8}  {rate:>12,.0f} entries/s")


if __name__ == "__main__":
    main()
