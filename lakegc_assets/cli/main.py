"""The command ``lakegc``: the jobs of the graph from a shell, in this process.

Exit status: 0 success; 1 failure; 2 wrong usage or configuration; 3 refused, by a check or because
the request is incomplete or contradicts what is there.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from lakegc_assets.cli.completion import completed
from lakegc_assets.cli.options import (
    POINTER,
    chosen,
    json_option,
    new_run_id,
    new_run_option,
    run_id_option,
    run_options,
    settings_of,
    sweep_options,
)
from lakegc_assets.cli.output import echo, echo_rows, exit_status, summary
from lakegc_assets.errors import RefusedError
from lakegc_assets.run.command_line import printing
from lakegc_assets.wording import counted

#: Commands in separate modules, which are loaded on demand.
_ELSEWHERE = {
    **dict.fromkeys(("adopt", "compare"), "cli.foreign"),
    **dict.fromkeys(("approve", "pending", "hold"), "cli.approvals"),
    **dict.fromkeys(("backup", "backups"), "cli.backups"),
    **dict.fromkeys(("restore", "pins"), "cli.restore"),
    **dict.fromkeys(("forecast", "rules"), "cli.forecast"),
    **{name: f"cli.{name}" for name in ("leftovers", "metrics", "prune", "usage")},
    "embedded": "embedded.server",
}
#: Order of the commands in the help: the order in which people need them.
_ORDER = (
    *("run", "mark", "sweep", "report", "usage", "why", "restore", "pins", "hold", "pending"),
    *("approve", "forecast", "rules", "backup", "backups", "prune", "leftovers"),
    *("compare", "adopt", "repositories", "metrics", "embedded"),
)
_NO_MARK = "a sweep needs the id of a mark: give --run ID; `lakegc repositories` lists the runs"


class Commands(click.Group):
    """The group of all commands; most of them are loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of ``_ORDER``."""
        return sorted({*super().list_commands(ctx), *_ELSEWHERE}, key=_ORDER.index)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, loaded if necessary."""
        if cmd_name in _ELSEWHERE and cmd_name not in self.commands:
            module = import_module(f"lakegc_assets.{_ELSEWHERE[cmd_name]}")
            self.add_command(getattr(module, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Register a command, with shell completion and exit statuses for errors."""
        super().add_command(_prepared(cmd), name)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an error of ``--defs`` also ends with an exit status."""
        # A finished command must not look failed because the terminal lacks a character of a path.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        with exit_status():
            return super().invoke(ctx)


def _prepared(command: click.Command) -> click.Command:
    """Add completion, and exit statuses for errors, to a command and its subcommands."""
    if command.callback is not None:
        command.callback = exit_status()(command.callback)
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        _prepared(one)
    return completed(command)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="lakegc-assets")
@click.option(
    "--defs",
    type=click.Path(),
    metavar="DIR|FILE",
    envvar="LAKEGC_DEFS",
    help="The component's file in a Dagster project, or a folder above it, for server, stores, "
    f"policies and limits. Default: the path in the file {POINTER} below DAGSTER_HOME.",
)
@click.pass_context
def main(ctx: click.Context, defs: str | None) -> None:
    """Garbage collection for lakeFS: finds objects that nothing needs, and deletes them safely.

    First steps: mark, report, sweep. The command restore brings swept objects back.

    Exit status: 0 success; 1 failure; 2 wrong usage or configuration; 3 refused, by a check or
    because the request is incomplete or contradicts what is there.
    """
    ctx.with_resource(printing(chosen(defs)))


def start(job: str, repository: str, run: str, settings: dict[str, Any], as_json: bool) -> None:
    """Run a job and print its outcome."""
    from lakegc_assets.cli.jobs import run_job
    from lakegc_assets.cli.site import outcome

    run_job(job, repository, run, settings)
    echo(outcome(repository, run), as_json, summary)


@main.command()
@click.argument("repository")
@new_run_option
@click.option("--mark/--no-mark", default=True, help="Mark first. Default.")
@click.option("--sweep/--no-sweep", default=True, help="Sweep afterwards. Default.")
@run_options
def run(
    repository: str,
    run_id: str | None,
    mark: bool,
    sweep: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - passed on to settings_of
) -> None:
    """Mark REPOSITORY, check the mark, publish it, and sweep it."""
    if not mark and not sweep:
        raise RefusedError("nothing to do: leave --no-mark or --no-sweep out")
    if not mark and run_id is None:
        raise RefusedError(_NO_MARK)
    job = "gc" if mark and sweep else "gc_mark" if mark else "gc_sweep"
    start(job, repository, run_id or new_run_id(), settings_of(**options), as_json)


@main.command()
@click.argument("repository")
@new_run_option
@run_options
def mark(repository: str, run_id: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - options
    """Mark REPOSITORY, check the mark and publish it. Deletes nothing.

    A killed mark begins again under the same id. If it was killed after its publication, the
    command finishes it.
    """
    start("gc_mark", repository, run_id or new_run_id(), settings_of(**options), as_json)


@main.command()
@click.argument("repository")
@click.option("--run", "run_id", help="Id of the run, which is its mark id.")
@sweep_options
def sweep(repository: str, run_id: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - options
    """Sweep a published mark of REPOSITORY. After a kill, run the same command again."""
    if run_id is None:
        raise RefusedError(_NO_MARK)
    start("gc_sweep", repository, run_id, settings_of(**options), as_json)


@main.command()
@click.argument("repository", required=False)
@click.option("--run", "run_id", help="Id of the run, which is its mark id.")
@click.option(
    "--html",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a self-contained HTML file about the run; without REPOSITORY and --run, about all "
    "repositories.",
)
@click.option(
    "--price-per-tb-month",
    "price",
    type=click.FloatRange(0),
    help="With --html: price of a TB (10^12 bytes) for a month, to show costs. Default: "
    "price_per_tb_month of the component.",
)
@click.option(
    "--forecast/--no-forecast",
    "forecasting",
    default=True,
    help="With --html and a run: also show what other default days would free. Default.",
)
@json_option
def report(
    repository: str | None,
    run_id: str | None,
    file: Path | None,
    price: float | None,
    forecasting: bool,
    as_json: bool,
) -> None:
    """Show the findings and the outcome of a run of REPOSITORY."""
    if repository is None and run_id is None and file is not None:
        from lakegc_assets.cli.pages import write_estate

        rows = write_estate(file, price=price)
        said = f"{counted(len(rows), 'repository', 'repositories')}: {file}"
        echo(rows, as_json, lambda _: [said])
    elif repository is None or run_id is None:
        raise click.UsageError(
            "a report of a run needs REPOSITORY and --run ID; a report of all repositories needs "
            "only --html FILE"
        )
    elif file is None:
        from lakegc_assets.cli.site import outcome

        echo(outcome(repository, run_id), as_json, summary)
    else:
        from lakegc_assets.cli.pages import write_run

        found = write_run(file, repository, run_id, price=price, forecasting=forecasting)
        echo(found, as_json, lambda _: [f"mark {run_id} of {repository}: {file}"])


@main.command()
@click.argument("repository")
@click.argument("address", required=False)
@run_id_option
@click.option("--branch", help="In place of ADDRESS: a branch, tag or commit.")
@click.option("--path", help="With --branch: the path at which it shows the object.")
@json_option
def why(
    repository: str,
    address: str | None,
    run_id: str,
    branch: str | None,
    path: str | None,
    as_json: bool,
) -> None:
    """Explain why a mark names an object, or does not name it.

    Also shows the outcome of the object. Give the ADDRESS of the object, or a branch, tag or commit
    and the path at which lakeFS shows it.
    """
    if (branch is None) != (path is None) or (address is None) == (path is None):
        raise click.UsageError("name the object: give either ADDRESS, or --branch and --path")
    from lakegc_assets.cli.site import address_at, run_context
    from lakegc_assets.estate.explanation import explain

    ctx = run_context(repository, run_id)
    if branch is not None and path is not None:
        address = address_at(repository, branch, path)
    found = explain(ctx, address or "")
    said = f"{found.address}: {found.verdict}: {found.because}"
    echo(asdict(found), as_json, lambda _: [said])


@main.command()
@json_option
def repositories(as_json: bool) -> None:
    """List the repositories of the server, and the runs of each."""
    from lakegc_assets.cli.site import known_runs

    def line(one: dict[str, Any]) -> str:
        runs = ", ".join(f"{run['run']} ({run['summary']})" for run in one["runs"])
        notes = (("read_only", " (read-only)"), ("on_hold", " (on hold)"))
        name = one["repository"] + "".join(words for note, words in notes if one[note])
        return f"{name}\t{one['storage_namespace']}\t{runs or 'no run yet'}"

    nothing = (
        "lakeFS lists no repositories: check the server, and the permissions of the credentials "
        "(docs/operations.md, Running it)"
    )
    echo_rows(known_runs(), as_json, line, nothing)
