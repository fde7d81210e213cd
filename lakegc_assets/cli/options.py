"""The options that commands share, and the settings that they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lakegc_assets.engine.choice import ENGINE_SETTINGS
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.settings import PUBLISH

if TYPE_CHECKING:
    from lakegc_assets.retention.retain import Retain

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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
    click.option(
        "--publish",
        type=click.Choice(PUBLISH),
        help="Publish the mark as lakeFS's Spark client does (unified, the default), or as its "
        "standalone collector does, too (sgc).",
    ),
)
_OF_CHECKS = (
    click.option(
        "--max-candidate-share",
        type=click.FloatRange(0, 1),
        help="Approve a larger share of the listing as candidates. Default 0.5.",
    ),
    click.option("--protect-tags", is_flag=True, help="Tagged commits keep their objects."),
    click.option(
        "--retain",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Rules that lakeFS does not have, which keep more, as YAML: tags, branches, metadata, "
        "paths.",
    ),
    click.option("--accept-missing", help="Digest of objects at HEADs known to be lost."),
)
_ENGINE = click.option(
    "--engine",
    type=click.Choice(ENGINE_SETTINGS),
    help="What computes: this machine without a JVM (embedded), spark, or auto, the default: "
    "Spark where it is configured, or where there is much to do.",
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
    return _with(function, *_OF_A_MARK, *_OF_CHECKS, _ENGINE, *_OF_ALL)


def sweep_options(function: _Command) -> _Command:
    """The settings that matter once there is a mark, as options."""
    return _with(function, *_OF_CHECKS, _ENGINE, *_OF_ALL)


def other_options(function: _Command) -> _Command:
    """``--set`` and ``--json``."""
    return _with(function, *_OF_ALL)


def task_options(function: _Command) -> _Command:
    """``--engine``, ``--set`` and ``--json``: of what has tasks, and checks nothing."""
    return _with(function, _ENGINE, *_OF_ALL)


def set_option(function: _Command) -> _Command:
    """``--set`` alone."""
    return _with(function, _OF_ALL[0])


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
    engine: str | None = None,
    retain: Path | None = None,
    publish: str | None = None,
    **flags: bool,
) -> dict[str, Any]:
    """The configuration of the ``collector`` resource: only what was given.

    Raises:
        ConfigurationError: one of the others has no value, or is given twice; or a file cannot be
            read.
        RulesError: the file has no rules that can be parsed.
    """
    chosen = {
        "mode": mode,
        "min_age_hours": None if min_age is None else min_age.total_seconds() / 3600,
        "max_candidate_share": max_candidate_share,
        "accept_missing": accept_missing,
        "engine": engine,
        "retain": None if retain is None else retain_of(retain).to_json(),
        "publish": publish,
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


def retain_of(file: Path) -> Retain:
    """The rules of a file that keep more than lakeFS's.

    Raises:
        ConfigurationError: it cannot be read.
        RulesError: it has no rules that can be parsed.
    """
    from lakegc_assets.retention.rules_file import parse_retain  # noqa: PLC0415 - it loads YAML

    try:
        return parse_retain(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def new_run_id() -> str:
    """An id that sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
