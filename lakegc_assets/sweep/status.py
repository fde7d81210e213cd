"""The status of the sweep of a mark, for people and for the next sweep of it.

It has the deletes of a sweep that ended, the checks and the next step; its tries; and restores.
``sweep_tries/<time>-<random>.json`` of the attempt is written before a try, and again at its end. A
try without an end is still running, or was killed. No decision depends on tries or restores: the
ledger records the deletes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.marked_objects import published_mark
from lakegc_assets.recovery.restore_record import recorded, restores
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import NoRepositoryError, RunContext
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.alarm import AlarmError, PartialLookError
from lakegc_assets.sweep.delta import EarlierRepositoryError
from lakegc_assets.sweep.hold import HoldError, hold_command
from lakegc_assets.sweep.lease_record import describe
from lakegc_assets.sweep.ledger import ASSET, GONE
from lakegc_assets.sweep.rate_limit import killed_since
from lakegc_assets.wording import counted

#: Fact of a sweep with its owner, as in its lease.
OWNER: Final = "owner"
_MADE: Final = "was computed: no needed object is gone"
_NOT_MADE: Final = "was not computed"
#: Folder of tries, below the attempt.
FOLDER: Final = "sweep_tries/"
_THREADS: Final = 8
#: Most difference between the clocks of the machines that swept and restored.
_SKEW: Final = timedelta(minutes=5)


@dataclass
class Ending:
    """The end of one sweep, successful or not.

    Attributes:
        deleted: counts the objects that are recorded as gone.
        check: computes the live set again, and puts needed objects back or raises an alarm.
        looked: result of this check, as the end of a sentence.
        goes_on: False if the check has found that the repository was deleted.
    """

    ctx: RunContext
    attempt: AttemptArtifacts
    deleted: Callable[[], int]
    check: Callable[[], None]
    looked: str = _NOT_MADE
    goes_on: bool = True

    def look(self) -> None:
        """Check the deleted objects, and remember the result.

        Raises:
            Exception: the error of the check.
        """
        try:
            self.check()
        except AlarmError:
            self.looked = "was computed"
            raise
        except PartialLookError:
            self.looked = (
                "was computed in part: the objects that this part needs exist, or were put back"
            )
            raise
        except Exception as error:
            self.goes_on = not isinstance(error, NoRepositoryError)
            self.looked = (
                f"could not be computed ({error}), so it is not known if a needed object is gone"
            )
            raise
        self.looked = _MADE

    def look_if_possible(self) -> None:
        """Look as ``look`` does, but only log an error of the look: another error ended the sweep.

        Raises:
            AlarmError: a needed object is gone.
        """
        try:
            self.look()
        except AlarmError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told with what came first
            self.ctx.log.warning("the live set could not be computed after the deletes: %s", error)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Add the progress, and the command to continue, to an error that ends the sweep early.

        Raises:
            LakegcError: an error of the same class, with more text and figures.
            Exception: any other error, unchanged; the text is in the log.
        """
        try:
            yield
        except LakegcError as error:
            raise self._with_progress(error) from error
        except Exception:
            self.ctx.log.error("%s", self._progress(goes_on=self.goes_on))  # noqa: TRY400 - the trace is that of what is raised
            raise

    def _with_progress(self, error: LakegcError) -> LakegcError:
        """Return an error of the same class, with the progress and the command to continue."""
        more = copy(error)
        # The lines after the first one say the rest, for example the steps after an alarm.
        first, *lines = str(error).split("\n")
        on_hold = isinstance(error, AlarmError | HoldError)
        over = on_hold or isinstance(error, EarlierRepositoryError)
        goes_on = self.goes_on and not over
        text = f"{first.rstrip('.')}. {self._progress(goes_on=goes_on)}"
        more.args = ("\n".join([text, *lines]),)
        more.figures = {**error.figures, "live set after the deletes": self.looked}
        if on_hold:
            more.figures["next step"] = hold_command(self.ctx)
        elif goes_on:
            more.figures["to continue"] = command(self.ctx)
        with suppress(Exception):
            more.figures = {"objects deleted": self.deleted(), **more.figures}
        return more

    def _progress(self, *, goes_on: bool = True) -> str:
        try:
            deleted = self.deleted()
            return how_far(self.ctx, self.attempt, deleted, self.looked, goes_on=goes_on)
        except Exception as error:  # noqa: BLE001 - what ended the sweep is told in any case
            advice = f". To continue: `{command(self.ctx)}`" if goes_on else ""
            return (
                f"The number of deleted objects cannot be read now ({error}); the deletes are "
                f"recorded. The live set after the deletes {self.looked}{advice}"
            )


def how_far(
    ctx: RunContext,
    attempt: AttemptArtifacts,
    deleted: int,
    looked: str = _NOT_MADE,
    *,
    goes_on: bool = True,
) -> str:
    """Describe the progress of a sweep that ended early, and the next step, in sentences.

    ``looked``: result of the look at the deleted objects, as the end of a sentence. ``goes_on``:
    True if the sweep can be run again now.

    Raises:
        LakegcError: the ledger cannot be read.
    """
    marked = attempt.recorded("deletion_candidates").rows
    objects = counted(marked, "object", "objects")
    are = "is" if marked == 1 else "are"
    done = f"{deleted:,} of the {objects} of mark {ctx.run!r} {are} deleted"
    if attempt.has(ASSET):
        return f"{done}. {finished(attempt)}: nothing is left to do"
    if killed_since(attempt.store()) is not None:
        done += ", and perhaps more, since a task was killed or could not record its end"
    look = f". The live set after the deletes {looked}" if deleted or looked != _NOT_MADE else ""
    return f"{done}{look}" + (f". To continue: `{command(ctx)}`" if goes_on else "")


def finished(attempt: AttemptArtifacts) -> str:
    """Describe the run that finished the sweep of a mark, as a sentence without full stop."""
    swept = attempt.recorded(ASSET)
    owner = swept.facts.get(OWNER)
    when = f"{swept.finished:%Y-%m-%d %H:%M:%S} UTC"
    return f"Its sweep was finished on {when}{f' by {describe(owner)}' if owner else ''}"


def command(ctx: RunContext) -> str:
    """Return the command that continues a sweep that ended early, with the same settings."""
    return command_line("sweep", ctx.repository, "--run", ctx.run, settings=ctx.given_settings)


def deleted_so_far(attempt: AttemptArtifacts) -> int:
    """Count the objects that the sweep of a mark has deleted, as recorded.

    Raises:
        LakegcError: the ledger cannot be read.
    """
    outcomes = ledger.read(attempt)["outcome"]
    return pc.sum(pc.is_in(outcomes, pa.array(GONE))).as_py() or 0


@dataclass(frozen=True)
class SweepTry(JsonRecord, damaged="nothing is known of that try"):
    """One try of a sweep.

    Attributes:
        begun: time of its begin, by the clock of its machine.
        command: command that continues it, with the same settings.
        ended: time of its end; None while it runs, and if it was killed.
        error: error that ended it; empty if there was none.
    """

    begun: Moment
    command: str
    ended: Moment | None = None
    error: str = ""


@contextmanager
def recorded_try(ctx: RunContext) -> Iterator[None]:
    """Record a try of a sweep and its end; an error of the record does not stop the sweep.

    Raises:
        BaseException: the error that ended the try.
    """
    begun = SweepTry(ctx.clocks.now(), command(ctx))
    key = f"{FOLDER}{begun.begun:%Y%m%dT%H%M%S%f}Z-{secrets.token_hex(4)}.json"
    _write(ctx, key, begun)
    error = ""
    try:
        yield
    except BaseException as ended:
        error = _message_of(ended)
        raise
    finally:
        _write(ctx, key, replace(begun, ended=ctx.clocks.now(), error=error))


def last_try(attempt: AttemptArtifacts) -> SweepTry | None:
    """Return the try that began last; None if there is none, or if its record is damaged.

    Raises:
        StorageError: the store of the artifacts did not answer.
    """
    store = attempt.store()
    keys = [info.key for info in store.infos(FOLDER)]
    if not keys:
        return None
    with suppress(IntegrityError):
        return SweepTry.from_bytes(store.get(max(keys)), FOLDER)
    return None


def _write(ctx: RunContext, key: str, sweep_try: SweepTry) -> None:
    try:
        ctx.root.attempt(ctx.repository, ctx.run).store().put(key, sweep_try.to_bytes())
    except Exception as error:  # noqa: BLE001 - whatever it is, the sweep is what counts
        ctx.log.warning("this try of the sweep is not recorded: %s", error)


def _message_of(ended: BaseException) -> str:
    """Return the error that ended a try, without the progress, which is in the ledger."""
    if isinstance(ended, LakegcError):
        cause = ended.__cause__
        error = cause if isinstance(cause, type(ended)) else ended
        # The lines after the first one say what to do, for example after an alarm.
        return str(error).partition("\n")[0]
    if isinstance(ended, Exception):
        return f"{type(ended).__name__}: {ended}"
    return "it was interrupted"


class Restored(NamedTuple):
    """Objects that are back.

    Attributes:
        objects: objects that the sweep deleted or found missing, and a restore has restored since.
        deleted: objects that the sweep deleted, and objects that it found missing and that are
            back: a killed try, or the sweep of another mark, had deleted them.
        at: time of the last restore, UTC.
    """

    objects: int
    size: int
    deleted: int
    at: datetime

    @property
    def whole(self) -> bool:
        """Return True if all objects are back."""
        return self.objects == self.deleted

    def __str__(self) -> str:
        """Describe it in words: restored 94 of 94 on a day."""
        on = f"{self.at:%Y-%m-%d %H:%M} UTC"
        return f"restored {self.objects:,} of {self.deleted:,} on {on}"


class Restoring(NamedTuple):
    """A run through which objects were restored.

    Attributes:
        attempt: its current attempt.
        seen: time at which the listing of its mark began, UTC; None if it is unknown.
    """

    attempt: AttemptArtifacts
    seen: datetime | None


def restored(
    attempt: AttemptArtifacts, others: Sequence[Restoring] | None = None
) -> Restored | None:
    """Return the restores of objects that a sweep deleted, finished or not; None if there are none.

    Another mark may name the same objects, and restore them: ``others`` are all runs of the
    repository with restores, as ``with_restores`` returns them; None to search for them.

    Raises:
        IntegrityError: the ledger of the sweep is damaged.
        StorageError: the store of the artifacts did not answer.
    """
    if others is None:
        others = with_restores([attempt, *_other_attempts(attempt)])
    own = [run.attempt for run in others if run.attempt.url == attempt.url]
    # A restore through this mark is later than its sweep, even if the clocks differ. An object
    # that was restored through another mark may have been deleted again.
    rows = [
        *_brought_back(own, _SKEW),
        *_brought_back(_naming(attempt, others), timedelta()),
    ]
    if not any(table.num_rows for table in rows):
        return None
    back = pa.concat_tables(rows).group_by("address").aggregate([("at", "max"), ("until", "max")])
    swept = ledger.recorded(attempt)
    gone = swept.filter(pc.is_in(swept["outcome"], pa.array(GONE)))
    gone = gone.select(["address", "size", "at", "outcome"])
    joined = gone.join(back, "address", join_type="inner")
    # An object that was deleted again after its restore is not back.
    came = joined.filter(pc.greater(joined["until_max"], joined["at"]))
    if not came.num_rows:
        return None
    size, last = pc.sum(came["size"]).as_py(), pc.max(came["at_max"]).as_py()
    deleted = pc.sum(pc.equal(swept["outcome"], "deleted")).as_py()
    found = pc.sum(pc.not_equal(came["outcome"], "deleted")).as_py()
    return Restored(came.num_rows, size, deleted + found, last)


def _brought_back(attempts: Sequence[AttemptArtifacts], skew: timedelta) -> Iterator[pa.Table]:
    """Yield the objects that each restore restored: address, at, and until (``skew`` later)."""
    for attempt in attempts:
        for restore_id in restores(attempt):
            rows = recorded(attempt, restore_id)
            rows = rows.filter(pc.equal(rows["outcome"], "restored")).select(["address", "at"])
            yield rows.append_column("until", pc.add(rows["at"], pa.scalar(skew)))


def _naming(attempt: AttemptArtifacts, others: Sequence[Restoring]) -> list[AttemptArtifacts]:
    """Return the other runs whose marks may name objects that the sweep of a run deleted.

    A mark names objects that were in the store when it was listed. So after one restore only the
    outcomes of sweeps that ended after that listing are read.
    """
    others = [run for run in others if run.attempt.url != attempt.url]
    if not others or (swept := attempt.recorded_if_finished(ASSET)) is None:
        return [run.attempt for run in others]
    ended = swept.finished + _SKEW
    return [run.attempt for run in others if run.seen is None or run.seen <= ended]


def with_restores(attempts: Sequence[AttemptArtifacts]) -> list[Restoring]:
    """Return the runs through which objects were restored.

    Raises:
        StorageError: the store of the artifacts did not answer.
    """
    found = thread_map(restores, attempts, _THREADS)
    restoring = [attempt for attempt, ids in zip(attempts, found, strict=True) if ids]
    return [Restoring(attempt, _seen(attempt)) for attempt in restoring]


def _seen(attempt: AttemptArtifacts) -> datetime | None:
    with suppress(IntegrityError):
        facts = attempt.recorded("store_listing").facts
        return datetime.fromisoformat(str(facts.get("inventory_begun", facts["start"])))
    return None


def _other_attempts(attempt: AttemptArtifacts) -> list[AttemptArtifacts]:
    """Return the other runs of a repository, without damaged ones."""

    def read(run: str) -> AttemptArtifacts | None:
        with suppress(IntegrityError, RefusedError):
            return root.attempt(attempt.repository, run)
        return None

    root = attempt.root
    runs = [run for run in root.runs(attempt.repository) if run != attempt.run]
    return [one for one in thread_map(read, runs, _THREADS) if one is not None]


def unswept_mark(ctx: RunContext) -> tuple[AttemptArtifacts, Mapping[str, Manifest]]:
    """Return the frozen mark of a run with its manifests; verify its summary in the namespace.

    Raises:
        RefusedError: the mark is unknown, failed, not published or swept already.
        IntegrityError: the mark differs from its manifests or from its summary.
    """
    attempt, chain = published_mark(ctx)
    require_unswept(attempt)
    return attempt, chain


def require_unswept(attempt: AttemptArtifacts) -> None:
    """Refuse a mark whose sweep has finished, even if some of its objects were restored since.

    Raises:
        RefusedError: it was swept; the message has the time, the owner, and the restores.
    """
    if not attempt.has(ASSET):
        return
    back = None
    with suppress(LakegcError):
        back = restored(attempt)
    since = f", and {back}" if back else ""
    advice = "nothing is left to do"
    if back:
        pins = command_line("pins", attempt.repository)
        advice = (
            "a later mark may name the restored objects again, once their pins have ended "
            f"(`{pins}`)"
        )
    raise RefusedError(
        f"mark {attempt.run!r} of {attempt.repository!r} was swept already{since}. "
        f"{finished(attempt)}: {advice}"
    )
