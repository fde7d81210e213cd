"""A deleting task with its lease in a process of its own, so that it can be suspended.

Files say by how much the store's time and the clock of the machine are ahead, so that hours pass
at once.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.clocks import SYSTEM_CLOCKS, Moment, Watch
from lakegc_assets.run.connections import Connections
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.sweep.deletion import DeletingTask, TaskClients
from lakegc_assets.sweep.lease import repository_lease
from lakegc_assets.sweep.lease_record import owner_of
from lakegc_assets_tests.clocks import StubClocks
from lakegc_assets_tests.lake import REPOSITORY
from lakegc_assets_tests.sweep.stand_ins import as_listed, orders_of

AHEAD = "seconds-ahead"
MACHINE_AHEAD = "seconds-ahead-of-the-machine"


def main(folder: Path, endpoint: str, local_root: str, addresses: list[str]) -> None:
    """Delete two objects a batch under a lease, and print what became of them."""
    real = LocalStore.server_time

    def server_time(store: LocalStore) -> datetime:
        return real(store) + timedelta(seconds=float((folder / AHEAD).read_text()))

    def elapsed() -> float:
        return SYSTEM_CLOCKS.elapsed() + float((folder / MACHINE_AHEAD).read_text())

    clocks = StubClocks(since_boot=elapsed, watch=Watch(elapsed))
    LocalStore.server_time = server_time  # type: ignore[method-assign,assignment]
    lakefs = LakeFSConfig(endpoint=endpoint, credentials_file=str(folder / "lakectl.yaml"))
    stores = StoreConfig(local_root=local_root)
    connections = Connections(lakefs, stores, f"local://{REPOSITORY}", "/nowhere")
    store = connections.store()
    with repository_lease(store, owner_of(), duration=timedelta(minutes=3)) as lease:
        lease.begin_round(1)
        taken = Moment.now(store, clocks)
        orders = orders_of(
            connections, folder / "attempt", lease, taken=taken, condition="bulk", clocks=clocks
        )
        task = DeletingTask(orders, 0, TaskClients.of(orders))
        told = [one._asdict() for one in task.run([as_listed(store, addresses)])]
        sys.stdout.write(f"{json.dumps(told)}\n")
        # A suspended owner does not get its lease back either.
        try:
            lease.begin_round(2)
        except Exception as error:  # noqa: BLE001 - the test reads it
            sys.stdout.write(f"{type(error).__name__}: {error}\n")
        else:
            sys.stdout.write("the lease was kept\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
