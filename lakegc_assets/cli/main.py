"""The command ``lakegc``: the jobs of the graph from a shell, in this process.

Exit status: 0 success; 1 failure; 2 wrong usage or configuration; 3 refused, by a check or because
the request is incomplete or contradicts what is there.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from lakegc_assets.defs.units import human_bytes
from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError

FAILURE, USAGE, REFUSED = 1, 2, 3

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: Garbage that no rule let expire.
_WITHOUT_RULE = {
    "unreferenced": "unreferenced",
    "no rules": "in commits that are gone, without rules",
}
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Duration(click.ParamType[timedelta]):
    """A number with a unit: 90s, 30m, 25h, 2d."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read it, or say what it should look like."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if match is None:
            self.fail(f"{value!r} is no duration: write 90s, 30m, 25h or 2d", param, ctx)
        return timedelta(**{_UNITS[match[2]]: float(match[1])})


def exit_status(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn errors into a sentence and an exit status."""

    @wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except RefusedError as error:
            click.echo(f"refused: {error}", err=True)
            sys.exit(REFUSED)
        except ConfigurationError as error:
            click.echo(f"configuration: {error}", err=True)
            sys.exit(USAGE)
        except LakegcError as error:
            click.echo(f"failed: {error}", err=True)
            sys.exit(FAILURE)
        except KeyboardInterrupt as interrupt:
            how_far = str(interrupt) or "the same command with the same --run goes on"
            click.echo(f"interrupted: {how_far}", err=True)
            sys.exit(FAILURE)

    return wrapper


_Command = Callable[..., None]
_OF_A_MARK = (
    click.option(
        "--mode",
        type=click.Choice(["unified", "committed", "uncommitted"]),
        help="Collect only what expired commits alone hold, without a listing of the "
        "store (committed), or what was never committed (uncommitted). Default: both.",
    ),
    click.option("--min-age", type=Duration(), help="Spare younger objects. Default 24h."),
    click.option(
        "--allow-unsafe-min-age", is_flag=True, help="Take --min-age as it is, below 24 h too."
    ),
    click.option(
        "--clean",
        is_flag=True,
        help="List the whole store; else what is known of old slices is carried forward.",
    ),
)
_OF_CHECKS = (
    click.option(
        "--max-candidate-share",
        type=click.FloatRange(0, 1),
        help="Approve a larger share of the listing as candidates. Default 0.5.",
    ),
    click.option("--protect-tags", is_flag=True, help="Tagged commits keep their objects."),
    click.option("--accept-missing", help="Digest of objects at HEADs known to be lost."),
)
_OF_ALL = (
    click.option(
        "--set",
        "others",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other setting of the collector resource, lease_wait_seconds=600 say. "
        "May be given several times.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
)


def run_options(function: _Command) -> _Command:
    """The settings of a run, as options."""
    return _with(function, *_OF_A_MARK, *_OF_CHECKS, *_OF_ALL)


def sweep_options(function: _Command) -> _Command:
    """The settings that matter once there is a mark, as options."""
    return _with(function, *_OF_CHECKS, *_OF_ALL)


def other_options(function: _Command) -> _Command:
    """``--set`` and ``--json``."""
    return _with(function, *_OF_ALL)


def _with(function: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    for option in reversed(options):
        function = option(function)
    return function


def settings_of(
    others: tuple[str, ...],
    *,
    mode: str | None = None,
    min_age: timedelta | None = None,
    max_candidate_share: float | None = None,
    accept_missing: str | None = None,
    **flags: bool,
) -> dict[str, Any]:
    """The configuration of the ``collector`` resource: only what was given.

    Raises:
        ConfigurationError: one of the others has no value, or is given twice.
    """
    chosen = {
        "mode": mode,
        "min_age_hours": None if min_age is None else min_age.total_seconds() / 3600,
        "max_candidate_share": max_candidate_share,
        "accept_missing": accept_missing,
    }
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    given |= {name: True for name, value in flags.items() if value}
    for other in others:
        name, is_given, value = other.partition("=")
        if not is_given:
            raise ConfigurationError(f"--set {other}: write NAME=VALUE")
        if name in given:
            raise ConfigurationError(f"--set {other}: {name} is given twice")
        given[name] = value
    return given


def new_run_id() -> str:
    """An id that sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"


#: Commands that stand in modules of their own, which are loaded when they are asked for.
_ELSEWHERE = {
    **dict.fromkeys(("adopt", "compare"), "lakegc_assets.cli.foreign"),
    **dict.fromkeys(("backup", "backups"), "lakegc_assets.cli.backups"),
    **dict.fromkeys(("restore", "pins"), "lakegc_assets.cli.restoring"),
    "prune": "lakegc_assets.cli.pruning",
}


#: Commands in the order in which people come to need them.
_ORDER = (
    *("run", "mark", "sweep", "report", "why", "restore", "pins", "pending", "approve"),
    *("backup", "backups", "prune", "compare", "adopt", "repositories", "embedded"),
)


class Commands(click.Group):
    """The commands, of which ``embedded`` is loaded when it is asked for, with its web server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        names = {*super().list_commands(ctx), *_ELSEWHERE, "embedded"}
        return [*(name for name in _ORDER if name in names), *sorted(names.difference(_ORDER))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name in _ELSEWHERE:
            found: click.Command = getattr(import_module(_ELSEWHERE[cmd_name]), cmd_name)
            return found
        if cmd_name == "embedded":
            from lakegc_assets.embedded.server import embedded  # noqa: PLC0415 - it loads slowly

            return embedded
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="lakegc-assets")
def main() -> None:
    """Garbage collection for lakeFS: finds what nothing needs, says why, deletes it safely.

    For a first look: mark, report, sweep. What a sweep deleted comes back by restore.

    Exit status: 0 success; 1 failure; 2 wrong usage or configuration; 3 refused, by a check or
    because the request is incomplete or contradicts what is there.
    """


def start(
    job: str,
    repository: str,
    run_id: str,
    settings: dict[str, Any],
    as_json: bool,  # noqa: FBT001 - a plain option
) -> None:
    """Run a job and show what became of it."""
    from lakegc_assets.cli.jobs import run_job  # noqa: PLC0415 - Dagster loads slowly
    from lakegc_assets.cli.queries import outcome  # noqa: PLC0415 - Dagster loads slowly

    run_job(job, repository, run_id, settings)
    _show(outcome(repository, run_id), as_json)


@main.command()
@click.argument("repository")
@click.option("--run", "run_id", help="Id of the run, which is its mark id. Default: the time.")
@click.option("--mark/--no-mark", default=True, help="Mark first. Default.")
@click.option("--sweep/--no-sweep", default=True, help="Sweep afterwards. Default.")
@run_options
@exit_status
def run(
    repository: str,
    run_id: str | None,
    mark: bool,  # noqa: FBT001 - an option
    sweep: bool,  # noqa: FBT001 - an option
    as_json: bool,  # noqa: FBT001 - an option
    **options: Any,  # noqa: ANN401 - passed on to settings_of
) -> None:
    """Mark REPOSITORY, check the mark, publish it, and sweep it."""
    if not mark and not sweep:
        raise RefusedError("nothing to do: neither a mark nor a sweep was asked for")
    if not mark and run_id is None:
        raise RefusedError("a sweep without a mark needs the mark id: --run ID")
    job = "gc" if mark and sweep else "gc_mark" if mark else "gc_sweep"
    start(job, repository, run_id or new_run_id(), settings_of(**options), as_json)


@main.command()
@click.argument("repository")
@click.option("--run", "run_id", help="Id of the run, which is its mark id. Default: the time.")
@run_options
@exit_status
def mark(repository: str, run_id: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401, FBT001 - options
    """Mark REPOSITORY, check the mark and publish it. Deletes nothing.

    A mark that was killed is begun again under the same id; one that was killed after it was
    published is finished.
    """
    start("gc_mark", repository, run_id or new_run_id(), settings_of(**options), as_json)


@main.command()
@click.argument("repository")
@click.option("--run", "run_id", help="Id of the run, which is its mark id.")
@sweep_options
@exit_status
def sweep(repository: str, run_id: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401, FBT001 - options
    """Sweep a published mark of REPOSITORY. A killed sweep is run again in the same way."""
    if run_id is None:
        raise RefusedError("a sweep without a mark needs the mark id: --run ID")
    start("gc_sweep", repository, run_id, settings_of(**options), as_json)


@main.command()
@click.argument("repository")
@click.option("--run", "run_id", required=True, help="Id of the run, which is its mark id.")
@click.option("--by", help="Who approves. Default: the name of this user.")
@click.option(
    "--max-candidate-share",
    type=click.FloatRange(0, 1),
    help="Approve that a larger share of the listing goes, for this mark only.",
)
@exit_status
def approve(
    repository: str, run_id: str, by: str | None, max_candidate_share: float | None
) -> None:
    """Let a mark of REPOSITORY be swept; its checks run again.

    It is about exactly this mark, and ends after a week. Where the sensor gc_approvals is on, the
    sweep follows by itself.
    """
    from lakegc_assets.cli.approvals import approve as record  # noqa: PLC0415 - Dagster loads slowly

    found = record(repository, run_id, by, max_candidate_share)
    click.echo(
        f"mark {run_id} of {repository} ({found.digest}) is approved by {found.by} until "
        f"{found.ends:%Y-%m-%d %H:%M} UTC"
    )
    click.echo(f"  to delete  lakegc sweep {repository} --run {run_id}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@exit_status
def pending(as_json: bool) -> None:  # noqa: FBT001 - an option
    """List marks that wait for a person."""
    from lakegc_assets.cli.approvals import pending as waiting  # noqa: PLC0415 - Dagster loads slowly

    found = waiting()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for one in found:
        size = f"\t{one['objects']:,} objects, {one['bytes']:,} bytes" if "objects" in one else ""
        click.echo(
            f"{one['repository']}\t{one['run'] or '-'}\t{one['state']}{size}\t{one['because']}"
        )
    if not found:
        click.echo("nothing waits", err=True)


@main.command()
@click.argument("repository", required=False)
@click.option("--run", "run_id", help="Id of the run, which is its mark id.")
@click.option(
    "--html",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one HTML file that needs nothing else: the run, or without REPOSITORY and --run "
    "all repositories.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@exit_status
def report(repository: str | None, run_id: str | None, file: Path | None, as_json: bool) -> None:  # noqa: FBT001 - an option
    """Say what a run of REPOSITORY found, and what became of it."""
    if repository is None and run_id is None and file is not None:
        from lakegc_assets.cli.pages import write_estate  # noqa: PLC0415 - Dagster loads slowly

        rows = write_estate(file)
        click.echo(json.dumps(rows, indent=1) if as_json else f"{len(rows)} repositories: {file}")
        return
    if repository is None or run_id is None:
        raise click.UsageError(
            "a report needs REPOSITORY and --run; with --html FILE and neither of them it is about "
            "all repositories"
        )
    if file is None:
        from lakegc_assets.cli.queries import outcome  # noqa: PLC0415 - Dagster loads slowly

        _show(outcome(repository, run_id), as_json)
        return
    from lakegc_assets.cli.pages import write_run  # noqa: PLC0415 - Dagster loads slowly

    found = write_run(file, repository, run_id)
    click.echo(json.dumps(found, indent=1) if as_json else f"mark {run_id} of {repository}: {file}")


@main.command()
@click.argument("repository")
@click.argument("address")
@click.option("--run", "run_id", required=True, help="Id of the run, which is its mark id.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@exit_status
def why(repository: str, address: str, run_id: str, as_json: bool) -> None:  # noqa: FBT001 - an option
    """Say why a mark named the object at ADDRESS, or did not."""
    from lakegc_assets.cli.queries import local_context  # noqa: PLC0415 - Dagster loads slowly
    from lakegc_assets.mark.why import why as explain  # noqa: PLC0415 - Spark loads slowly

    with local_context(repository, run_id) as ctx:
        found = explain(ctx, address)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=1, default=str))
    else:
        click.echo(f"{found.address}: {found.verdict}: {found.because}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@exit_status
def repositories(as_json: bool) -> None:  # noqa: FBT001 - an option
    """List the repositories of the server, and the runs of each."""
    from lakegc_assets.cli.queries import known_runs  # noqa: PLC0415 - Dagster loads slowly

    found = known_runs()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    if not found:
        click.echo("there are no repositories that these credentials may list", err=True)
    for entry in found:
        runs = ", ".join(f"{run['run']} ({run['state']})" for run in entry["runs"]) or "no run yet"
        read_only = " (read-only)" if entry["read_only"] else ""
        click.echo(f"{entry['repository']}{read_only}\t{entry['storage_namespace']}\t{runs}")


def _show(found: dict[str, Any], as_json: bool) -> None:  # noqa: FBT001 - an option
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from lakegc_assets.cli.queries import kept_because  # noqa: PLC0415 - Dagster loads slowly

    mode = "" if found["mode"] == "unified" else f" ({found['mode']})"
    click.echo(f"repository {found['repository']}, mark {found['run']}{mode}")
    click.echo(f"  slices made after the cutoff, not listed: {found['skipped_slices']:,}")
    by_name = found["mode"] == "committed"
    _line(2, "looked at" if by_name else "listed", found["listed"], found["listed_bytes"])
    kept, kept_bytes = found["listed"] - found["objects"], found["listed_bytes"] - found["bytes"]
    _line(2, "kept", kept, kept_bytes)
    for name, objects in kept_because(found):
        _line(6, name, objects)
    _line(2, "garbage", found["objects"], found["bytes"])
    for dimension, key, objects, size in found["breakdown"]:
        if dimension == "branch rule":
            _line(6, _WITHOUT_RULE.get(key, f"expired by the rule {key}"), objects, size)
    _show_sweep(found)
    for warning in found["warnings"]:
        click.echo(f"  warning: {warning}")
    _show_places(found)
    if found["swept"]:
        click.echo(f"  {found['swept_on']}")
    elif found["objects"]:
        click.echo(f"  to delete  lakegc sweep {found['repository']} --run {found['run']}")


def _show_sweep(found: dict[str, Any]) -> None:
    for outcome, totals in found["outcomes"].items():
        _line(2, outcome.replace("_", " "), totals["objects"], totals["bytes"])
        if outcome == "spared":
            for because, objects in found["spared_by_sweep"].items():
                _line(6, because, objects)


def _line(indent: int, name: str, objects: int, size: int | None = None) -> None:
    shown = "" if size is None else f"{human_bytes(size):>12}"
    click.echo(f"{' ' * indent + name:<44} {objects:>12,} objects {shown}".rstrip())


def _show_places(found: dict[str, Any]) -> None:
    click.echo(f"  mark       {found['mark_url']}")
    click.echo(f"  artifacts  {near(found['artifacts'])}")
    if found["backup"] is not None:
        click.echo(f"  backup     {found['backup']}")
    if found["undo"] is not None:
        click.echo(f"  undo       {found['undo']}")


def near(path: str | Path) -> str:
    """A local path relative to the working directory where it is below it; else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)
