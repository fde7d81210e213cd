"""A repository with a long history of small commits: many versions of a few large ranges.

125,000 uploads of 64 bytes, 250 commits on 100 branches within 90 days, of which 40 branches were
deleted. Of 25,000 staged uploads, 40 % are still staged; the others were overwritten, deleted or
lost with their branch. All sizes are equal, so only etags distinguish objects. The lakeFS is the
embedded one, its store versitygw, a real S3 server, which needs Go. It marks with empty caches,
marks again and sweeps: each stage is compared with its floor.

    python -m bench.big --scale 1
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench._collector import Collector
from bench._floors import bare_deletes, beside, floors
from bench._lake import DAY, REPOSITORY, Place, planted
from bench._memory import watched
from bench._pages import NAMESPACE
from bench._run import ObjectWriter, RealS3, real_s3, timed
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.lake.catalog import Commit
from lakegc_assets.embedded.lake.trees import commit_changes
from lakegc_assets.embedded.refs import staging
from lakegc_assets.engine.choice import ENGINE_SETTINGS
from lakegc_assets.graveler.entry import Entry, Timestamp
from lakegc_assets.graveler.ranges import range_record
from lakegc_assets.graveler.sstable import Record
from lakegc_assets.retention.commits import Commit as Walked
from lakegc_assets.retention.naive_active_commits import naive_active_commits
from lakegc_assets.retention.rules import Rules

_SIZE = 64
_SPAN_DAYS = 90
_RULE_DAYS = 30
#: Age of all uploads in days, older than the cutoff.
_UPLOADED_DAYS = 2


@dataclass(frozen=True)
class History:
    """Plants the repository.

    Attributes:
        uploads: number of committed uploads.
        staged: number of uploads that were staged only.
        commits: of all branches.
        branches: main included.
        deleted: number of deleted branches.
    """

    uploads: int
    staged: int
    commits: int
    branches: int
    deleted: int

    def __call__(self, server: EmbeddedLakeFS, files: ObjectWriter) -> int:
        """Write the repository; the number of garbage objects."""
        planting = _Planting(server, files)
        timed(f"plant {self.uploads + self.staged:,} objects", lambda: self._plant(planting))
        return planting.garbage()

    def _plant(self, planting: _Planting) -> None:
        rng, now = random.Random(1), int(time.time())
        per = self.uploads // self.commits
        of_main = max(2, int(self.commits * 0.4))
        mains: list[str] = []
        for n in range(of_main):
            count = per + (self.uploads - per * self.commits if n == 0 else 0)
            over = int(count * 0.3) if n else 0
            paths = [f"main/part={n:04d}/f{x:06d}" for x in range(count - over)]
            paths += [f"main/part={n - 1:04d}/f{x:06d}" for x in range(over)]
            ago = _SPAN_DAYS * DAY * (1 - n / (of_main - 1)) + 3600
            mains.append(planting.commit("main", paths, (), now - int(ago)))
        names = [f"feature-{n:03d}" for n in range(self.branches - 1)]
        deleted = set(names[:: max(1, len(names) // self.deleted)][: self.deleted])
        for number, name in enumerate(names):
            # Branches that are deleted later start early, so that their objects expire.
            at = rng.randrange(of_main // 2 if name in deleted else of_main)
            planting.branch(name, mains[at])
            share, rest = divmod(self.commits - of_main, len(names))
            for c in range(share + (number < rest)):
                base = planting.paths(name)
                gone = rng.sample(base, min(len(base), max(1, per // 10))) if c == 0 else []
                paths = [f"{name}/c{c}/f{x:06d}" for x in range(per)]
                date = min(planting.date(mains[at]) + 7200 * (c + 1), now - 60)
                planting.commit(name, paths, gone, date)
        self._stage(planting, ["main", *(name for name in names if name not in deleted)])
        for name in sorted(deleted):
            planting.drop(name)

    def _stage(self, planting: _Planting, branches: list[str]) -> None:
        """Stage uploads: 40 % stay, 20 % are overwritten by some of these, the others are lost."""
        kept, replaced = int(self.staged * 0.4), int(self.staged * 0.2)
        planting.stage((branches[n % len(branches)], f"staged/k{n:06d}") for n in range(kept))
        planting.upload(replaced)
        planting.upload(self.staged - kept - replaced)


@dataclass
class _Planting:
    """A repository in the making.

    Attributes:
        server: the embedded lakeFS.
        files: of its store.
        uploaded: number of objects until now.
        staged: numbers of staged objects.
        trees: trees of commits: paths and numbers of objects.
        made: the commits.
        heads: by branch.
    """

    server: EmbeddedLakeFS
    files: ObjectWriter
    uploaded: int = 0
    staged: set[int] = field(default_factory=set)
    trees: dict[str, Mapping[bytes, int]] = field(default_factory=dict)
    made: dict[str, Commit] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lake = self.server.lake
        with lake.state.read() as db:
            self._repo = catalog.repository(db, REPOSITORY)
            first = catalog.commit(db, self._repo, catalog.branch(db, self._repo, "main").commit_id)
        self._lake, self._rng = lake, random.Random(2)
        self._moment = time.time() - _UPLOADED_DAYS * DAY
        self.made[first.id], self.trees[first.id] = first, {}
        self.heads["main"] = first.id

    def _new(self) -> Entry:
        """Write a new object to the store."""
        address = self._lake.slices.new_address(REPOSITORY, self._moment, backdated=True)
        content = self._rng.randbytes(_SIZE)
        # A mark reads a few objects to test whether etags are checksums.
        etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self.files.write(f"{NAMESPACE}/{address}", _SIZE, self._moment, etag, content)
        self.uploaded += 1
        return Entry(address, Timestamp(int(self._moment)), _SIZE, etag)

    def upload(self, count: int) -> None:
        """Upload objects that no entry names."""
        for _ in range(count):
            self._new()

    def stage(self, places: Iterable[tuple[str, str]]) -> None:
        """Stage an object at each of the given branches and paths."""
        with self._lake.state.write() as db:
            branches = {b.name: b for b in catalog.branches(db, self._repo)}
            for branch, path in places:
                self.staged.add(self.uploaded)
                record = range_record(path, self._new())
                staging.stage(db, branches[branch], (record.key, record))

    def branch(self, name: str, source: str) -> None:
        """Make a branch from a commit."""
        with self._lake.state.write() as db:
            catalog.insert_branch(db, self._repo, name, source, hidden=False)
        self.heads[name] = source

    def drop(self, name: str) -> None:
        """Delete a branch."""
        with self._lake.state.write() as db:
            catalog.delete_branch(db, catalog.branch(db, self._repo, name))
        del self.heads[name]

    def paths(self, branch: str) -> list[bytes]:
        """The paths of the HEAD of a branch, in order."""
        return sorted(self.trees[self.heads[branch]])

    def date(self, commit: str) -> int:
        """The time of a commit, in epoch seconds."""
        return self.made[commit].creation_date

    def commit(self, branch: str, paths: Iterable[str], gone: Sequence[bytes], date: int) -> str:
        """Upload to some paths of a branch, delete others, commit; the commit's id."""
        head = self.made[self.heads[branch]]
        tree = dict(self.trees[head.id])
        changes: dict[bytes, Record | None] = dict.fromkeys(gone)
        for key in gone:
            del tree[key]
        for path in paths:
            number = self.uploaded
            record = range_record(path, self._new())
            changes[record.key], tree[record.key] = record, number
        trees = self._lake.stores.trees(self._repo)
        metarange, _ = commit_changes(trees, head.metarange_id, sorted(changes.items(), key=_key))
        made = Commit.new(
            committer="bench", message=f"on {branch}", metarange_id=metarange,
            creation_date=date, metadata={}, parents=(head,),
        )  # fmt: skip
        with self._lake.state.write() as db:
            catalog.insert_commit(db, self._repo, made)
            catalog.move_branch(db, catalog.branch(db, self._repo, branch), made.id)
        self.made[made.id], self.trees[made.id] = made, tree
        self.heads[branch] = made.id
        return made.id

    def garbage(self) -> int:
        """The number of objects that neither an active commit nor a branch needs."""
        walked = {
            c.id: Walked(c.id, c.parents, c.creation_date, c.metarange_id)
            for c in self.made.values()
        }
        rules, now = Rules(_RULE_DAYS, {}), datetime.now(timezone.utc)
        active = naive_active_commits(walked, self.heads, rules, now)
        live = self.staged.union(*(self.trees[commit].values() for commit in active))
        return self.uploaded - len(live)


def _key(change: tuple[bytes, Record | None]) -> bytes:
    return change[0]


def _deletes(s3: RealS3, count: int) -> Callable[[], float]:
    """Seconds of a bare loop that deletes the same number of objects."""
    keys = [f"floor/{n // 10_000:06}/{n:09}" for n in range(count)]
    for key in keys:
        s3.files.write(key, _SIZE, time.time(), "0" * 32)
    return lambda: bare_deletes(s3.server.endpoint, keys)


def _measure(s3: RealS3, folder: Path, history: History, engine: str, *, clean: bool) -> None:
    place = Place(folder / "lakefs", s3.server.address, s3.files)
    with planted(place, history) as found, floors() as bare:
        collector = Collector.new(folder, REPOSITORY, engine=engine)
        with watched() as memory:
            cold, cold_s = collector.mark("cold")
            garbage = cold.candidates(found.garbage)
            warm, warm_s = collector.mark("warm", clean=clean)
            warm.candidates(found.garbage)
        memory.show()
        floor = bare.mark(cold.ctx)
        beside("cold mark", cold_s, floor)
        beside("warm mark", warm_s, floor)
        with watched() as memory:
            sweep_s = warm.sweep()
        memory.show()
        beside("sweep", sweep_s, _deletes(s3, garbage)())
        collector.session.stop()


def history_of(scale: float) -> History:
    """The history of a scale; 1 for the full size."""
    return History(
        uploads=int(100_000 * scale),
        staged=int(25_000 * scale),
        commits=max(10, int(250 * scale)),
        branches=max(4, int(100 * scale)),
        deleted=max(1, int(40 * scale)),
    )


@click.command()
@click.option("--scale", default=0.05, show_default=True, help="1 for the whole repository.")
@click.option("--engine", type=click.Choice(ENGINE_SETTINGS), default="auto", show_default=True)
@click.option("--clean", is_flag=True, help="List all for the second mark, too.")
def main(*, scale: float, engine: str, clean: bool) -> None:
    """Plant, mark twice, sweep."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        s3 = stack.enter_context(real_s3(folder / "versitygw"))
        _measure(s3, folder, history_of(scale), engine, clean=clean)


if __name__ == "__main__":
    main()
