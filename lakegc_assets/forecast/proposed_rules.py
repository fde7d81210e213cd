"""Proposed retention rules: changes for one repository, and rules for many repositories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.writes import LakeFSWriter
from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.retention.rules import DefaultRules, Rules

State = Literal["to be set", "same", "has others", "read-only"]


@dataclass(frozen=True)
class Change:
    """A change to today's rules."""

    #: Rules that replace today's; None to keep today's.
    rules: Rules | None = None
    #: Default retention in days; None for the default of the rules.
    default: int | None = None
    #: Retention in days of single branches, added to those of the rules.
    branches: Mapping[str, int] = field(default_factory=dict)
    #: Branches that are to be deleted.
    without: Sequence[str] = ()
    #: Rules, in addition to lakeFS's, that replace today's; None to keep today's.
    retain: Retain | None = None

    def of(self, today: Rules | None) -> Rules:
        """Apply the change to today's rules, which are None without rules.

        Raises:
            ConfigurationError: there are no rules and the change has no default; or lakeFS would
                treat the new rules as no rules, or cannot follow them.
        """
        base = today if self.rules is None else self.rules
        if base is None and self.default is None:
            raise ConfigurationError(
                "the repository has no retention rules: give the rules of the forecast, for "
                "example --set-default 14, or --rules FILE"
            )
        default = self.default
        if base is not None and default is None:
            default = base.default_retention_days
        branches = {} if base is None else base.branches
        rules = Rules(default or 0, {**branches, **self.branches})
        require_rules(rules)
        return rules


def require_rules(rules: Rules) -> None:
    """Refuse rules that lakeFS stores as no rules: without rules, all committed objects stay."""
    if not rules.default_retention_days and not rules.branches:
        raise ConfigurationError(
            "lakeFS reads a default of 0 days without a rule of a branch as no rules, and then "
            "keeps all that was ever committed: set a default of 1 or more, or the days of a branch"
        )


def todays_rules(raw: object) -> Rules | None:
    """Retention rules as lakeFS returns them; None without rules."""
    return None if raw is None else Rules.parse(raw)


def apply_rules(client: LakeFSWriter, repository: str, before: Rules | None, after: Rules) -> None:
    """Set the rules ``after``, unless the rules in lakeFS differ from ``before``, which were shown.

    Raises:
        ConfigurationError: lakeFS would treat the rules as no rules.
        RefusedError: other rules are set now.
        IntegrityError: lakeFS accepted the rules, and returns different ones.
        LakeFSError: the server did not answer, or rejected the rules.
    """
    require_rules(after)
    now = todays_rules(client.gc_rules(repository))
    if now != before:
        raise RefusedError(
            f"the retention rules of {repository!r} were changed meanwhile, to "
            f"{None if now is None else now.to_json()}, so nothing was set. Repeat the command, "
            "which then compares with these rules"
        )
    client.set_gc_rules(repository, after.default_retention_days, after.branches)
    if (found := todays_rules(client.gc_rules(repository))) != after:
        raise IntegrityError(
            f"the retention rules of {repository!r} were set, and are "
            f"{None if found is None else found.to_json()} now: somebody else has set them at the "
            "same time. Check them in lakeFS before the next mark"
        )


@dataclass(frozen=True)
class Compared:
    """The rules of a repository in lakeFS, None without rules, and the rules to set.

    In the state ``has others`` the repository has rules of its own, which stay.
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
    """The repositories that rules are defined for, by name, with their rules in lakeFS.

    With ``replace``, the defined rules replace the other rules of a repository.
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
