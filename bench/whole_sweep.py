"""``lakegc sweep`` on MinIO, as a user runs it, compared with a bare loop of as many deletes.

The repository of ``bench.big``, in a real S3 server with a format of its own, which needs Go. The
figures are for the whole process, from start to end. Its seconds depend on other load of the
machine. The other figures do not: CPU seconds of the process and of the server, and the number of
requests of each kind to the server.

    python -m bench.whole_sweep --scale 1
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import click
import obstore
from obstore.store import S3Store

from bench._collector import Collector
from bench._floors import bare_deletes, beside
from bench._lake import REPOSITORY, Place, planted
from bench._run import BUCKET, ObjectFiles, s3_server, timed
from bench.big import History, history_of
from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets_tests.storage.servers import S3_ACCESS_KEY, S3_SECRET_KEY, Server, minio

_RUN = "cold"
_THREADS = 16
_SIZE = 64
#: Maximum age of MinIO's metrics, in seconds.
_METRICS_S = 11
_CALL = re.compile(r'^minio_s3_requests_total\{api="([^"]+)".*\} (\d+)$', re.MULTILINE)


class ObjectPuts:
    """Objects that are sent to an S3 server in parallel; the server sets their times.

    Args:
        endpoint: of the server.
        pool: of threads that send.
    """

    def __init__(self, endpoint: str, pool: ThreadPoolExecutor) -> None:
        self._store = S3Store(
            BUCKET, endpoint=endpoint, access_key_id=S3_ACCESS_KEY, secret_access_key=S3_SECRET_KEY,
            region="us-east-1", client_options={"allow_http": True},
        )  # fmt: skip
        self._pool = pool
        self._sent: list[object] = []

    def write(self, key: str, size: int, moment: float, etag: str, begin: bytes = b"") -> None:
        """Write an object of a size (bytes, zeros after ``begin``)."""
        del moment, etag
        self._sent.append(
            self._pool.submit(obstore.put, self._store, key, begin.ljust(size, b"\0"))
        )

    def wait(self) -> None:
        """Wait until all objects are written."""
        for one in self._sent:
            one.result()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Put:
    """Plants a history in an S3 server, from the process of its lakeFS."""

    history: History
    endpoint: str

    def __call__(self, server: EmbeddedLakeFS, _files: ObjectFiles) -> int:
        with ThreadPoolExecutor(_THREADS) as pool:
            puts = ObjectPuts(self.endpoint, pool)
            garbage = self.history(server, puts)
            timed("sent", puts.wait)
        return garbage


@dataclass(frozen=True)
class Cost:
    """The cost of a block.

    Attributes:
        seconds: wall-clock time.
        own: CPU seconds of ended child processes of this process.
        server: CPU seconds of the S3 server.
        calls: requests to the server, by kind.
    """

    seconds: float
    own: float
    server: float
    calls: Counter[str]


@contextmanager
def costing(server: Server) -> Iterator[list[Cost]]:
    """Measure the cost of the block; it is complete after the block."""
    found: list[Cost] = []
    calls = _calls(server)
    own, cpu, begun = _own(), _cpu(server.pid), time.monotonic()
    yield found
    seconds, own, cpu = time.monotonic() - begun, _own() - own, _cpu(server.pid) - cpu
    found.append(Cost(seconds, own, cpu, _calls(server) - calls))


def sweep(folder: Path, server: Server) -> Cost:
    """Sweep in a process of its own, with its artifacts below a folder."""
    command = [sys.executable, "-m", "lakegc_assets.cli", "sweep", REPOSITORY, "--run", _RUN]
    homes = {
        "DAGSTER_HOME": str(folder / "dagster"),
        "LAKEGC_ARTIFACT_ROOT": str(folder / "artifacts"),
    }
    with costing(server) as found:
        subprocess.run(
            [*command, "--json"], check=True, stdout=subprocess.DEVNULL, cwd=folder,
            env=os.environ | homes,
        )  # fmt: skip
    return found[0]


def show(what: str, cost: Cost) -> None:
    """Print a cost."""
    calls = ", ".join(f"{kind} {count:,}" for kind, count in sorted(cost.calls.items()))
    print(
        f"{what}: {cost.seconds:.1f} s; CPU {cost.own:.1f} s of its own, {cost.server:.1f} s of "
        f"MinIO; {calls}",
        flush=True,
    )


def bare(server: Server, count: int) -> Cost:
    """Delete this number of objects in a bare loop, one request at a time."""
    keys = [f"floor/{n // 10_000:06}/{n:09}" for n in range(count)]
    with ThreadPoolExecutor(_THREADS) as pool:
        puts = ObjectPuts(server.endpoint, pool)
        for key in keys:
            puts.write(key, _SIZE, 0, "")
        puts.wait()
    with costing(server) as found:
        bare_deletes(server.endpoint, keys, 1)
    return found[0]


def mark(folder: Path, garbage: int) -> None:
    """Mark all garbage, regardless of its age, because the server sets the times."""
    collector = Collector.new(folder, REPOSITORY, min_age_hours=0, allow_unsafe_min_age=True)
    time.sleep(1)
    marked, _ = collector.mark(_RUN)
    marked.candidates(garbage)
    collector.session.stop()


def _calls(server: Server) -> Counter[str]:
    time.sleep(_METRICS_S)
    with urlopen(f"{server.endpoint}/minio/v2/metrics/cluster") as answer:
        text = answer.read().decode()
    return Counter({kind: int(count) for kind, count in _CALL.findall(text)})


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu(pid: int) -> float:
    fields: Sequence[str] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@click.command()
@click.option("--scale", default=0.05, show_default=True, help="1 for the whole repository.")
def main(*, scale: float) -> None:
    """Plant, mark, delete in a bare loop, sweep."""
    os.environ["MINIO_PROMETHEUS_AUTH_TYPE"] = "public"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(s3_server(minio, folder / "minio"))
        plant = _Put(history_of(scale), server.endpoint)
        found = stack.enter_context(planted(Place(folder / "lakefs", server.address), plant))
        mark(folder, found.garbage)
        floor = bare(server, found.garbage)
        show("bare loop", floor)
        cost = sweep(folder, server)
        show(f"lakegc sweep of {found.garbage:,}", cost)
        beside("sweep", cost.seconds, floor.seconds)


if __name__ == "__main__":
    main()
