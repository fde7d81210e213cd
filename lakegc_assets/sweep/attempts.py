"""The tries of a sweep, for people: when each began, the command that goes on, and how it ended.

``sweep_tries/<time>-<random>.json`` of the attempt is written before a try, and again at its end. A
try without an end runs still, or was killed. Nothing is decided by it: what was deleted is in the
ledger.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep.termination import command

#: Where tries are, below the attempt.
FOLDER: Final = "sweep_tries/"


@dataclass(frozen=True)
class Try:
    """One try of a sweep.

    Attributes:
        begun: when it began, by the clock of its machine.
        command: goes on with it, under the same settings.
        ended: when it ended; None while it runs, and where it was killed.
        error: what ended it; empty where nothing did.
    """

    begun: datetime
    command: str
    ended: datetime | None = None
    error: str = ""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self), indent=1, default=str).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Try:
        """Read a stored try.

        Raises:
            ValueError, TypeError, KeyError: it is damaged.
        """
        values = json.loads(data)
        values["begun"] = datetime.fromisoformat(values["begun"])
        values["ended"] = values["ended"] and datetime.fromisoformat(values["ended"])
        return cls(**values)


@contextmanager
def recorded_try(ctx: RunContext) -> Iterator[None]:
    """Record that a sweep is tried, and how that ends; a record that fails keeps no sweep back.

    Raises:
        BaseException: what ended the try.
    """
    begun = Try(ctx.clocks.now(), command(ctx))
    key = f"{FOLDER}{begun.begun:%Y%m%dT%H%M%S%f}Z-{secrets.token_hex(4)}.json"
    _write(ctx, key, begun)
    error = ""
    try:
        yield
    except BaseException as ended:
        error = _said(ended)
        raise
    finally:
        _write(ctx, key, replace(begun, ended=ctx.clocks.now(), error=error))


def last_try(attempt: AttemptArtifacts) -> Try | None:
    """The try that began last; None where none is known.

    Raises:
        StorageError: the store of the artifacts did not answer.
    """
    store = attempt.store()
    keys = [info.key for info in store.infos(FOLDER)]
    if not keys:
        return None
    with suppress(ValueError, TypeError, KeyError):
        return Try.from_bytes(store.get(max(keys)))
    return None


def _write(ctx: RunContext, key: str, one: Try) -> None:
    try:
        ctx.root.attempt(ctx.repository, ctx.run).store().put(key, one.to_bytes())
    except Exception as error:  # noqa: BLE001 - whatever it is, the sweep is what counts
        ctx.log.warning("how this try goes is not recorded: %s", error)


def _said(ended: BaseException) -> str:
    """The error that ended an attempt, without its progress, which is in the ledger."""
    if isinstance(ended, LakegcError):
        cause = ended.__cause__
        said = cause if isinstance(cause, type(ended)) else ended
        # Lines behind the first one say what to do, as of an alarm.
        return str(said).partition("\n")[0]
    if isinstance(ended, Exception):
        return f"{type(ended).__name__}: {ended}"
    return "it was interrupted"
