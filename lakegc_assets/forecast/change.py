"""Proposed retention rules: changes of one repository's rules, and rules of many repositories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.writes import LakeFSWriter
from lakegc_assets.retention.default_rules import DefaultRules
from lakegc_assets.retention.retain import Retain
from lakegc_assets.retention.rules import Rules

State = Literal["to be set", "same", "has others", "read-only"]


@dataclass(frozen=True)
class Change:
    """A difference to today's rules.

    Attributes:
        rules: in place of today's; None for those.
        default: days by default; None for what the rules have.
        branches: days of single branches, added to those of the rules.
        without: branches that are to be deleted.
        retain: rules that keep more than lakeFS's, in place of today's; None for those.
    """

    rules: Rules | None = None
    default: int | None = None
    branches: Mapping[str, int] = field(default_factory=dict)
    without: Sequence[str] = ()
    retain: Retain | None = None

    def of(self, today: Rules | None) -> Rules:
        """The other rules, by today's, None where there are none.

        Raises:
            ConfigurationError: there are none, and no default was given; or lakeFS would take these
                for none, or cannot follow them.
        """
        base = today if self.rules is None else self.rules
        if base is None and self.default is None:
            raise ConfigurationError(
                "the repository has no retention rules: say which to look at, --set-default 14 or "
                "--rules FILE"
            )
        default = self.default
        if base is not None and default is None:
            default = base.default_retention_days
        branches = {} if base is None else base.branches
        rules = Rules(default or 0, {**branches, **self.branches})
        require_rules(rules)
        return rules


def require_rules(rules: Rules) -> None:
    """Refuse what lakeFS stores as no rules at all: then all that was ever committed stays."""
    if not rules.default_retention_days and not rules.branches:
        raise ConfigurationError(
            "lakeFS takes a default of 0 days, without a rule of a branch, for no rules, and keeps "
            "all that was ever committed: set a default of 1, or days of a branch, too"
        )


def todays_rules(raw: object) -> Rules | None:
    """Retention rules as lakeFS answers them; None where it has none."""
    return None if raw is None else Rules.parse(raw)


def apply_rules(client: LakeFSWriter, repository: str, before: Rules | None, after: Rules) -> None:
    """Set the rules ``after``, unless those shown as today's (``before``) were changed meanwhile.

    Raises:
        ConfigurationError: lakeFS would take them for none.
        RefusedError: other rules hold by now.
        IntegrityError: lakeFS took them, and answers with others.
        LakeFSError: the server did not answer, or did not take them.
    """
    require_rules(after)
    now = todays_rules(client.gc_rules(repository))
    if now != before:
        raise RefusedError(
            f"the retention rules of {repository!r} were changed meanwhile, to "
            f"{None if now is None else now.to_json()}: nothing is set there. Look at them again"
        )
    client.set_gc_rules(repository, after.default_retention_days, after.branches)
    if (found := todays_rules(client.gc_rules(repository))) != after:
        raise IntegrityError(
            f"the retention rules of {repository!r} were set, and are "
            f"{None if found is None else found.to_json()} now: somebody else has set them, too. "
            "Look at them before the next mark"
        )


@dataclass(frozen=True)
class Compared:
    """The rules that hold in lakeFS for a repository, None without any, and those that are to.

    In the state ``has others`` it has rules of its own, which stay.
    """

    repository: str
    today: Rules | None
    rules: Rules
    state: State

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "repository": self.repository,
            "today": None if self.today is None else self.today.to_json(),
            "rules": self.rules.to_json(),
            "state": self.state,
        }


def compare_rules(client: LakeFSClient, defaults: DefaultRules, *, replace: bool) -> list[Compared]:
    """The repositories that rules are for, by name, and the rules that hold there.

    With ``replace``, they take the place of other rules that a repository has.
    """
    found = []
    for repository in client.repositories():
        rules = defaults.of(repository.id)
        if rules is None:
            continue
        require_rules(rules)
        today = todays_rules(client.gc_rules(repository.id))
        state: State = "to be set"
        if today == rules:
            state = "same"
        elif repository.read_only:
            state = "read-only"
        elif today is not None and not replace:
            state = "has others"
        found.append(Compared(repository.id, today, rules, state))
    return found
