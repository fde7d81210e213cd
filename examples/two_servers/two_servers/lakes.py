"""Two embedded lakeFS servers, each with a repository ``models``: the name is all they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lakegc_assets.cli.team import Calendar, Team
from lakegc_assets.defs.connections import LakeFSResource
from lakegc_assets.embedded.server import EmbeddedLakeFS

REPOSITORY: Final = "models"
#: Days ago on which a model was trained on each server: all but the last are garbage.
_TRAININGS: Final = {"eu": (150, 120, 90), "us": (140, 100)}
_KEEP_DAYS: Final = 30


@contextmanager
def lakes(folder: Path) -> Iterator[dict[str, str]]:
    """Start both servers.

    Args:
        folder: where they keep what they have; what is there from an earlier start stays.

    Returns:
        The variables that the files of ``defs`` take.
    """
    calendar = Calendar(0)
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
    """Make the repository, with a model of which each version replaces the one before."""
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
    team = Team(client, REPOSITORY, calendar)
    for part in range(5):
        team.write("main", f"features/{part}.parquet", 2_000)
    for day in trainings:
        team.on(day)
        team.write("main", "model.bin", 40_000)
        team.commit("main", f"training {day} days ago")
    team.on(0)
    client.set_gc_rules(REPOSITORY, _KEEP_DAYS, {})
