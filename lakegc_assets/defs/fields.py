"""Types of values in the component's file, and their errors.

Dagster reads a file in two steps: first each value as written, which may be a ``{{ }}`` template,
then each value as rendered. So a field with pydantic's own bounds raises a ``TypeError`` for text
and for null. The checks here skip a template, and run on its rendered value in the second step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeVar
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import AfterValidator, WithJsonSchema

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.retention.retain_rules import Retain

_V = TypeVar("_V")

#: Pattern of a template in a JSON schema.
_TEMPLATE: Final = r"\{\{"

#: Prefixes of tags by which Dagster and this program know the kind and the origin of a run.
_RESERVED: Final = (
    "lakegc/",
    "dagster/partition",
    "dagster/backfill",
    "dagster/schedule_name",
    "dagster/sensor_name",
    "dagster/run_key",
)


def _is_open(value: object) -> bool:
    """True if a value has a template that is not rendered yet."""
    return isinstance(value, str) and "{{" in value


def filled_in(check: Callable[[Any], object]) -> AfterValidator:
    """Check rendered values, at any depth."""

    def look(value: _V) -> _V:
        if "{{" in str(value):
            return value
        try:
            check(value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return value

    return AfterValidator(look)


def _expected(pattern: str, words: str) -> WithJsonSchema:
    """Make the JSON schema show these words for a text that does not match a pattern."""
    return WithJsonSchema(
        {
            "type": "string",
            "if": {"not": {"pattern": f"{pattern}|{_TEMPLATE}"}},
            "then": {"const": words},
        }
    )


def _require(holds: Callable[[str], object], words: str) -> Callable[[str], str]:
    """A check of text; its error consists of the text and these words."""

    def check(value: str) -> str:
        if not holds(value):
            raise ValueError(f"{value!r} {words}")
        return value

    return check


def one_of(values: Sequence[str]) -> AfterValidator:
    """Require text from a fixed set; a ``Literal`` would accept any text for a rendered value."""
    return filled_in(_require(values.__contains__, f"is not one of {', '.join(values)}"))


def some(values: list[str]) -> list[str]:
    """Require a list that is not empty."""
    if not values:
        raise ValueError("it is empty: write at least one")
    return values


def _accepts(define: Callable[[], object]) -> bool:
    """True if a call of ``define`` raises no error of a wrong definition."""
    try:
        define()
    except (dg.DagsterInvalidDefinitionError, KeyError, ValueError, OSError):
        return False
    return True


def _tags(values: dict[str, str]) -> dict[str, str]:
    # One template may stand for all tags; until it is rendered, the value is text.
    for name, value in values.items() if isinstance(values, dict) else ():
        if name.startswith(_RESERVED):
            raise ValueError(
                f"tag {name!r} is reserved for the origin of a run: choose another name"
            )
        if not _accepts(partial(dg.AssetSpec, "any", tags={name: ""})):
            raise ValueError(
                f"{name!r} is not a tag: write letters, digits, '_', '-', '.', and at most one '/'"
            )
        if not _is_open(value) and not _accepts(partial(dg.AssetSpec, "any", tags={name: value})):
            raise ValueError(
                f"{value!r} cannot be the value of tag {name!r}: write up to 63 letters, digits, "
                "'_', '-' and '.'"
            )
    return values


def _filled(made: Callable[[object], object]) -> Callable[[dg.ResolutionContext, object], object]:
    """Resolve the templates in a value, at any depth; all other texts stay as they are written.

    ``made``: converts the rendered value of a template.
    """

    def resolve(context: dg.ResolutionContext, value: object) -> object:
        if isinstance(value, list):
            return [resolve(context, one) for one in value]
        if isinstance(value, dict):
            return {name: resolve(context, one) for name, one in value.items()}
        return made(context.resolve_value(value, as_type=object)) if _is_open(value) else value

    return resolve


#: Dagster would turn '42' into a number, but it is a valid name.
_texts: Final = _filled(lambda found: found if isinstance(found, list | dict) else str(found))
_as_written: Final = _filled(lambda found: found)
_LIST: Final = dg.Resolver(_texts, model_field_type=list[str])
Texts = Annotated[list[str], _LIST]
_PATTERN: Final = _require(bool, "is empty: write a name or a pattern")
Patterns = Annotated[list[Annotated[str, AfterValidator(_PATTERN)]], _LIST]
_OWNER: Final = _require(
    lambda owner: _accepts(lambda: dg.AssetSpec("any", owners=[owner])),
    "is not an owner: write an e-mail address, or team:NAME",
)
Owners = Annotated[list[Annotated[str, AfterValidator(_OWNER)]], _LIST]
Tags = Annotated[
    dict[str, str],
    AfterValidator(_tags),
    dg.Resolver(_texts, model_field_type=dict[str, str]),
]
#: A mapping whose texts stay as written, except for templates.
AsWritten = Annotated[dict[str, Any], dg.Resolver(_as_written, model_field_type=dict[str, Any])]
RetainRules = Annotated[
    dict[str, Any],
    filled_in(Retain.parse),
    dg.Resolver(_as_written, model_field_type=dict[str, Any]),
]
_NAME: Final = _require(
    re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}").fullmatch,  # Dagster takes it wherever names go
    "cannot be a name: write a letter, and then letters, digits and '_', 40 at most",
)
Name = Annotated[str, filled_in(_NAME)]
_CRON: Final = _require(
    lambda cron: _accepts(lambda: dg.ScheduleDefinition(job_name="any", cron_schedule=cron)),
    "is not a cron schedule: write five fields, for example '0 2 * * 0'",
)
Cron = Annotated[
    str,
    filled_in(_CRON),
    _expected(r"^\S+(\s+\S+){4}$", "five cron fields, for example 0 2 * * 0"),
]
_ZONE: Final = _require(
    lambda zone: _accepts(lambda: ZoneInfo(zone)),
    "is not a time zone: write one like Europe/Berlin",
)
Zone = Annotated[str, filled_in(_ZONE)]
_URL: Final = _require(
    lambda url: url.startswith(("http://", "https://")),
    "is not a URL: write it with its scheme, https://example.com for example",
)
Url = Annotated[
    str,
    filled_in(_URL),
    _expected(r"^https?://", "a URL with its scheme, for example https://example.com"),
]


def with_plain_errors(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema whose errors name the wrong value, at any depth.

    Dagster allows a ``{{ }}`` template in place of each list and section, as the second of two
    alternatives. Errors inside the first one would only be "not valid under any of the given
    schemas".
    """
    return {name: _plain(part) for name, part in schema.items()}


def _plain(part: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, dict):
        return part
    rest = {name: _plain(value) for name, value in part.items()}
    choices = rest.get("anyOf", [])
    if len(choices) == 2 and choices[1] == {"type": "string"}:  # noqa: PLR2004 - as Dagster writes it
        del rest["anyOf"]
        return {**rest, "if": {"type": "string", "pattern": _TEMPLATE}, "else": choices[0]}
    return rest
