"""Two embedded lakeFS servers, each with its own repository ``models`` of the same name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lakegc_assets.defs.connections import LakeFSResource
from lakegc_assets.embedded.server import EmbeddedLakeFS

REPOSITORY: Final = "models"
#: Days before today on which each server gets a new model: all but the last are garbage.
_TRAININGS: Final = {"eu": (150, 120, 90), "us": (140, 100)}
_KEEP_DAYS: Final = 30


class Calendar:
    """The clock of both servers, some days in the past until the models are written."""

    days_ago = 0.0

    def __call__(self) -> float:
        """Epoch seconds."""
        return time.time() - self.days_ago * 86_400


@contextmanager
def lakes(folder: Path) -> Iterator[dict[str, str]]:
    """Start both servers.

    Args:
        folder: of their data; data of an earlier start stay.

    Returns:
        The variables that the files of ``defs`` use.
    """
    calendar = Calendar()
    variables = {"TWO_SERVERS": str(folder)}
    with ExitStack() as stack:
        for name, trainings in _TRAININGS.items():
            data = folder / name
            data.mkdir(parents=True, exist_ok=True)
            server = stack.enter_context(EmbeddedLakeFS(data, clock=calendar))
            _train(server, calendar, trainings)
            upper = name.upper()
            variables |= {
                f"{upper}_LAKEFS": server.endpoint,
                f"{upper}_KEY": server.access_key,
                f"{upper}_SECRET": server.secret_key,
                f"{upper}_OBJECTS": str(server.objects_dir),
            }
        yield variables


def _train(server: EmbeddedLakeFS, calendar: Calendar, trainings: tuple[int, ...]) -> None:
    """Make the repository, with a model whose versions each replace the one before."""
    client = (
        LakeFSResource(
            endpoint=server.endpoint,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
        )
        .config()
        .connect_writer()
    )
    if any(one.id == REPOSITORY for one in client.repositories()):
        return
    calendar.days_ago = trainings[0] + 1
    client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
    for part in range(5):
        path = f"features/{part}.parquet"
        client.upload_object(REPOSITORY, "main", path, f"{path}\n".encode() * 100)
    for day in trainings:
        calendar.days_ago = day
        content = f"trained {day} days ago\n".encode() * 2_000
        client.upload_object(REPOSITORY, "main", "model.bin", content)
        client.commit_branch(REPOSITORY, "main", f"training {day} days ago")
    calendar.days_ago = 0
    client.set_gc_rules(REPOSITORY, _KEEP_DAYS, {})
