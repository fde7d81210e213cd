"""Parses retention rules for many repositories, which are named by patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lakegc_assets.retention.rules import (
    Rules,
    RulesError,
    require_known,
    require_mapping,
)

_KEYS = ("repositories", "exclude", "default_retention_days", "branches")


@dataclass(frozen=True)
class RulesOf:
    """Rules of some repositories.

    Attributes:
        repositories: patterns of names, with ``*``, ``?`` and ``[ab]``.
        exclude: patterns of the names to leave out.
        rules: lakeFS's rules.
    """

    repositories: Sequence[str]
    exclude: Sequence[str]
    rules: Rules


@dataclass(frozen=True)
class DefaultRules:
    """Rules of many repositories.

    Attributes:
        entries: rules by patterns; the last entry that matches a repository applies.
    """

    entries: Sequence[RulesOf]

    @classmethod
    def parse(cls, value: object) -> DefaultRules:
        """Read rules from decoded JSON or YAML.

        ``[{"repositories": ["ml-*"], "exclude": ["ml-legal"], "default_retention_days": 14,
        "branches": [{"branch_id": "main", "retention_days": 90}]}]``; ``exclude`` and ``branches``
        may be left out.

        Raises:
            RulesError: a key is missing or unknown, or a value is invalid; the message says which
                one and where.
        """
        if not isinstance(value, list) or not value:
            raise RulesError(f"write a list of rules, each with repositories, not {value!r}")
        return cls([_entry(one, number) for number, one in enumerate(value)])

    def of(self, repository: str) -> Rules | None:
        """Return the rules of a repository; None if no entry matches it."""
        found = [
            one.rules
            for one in self.entries
            if _named(repository, one.repositories) and not _named(repository, one.exclude)
        ]
        return found[-1] if found else None


def _named(repository: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(repository, pattern) for pattern in patterns)


def _entry(value: object, number: int) -> RulesOf:
    where = f"entry {number + 1}"
    of = require_mapping(value, where, (number,))
    require_known(of, _KEYS, where, (number,))
    if "repositories" not in of:
        raise RulesError(f"{where}: repositories is missing", (number,))
    patterns = _patterns(of["repositories"], where, number, "repositories")
    exclude = _patterns(of.get("exclude", []), where, number, "exclude")
    if not patterns:
        raise RulesError(f"{where}: repositories names none", (number, "repositories"))
    whole = {name: of[name] for name in of if name not in ("repositories", "exclude")}
    try:
        rules = Rules.parse({"branches": None, **whole})
    except RulesError as error:
        raise RulesError(f"{where}: {error}", (number, *error.path)) from error
    return RulesOf(patterns, exclude, rules)


def _patterns(value: object, where: str, number: int, key: str) -> list[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(p, str) and p.strip() for p in listed):
        raise RulesError(
            f"{where}: {key} must be patterns of names, in quotes, not {value!r}", (number, key)
        )
    return listed
