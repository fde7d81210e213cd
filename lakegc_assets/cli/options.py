"""The options that commands share, and the settings that they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.bounds import Bounds
from lakegc_assets.run.settings import CollectorSettings

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


def _option(name: str, **changed: Any) -> Callable[[_Command], _Command]:  # noqa: ANN401 - of click
    """The option of a setting, with its choices or limits, its help and its default.

    Args:
        name: of a field of ``CollectorSettings``.
        changed: what click gets of it in place of that.
    """
    field = CollectorSettings.model_fields[name]
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    bounds = [one for one in field.metadata if isinstance(one, Bounds)]
    given: dict[str, Any] = {}
    if field.annotation is bool:
        given["is_flag"] = True
    elif choices:
        given["type"] = click.Choice(choices)
    elif bounds:
        given["type"] = click.FloatRange(bounds[0].least, bounds[0].most, min_open=bounds[0].above)
    default = "" if field.default in (None, False) else f" Default {field.default}."
    given["help"] = f"{_sentence(field)}{default}"
    return click.option(f"--{name.replace('_', '-')}", name, **given | changed)


def _sentence(field: FieldInfo) -> str:
    said = (field.description or "").replace("`", "")
    return f"{said[:1].upper()}{said[1:]}."


def _min_age() -> Callable[[_Command], _Command]:
    field = CollectorSettings.model_fields["min_age_hours"]
    return click.option(
        "--min-age", type=Duration(), help=f"{_sentence(field)} Default {field.default:g}h."
    )


_OF_A_MARK = (
    _option("mode"),
    _min_age(),
    _option("allow_unsafe_min_age"),
    _option("clean"),
    _option("publish"),
)
_OF_CHECKS = (
    _option("max_candidate_share"),
    _option("protect_tags"),
    _option(
        "retain",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"A YAML file of {CollectorSettings.model_fields['retain'].description}.",
    ),
    _option("accept_missing"),
)
_ENGINE = _option("engine")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
run_id_option = click.option(
    "--run", "run_id", required=True, help="Id of the run, which is its mark id."
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
    json_option,
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
    """The rules of a file that keep more than lakeFS's; raises as ``parsed``."""
    from lakegc_assets.retention.rules_file import parse_retain

    return parsed(file, parse_retain)


_R = TypeVar("_R")


def parsed(file: Path, parse: Callable[[str, str], _R]) -> _R:
    """The rules of a file.

    Args:
        file: of rules.
        parse: takes its text and its name.

    Raises:
        ConfigurationError: it cannot be read.
        RulesError: it has no rules that can be parsed.
    """
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def new_run_id() -> str:
    """An id that sorts by time."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
