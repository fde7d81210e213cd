"""The demo: marks and sweeps a lakeFS repository with a year of history, and shows it unharmed.

Run with ``make demo``. It starts the embedded lakeFS and moves its clock through a year in which a
small team works. It runs the job ``gc`` through Dagster, and reads all live objects. Then it undoes
the sweep, and shows that the next mark spares the restored objects.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import time
from datetime import datetime, timezone
from pathlib import Path
from unittest.mock import patch

import click

from examples.team import Calendar, Team, variables
from lakegc_assets.cli.main import main as command
from lakegc_assets.cli.output import near
from lakegc_assets.cli.restore import last_restore
from lakegc_assets.cli.site import outcome
from lakegc_assets.embedded.server import EmbeddedLakeFS
from lakegc_assets.engine.choice import ENGINE_SETTINGS
from lakegc_assets.errors import IntegrityError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import GoneError, NotFoundError
from lakegc_assets.lakefs.writes import LakeFSWriter
from lakegc_assets.wording import counted

_YEAR = 365
_RULES = {"main": 60, "experiment": 14, "audit": 400}
_DEFAULT_DAYS = 30
#: Ids of the runs of the demo.
_FIRST, _SECOND = "first", "second"
#: The model of the main branch, which the history overwrites: old commits have other versions.
MODEL = "models/forecast.bin"


def tell_history(team: Team) -> str:
    """Write a year of history; the id of a commit of main with a model that expired long ago."""
    first, old = _main_line(team)
    _experiment(team)
    _merged_feature(team)
    _deleted_branch(team)
    _revert(team)
    _never_committed(team)
    team.client.create_tag(team.repository, "v1", first)
    team.client.set_gc_rules(team.repository, _DEFAULT_DAYS, _RULES)
    team.on(0)
    return old


def _main_line(team: Team) -> tuple[str, str]:
    """Write events every two weeks, kept for sixteen, and a model; the first and an old commit."""
    commits = []
    for week, day in enumerate(range(_YEAR - 1, 10, -14)):
        team.on(day)
        for part in range(12):
            team.write("main", f"events/week={week:02d}/part-{part:02d}.parquet", 900)
        team.write("main", "models/forecast.bin", 40_000)
        if week >= 8:  # noqa: PLR2004 - two weeks each
            for part in range(12):
                team.remove("main", f"events/week={week - 8:02d}/part-{part:02d}.parquet")
        commits.append(team.commit("main", f"week {week}"))
        if week == 4:  # noqa: PLR2004 - some day
            team.branch("audit", "main")
    return commits[0], commits[10]


def _experiment(team: Team) -> None:
    """Write a branch with a short retention, whose results are overwritten again and again."""
    team.on(120)
    team.branch("experiment", "main")
    for day in range(118, 2, -12):
        team.on(day)
        for run in range(8):
            team.write("experiment", f"results/run-{run}.csv", 2_000)
        team.commit("experiment", f"results of day {day}")


def _merged_feature(team: Team) -> None:
    """Write a branch that was merged and still exists."""
    team.on(90)
    team.branch("feature", "main")
    team.write("feature", "reports/summary.html", 5_000)
    team.commit("feature", "first draft")
    team.on(85)
    team.write("feature", "reports/summary.html", 5_200)
    team.commit("feature", "final report")
    team.on(84)
    team.client.merge(team.repository, "feature", "main", "merge the report")


def _deleted_branch(team: Team) -> None:
    """Write a branch and delete it: only its own commits hold its objects."""
    team.on(80)
    team.branch("given-up", "main")
    for number in range(20):
        team.write("given-up", f"attempt/{number:02d}.bin", 10_000)
    team.commit("given-up", "a try")
    team.on(70)
    team.client.delete_branch(team.repository, "given-up")


def _revert(team: Team) -> None:
    """Delete an object by mistake, and revert the deletion."""
    team.on(50)
    team.remove("main", "reports/summary.html")
    commit = team.commit("main", "remove the report by mistake")
    team.on(49)
    team.client.revert(team.repository, "main", commit)


def _never_committed(team: Team) -> None:
    """Upload objects that are overwritten, deleted or left staged; the last ones an hour ago."""
    team.on(30)
    for number in range(30):
        team.write("main", f"scratch/{number:02d}.tmp", 3_000)
    team.on(29)
    for number in range(10):
        team.write("main", f"scratch/{number:02d}.tmp", 3_100)
    for number in range(10, 20):
        team.remove("main", f"scratch/{number:02d}.tmp")
    team.on(1 / 24)
    for number in range(5):
        team.write("experiment", f"upload/{number}.tmp", 1_000)
    for number in range(3):
        team.remove("experiment", f"upload/{number}.tmp")


def live_objects(client: LakeFSWriter, repository: str) -> dict[tuple[str, str], str]:
    """SHA-256 of each object that a branch serves, by branch and path; ``gone`` for a lost one."""

    def content(branch: str, path: str) -> str:
        try:
            return hashlib.sha256(client.get_object(repository, branch, path)).hexdigest()
        except GoneError:
            return "gone"

    return {
        (branch.id, found.path): content(branch.id, found.path)
        for branch in client.branches(repository)
        for found in client.objects(repository, branch.id)
    }


def prove(
    client: LakeFSWriter, repository: str, before: dict[tuple[str, str], str], old_commit: str
) -> None:
    """Check that every live object reads as before, and that an expired one answers 410 Gone."""
    after = live_objects(client, repository)
    if after != before:
        changed = [key for key in before if after.get(key) != before[key]]
        raise IntegrityError(f"{len(changed)} live objects read differently: {changed[:5]}")
    click.echo(
        f"Proof: all {len(before)} live objects on all branches read exactly as before the sweep,"
    )
    try:
        client.get_object(repository, old_commit, MODEL)
    except GoneError:
        click.echo(f"and {MODEL} of the expired commit {old_commit[:12]} answers 410 Gone.")
    except NotFoundError as error:
        raise IntegrityError(f"{MODEL} should be known and gone, but: {error}") from error
    else:
        raise IntegrityError(f"{MODEL} of commit {old_commit} expired, but still reads")


def take_back(
    client: LakeFSWriter,
    repository: str,
    before: dict[tuple[str, str], str],
    old_commit: str,
    engine: str,
) -> None:
    """Undo the sweep; check that all objects read again, are pinned, and stay at the next mark."""
    click.echo("\nIf that was a mistake, it all comes back:\n")
    _command("restore", repository, "--run", _FIRST, "--all", *_asked(engine))
    click.echo(
        "\nBy the rules it is still garbage. So it is pinned, and the next mark spares it:\n"
    )
    _command("mark", repository, "--run", _SECOND, *_asked(engine))
    swept, marked = outcome(repository, _FIRST), outcome(repository, _SECOND)
    restored = last_restore(repository, _FIRST)["outcomes"]
    if restored != {"restored": swept["outcomes"]["deleted"]}:
        raise IntegrityError(f"swept was {swept['outcomes']}, and restored {restored}")
    if marked["objects"] or live_objects(client, repository) != before:
        raise IntegrityError("the mark after the restore names what was restored")
    try:
        client.get_object(repository, old_commit, MODEL)
    except GoneError as error:
        raise IntegrityError(f"{MODEL} was restored, but: {error}") from error
    click.echo(
        f"\nProof: {counted(restored['restored']['objects'], 'object is', 'objects are')} back, "
        f"{MODEL} of commit {old_commit[:12]} reads again,\nand the next mark names none of them: "
        "they are pinned (docs/undo.md)."
    )


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".demo"),
    show_default=True,
    help="Folder of the demo's lakeFS, artifacts and Dagster instance.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINE_SETTINGS),
    default="auto",
    show_default=True,
    help="The engine, as in `lakegc run --engine`.",
)
def main(folder: Path, engine: str) -> None:
    """Collect a repository of the embedded lakeFS, prove all live objects unharmed, and undo it."""
    began = time.monotonic()
    folder = folder.resolve()
    (folder / "lakefs").mkdir(parents=True, exist_ok=True)
    calendar = Calendar(_YEAR)
    repository = f"demo-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    with (
        EmbeddedLakeFS(folder / "lakefs", clock=calendar) as server,
        patch.dict(os.environ, variables(folder, server)),
    ):
        click.echo(f"An embedded lakeFS listens at {server.endpoint}.")
        client = LakeFSConfig().connect_writer()
        client.create_repository(repository, f"local://{repository}")
        team = Team(client, repository, calendar)
        old_commit = tell_history(team)
        before = live_objects(client, repository)
        click.echo(
            f"Repository {repository}: a year of history, {team.uploads} objects written, "
            f"{len(before)} live paths on {len(list(client.branches(repository)))} branches.\n"
            f"Retention: {_DEFAULT_DAYS} days; "
            + ", ".join(f"{branch} {days}" for branch, days in _RULES.items())
            + ".\n"
        )
        collect(repository, engine)
        click.echo()
        prove(client, repository, before, old_commit)
        show_cost(repository)
        take_back(client, repository, before, old_commit, engine)
    home = near(folder / "dagster")
    home = home if Path(home).is_absolute() else f"$PWD/{home}"
    click.echo(
        f"\nIt took {time.monotonic() - began:.0f} s. Graph, partitions, checks and report in "
        f"Dagster's UI:\n  make ui DAGSTER_HOME={home}"
    )


def show_cost(repository: str) -> None:
    """Show the storage of each branch, and how much shorter retention would free."""
    click.echo("\nEach mark also says what the storage is used for, and which branch holds it:\n")
    _command("usage", repository, "--run", _FIRST)
    click.echo("\nand what other retention rules would free (docs/cost.md):\n")
    _command(
        "forecast", repository, "--run", _FIRST, "--set-default", "7", "--set-branch", "main=30"
    )


def collect(repository: str, engine: str) -> None:
    """Run the collection."""
    # Nobody else commits here.
    at_once = ("--set", "longest_commit_seconds=0")
    _command("run", repository, "--run", _FIRST, *at_once, *_asked(engine))


def _asked(engine: str) -> tuple[str, ...]:
    """The option that selects an engine; empty for the default."""
    return () if engine == "auto" else ("--engine", engine)


def _command(*arguments: str) -> None:
    """Print the command and run it in this process; exit with its status if it fails."""
    click.echo(f"$ lakegc {shlex.join(arguments)}")
    try:
        command.main(list(arguments), prog_name="lakegc")
    except SystemExit as status:
        if status.code:
            raise


if __name__ == "__main__":
    main()
