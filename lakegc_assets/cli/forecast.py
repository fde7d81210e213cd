"""The commands ``forecast`` and ``rules``: other retention rules, and how to set them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import confirm

from lakegc_assets.cli.options import (
    FILE,
    json_option,
    parsed,
    require_answer,
    retain_of,
    yes_option,
)
from lakegc_assets.cli.output import echo_json, figures, say
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.wording import counted

if TYPE_CHECKING:
    from lakegc_assets.forecast.forecast import Amount, Forecast
    from lakegc_assets.forecast.proposed_rules import Change
    from lakegc_assets.lakefs.config import LakeFSConfig
    from lakegc_assets.retention.retain_rules import Retain
    from lakegc_assets.retention.rules import Rules

_apply_option = click.option(
    "--apply",
    "applying",
    is_flag=True,
    help="Set these rules in lakeFS, after a confirmation of the changes.",
)
#: Days of the curve that are shown; JSON has all days.
_SHOWN = (1, 7, 14, 30, 60, 90, 180, 365)


def _branch_days(value: str) -> tuple[str, int]:
    """A branch and its days: main=90."""
    branch, _, days = value.rpartition("=")
    if not branch or not days.isdecimal():
        raise click.BadParameter(f"{value!r} is not a branch with its days: write main=90")
    return branch, int(days)


@click.command()
@click.argument("repository")
@click.option(
    "--rules",
    "file",
    type=FILE,
    metavar="FILE",
    help="Other rules, as JSON in lakeFS's form, or as YAML. Default: today's rules.",
)
@click.option(
    "--set-default", "default", type=click.IntRange(0), metavar="DAYS", help="Default retention."
)
@click.option(
    "--set-branch",
    "branches",
    type=_branch_days,
    multiple=True,
    metavar="BRANCH=DAYS",
    help="Retention of a branch. May be repeated.",
)
@click.option(
    "--without-branch",
    "without",
    multiple=True,
    metavar="BRANCH",
    help="Compute as if this branch were deleted. May be repeated.",
)
@click.option(
    "--retain",
    type=FILE,
    metavar="FILE",
    help="A YAML file of rules that lakeFS does not have, and that keep more. Default: today's.",
)
@click.option(
    "--run", "run_id", help="Run of whose mark the figures are. Default: the latest mark."
)
@_apply_option
@yes_option
@json_option
def forecast(
    repository: str,
    file: Path | None,
    default: int | None,
    branches: tuple[tuple[str, int], ...],
    without: tuple[str, ...],
    retain: Path | None,
    run_id: str | None,
    applying: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what other retention rules would free of REPOSITORY.

    Shows the garbage under these rules and under today's, the same for each default from 1 to 365
    days, and what today's rules will free over time if nobody writes. The figures are as of the
    latest mark, from data that marks have read. Deletes nothing; --apply sets the rules, which the
    next mark follows.
    """
    from lakegc_assets.cli.site import repository_context
    from lakegc_assets.forecast.forecast import forecast as look_ahead

    change = _change(file, default, branches, without, retain)
    if applying and without:
        raise RefusedError("--apply sets rules and deletes no branch: leave --without-branch out")
    if applying:
        require_answer(as_json, yes)
    ctx = repository_context(repository, run_id or "any")
    found = look_ahead(ctx, change, run_id)
    if not as_json:
        for line in _lines(found):
            say(line)
    applied: dict[str, bool] = {}
    if applying:
        changes = [(found.repository, found.todays_rules, found.rules)]
        changed = [one for one in changes if found.rules != found.todays_rules]
        said = "these are today's rules: nothing was set"
        applied = {"applied": bool(_apply(ctx.lakefs, changed, "", said, yes=yes))}
    if as_json:
        echo_json(found.to_json() | applied)


def _apply(
    lakefs: LakeFSConfig,
    changes: Sequence[tuple[str, Rules | None, Rules]],
    of: str,
    otherwise: str,
    *,
    yes: bool,
) -> list[str]:
    """Set rules in lakeFS after a confirmation, and return the repositories whose rules were set.

    ``changes``: repositories, with the rules that were shown as today's, and the new rules.
    ``otherwise``: printed if there are none. ``yes``: asks nobody.
    """
    from lakegc_assets.forecast.proposed_rules import apply_rules

    if not changes:
        click.echo(otherwise, err=True)
        return []
    if not yes:
        confirm(f"Set these rules in lakeFS{of}?", abort=True, err=True)
    client = lakefs.connect_writer()
    for repository, today, rules in changes:
        apply_rules(client, repository, today, rules)
        click.echo(f"set: the next mark of {repository} follows these rules", err=True)
    return [repository for repository, _, _ in changes]


def _change(
    file: Path | None,
    default: int | None,
    branches: tuple[tuple[str, int], ...],
    without: tuple[str, ...],
    retain: Path | None,
) -> Change:
    """The change of rules that the options describe."""
    from lakegc_assets.forecast.proposed_rules import Change
    from lakegc_assets.retention.rules_file import parse_rules

    rules = None if file is None else parsed(file, parse_rules)
    days = dict(branches)
    if len(days) < len(branches):
        names = [name for name, _ in branches]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"--set-branch {twice}: it is given twice: give it once")
    other = None if retain is None else retain_of(retain)
    return Change(rules, default, days, tuple(dict.fromkeys(without)), other)


def _lines(found: Forecast) -> Iterator[str]:
    as_of = f"{found.as_of:%Y-%m-%d %H:%M} UTC"
    yield f"repository {found.repository}, as of mark {found.mark} ({as_of})"
    yield from _rules(found.todays_rules, found.rules)
    yield from _retain(found.todays_retain, found.retain)
    for branch in found.without_branches:
        yield f"  without branch {branch}"
    yield _amount("garbage today", found.today)
    which = "the other rules" if found.changes else "today's rules"
    if found.changes:
        yield _amount(f"garbage under {which}", found.forecast)
    yield f"  garbage under {which} with another default:"
    for days in _SHOWN:
        yield _amount(counted(days, "day"), found.curve[days], 6)
    yield "  garbage under today's rules, if nobody writes:"
    for days, amount in found.later.items():
        yield _amount(f"in {counted(days, 'day')}", amount, 6)
    for note in found.notes:
        yield f"  note: {note}"


def _rules(today: Rules | None, other: Rules) -> Iterator[str]:
    """Current and proposed rules next to each other, with the differences marked."""
    before: Mapping[str, int] = {} if today is None else today.branches
    was_default = None if today is None else today.default_retention_days
    rows: list[tuple[str, int | None, int | None]] = [
        ("default", was_default, other.default_retention_days),
        *(
            (f"branch {name}", before.get(name), other.branches.get(name))
            for name in sorted({*before, *other.branches})
        ),
    ]
    for name, was, days in rows:
        yield f"  {name:<30} {_changed(_days(was), _days(days))}"


def _retain(today: Retain, other: Retain) -> Iterator[str]:
    """The rules that only this program has, and their changes."""
    before, after = today.to_json(), other.to_json()
    for kind in sorted({*before, *after}):
        was, then = (json.dumps(rules.get(kind, "none")) for rules in (before, after))
        yield f"  retain: {kind:<22} {_changed(was, then)}"


def _changed(was: str, then: str) -> str:
    return was if was == then else f"{was} -> {then}"


def _days(days: int | None) -> str:
    return "no rule" if days is None else counted(days, "day")


def _amount(name: str, amount: Amount, indent: int = 2) -> str:
    bound = "" if amount.bound == "exact" else f"  ({amount.bound})"
    return figures(name, amount.objects, amount.bytes, indent=indent, width=38, end=bound)


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "--replace",
    is_flag=True,
    help="Also replace other rules that a repository has; else they stay.",
)
@_apply_option
@yes_option
@json_option
def rules(file: Path, replace: bool, applying: bool, yes: bool, as_json: bool) -> None:
    """Compare the rules of many repositories with those in FILE.

    FILE is YAML or JSON: a list of entries with repositories (patterns of names),
    default_retention_days, and optionally exclude and branches (in lakeFS's form). Sets nothing;
    --apply sets the rules in lakeFS, and the next mark of each of these repositories follows them.
    """
    from lakegc_assets.cli.site import Site
    from lakegc_assets.forecast.proposed_rules import compare_rules
    from lakegc_assets.retention.rules_file import parse_default_rules

    defaults = parsed(file, parse_default_rules)
    if applying:
        require_answer(as_json, yes)
    lakefs = Site.defined().lakefs
    found = compare_rules(lakefs.connect(), defaults, replace=replace)
    if not as_json:
        for one in found:
            click.echo(f"{one.repository}\t{_text(one.today)} -> {_text(one.rules)}\t{one.state}")
        if not found:
            click.echo("no pattern of the file matches a repository of this server", err=True)
    rows: dict[str, Any] = {"repositories": [one.to_json() for one in found]}
    if applying:
        chosen = [(r.repository, r.today, r.rules) for r in found if r.state == "to be set"]
        which = f" for {counted(len(chosen), 'repository', 'repositories')}"
        rows["applied"] = _apply(lakefs, chosen, which, "no rules were set", yes=yes)
    if as_json:
        echo_json(rows)


def _text(rules: Rules | None) -> str:
    if rules is None:
        return "no rules"
    days = [f"default {rules.default_retention_days}"]
    days += [f"{branch} {n}" for branch, n in sorted(rules.branches.items())]
    return ", ".join(days)
