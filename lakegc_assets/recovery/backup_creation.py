"""Makes a backup of what a published mark names, each copy verified and recorded.

A killed backup is run again: what its journal says and a listing of the backup shows is done, the
rest is copied. The manifest is written last, once a listing shows every copy that it counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.datasets import PartWriter, write_part
from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError
from lakegc_assets.mark.published import published_mark, read_marked
from lakegc_assets.recovery import journal
from lakegc_assets.recovery.backup_location import require_free_places, require_no_other_backup
from lakegc_assets.recovery.backup_task import (
    OVERHEAD,
    Orders,
    Portion,
    TaskResult,
    copy_portions,
    cut,
)
from lakegc_assets.recovery.backups import (
    BEGIN,
    FOLDER,
    MANIFEST,
    OUTCOMES,
    Backup,
    Record,
    Subject,
    folder_url,
    read_state,
    require_same,
    subject_of,
)
from lakegc_assets.recovery.batch_stat import listed
from lakegc_assets.run import strings
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import key_digest
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
_SWEPT: Final = "swept_set"
#: Copying on one core, which mostly waits for the stores: seconds for an object, and for a byte.
_OBJECT_S: Final = 0.001
_BYTE_S: Final = 1e-8
#: A task is worth so many seconds of that at least.
_TASK_S: Final = 2.0
#: Portions for each task, where tasks take one after the other; and what one holds at least.
_PORTIONS: Final = 8
_LEAST: Final = 16 << 20
#: How often what tasks left that died is given to others.
_ROUNDS: Final = 5
_MB: Final = 1_000_000
_ADVICE: Final[Mapping[type[LakegcError], str]] = {
    AccessDeniedError: "Let the credentials read the storage namespace, and read, list and write "
    "the backup",
    StoreFullError: "Make room at the backup, or choose another backup_url",
    StoreThrottledError: "The store asks for less: run it later, with fewer tasks "
    "(backup_num_partitions) or less bandwidth (backup_bandwidth)",
    StoreUnavailableError: "A store did not answer",
}


def make_backup(ctx: RunContext) -> Record | None:
    """Copy what a published mark names to ``settings.backup_url``; None where that is not set.

    A finished backup of this very mark is left as it is.

    Raises:
        ConfigurationError: the place cannot be that of a backup.
        RefusedError: the mark is not published, or was swept already; or the backup is of another
            mark.
        IntegrityError: the mark is not what its manifests say, or the backup is damaged.
        StorageError: a store refused something; what was done is recorded.
    """
    if ctx.settings.backup_url is None:
        return None
    client, connections = ctx.connect()
    attempt, chain = published_mark(ctx, connections)
    marked = read_marked(attempt, chain["deletion_candidates"])
    require_free_places(ctx, client, connections)
    store = connections.open(folder_url(ctx.settings.backup_url, ctx.repository, ctx.run))
    record = _begin(ctx, store, subject_of(chain), swept=attempt.has(_SWEPT))
    if record.finished is not None:
        ctx.log.info("the backup %s is finished already", store.url)
        return record
    return _Making(ctx, connections, attempt, store, strings.in_order(marked, "address")).run(
        record
    )


def _begin(ctx: RunContext, store: ObjectStore, subject: Subject, *, swept: bool) -> Record:
    """What the backup says of itself, now or since an earlier try."""
    known = read_state(store)
    if known is None:
        return _begin_anew(ctx, store, subject, swept=swept)
    found, state = known
    require_same(store.url, found.subject, subject)
    if state == "being removed":
        raise RefusedError(
            f"{store.url} is being removed: let `lakegc backups prune` finish that, or choose "
            "another backup_url"
        )
    if swept and state == "unfinished":
        raise RefusedError(
            f"mark {subject.run!r} of {subject.repository!r} was swept already, before its backup "
            f"at {store.url} was finished: what it lacks is gone"
        )
    return found


def _begin_anew(ctx: RunContext, store: ObjectStore, subject: Subject, *, swept: bool) -> Record:
    if swept:
        raise RefusedError(
            f"mark {subject.run!r} of {subject.repository!r} was swept already: what it names is "
            "gone, and cannot be backed up any more"
        )
    try:
        require_no_other_backup(store, ctx.root.stores)
    except ConfigurationError:
        # Another process may just have begun this very backup.
        if read_state(store) is None:
            raise
        return _begin(ctx, store, subject, swept=swept)
    begun = Record(subject, begun=ctx.clocks.now())
    try:
        store.put_if_absent(BEGIN, begun.to_bytes())
    except PreconditionFailedError:
        return _begin(ctx, store, subject, swept=swept)
    except LakegcError as error:
        raise _advised(error, "nothing can be written at backup_url") from error
    return begun


@dataclass(frozen=True)
class _Making:
    """One try to make a backup.

    Attributes:
        ctx: the run.
        connections: how to reach the stores.
        attempt: the artifacts of the mark.
        store: rooted at the backup.
        marked: address, size, last_modified and etag, in the order of the addresses.
    """

    ctx: RunContext
    connections: Connections
    attempt: AttemptArtifacts
    store: ObjectStore
    marked: pa.Table

    def run(self, record: Record) -> Record:
        """Copy what is not copied yet, look at it all, and finish."""
        session = f"{self.ctx.clocks.now():%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        copied = self._verified(journal.read(self.store))
        tried = OUTCOMES.empty_table()
        for number in range(_ROUNDS):
            left = _without(_without(self.marked, copied), tried)
            if not left.num_rows:
                break
            self._copy(f"{session}-{number:02d}", left)
            tried = journal.read(self.store, session)
        else:
            raise StorageError(
                f"tasks that copy to {self.store.url} end without a word; what was done is "
                f"recorded. Back {self.ctx.run!r} up again, and look at the logs of Spark's workers"
            )
        return self._finish(record, copied, tried)

    def _verified(self, recorded: pa.Table) -> pa.Table:
        """Of what was recorded, the copies that a listing of the backup shows, each once."""
        copies = recorded.filter(pc.equal(recorded["outcome"], "copied"))
        addresses = self.marked["address"]
        if not copies.num_rows:
            return copies
        shown = listed(self.store, addresses, self.ctx.settings.backup_list_threads)
        keys = ["address", "size", "copy_etag"]
        kept = copies.join(shown, keys, join_type="left semi").select(OUTCOMES.names)
        # Only what is as the mark has it is a copy of what is to be deleted.
        same = kept.join(
            self.marked.select(["address", "size", "etag"]),
            ["address", "size", "etag"],
            join_type="left semi",
        )
        return _once(same.select(OUTCOMES.names))

    def _copy(self, name: str, left: pa.Table) -> None:
        """Let tasks copy objects.

        Raises:
            LakegcError: what a task could not get past.
        """
        settings = self.ctx.settings
        sizes = left["size"].to_numpy()
        seconds = float(len(sizes) * _OBJECT_S + sizes.sum() * _BYTE_S)
        tasks = max(1, min(settings.backup_num_partitions, int(seconds / _TASK_S)))
        portions = self._portions(name, left, tasks)
        tasks = min(tasks, len(portions))
        orders = Orders(
            connections=self.connections,
            artifacts_url=self.attempt.url,
            backup_url=self.store.url,
            log_url=self._log_url(),
            name=name,
            rate=settings.backup_bandwidth and settings.backup_bandwidth * _MB / tasks,
        )
        work = [portions] * tasks
        if settings.backup_distribution == "uniform":
            work = [[portion] for portion in portions]
        task = partial(copy_portions, orders)
        told = self.ctx.tasks.run("back up", task, work, seconds, tasks)
        self._raise_if_stopped(told)

    def _portions(self, name: str, left: pa.Table, tasks: int) -> list[Portion]:
        """Objects in portions of about equal bytes, each of one stretch of addresses."""
        sizes = left["size"].to_numpy()
        parts = tasks
        if self.ctx.settings.backup_distribution == "dynamic":
            worth = int((sizes + OVERHEAD).sum() / _LEAST)
            parts = max(tasks, min(_PORTIONS * tasks, worth))
        rows = left.select(["address", "size", "etag"])
        artifacts, folder = self.attempt.store(), f"{ASSET}/portions/{name}/"
        return [
            Portion(number, write_part(artifacts, folder, rows.slice(at, count)))
            for number, (at, count) in enumerate(cut(np.asarray(sizes), parts))
        ]

    def _log_url(self) -> str | None:
        log = self.ctx.settings.backup_log
        return None if log is None else folder_url(log, self.ctx.repository, self.ctx.run)

    def _raise_if_stopped(self, told: list[TaskResult]) -> None:
        for one in told:
            if one.kind is not None:
                text = (
                    f"the backup {self.store.url} could not go on; what was done is recorded, so "
                    f"back {self.ctx.run!r} up again when this is mended"
                )
                raise _advised(one.kind(one.stopped), text)

    def _finish(self, record: Record, copied: pa.Table, tried: pa.Table) -> Record:
        """Look at all copies, and write what became of each marked object, the manifest last."""
        # A copy that the journal did not show at once was made again.
        made = pc.equal(tried["outcome"], "copied")
        copied = pa.concat_tables([copied, _without(_once(tried.filter(made)), copied)])
        shown = self._verified(copied)
        if lost := copied.num_rows - shown.num_rows:
            first = _without(copied, shown)["address"][0].as_py()
            raise StorageError(
                f"a listing of {self.store.url} lacks {counted(lost, 'copy', 'copies')} that were "
                f"written and verified, or shows others: {first!r} for one. Look at what removes "
                f"or changes objects there, then back {self.ctx.run!r} up again"
            )
        others = _once(_without(tried.filter(pc.invert(made)), copied))
        rows = strings.in_order(pa.concat_tables([copied, others]), "address")
        self._require_whole(rows)
        self._require_some(rows)
        writer = PartWriter(self.store, f"{FOLDER}outcomes/", OUTCOMES)
        writer.add(rows)
        record = replace(
            record,
            finished=self.ctx.clocks.now(),
            objects=copied.num_rows,
            size=pc.sum(copied["size"]).as_py() or 0,
            digest=str(key_digest(copied["address"])),
            outcomes=_totals(rows),
            verified=_counts(copied["verified_by"]),
            parts=writer.finish(),
        )
        try:
            self.store.put_if_absent(MANIFEST, record.to_bytes())
        except PreconditionFailedError as error:
            raise RefusedError(
                f"another process has finished the backup {self.store.url} meanwhile: back "
                f"{self.ctx.run!r} up again to see that it is whole"
            ) from error
        self._require_kept(record)
        return record

    def _require_kept(self, record: Record) -> None:
        """Refuse what was removed before its manifest was written: this process was suspended."""
        if read_state(self.store) != (record, "finished"):
            raise RefusedError(
                f"{self.store.url} was removed while it was made: let `lakegc backups prune` "
                f"remove the rest, then back {self.ctx.run!r} up again"
            )

    def _require_whole(self, rows: pa.Table) -> None:
        if str(key_digest(rows["address"])) != str(key_digest(self.marked["address"])):
            raise IntegrityError(
                f"the journal of the backup {self.store.url} has {key_digest(rows['address'])}, "
                f"and the mark has {key_digest(self.marked['address'])}: it is damaged. Choose "
                "another backup_url"
            )

    def _require_some(self, rows: pa.Table) -> None:
        """Refuse a backup in which nothing could be copied, for whatever reason."""
        failed = rows.filter(pc.equal(rows["outcome"], "failed"))
        if failed.num_rows and failed.num_rows == rows.num_rows:
            denied = pc.all(pc.equal(failed["error_code"], "AccessDenied")).as_py()
            kind = AccessDeniedError if denied else StorageError
            told = (
                f"{failed['detail'][0].as_py()}. Back {self.ctx.run!r} up again when this is mended"
            )
            text = (
                f"not one of {counted(rows.num_rows, 'object')} could be copied to {self.store.url}"
            )
            raise _advised(kind(told), text)


def whole(backup: Backup, threads: int) -> pa.Table:
    """The copies of a finished backup that a listing shows now as they were made.

    Args:
        backup: any.
        threads: that list.

    Returns:
        address, size (bytes), etag and copy_etag, in the order of the addresses.
    """
    copied = strings.in_order(backup.copied, "address")
    if not copied.num_rows:
        return copied
    shown = listed(backup.store, copied["address"], threads)
    keys = ["address", "size", "copy_etag"]
    return copied.join(shown, keys, join_type="left semi").select(copied.column_names)


def _advised(error: LakegcError, text: str) -> LakegcError:
    """The same kind of error, with what was to be done and what to do."""
    advice = next((a for kind, a in _ADVICE.items() if isinstance(error, kind)), "")
    return type(error)(": ".join(filter(None, (text, str(error), advice))))


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(strings.among(rows["address"], others["address"])))


def _once(rows: pa.Table) -> pa.Table:
    """The last row of each address."""
    ranked = strings.in_order(rows, [("address", "ascending"), ("at", "descending")])
    return ranked.filter(strings.first_of_each(ranked["address"]))


def _totals(rows: pa.Table) -> dict[str, dict[str, int]]:
    totals = rows.group_by("outcome").aggregate([("size", "count"), ("size", "sum")])
    return {
        row["outcome"]: {"objects": row["size_count"], "bytes": row["size_sum"]}
        for row in totals.to_pylist()
    }


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {row["values"]: row["counts"] for row in pc.value_counts(column).to_pylist()}
