"""The options that commands share, and the settings that they become."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import reduce
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.run.command_line import Source
from lakegc_assets.run.settings import CollectorSettings

if TYPE_CHECKING:
    from lakegc_assets.retention.retain_rules import Retain

#: File below DAGSTER_HOME; its first line is the default of ``--defs``.
POINTER: Final = "lakegc-defs"
#: Type of an option for a file that exists.
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: The option of a command, at the end of the description of a setting.
_IN_DESCRIPTION = re.compile(r" \(`-.*`\)$")


def dagster_home() -> Path:
    """``DAGSTER_HOME``, or ``.lakegc/dagster`` below the working directory."""
    return Path(os.environ.get("DAGSTER_HOME") or ".lakegc/dagster").expanduser().resolve()


def chosen(defs: str | None) -> Source:
    """The component of ``--defs``, or the one that the file ``POINTER`` names; else the default."""
    pointer = dagster_home() / POINTER
    if not defs and pointer.is_file():
        defs = pointer.read_text(encoding="utf-8").partition("\n")[0].strip()
    if not defs:
        return Source()
    return Source(str(Path(defs).expanduser().resolve()), _usual)


def _usual(repository: str) -> Mapping[str, Any]:
    from lakegc_assets.definitions import component

    return component().usual_settings(repository)


def duration(value: str) -> timedelta:
    """A time span, from a number with a unit: 90s, 30m, 25h, 2d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration: write 90s, 30m, 25h or 2d")
    try:
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError as error:
        raise click.BadParameter(f"{value!r} is too long: give a shorter time") from error


_Command = Callable[..., None]


def setting_option(
    name: str,
    *flags: str,
    **changed: Any,  # noqa: ANN401 - of click
) -> Callable[[_Command], _Command]:
    """The option of a field of ``CollectorSettings``, with its choices or limits, help and default.

    ``flags``: of the command; none for the name of the setting. ``changed``: arguments of click
    that replace those of the field.
    """
    field = CollectorSettings.model_fields[name]
    given: dict[str, Any] = {}
    if field.annotation is bool:
        given["is_flag"] = True
    elif get_origin(field.annotation) is Literal:
        given["type"] = click.Choice(get_args(field.annotation))
    for one in field.metadata:
        if isinstance(one, Bounds):
            range_of: Any = click.IntRange if field.annotation is int else click.FloatRange
            given["type"] = range_of(one.least, one.most, min_open=one.above)
    default = "" if field.default in (None, False) else f" Default {field.default}."
    given["help"] = f"{_sentence(field)}{default}"
    return click.option(*(flags or [f"--{name.replace('_', '-')}"]), name, **given | changed)


def _sentence(field: FieldInfo) -> str:
    said = _IN_DESCRIPTION.sub("", field.description or "").replace("`", "")
    return f"{said[:1].upper()}{said[1:]}."


_AGE = CollectorSettings.model_fields["min_age_hours"]
_OF_A_MARK = (
    setting_option("mode"),
    click.option("--min-age", type=duration, help=f"{_sentence(_AGE)} Default {_AGE.default:g}h."),
    setting_option("allow_unsafe_min_age"),
    setting_option("clean"),
    setting_option("publish"),
)
_OF_CHECKS = (
    setting_option("max_candidate_share"),
    setting_option("protect_tags"),
    setting_option(
        "retain",
        type=FILE,
        metavar="FILE",
        help=f"A YAML file of {CollectorSettings.model_fields['retain'].description}.",
    ),
    setting_option("accept_missing"),
)
_ENGINE = setting_option("engine")
set_option = click.option(
    "--set",
    "others",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other setting of the collector resource, for example lease_wait_seconds=600; "
    "docs/operations.md lists them. May be repeated.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be removed, and remove nothing."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
unclaimed_option = click.option(
    "--unclaimed",
    is_flag=True,
    help="For a namespace that has no record of this server: you confirm that no other lakeFS "
    "server uses it, and that these credentials see all repositories.",
)
run_id_option = click.option(
    "--run", "run_id", required=True, help="Id of the run, which is its mark id."
)
new_run_option = click.option(
    "--run", "run_id", help="Id of the run, which is its mark id. Default: the UTC time."
)


def _together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    return lambda function: reduce(lambda found, option: option(found), reversed(options), function)


#: ``--set`` and ``--json``.
other_options = _together(set_option, json_option)
#: Options of commands that run tasks and check nothing.
task_options = _together(_ENGINE, other_options)
#: Options of commands that need a mark.
sweep_options = _together(*_OF_CHECKS, task_options)
#: Options of commands that make a mark.
run_options = _together(*_OF_A_MARK, sweep_options)


def by_option(does: str) -> Callable[[_Command], _Command]:
    """The option for the name of the person who ``does`` something."""
    return click.option(
        "--by", help=f"Name of the person who {does}. Default: the name of this user."
    )


def person(by: str | None) -> str:
    """The name of the person who decides: the given name, else the name of this user.

    Raises:
        RefusedError: the given name is empty, for example from a variable that is not set; or the
            user of this process has no name, as in many containers.
    """
    if by is not None:
        if not by.strip():
            raise RefusedError("--by is empty: give a NAME, which is recorded")
        return by.strip()
    try:
        return getuser()
    except (KeyError, OSError) as error:
        raise RefusedError(
            "the user of this process has no name, and the name of the person who decides is "
            "recorded: give --by NAME"
        ) from error


def require_answer(as_json: bool, yes: bool, otherwise: str = "--yes") -> None:
    """Refuse JSON output without ``yes``: with JSON output there is no prompt to confirm."""
    if as_json and not yes:
        raise RefusedError(f"--json asks for no confirmation: give {otherwise}")


def settings_of(
    others: tuple[str, ...],
    *,
    min_age: timedelta | None = None,
    retain: Path | None = None,
    **options: str | float | bool | None,
) -> dict[str, Any]:
    """The configuration of the ``collector`` resource: only given settings, each of them once."""
    given: dict[str, Any] = {k: v for k, v in options.items() if v is not None and v is not False}
    if min_age is not None:
        given["min_age_hours"] = min_age.total_seconds() / 3600
    if retain is not None:
        given["retain"] = retain_of(retain).to_json()
    for other in others:
        name, is_given, value = other.partition("=")
        if not is_given:
            raise ConfigurationError(f"--set {other}: write NAME=VALUE")
        if name in given:
            raise ConfigurationError(f"--set {other}: {name} is given twice: give it once")
        given[name] = value
    return given


def retain_of(file: Path) -> Retain:
    """The rules of a file that keep more than lakeFS's rules; raises as ``parsed`` does."""
    from lakegc_assets.retention.rules_file import parse_retain

    return parsed(file, parse_retain)


_R = TypeVar("_R")


def parsed(file: Path, parse: Callable[[str, str], _R]) -> _R:
    """The rules that ``parse`` reads in a file; a ``ConfigurationError`` if it is unreadable."""
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read as UTF-8 text: {error}") from error


def new_run_id() -> str:
    """A new run id; ids sort by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
