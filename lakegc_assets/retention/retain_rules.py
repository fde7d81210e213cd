"""Parses retention rules that lakeFS does not have; they only keep more than lakeFS's rules.

``retained_commits`` finds the commits that they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from lakegc_assets.retention.rules import MAX_DAYS, RulesError, require_known, require_mapping

#: Days of a rule that keeps for ever: more than a rule can have.
FOREVER: Final = MAX_DAYS + 1
#: Most folders in a pattern of paths: only so many folders of each path are cached.
MOST_FOLDERS: Final = 4
_KEYS: Final = ("branches", "metadata", "paths", "tags")
_FOREVER: Final = "forever"
_ALL_BELOW: Final = "**"
_Path = tuple[str | int, ...]
_V = TypeVar("_V")


class OfBranches(NamedTuple):
    """Rules that keep commits of branches.

    Attributes:
        days: days of retention; None for those of lakeFS's rules.
        last_commits: number of commits of the main ancestry, including the HEAD; None for none.
    """

    days: int | None = None
    last_commits: int | None = None

    def __or__(self, other: OfBranches) -> OfBranches:
        """Unite two rules: keep what either of them keeps."""
        return OfBranches(
            _longer(self.days, other.days), _longer(self.last_commits, other.last_commits)
        )


@dataclass(frozen=True)
class Retain:
    """Rules that keep more. Patterns have ``*``, ``?`` and ``[ab]``; ``/`` is not special.

    Attributes:
        tags: patterns of tags whose commits stay active.
        branches: pattern of branches → rules for their commits.
        metadata: key of a commit's metadata → values, or ``*`` for any, that keep it active.
        paths: ``**``, or folders and ``/**`` → least days for which entries below are kept, on any
            branch and on none; ``FOREVER`` for always.
    """

    tags: tuple[str, ...] = ()
    # Mappings have no hash; equal rules have equal tags.
    branches: Mapping[str, OfBranches] = field(default_factory=dict, hash=False)
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    paths: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.tags or self.branches or self.metadata or self.paths)

    @property
    def reads_tags(self) -> bool:
        """Return True if a tag can change the result of the rules."""
        return bool(self.tags) or self.reads_all_commits

    @property
    def reads_all_commits(self) -> bool:
        """Return True if commits, or entries below a path, can stay that no branch leads to."""
        return bool(self.metadata or self.paths)

    def __or__(self, other: Retain) -> Retain:
        """Unite two sets of rules: keep what either of them keeps."""
        if not (self and other):
            return self or other
        return Retain(
            _distinct([*self.tags, *other.tags]),
            {
                pattern: self.branches.get(pattern, _NOTHING)
                | other.branches.get(pattern, _NOTHING)
                for pattern in _distinct([*self.branches, *other.branches])
            },
            {
                key: _distinct([*self.metadata.get(key, ()), *other.metadata.get(key, ())])
                for key in _distinct([*self.metadata, *other.metadata])
            },
            {
                pattern: max(self.paths.get(pattern, 0), other.paths.get(pattern, 0))
                for pattern in _distinct([*self.paths, *other.paths])
            },
        )

    @classmethod
    def parse(cls, value: object) -> Retain:
        """Read rules from decoded JSON or YAML; null means none.

        ``{"tags": ["v*"], "branches": {"release-*": {"days": 365}, "main": {"last_commits": 10}},
        "metadata": {"legal-hold": "true"}, "paths": {"legal/**": "forever", "logs/**": 90}}``;
        each key may be left out.

        Args:
            value: as above, or as ``to_json`` returns it.

        Raises:
            RulesError: a key is unknown, or a value is invalid; the message says which and where.
        """
        if value is None or value == {}:
            return NO_RETAIN
        whole = require_mapping(value, "retain", ())
        require_known(whole, _KEYS, "retain", ())
        tags = whole.get("tags", [])
        if not isinstance(tags, list):
            raise RulesError(f"tags must be a list of patterns, not {tags!r}", ("tags",))
        return cls(
            _distinct(_text(one, "a pattern of tags", ("tags", n)) for n, one in enumerate(tags)),
            _each(whole, "branches", "a pattern of branches", _of_branches),
            _each(whole, "metadata", "a key of metadata", _values),
            _each(whole, "paths", "a pattern of paths", _of_paths),
        )

    def to_json(self) -> dict[str, object]:
        """Return the rules in the form that ``parse`` reads; an empty dict without rules."""
        branches = {
            pattern: {name: n for name, n in kept._asdict().items() if n is not None}
            for pattern, kept in self.branches.items()
        }
        metadata = {key: list(values) for key, values in self.metadata.items()}
        paths = {
            pattern: _FOREVER if days == FOREVER else days for pattern, days in self.paths.items()
        }
        found = {
            "tags": list(self.tags),
            "branches": branches,
            "metadata": metadata,
            "paths": paths,
        }
        return {name: value for name, value in found.items() if value}


_NOTHING: Final = OfBranches()
#: No rule that keeps more than lakeFS's rules.
NO_RETAIN: Final = Retain()


def prefix_of(pattern: str) -> str:
    """Return the prefix of the paths that a pattern matches: empty, or with a slash at its end."""
    return pattern.removesuffix(_ALL_BELOW)


def _longer(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


# Parsing


def _each(
    whole: Mapping[str, object], name: str, key: str, read: Callable[[object, str, _Path], _V]
) -> dict[str, _V]:
    of = require_mapping(whole.get(name, {}), name, (name,))
    return {
        _text(one, key, (name, one)): read(value, f"{name}: {one!r}", (name, one))
        for one, value in of.items()
    }


def _of_branches(value: object, where: str, path: _Path) -> OfBranches:
    of = require_mapping(value, where, path)
    require_known(of, OfBranches._fields, where, path)
    if not of:
        raise RulesError(f"{where} keeps nothing: give days, last_commits, or both", path)
    return OfBranches(
        *(
            _number(of[name], least, f"{where}: {name}", (*path, name)) if name in of else None
            for name, least in (("days", 0), ("last_commits", 1))
        )
    )


def _values(value: object, where: str, path: _Path) -> tuple[str, ...]:
    listed: Sequence[object] = value if isinstance(value, list) else [value]
    if not listed:
        raise RulesError(f"{where} names no value: write one, or '*' for any", path)
    for one in listed:
        # An empty string is a valid value.
        if not isinstance(one, str):
            raise RulesError(
                f"{where} must be text, in quotes, a list of texts, or '*' for any, not {one!r}",
                path,
            )
    return _distinct(map(str, listed))


def _of_paths(value: object, where: str, path: _Path) -> int:
    prefix = prefix_of(str(path[-1]))
    if problem := _problem_of(str(path[-1]), prefix):
        raise RulesError(f"{where} {problem}", path)
    if value == _FOREVER:
        return FOREVER
    if not isinstance(value, int):
        raise RulesError(f"{where} must be a number of days, or {_FOREVER}, not {value!r}", path)
    return _number(value, 1, where, path)


def _problem_of(pattern: str, prefix: str) -> str:
    """Return the reason why a pattern of paths is invalid; empty if it is valid."""
    if pattern == prefix or (prefix and not prefix.endswith("/")):
        return (
            "must be '**', for all paths, or end in '/**', for all below a folder: "
            "'legal/**', say; neither '*' nor a single path is understood"
        )
    if any(one in prefix for one in "*?["):
        return "has a pattern in the middle: only '**' at the end is understood"
    if prefix.startswith("/") or "//" in prefix:
        return "has a folder without a name: write 'legal/**', and '**' for all paths"
    if prefix.count("/") > MOST_FOLDERS:
        return (
            f"names {prefix.count('/')} folders, and {MOST_FOLDERS} are the most: name one further "
            "up, which keeps more"
        )
    return ""


def _text(value: object, what: str, path: _Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RulesError(f"{what} must be text, in quotes, and is {value!r}", path)
    return value


def _number(value: object, least: int, where: str, path: _Path) -> int:
    # A bool is an int to Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_DAYS:
        raise RulesError(f"{where} must be a whole number from {least} to {MAX_DAYS}", path)
    return value
