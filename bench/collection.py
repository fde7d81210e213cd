"""A whole collection of a synthetic repository and its floors: cold mark, warm mark, sweep.

A quarter of the objects was overwritten long ago and expired; the others are live on main. Objects
are local files (``--store local``), or keys of versitygw, a real S3 server on this machine, which
needs Go. With ``pages``, they exist only in prepared pages of listings, so that millions of them
need no other resources; such objects are marked once, and not swept. Memory is that of the
collector: the servers are other processes.

    python -m bench.collection --objects 1000000 --store versitygw
    python -m bench.collection --objects 10000000 --store pages
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from bench._collector import Collector
from bench._floors import bare_deletes, beside, floors
from bench._lake import DAY, REPOSITORY, Place, planted
from bench._memory import watched
from bench._pages import KEYS_EACH, NAMESPACE, SIZE, Pages
from bench._ranges import entry_values, rows_of, write_rows
from bench._run import ObjectFiles, RealS3, real_s3, timed
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.refs import history
from lakegc_assets.graveler.ranges import RangeInfo, write_metarange

_RANGE = 50_000

#: Makes objects of a time (epoch seconds) in a number; returns addresses, etags and sizes.
_Make = Callable[[float, int], tuple[list[str], list[str], list[int]]]


@dataclass(frozen=True)
class Overwritten:
    """Plants objects of 100 days ago, of which others replaced some 90 days ago.

    Attributes:
        objects: their number.
        expired: number of replaced objects.
        pages: slices of prepared pages that name the objects; None to write them.
        copies: number of paths of each live object.
    """

    objects: int
    expired: int
    pages: int | None
    copies: int = 1

    def __call__(self, server: EmbeddedLakeFS, files: ObjectFiles) -> int:
        """Write the objects; the number of garbage objects."""
        make = _named(Pages.alike(self.pages)) if self.pages else _written(server, files)
        timed(f"plant {self.objects:,} objects", lambda: self._plant(server, make))
        return self.expired

    def _plant(self, server: EmbeddedLakeFS, make: _Make) -> None:
        lake = server.lake
        with lake.state.read() as db:
            repo = catalog.repository(db, REPOSITORY)
        store = lake.stores.open(repo.namespace)

        def write(days: int, first: int, last: int, copies: int) -> list[list[RangeInfo]]:
            moment = time.time() - days * DAY
            trees: list[list[RangeInfo]] = [[] for _ in range(copies)]
            for at in range(first, last, _RANGE):
                objects = make(moment, min(_RANGE, last - at))
                for number, tree in enumerate(trees):
                    info, data = _range(number, at, *objects, moment)
                    store.put(f"_lakefs/{info.id}", data)
                    tree.append(info)
            return trees

        def commit(days: int, tree: list[RangeInfo]) -> None:
            metarange, data = write_metarange(tree)
            store.put(f"_lakefs/{metarange}", data)
            history.commit_tree(
                lake, REPOSITORY, "main", metarange, message=f"{days} days ago", metadata={},
                date=int(time.time() - days * DAY),
            )  # fmt: skip

        (replaced,) = write(100, 0, self.expired, 1)
        kept = write(100, self.expired, self.objects - self.expired, self.copies)
        commit(100, replaced + kept[0])
        new = write(90, 0, self.expired, self.copies)
        commit(90, [one for pair in zip(new, kept, strict=True) for tree in pair for one in tree])


def _range(
    copy: int, first: int, addresses: list[str], etags: list[str], sizes: list[int], moment: float
) -> tuple[RangeInfo, bytes]:
    numbers = range(first, first + len(etags))
    paths = [f"table{copy}/part={n // 1000:06d}/{n:09d}.parquet" for n in numbers]
    values = entry_values(
        rows_of(addresses), rows_of(etags), np.array(sizes, np.int64), int(moment)
    )
    return write_rows(rows_of(paths), values)


def _named(pages: Pages) -> _Make:
    """Take the next objects of the pages."""
    named = pages.named()

    def make(_moment: float, count: int) -> tuple[list[str], list[str], list[int]]:
        addresses, etags = zip(*islice(named, count), strict=True)
        return list(addresses), list(etags), [SIZE] * count

    return make


def _written(server: EmbeddedLakeFS, files: ObjectFiles) -> _Make:
    rng = random.Random(1)

    def make(moment: float, count: int) -> tuple[list[str], list[str], list[int]]:
        slices = server.lake.slices
        addresses = [slices.new_address(REPOSITORY, moment, backdated=True) for _ in range(count)]
        etags = [f"{rng.getrandbits(128):032x}" for _ in range(count)]
        sizes = [rng.randrange(1 << 21, 1 << 23) for _ in range(count)]
        for address, etag, size in zip(addresses, etags, sizes, strict=True):
            files.write(f"{NAMESPACE}/{address}", size, moment, etag)
        return addresses, etags, sizes

    return make


def _collect(
    collector: Collector, garbage: int, s3: RealS3 | None, *, cold_only: bool, clean: bool
) -> None:
    """Mark twice and sweep, and then measure the floors."""
    with floors() as bare:
        with watched() as memory:
            cold, cold_s = collector.mark("cold")
            cold.candidates(garbage)
            if not cold_only:
                warm, warm_s = collector.mark("warm", clean=clean)
                warm.candidates(garbage)
        floor = bare.mark(cold.ctx)
    beside("cold mark", cold_s, floor)
    if not cold_only:
        beside("warm mark", warm_s, floor)
        with watched() as sweeping:
            sweep_s = warm.sweep()
        memory.peaks = {k: max(v, sweeping.peaks[k]) for k, v in memory.peaks.items()}
        if s3:
            beside("sweep", sweep_s, _deletes(s3, garbage))
    memory.show()
    collector.session.stop()


def _deletes(s3: RealS3, count: int) -> float:
    """Seconds of a bare loop that deletes the same number of objects."""
    keys = [f"floor/{n // KEYS_EACH:06}/{n:09}" for n in range(count)]
    for key in keys:
        s3.files.write(key, 1, time.time(), "0" * 32)
    return timed("  floor: bare deletes", partial(bare_deletes, s3.server.endpoint, keys))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000, help="(%(default)s)")
    parser.add_argument("--store", choices=("local", "versitygw", "pages"), default="local")
    parser.add_argument("--expired", type=int, help="how many of them; a quarter by default")
    parser.add_argument("--clean", action="store_true", help="list all for the warm mark, too")
    parser.add_argument("--cold-only", action="store_true", help="no warm mark and no sweep")
    arguments = parser.parse_args()
    objects, expired, pages = arguments.objects, arguments.expired, None
    if arguments.store == "pages":
        pages = max(1, objects // KEYS_EACH)
        objects = pages * KEYS_EACH
    expired = objects // 4 if expired is None else min(expired, objects // 2)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = None
        if arguments.store != "local":
            s3 = stack.enter_context(real_s3(folder / "versitygw"))
        address, files = (s3.server.address, s3.files) if s3 else (None, None)
        place = Place(folder / "lakefs", address, files, pages)
        found = stack.enter_context(planted(place, Overwritten(objects, expired, pages)))
        collector = Collector.new(folder, REPOSITORY, local_root=found.local_root)
        cold_only = arguments.cold_only or pages is not None
        _collect(collector, found.garbage, s3, cold_only=cold_only, clean=arguments.clean)


if __name__ == "__main__":
    main()
