"""The message of a sweep that ends early: what it deleted, what was checked, what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import LakegcError
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import AlarmError, PartialLookError
from lakegc_assets.sweep.hold import HoldError, hold_command
from lakegc_assets.sweep.lease_owner import describe
from lakegc_assets.sweep.ledger import ASSET, GONE
from lakegc_assets.wording import counted

#: Fact of a sweep that names its owner, as its lease did.
OWNER: Final = "owner"
_MADE: Final = "was made: nothing that is needed is gone"
_NOT_MADE: Final = "was not made"


class Ending:
    """The end of one sweep, however it comes.

    Attributes:
        looked: what became of the look at what was deleted, as the end of a sentence.
    """

    def __init__(
        self, ctx: RunContext, attempt: AttemptArtifacts, deleted: Callable[[], int]
    ) -> None:
        """Nothing was deleted yet.

        Args:
            ctx: the run.
            attempt: the artifacts of the mark, and of its sweep.
            deleted: tells how many objects are gone.
        """
        self._ctx = ctx
        self._attempt = attempt
        self._deleted = deleted
        self.looked = _NOT_MADE

    def look(self, look: Callable[[], None]) -> None:
        """Look at what was deleted, and know what became of that.

        Args:
            look: raises ``AlarmError`` if something is needed that is gone.

        Raises:
            Exception: that of the look.
        """
        try:
            look()
        except AlarmError:
            self.looked = "was made"
            raise
        except PartialLookError:
            self.looked = "was made in part: what that needs is there, or was put back"
            raise
        except Exception as error:
            self.looked = (
                f"could not be made ({error}), so it is not known whether something is gone that "
                "is needed"
            )
            raise
        self.looked = _MADE

    def look_if_possible(self, look: Callable[[], None]) -> None:
        """Look at what was deleted; if nobody can, what ended the sweep is still what is told.

        Raises:
            AlarmError: something is needed that is gone.
        """
        try:
            self.look(look)
        except AlarmError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with what came first
            self._ctx.log.warning("the look at what was deleted could not be made: %s", error)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Let whatever ends the sweep early tell the whole of it.

        Raises:
            LakegcError: of the kind of what ended it, with more words and figures.
            Exception: what else ended it; the words are in the log.
        """
        try:
            yield
        except LakegcError as error:
            raise self._more(error) from error
        except Exception:
            self._ctx.log.error("%s", self._how_far())  # noqa: TRY400 - the trace is that of what is raised
            raise

    def _more(self, error: LakegcError) -> LakegcError:
        """The same error with all that is to be told."""
        more = copy(error)
        # Lines behind the first one say the rest, as of an alarm what to do.
        first, *lines = str(error).split("\n")
        on_hold = isinstance(error, AlarmError | HoldError)
        told = f"{first.rstrip('.')}. {self._how_far(goes_on=not on_hold)}"
        more.args = ("\n".join([told, *lines]),)
        go_on = hold_command(self._ctx) if on_hold else command(self._ctx)
        more.figures = {
            **error.figures,
            "look afterwards": self.looked,
            "to look first" if on_hold else "to go on": go_on,
        }
        with suppress(Exception):
            more.figures = {"objects deleted": self._deleted(), **more.figures}
        return more

    def _how_far(self, *, goes_on: bool = True) -> str:
        try:
            deleted = self._deleted()
            return how_far(self._ctx, self._attempt, deleted, self.looked, goes_on=goes_on)
        except Exception as error:  # noqa: BLE001 - what ended the sweep is told in any case
            then = f". `{command(self._ctx)}` goes on" if goes_on else ""
            return (
                f"How many objects are deleted cannot be read now ({error}); what was done is "
                f"recorded. The look afterwards {self.looked}{then}"
            )


def how_far(
    ctx: RunContext,
    attempt: AttemptArtifacts,
    deleted: int,
    looked: str = _NOT_MADE,
    *,
    goes_on: bool = True,
) -> str:
    """The progress of a sweep that ended early, and how to go on, in sentences.

    Args:
        ctx: the run.
        attempt: the artifacts of the mark, and of its sweep.
        deleted: how many objects are gone.
        looked: what became of the look at what was deleted, as the end of a sentence.
        goes_on: whether the sweep can be run again now.

    Raises:
        LakegcError: the ledger cannot be read.
    """
    marked = attempt.recorded("deletion_candidates").rows
    objects = counted(marked, "object", "objects")
    are = "is" if marked == 1 else "are"
    done = f"{deleted:,} of the {objects} of mark {ctx.run!r} {are} deleted"
    if attempt.has(ASSET):
        return f"{done}. {finished(attempt)}: nothing is left to do"
    look = f". The look afterwards {looked}" if deleted or looked != _NOT_MADE else ""
    return f"{done}{look}" + (f". `{command(ctx)}` goes on" if goes_on else "")


def finished(attempt: AttemptArtifacts) -> str:
    """The run that finished the sweep of a mark, and when, as a sentence without full stop."""
    swept = attempt.recorded(ASSET)
    owner = swept.facts.get(OWNER)
    when = f"{swept.finished:%Y-%m-%d %H:%M:%S} UTC"
    return f"Its sweep was finished on {when}{f' by {describe(owner)}' if owner else ''}"


def command(ctx: RunContext) -> str:
    """The command that goes on with a sweep that ended early, under the same settings."""
    return command_line("sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings)


def deleted_so_far(attempt: AttemptArtifacts) -> int:
    """The number of objects that the sweep of a mark has deleted, as recorded.

    Raises:
        LakegcError: the ledger cannot be read.
    """
    outcomes = ledger.read(attempt)["outcome"]
    return pc.sum(pc.is_in(outcomes, pa.array(GONE))).as_py() or 0
