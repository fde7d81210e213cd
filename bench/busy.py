"""A sweep with a commit every second, compared with the same sweep of a quiet repository.

The repository is that of ``bench.big``. In every ten commits, one branch is made from an expired
commit, and one commit is reverted, so that objects that are being deleted may be needed again. At
the end, each object that any other branch serves must exist. An object that a branch from an
expired commit lacks was deleted before the branch was made, and reads as 410 Gone.

    python -m bench.busy --scale 1
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench._collector import Collector
from bench._lake import REPOSITORY, Place, planted
from bench._pages import NAMESPACE
from bench._run import RealS3, real_s3
from bench.big import History
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.config import LakeFSConfig

_EVERY = 10
#: Branches from expired commits.
_AGAIN = "again-"


class _Writer:
    """Commits to main at a period; makes branches from expired commits, and reverts commits."""

    def __init__(self, period_s: float) -> None:
        self._client = LakeFSConfig().connect_writer()
        self._period_s = period_s
        self._over = threading.Event()
        self.commits = 0

    def __call__(self) -> None:
        """Commit until ``stop``."""
        expired = self._expired()
        for number in itertools.count():
            if self._over.wait(self._period_s):
                return
            path, branch = f"busy/{number:06d}", "main"
            self._client.upload_object(REPOSITORY, branch, path, b"busy %d" % number)
            made = self._client.commit_branch(REPOSITORY, branch, f"busy {number}")
            self.commits += 1
            if number % _EVERY == 0 and expired:
                source = expired[number // _EVERY % len(expired)]
                self._client.create_branch(REPOSITORY, f"{_AGAIN}{number:06d}", source)
            elif number % _EVERY == _EVERY // 2:
                self._client.revert(REPOSITORY, branch, made.id)

    def _expired(self) -> list[str]:
        """Commits of main, the oldest first."""
        client = LakeFSConfig().connect()
        head = client.branch(REPOSITORY, "main").commit_id
        return [commit.id for commit in client.log(REPOSITORY, head)][:1:-1]

    def stop(self) -> None:
        """Stop after the current commit."""
        self._over.set()


@contextmanager
def _writing(period_s: float) -> Iterator[_Writer]:
    writer = _Writer(period_s)
    thread = threading.Thread(target=writer)
    thread.start()
    try:
        yield writer
    finally:
        writer.stop()
        thread.join()


def _lost(s3: RealS3, *, of_expired: bool) -> int:
    """The number of objects that branches serve and the store lacks."""
    client = LakeFSConfig().connect()
    lost: set[str] = set()
    for branch in client.branches(REPOSITORY):
        if branch.id.startswith(_AGAIN) is not of_expired:
            continue
        after, more = "", True
        while more:
            page, more = client.objects_page(REPOSITORY, branch.id, after=after, amount=1000)
            for one in page:
                after = one.path
                key = one.physical_address.split(f"/{NAMESPACE}/", 1)[1]
                if not (s3.files.folder / NAMESPACE / key).exists():
                    lost.add(key)
    return len(lost)


def _sweep(folder: Path, history: History, period_s: float | None) -> float:
    """Plant, mark and sweep; objects per second."""
    folder.mkdir()
    with ExitStack() as stack:
        s3 = stack.enter_context(real_s3(folder / "versitygw"))
        place = Place(folder / "lakefs", s3.server.address, s3.files)
        found = stack.enter_context(planted(place, history))
        collector, _ = Collector.new(folder, REPOSITORY).mark("mark")
        garbage = collector.candidates(found.garbage)
        begun = time.monotonic()
        told = ""
        if period_s is None:
            collector.sweep()
        else:
            with _writing(period_s) as writer:
                try:
                    collector.sweep()
                except IntegrityError as error:
                    told = str(error)
            print(f"{writer.commits} commits meanwhile")
        seconds = time.monotonic() - begun
        lost, late = _lost(s3, of_expired=False), _lost(s3, of_expired=True)
        print(f"{lost} objects are lost; branches from expired commits lack {late}", flush=True)
        print(told or "no alarm", flush=True)
        collector.session.stop()
        if lost:
            raise SystemExit("objects are lost")
        return garbage / seconds


@click.command()
@click.option("--scale", default=0.05, show_default=True, help="1 for the whole repository.")
@click.option("--period", default=1.0, show_default=True, help="Seconds between two commits.")
def main(*, scale: float, period: float) -> None:
    """Sweep a quiet repository, and one that changes."""
    history = History(
        uploads=int(100_000 * scale),
        staged=int(25_000 * scale),
        commits=max(10, int(250 * scale)),
        branches=max(4, int(100 * scale)),
        deleted=max(1, int(40 * scale)),
    )
    with TemporaryDirectory() as folder:
        quiet = _sweep(Path(folder, "quiet"), history, None)
        busy = _sweep(Path(folder, "busy"), history, period)
    print(f"quiet {quiet:,.0f} objects/s, busy {busy:,.0f} objects/s: {busy / quiet:.0%}")


if __name__ == "__main__":
    main()
