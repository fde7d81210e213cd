"""Queries of holds, and their acceptance, for the command ``hold``."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lakegc_assets.cli.jobs import checked
from lakegc_assets.cli.queries import any_context
from lakegc_assets.defs.resources import CollectorResource
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import hold_report


@contextmanager
def _context(repository: str, settings: dict[str, Any]) -> Iterator[RunContext]:
    given = CollectorResource(**checked(settings)).settings()
    with any_context(repository, "any") as ctx:
        yield replace(ctx, settings=given)


def known_hold(repository: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The hold of a repository, and what became of the objects that it names, as JSON values.

    Raises:
        ConfigurationError: there is no such repository, or a setting is wrong.
        StorageError: nobody can tell.
    """
    with _context(repository, settings) as ctx:
        return hold_report.known_hold(ctx)


def accepted(
    repository: str, settings: dict[str, Any], hold_id: str, by: str | None, *, unverified: bool
) -> dict[str, Any]:
    """Accept a hold; what was accepted, as JSON values.

    Raises:
        HoldError: the hold is another one by now.
        RefusedError: somebody else works on the repository.
        IntegrityError: it is not known whether all is lost.
        StorageError: it is not known to be accepted.
    """
    with _context(repository, settings) as ctx:
        by = by or getpass.getuser()
        return hold_report.accepted(ctx, hold_id, by, unverified=unverified)
