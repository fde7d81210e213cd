"""Commands of ``lakegc`` in messages: complete, so that a user can paste them into a shell."""

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
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.run.settings import CollectorSettings, Settings

if TYPE_CHECKING:
    from lakegc_assets.run.artifacts import AttemptArtifacts
    from lakegc_assets.storage.config import StoreConfig

#: Settings of the access to the bucket of backups, if it differs from the namespace's.
_WAYS: Final = ("endpoint_url", "region", "profile")
_BACKUP: Final = frozenset(
    name for name in CollectorSettings.model_fields if name.startswith("backup_")
) | {f"backup_{way}" for way in _WAYS}
_LEASE: Final = frozenset({"lease_duration_seconds", "lease_wait_seconds"})
#: Settings that only a mark reads: a sweep takes them from its mark.
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
#: A setting of the collector resource that the core lacks.
_EXCLUDED: Final = "collect_excluded"
_ALL: Final = frozenset(CollectorSettings.model_fields) | _BACKUP | {_EXCLUDED}
#: The unit suffix of a setting, which messages about times omit.
_UNIT: Final = re.compile("_(seconds|hours|days)$")
#: Names of settings in messages, without names that are also everyday words.
SETTINGS: Final = tuple(
    sorted(
        (_ALL | {_UNIT.sub("", name) for name in _ALL} - {"pin", "trash"})
        - {"adopt", "attribution", "clean", "listing", "mode", "retain"}
    )
)
#: The settings that each command takes; a command that is absent takes none.
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
#: Recorded words of a command line, and the longest recorded word: the longest run id.
_WORDS: Final = 6
_LONGEST: Final = 128

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def own_command() -> str:
    """Return the beginning of this process's command line, for records that other users read.

    A word that may hold secrets is omitted: Dagster passes its whole configuration to a process
    that it starts, as JSON or packed, with the passwords of its databases.
    """
    first, *rest = sys.argv[:_WORDS] or [""]
    return " ".join([first, *("…" if "{" in one or len(one) > _LONGEST else one for one in rest)])


@dataclass(frozen=True)
class Source:
    """The defaults of printed commands, and their arguments besides settings."""

    #: The value of ``--defs``; empty without a component of the user's own.
    definitions: str = ""
    #: Returns the settings of a repository for a command without options, in the form of
    #: ``given_settings``; None for the defaults of ``Settings``.
    usual: Callable[[str], Mapping[str, Any]] | None = None
    #: Settings of the run that the core lacks.
    always: Mapping[str, Any] = field(default_factory=dict)
    #: The name of the component; empty for none.
    name: str = ""


_DEFAULT: Final = Source()
_SOURCE: Final[ContextVar[Source]] = ContextVar("source", default=_DEFAULT)


def source() -> Source:
    """Return the source of the commands that are printed now."""
    return _SOURCE.get()


def in_dagster(plain: str) -> str:
    """Return the name of a job, schedule or sensor: ``plain``, after a component's name if any."""
    name = source().name
    return f"{name}_{plain}" if name else plain


@contextmanager
def printing(chosen: Source) -> Iterator[None]:
    """Use another source for the commands that are printed meanwhile."""
    token = _SOURCE.set(chosen)
    try:
        yield
    finally:
        _SOURCE.reset(token)


def command_line(command: str, *arguments: str, settings: Mapping[str, Any] = _NONE) -> str:
    """Return a command of ``lakegc`` for a shell, with every setting that is not the default.

    ``settings``: in the form of ``given_settings`` and ``recorded_settings``; the command omits
    the settings that it does not take.
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
    """Return settings as JSON values, with the access to the bucket of backups."""
    ways = {
        f"backup_{way}": getattr(access, way)
        for _, access in stores.elsewhere
        for way in _WAYS
        if getattr(access, way)
    }
    return {**settings.to_json(), **ways}


def recorded_settings(attempt: AttemptArtifacts) -> Mapping[str, Any]:
    """Return the settings of a published mark; empty if they are unknown."""
    try:
        return attempt.recorded("gc_report").settings
    except LakegcError:
        return _NONE


@cache
def _usual() -> Mapping[str, Any]:
    """Return the default settings."""
    return Settings().to_json()


def _changed(settings: Mapping[str, Any], usual: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings that differ from the usual ones, ordered as ``CollectorSettings``."""
    usual = _usual() if usual is None else usual
    return {
        name: settings[name]
        for name in [*usual, *sorted(settings.keys() - usual.keys())]
        if name in settings and settings[name] != usual.get(name)
    }


def _keeping_more(changed: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that would keep fewer objects than usual.

    Rules that a user has set since the mark keep objects, and a sweep also follows the rules of its
    mark. So a pasted command must not switch any rule off.
    """
    found = dict(changed)
    if found.get("protect_tags") is False:
        del found["protect_tags"]
    if "retain" in found:
        now = Retain.parse(usual.get("retain"))
        merged = Retain.parse(found["retain"]) | now
        found["retain"] = merged.to_json()
        if merged == now:
            del found["retain"]
    return found


def _text(value: object) -> str:
    """Return a value in the form of ``--set``."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
