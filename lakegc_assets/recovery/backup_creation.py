"""Creates the backup of a published mark; each copy is verified and recorded.

A killed backup is run again. A copy is complete if the journal has it and a listing of the backup
shows it; all other objects are copied. The manifest is written last, when a listing shows every
counted copy. Objects stay in files, and an anti-join finds the objects left to copy, so this
process holds names and counts only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import Part, PartWriter, read_part
from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.mark.marked_objects import marked_in_order, published_mark
from lakegc_assets.recovery import journal, relations
from lakegc_assets.recovery.backup_location import require_free_places, require_no_other_backup
from lakegc_assets.recovery.backup_task import MARKED, Orders, copy_portions
from lakegc_assets.recovery.backups import (
    BEGIN,
    FOLDER,
    MANIFEST,
    OUTCOMES,
    Backup,
    Record,
    Subject,
    backup_at,
    folder_url,
    subject_of,
)
from lakegc_assets.recovery.copies import shown_copies
from lakegc_assets.recovery.portions import TASK_S, Cost, costs_of, cut_portions
from lakegc_assets.recovery.workspace import LACKING, Workspace
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import KeyDigest, key_digest
from lakegc_assets.run.json_record import JsonRecord
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import (
    AccessDeniedError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
)
from lakegc_assets.wording import counted

ASSET: Final = "backup"
#: Folder of the artifacts with a ``BackupPlace`` for each URL below which a backup was begun.
PLACES: Final = f"{ASSET}/places/"
_SWEPT: Final = "swept_set"
#: Seconds to copy an object and one byte on one core. Most of it is waiting for the stores.
OBJECT_S: Final = 0.001
_BYTE_S: Final = 1e-8
#: Seconds to read an outcome from a file.
_READ_S: Final = 1e-7
#: Portions for each task where tasks draw from one queue; the least work of a portion in seconds.
_PORTIONS: Final = 8
_LEAST_S: Final = 0.2
#: Rounds in a row without progress, since all of their tasks died, after which the backup fails.
IDLE_ROUNDS: Final = 5
_MB: Final = 1_000_000
_BEFORE: Final = (
    "Set backup_url before a sweep: the sweep then deletes only objects that its backup holds"
)
_ADVICE: Final[Mapping[type[LakegcError], str]] = {
    AccessDeniedError: "Let the credentials read the storage namespace, and read, list and write "
    "the backup",
    StoreFullError: "Make room at the backup, or choose another backup_url",
    StoreThrottledError: "The store throttles requests: run it later, with fewer tasks "
    "(backup_num_partitions) or less bandwidth (backup_bandwidth)",
    StoreUnavailableError: "Run it again when both stores answer",
}


@dataclass(frozen=True)
class BackupPlace(
    JsonRecord,
    damaged="it is not known where a backup of this mark was begun. If there is none, remove the "
    "file",
):
    """The place of a backup of a mark: a prune of runs looks there, and not at backup_url alone."""

    #: The ``backup_url``.
    url: str


def make_backup(ctx: RunContext) -> Record | None:
    """Copy the objects of a published mark to ``settings.backup_url``; None if that is not set.

    A finished backup of the same mark stays unchanged.

    Raises:
        ConfigurationError: no backup may be at this place.
        RefusedError: the mark is not published, or was already swept; or the backup is of another
            mark.
        IntegrityError: the mark differs from its manifests, or the backup is damaged.
        StorageError: a store refused a request; finished copies are recorded.
    """
    if (url := ctx.settings.backup_url) is None:
        return None
    ctx = ctx.connect()
    attempt, chain = published_mark(ctx)
    require_free_places(ctx)
    store = ctx.connections.open(folder_url(url, ctx.repository, ctx.run))
    if not attempt.has(_SWEPT):
        _note_place(attempt.store(), url)
    record = _begin(ctx, store, subject_of(chain), swept=attempt.has(_SWEPT))
    if record.finished is not None:
        ctx.log.info("the backup %s is finished already", store.url)
        return record
    session = f"{ctx.clocks.now():%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    space = Workspace(ctx, attempt, f"{ASSET}/{session}/")
    candidates = chain["deletion_candidates"]
    marked = marked_in_order(ctx, attempt, candidates, f"{space.folder}marked/")
    return _Creation(ctx, space, store, marked.select(*MARKED.names), session).run(record)


def _note_place(artifacts: ObjectStore, url: str) -> None:
    place = BackupPlace(StorageNamespace.parse(url).url()).to_bytes()
    key = f"{PLACES}{hashlib.sha256(place).hexdigest()[:16]}.json"
    if not artifacts.exists(key):
        artifacts.create(key, place)


def _begin(ctx: RunContext, store: ObjectStore, subject: Subject, *, swept: bool) -> Record:
    """Return the record of the backup: the existing one, or a new one."""
    known = backup_at(store)
    if known is None:
        return _begin_anew(ctx, store, subject, swept=swept)
    known.require_of(subject)
    if known.state == "being removed":
        raise RefusedError(
            f"{store.url} is being removed: let `{command_line('backups', 'prune')}` finish that, "
            "or choose another backup_url"
        )
    if swept and known.state == "unfinished":
        raise RefusedError(
            f"mark {subject.run!r} of {subject.repository!r} was swept before its backup at "
            f"{store.url} was finished: the missing copies can no longer be made, and a restore "
            f"does not use this backup. {_BEFORE}"
        )
    return known.record


def _begin_anew(ctx: RunContext, store: ObjectStore, subject: Subject, *, swept: bool) -> Record:
    if swept:
        raise RefusedError(
            f"mark {subject.run!r} of {subject.repository!r} was swept already: its objects are "
            f"deleted and can no longer be copied. {_BEFORE}"
        )
    try:
        require_no_other_backup(store, ctx.root.stores)
    except ConfigurationError:
        # Another process may have begun the same backup since the first look.
        if backup_at(store) is None:
            raise
        return _begin(ctx, store, subject, swept=swept)
    begun = Record(subject, begun=ctx.clocks.now())
    try:
        store.create(BEGIN, begun.to_bytes())
    except PreconditionFailedError:
        return _begin(ctx, store, subject, swept=swept)
    except LakegcError as error:
        raise _advised(error, "nothing can be written at backup_url") from error
    return begun


@dataclass(frozen=True)
class _Creation:
    """One try to create a backup. Objects stay in files; this process holds names and counts."""

    ctx: RunContext
    space: Workspace
    store: ObjectStore
    #: ``MARKED``, ordered by address.
    marked: Dataset
    #: Unique name of this try.
    session: str

    @property
    def _again(self) -> str:
        """The command that continues this backup."""
        ctx = self.ctx
        return command_line("backup", ctx.repository, "--run", ctx.run, settings=ctx.given_settings)

    def run(self, record: Record) -> Record:
        """Copy the remaining objects, list all copies, and finish."""
        earlier = journal.gather(self.space, self.store)
        nothing = self.space.dataset((), OUTCOMES)
        copied, tried = self._verified(earlier) if earlier.rows else nothing, nothing
        idle, fewest = 0, -1
        for number in count():
            remaining = self._left(copied + tried)
            if not remaining.rows:
                break
            # On preemptible machines tasks die often, but each round makes progress.
            idle = idle + 1 if remaining.rows == fewest else 0
            fewest = remaining.rows
            if idle == IDLE_ROUNDS:
                raise StorageError(
                    f"the tasks that copy to {self.store.url} have ended {IDLE_ROUNDS} times "
                    "without a copy and without an error: their processes were probably killed. "
                    "Read the logs of Spark's executors for the reason, often too little memory. "
                    f"Finished copies are recorded; `{self._again}` continues"
                )
            name = f"{self.session}-{number:02d}"
            self._copy(name, remaining)
            tried += journal.gather(self.space, self.store, name)
        return self._finish(record, earlier, copied, tried)

    # Finished work, by relations

    def _verified(self, recorded: Dataset) -> Dataset:
        """Return the recorded copies that a listing of the backup shows, each address once."""
        shown = shown_copies(self.space, self.store, self.marked)
        inputs, what = (recorded, self.marked, shown), "find what is copied"
        return self.space.derive("verified", OUTCOMES, what, relations.verified, *inputs)

    def _left(self, done: Dataset) -> Dataset:
        """Return the objects left to copy, ordered by address."""
        if not done.rows or not self.marked.rows:
            return self.marked
        inputs, what = (self.marked, done), "find what is left to copy"
        return self.space.derive("left", MARKED, what, relations.without, *inputs)

    # Copying

    def _copy(self, name: str, remaining: Dataset) -> None:
        """Copy objects in tasks. Raises LakegcError: the error that stopped a task."""
        settings, space = self.ctx.settings, self.space
        log = settings.backup_log
        costs = costs_of(space, remaining, _COST)
        total = sum(costs)
        tasks = count = max(1, min(settings.backup_num_partitions, int(total / TASK_S)))
        if settings.backup_distribution == "dynamic":
            count = max(tasks, min(_PORTIONS * tasks, int(total / _LEAST_S)))
        portions = cut_portions(space, remaining, _COST, costs, count)
        tasks = min(tasks, len(portions))
        orders = Orders(
            connections=space.connections,
            artifacts_url=space.attempt.url,
            backup_url=self.store.url,
            log_url=log and folder_url(log, self.ctx.repository, self.ctx.run),
            name=name,
            rate=settings.backup_bandwidth and settings.backup_bandwidth * _MB / tasks,
        )
        work = [portions] * tasks
        if settings.backup_distribution == "uniform":
            work = [portions[number::tasks] for number in range(tasks)]
        task = partial(copy_portions, orders)
        for stopped in self.ctx.tasks.run("back up", task, work, total, tasks):
            if stopped is not None:
                text = (
                    f"the backup {self.store.url} could not go on. Finished copies are recorded; "
                    f"`{self._again}` continues once the cause is corrected"
                )
                raise _advised(stopped, text)

    # The end

    def _finish(
        self,
        record: Record,
        earlier: Dataset,
        copied: Dataset,
        tried: Dataset,
    ) -> Record:
        """List all copies, and write the outcome of each marked object, the manifest last."""
        verified = self._verified(earlier + tried)
        with self.space.frames() as frames:
            there, claims, last = map(frames.read, (verified, copied + tried, tried))
            gone = relations.lacking(relations.claimed(claims), there)
            (lost,) = frames.collect_rows(gone, LACKING, "look for copies that are gone")
            self._require_none_lost(lost["objects"], lost["first"])
            rows = relations.outcomes(there, last)
            folder, what = f"{FOLDER}outcomes/", "write the outcomes"
            parts = frames.write(rows, self.store.url, folder, OUTCOMES, what)
        parts = parts or PartWriter(self.store, folder, OUTCOMES).finish()
        total = self._summary(parts)
        self._require_whole(total, record.subject.digest)
        self._require_some(total)
        record = replace(
            record,
            finished=self.ctx.clocks.now(),
            objects=total.copied.count,
            size=total.bytes["copied"],
            digest=str(total.copied),
            outcomes={
                name: {"objects": objects, "bytes": total.bytes[name]}
                for name, objects in total.objects.items()
            },
            verified=dict(total.verified),
            parts=parts,
        )
        try:
            self.store.create(MANIFEST, record.to_bytes())
        except PreconditionFailedError as error:
            raise RefusedError(
                f"another process has finished the backup {self.store.url} meanwhile: "
                f"`{self._again}` shows it"
            ) from error
        self._require_unremoved(record)
        return record

    def _summary(self, parts: Sequence[Part]) -> Summary:
        """Return counts and digests of all outcomes."""
        task = partial(summarized, self.space.connections, self.store.url)
        seconds = sum(part.rows for part in parts) * _READ_S
        found = self.ctx.tasks.run_or_call("add the outcomes up", task, parts, seconds)
        return sum(found, Summary())

    def _require_none_lost(self, objects: int, first: str) -> None:
        if objects:
            raise StorageError(
                f"a listing of {self.store.url} lacks {counted(objects, 'copy', 'copies')} that "
                f"were written and verified, or shows them changed, for example {first!r}. Find "
                "the lifecycle rule or the process that removes or changes objects there, and stop "
                f"it; then `{self._again}` copies them again"
            )

    def _require_unremoved(self, record: Record) -> None:
        """Refuse a backup that was removed before its manifest: this process was suspended."""
        if backup_at(self.store) != Backup(self.store, record, "finished"):
            raise RefusedError(
                f"{self.store.url} was removed while it was made: let "
                f"`{command_line('backups', 'prune')}` remove the rest, then make the backup again "
                f"with `{self._again}`"
            )

    def _require_whole(self, total: Summary, digest: str) -> None:
        if str(total.all) != digest:
            raise IntegrityError(
                f"the journal of the backup {self.store.url} has {total.all}, and the mark has "
                f"{digest}: the journal is damaged, and the backup was not finished. Back up again "
                "at another backup_url"
            )

    def _require_some(self, total: Summary) -> None:
        """Refuse a backup if the copy of every object failed, for whatever reasons."""
        failed = total.objects["failed"]
        if failed and failed == total.all.count:
            kind = AccessDeniedError if total.denied == failed else StorageError
            detail = f"{total.details[0]}. `{self._again}` tries again once this is corrected"
            text = f"not one of {counted(failed, 'object')} could be copied to {self.store.url}"
            raise _advised(kind(detail), text)


def _costs(rows: pa.Table) -> npt.NDArray[np.float64]:
    return OBJECT_S + np.asarray(rows["size"], dtype=np.float64) * _BYTE_S


_COST: Final = Cost(["size"], _costs)


def _advised(error: LakegcError, text: str) -> LakegcError:
    """Return an error of the same kind that names the step that failed, and the remedy."""
    advice = next((a for kind, a in _ADVICE.items() if isinstance(error, kind)), "")
    return type(error)(": ".join(filter(None, (text, str(error), advice))))


@dataclass(frozen=True)
class Summary:
    """Counts and digests of outcomes of marked objects; summaries of several files can be added."""

    #: Digests of all addresses, and of the copied addresses.
    all: KeyDigest = field(default_factory=KeyDigest)
    copied: KeyDigest = field(default_factory=KeyDigest)
    #: Counts by outcome.
    objects: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    #: Copies by the checksum or property that was compared.
    verified: Counter[str] = field(default_factory=Counter)
    #: Objects to which the store denied access.
    denied: int = 0
    #: The detail of one object without a copy, for each file.
    details: tuple[str, ...] = ()

    def __add__(self, other: Summary) -> Summary:
        """Add two summaries."""
        names = (one.name for one in fields(self))
        return Summary(*(getattr(self, name) + getattr(other, name) for name in names))


def summarized(connections: Connections, url: str, part: Part) -> Summary:
    """Return the summary of one file of outcomes (``OUTCOMES``) in the store at ``url``.

    Raises IntegrityError: the file is missing or changed.
    """
    rows = read_part(connections.open(url), part)
    copied = rows.filter(pc.equal(rows["outcome"], "copied"))
    others = rows.filter(pc.invert(pc.equal(rows["outcome"], "copied")))
    totals = rows.group_by("outcome").aggregate([("size", "count"), ("size", "sum")]).to_pylist()
    verified = pc.value_counts(copied["verified_by"]).to_pylist()
    return Summary(
        key_digest(rows["address"]),
        key_digest(copied["address"]),
        Counter({row["outcome"]: row["size_count"] for row in totals}),
        Counter({row["outcome"]: row["size_sum"] for row in totals}),
        Counter({row["values"]: row["counts"] for row in verified}),
        pc.sum(pc.equal(others["error_code"], "AccessDenied")).as_py() or 0,
        tuple(map(str, others["detail"].slice(0, 1).to_pylist())),
    )
