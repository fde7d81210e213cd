"""The command ``rules``: retention rules of many repositories, and the setting of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click import confirm

from lakegc_assets.cli.exits import exit_status
from lakegc_assets.cli.options import json_option
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.wording import counted

if TYPE_CHECKING:
    from lakegc_assets.forecast.default_rules import Compared
    from lakegc_assets.lakefs.config import LakeFSConfig
    from lakegc_assets.retention.default_rules import DefaultRules
    from lakegc_assets.retention.rules import Rules


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--replace", is_flag=True, help="Also where a repository has other rules; else these stay."
)
@click.option(
    "--apply",
    "applying",
    is_flag=True,
    help="Set the rules in lakeFS, after what changes was shown and asked about.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@exit_status
def rules(
    file: Path,
    replace: bool,
    applying: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Compare the rules of many repositories with those in FILE.

    FILE is YAML or JSON: a list, each entry with repositories (patterns of names),
    default_retention_days, and perhaps exclude and branches (as lakeFS has them). Sets nothing;
    --apply sets them in lakeFS, and the next mark of each of these repositories follows them.
    """
    from lakegc_assets.cli.site import Site
    from lakegc_assets.forecast.default_rules import compare_rules

    defaults = _rules_of(file)
    if applying and as_json and not yes:
        raise RefusedError("nobody can be asked where JSON is printed: give --yes")
    lakefs = Site.defined().lakefs
    found = compare_rules(lakefs.connect(), defaults, replace=replace)
    if not as_json:
        for one in found:
            click.echo(f"{one.repository}\t{_text(one.today)} -> {_text(one.rules)}\t{one.state}")
        if not found:
            click.echo("the file names none of the repositories of this server", err=True)
    applied = _apply(lakefs, found, yes=yes) if applying else []
    if as_json:
        rows = [one.to_json() for one in found]
        more = {"applied": applied} if applying else {}
        click.echo(json.dumps({"repositories": rows, **more}, indent=1))


def _rules_of(file: Path) -> DefaultRules:
    from lakegc_assets.retention.rules_file import parse_default_rules

    try:
        return parse_default_rules(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error


def _apply(lakefs: LakeFSConfig, found: list[Compared], *, yes: bool) -> list[str]:
    """Set rules where they are to be set; the repositories whose rules were set."""
    from lakegc_assets.forecast.change import apply_rules

    chosen = [one for one in found if one.state == "to be set"]
    if not chosen:
        click.echo("nothing is to be set", err=True)
        return []
    if not yes:
        which = counted(len(chosen), "repository", "repositories")
        confirm(f"Set these rules in lakeFS for {which}?", abort=True, err=True)
    client, applied = lakefs.connect_writer(), []
    for one in chosen:
        apply_rules(client, one.repository, one.today, one.rules)
        click.echo(f"set: the next mark of {one.repository} follows these rules", err=True)
        applied.append(one.repository)
    return applied


def _text(rules: Rules | None) -> str:
    if rules is None:
        return "no rules"
    days = [f"default {rules.default_retention_days}"]
    days += [f"{branch} {n}" for branch, n in sorted(rules.branches.items())]
    return ", ".join(days)
