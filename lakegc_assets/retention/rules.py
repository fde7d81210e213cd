"""Reads lakeFS's retention rules, of one repository or of many, and refuses what could be misread.

lakeFS itself accepts negative days and ignores unknown keys. A collector must not guess the meaning
of such a rule, so each of them is an error that names the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lakegc_assets.errors import ConfigurationError

MAX_DAYS = 2**31 - 1
"""lakeFS keeps days as a signed integer of 32 bits."""
_KEYS = ("repositories", "exclude", "default_retention_days", "branches")


class RulesError(ConfigurationError):
    """A retention rule is not one of lakeFS's, or cannot be followed safely.

    Attributes:
        path: keys and indexes that lead to the rule, if it was read from JSON.
    """

    def __init__(self, message: str, path: Sequence[str | int] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


@dataclass(frozen=True)
class Rules:
    """Days for which data that a branch no longer shows must stay readable.

    Attributes:
        default_retention_days: days for branches without a rule, and for dangling commits.
        branches: branch → days. May name branches that do not exist.

    Raises:
        RulesError: days are negative, too many or no integers, or a branch has no name.
    """

    default_retention_days: int
    branches: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_days(self.default_retention_days, "default_retention_days")
        for branch, days in self.branches.items():
            _check_branch(branch, "branches")
            _check_days(days, f"retention_days of branch {branch!r}")
        object.__setattr__(self, "branches", dict(self.branches))

    @classmethod
    def parse(cls, obj: object) -> Rules:
        """Read the JSON answer of ``GET /repositories/{r}/settings/gc_rules``.

        ``{"default_retention_days": 14, "branches": [{"branch_id": "main", "retention_days":
        21}]}``. ``branches`` is null if there are none. Of two rules for a branch the last wins,
        as on the server.

        Args:
            obj: the decoded JSON.

        Raises:
            RulesError: a key is missing or unknown, or a value is invalid; the message says which
                one and where.
        """
        whole = _exact_keys(obj, ("default_retention_days", "branches"), "the rules")
        name = "default_retention_days"
        default = _check_days(whole[name], name, (name,))
        listed = [] if whole["branches"] is None else whole["branches"]
        if not isinstance(listed, list):
            raise RulesError(
                f"branches must be a list of rules or null, not {listed!r}", ("branches",)
            )
        branches = {}
        for index, entry in enumerate(listed):
            where, path = f"branches[{index}]", ("branches", index)
            rule = _exact_keys(entry, ("branch_id", "retention_days"), where, path)
            branch = _check_branch(rule["branch_id"], f"{where}.branch_id", (*path, "branch_id"))
            branches[branch] = _check_days(
                rule["retention_days"],
                f"{where}.retention_days of branch {branch!r}",
                (*path, "retention_days"),
            )
        return cls(default, branches)

    def days(self, branch: str) -> int:
        """Return the days of ``branch``: of its own rule, else the default."""
        return self.branches.get(branch, self.default_retention_days)

    def to_json(self) -> dict[str, object]:
        """Return the rules in the form that ``parse`` reads, branches ordered by name."""
        return {
            "default_retention_days": self.default_retention_days,
            "branches": [
                {"branch_id": branch, "retention_days": days}
                for branch, days in sorted(self.branches.items())
            ],
        }


_Path = Sequence[str | int]


def require_mapping(value: object, where: str, path: _Path) -> dict[str, object]:
    """Return a value that is a mapping; raise RulesError for any other value."""
    if not isinstance(value, dict):
        raise RulesError(f"{where} must have keys with values, and is {value!r}", path)
    return value


def require_known(of: Mapping[str, object], keys: Sequence[str], where: str, path: _Path) -> None:
    """Raise RulesError if there is a key that is not in ``keys``."""
    if unknown := sorted(of.keys() - set(keys), key=repr):
        raise RulesError(
            f"{where}: unknown key {unknown[0]!r}; expected {', '.join(keys)}", (*path, unknown[0])
        )


def _exact_keys(
    value: object, expected: Sequence[str], where: str, path: _Path = ()
) -> dict[str, object]:
    of = require_mapping(value, where, path)
    require_known(of, expected, where, path)
    if missing := [name for name in expected if name not in of]:
        raise RulesError(f"{where}: {', '.join(missing)} is missing", path)
    return of


def _check_days(value: object, where: str, path: _Path = ()) -> int:
    # A bool is an int to Python, but `true` days are a mistake of the author of the rules.
    if not isinstance(value, int) or isinstance(value, bool):
        raise RulesError(f"{where} must be a whole number of days, not {value!r}", path)
    if not 0 <= value <= MAX_DAYS:
        raise RulesError(f"{where} must be between 0 and {MAX_DAYS} days, not {value}", path)
    return value


def _check_branch(value: object, where: str, path: _Path = ()) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RulesError(f"{where} must name a branch, not {value!r}", path)
    return value


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
