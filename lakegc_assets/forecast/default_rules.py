"""Compares the rules of many repositories with those that hold in lakeFS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lakegc_assets.forecast.change import require_rules, todays_rules
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.retention.default_rules import DefaultRules
from lakegc_assets.retention.rules import Rules

State = Literal["to be set", "same", "has others", "read-only"]


@dataclass(frozen=True)
class Compared:
    """The rules of a repository, and those that are to hold there.

    Attributes:
        repository: its name.
        today: those that hold in lakeFS; None where there are none.
        rules: those that are to hold.
        state: ``has others``: it has rules of its own, which stay.
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
