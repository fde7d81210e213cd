"""Commands of ``lakegc`` as messages print them: whole, so that they can be pasted into a shell."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.retention.retain import Retain
from lakegc_assets.run.settings import CollectorSettings, Settings, as_today

if TYPE_CHECKING:
    from lakegc_assets.run.artifacts import AttemptArtifacts
    from lakegc_assets.storage.config import StoreConfig

#: How the bucket of the backups is reached, where it is reached in a way of its own.
_WAYS: Final = ("endpoint_url", "region", "profile")
_BACKUP: Final = frozenset(
    name for name in CollectorSettings.model_fields if name.startswith("backup_")
) | {f"backup_{way}" for way in _WAYS}
_LEASE: Final = frozenset({"lease_duration_seconds", "lease_wait_seconds"})
#: Settings that only a mark reads: a sweep has them from its mark.
_OF_A_MARK: Final = frozenset(
    {
        "adopt",
        "allow_unsafe_min_age",
        "attribution",
        "clean",
        "clean_every_hours",
        "inventory_max_age_days",
        "inventory_place",
        "listing",
        "listing_check",
        "listing_num_partitions",
        "min_age_hours",
        "mode",
        "skip_new_slices",
    }
)
#: Of the collector resource, and not of the core.
_EXCLUDED: Final = "collect_excluded"
_ALL: Final = frozenset(CollectorSettings.model_fields) | _BACKUP | {_EXCLUDED}
#: Messages about times leave the unit out.
_UNIT: Final = re.compile("_(seconds|hours|days)$")
#: Names of settings as messages have them, but for those that are words of every day, too.
SETTINGS: Final = tuple(
    sorted(
        (_ALL | {_UNIT.sub("", name) for name in _ALL} - {"pin", "trash"})
        - {"adopt", "attribution", "clean", "listing", "mode", "retain"}
    )
)
#: Which settings a command takes; one that is not here takes none.
_TAKEN: Final = {
    "run": _ALL,
    "mark": _ALL,
    "adopt": _ALL - {"adopt"},
    "sweep": _ALL - _OF_A_MARK,
    "backup": _BACKUP | _LEASE | {"engine", _EXCLUDED},
    "hold": _BACKUP | _LEASE | {"pin_days"},
    "restore": _BACKUP | _LEASE | {"pin_days", "engine"},
    "approve": frozenset({_EXCLUDED}),
}
#: Words of a command line that are recorded, and characters of one: those of the id of a run.
_WORDS: Final = 6
_LONGEST: Final = 128

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def own_command() -> str:
    """The beginning of the command line of this process, for records that others read.

    A word that may hold more than names is left out: Dagster gives a process that it starts its
    whole configuration, as JSON or packed, with the passwords of its databases.
    """
    first, *rest = sys.argv[:_WORDS] or [""]
    return " ".join([first, *("…" if "{" in one or len(one) > _LONGEST else one for one in rest)])


@dataclass(frozen=True)
class Source:
    """The arguments of printed commands besides settings: definitions and defaults."""

    #: The value of ``--defs``; empty where there is no component of one's own.
    definitions: str = ""
    #: Of a repository, the settings that a command has without options, as ``given_settings``
    #: returns them; None for those of ``Settings``.
    usual: Callable[[str], Mapping[str, Any]] | None = None
    #: Settings of the run that are no settings of the core.
    always: Mapping[str, Any] = field(default_factory=dict)
    #: Of the component; empty where it has none.
    name: str = ""


_DEFAULT: Final = Source()
_SOURCE: Final[ContextVar[Source]] = ContextVar("source", default=_DEFAULT)


def source() -> Source:
    """The source of the commands that are printed now."""
    return _SOURCE.get()


def in_dagster(plain: str) -> str:
    """The name that a job, schedule or sensor has in Dagster; ``plain`` without a component's."""
    name = source().name
    return f"{name}_{plain}" if name else plain


@contextmanager
def printing(chosen: Source) -> Iterator[None]:
    """Let commands that are printed meanwhile take something else beside their options."""
    token = _SOURCE.set(chosen)
    try:
        yield
    finally:
        _SOURCE.reset(token)


def command_line(command: str, *arguments: str, settings: Mapping[str, Any] = _NONE) -> str:
    """A command of ``lakegc`` for a shell, with every setting that is not the default.

    ``settings``: as ``given_settings`` and ``recorded_settings`` return them; those that the
    command does not take are left out.
    """
    given = source()
    words = ["lakegc", *(["--defs", given.definitions] if given.definitions else ())]
    words += [command, *arguments]
    usual = given.usual(arguments[0]) if given.usual and settings else None
    changed = _keeping_more(_changed(settings, usual), usual or {})
    for name, value in {**changed, **given.always}.items():
        if name in _TAKEN.get(command, ()):
            words += ["--set", f"{name}={_text(value)}"]
    return " ".join(map(quote, words))


def given_settings(settings: Settings, stores: StoreConfig) -> dict[str, Any]:
    """Settings as JSON values, with how the bucket of the backups is reached."""
    ways = {
        f"backup_{way}": getattr(access, way)
        for _, access in stores.elsewhere
        for way in _WAYS
        if getattr(access, way)
    }
    return {**settings.to_json(), **ways}


def recorded_settings(attempt: AttemptArtifacts) -> Mapping[str, Any]:
    """The settings that a published mark was made with; none where they are unknown."""
    try:
        return as_today(attempt.recorded("gc_report").settings)
    except LakegcError:
        return _NONE


@cache
def _usual() -> Mapping[str, Any]:
    """The settings of who sets nothing."""
    return Settings().to_json()


def _changed(settings: Mapping[str, Any], usual: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings that differ from the usual ones, in the order of ``CollectorSettings``."""
    usual = _usual() if usual is None else usual
    return {
        name: settings[name]
        for name in [*usual, *sorted(settings.keys() - usual.keys())]
        if name in settings and settings[name] != usual.get(name)
    }


def _keeping_more(changed: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that would keep less than usual.

    What somebody has set since a mark was made keeps objects, and a sweep follows the rules of its
    mark besides: so a command that is pasted must not switch anything off.
    """
    found = dict(changed)
    if found.get("protect_tags") is False:
        del found["protect_tags"]
    if "retain" in found:
        now = Retain.parse(usual.get("retain"))
        both = Retain.parse(found["retain"]) | now
        found["retain"] = both.to_json()
        if both == now:
            del found["retain"]
    return found


def _text(value: object) -> str:
    """A value as ``--set`` takes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
