"""Reasons to keep a single run: an undo, an approval, an interrupted mark or sweep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.engine.tasks import thread_map
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.mark.publication import read_summary
from lakegc_assets.prune.decisions import SUCCESS, Run
from lakegc_assets.prune.run_inventory import restores_of, unclear
from lakegc_assets.recovery.backup_creation import ASSET as BACKUP
from lakegc_assets.recovery.backup_creation import PLACES, BackupPlace
from lakegc_assets.recovery.backups import BEGIN, MANIFEST, PRUNING, folder_url
from lakegc_assets.recovery.restore_record import folder
from lakegc_assets.run.artifacts import AttemptArtifacts
from lakegc_assets.run.command_line import command_line, recorded_settings
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.manifest import PROTECTION_VERSION, Manifest
from lakegc_assets.run.pins import read_pins
from lakegc_assets.run.undo import kept_until
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.trash import TRASH
from lakegc_assets.storage.values import Recovery
from lakegc_assets.sweep import ledger
from lakegc_assets.sweep.approval import FOLDER as APPROVALS
from lakegc_assets.sweep.approval import Approval, approval_of
from lakegc_assets.sweep.ledger import ASSET as SWEPT

#: Time for which a store may keep objects after its rules let it drop them.
_LATE: Final = timedelta(days=2)
#: Number of objects that are looked up in the trash.
_ASKED: Final = 100
_THREADS: Final = 8
#: Errors from damaged files, and from facts that another version wrote.
_DAMAGE: Final = (KeyError, TypeError, ValueError, OSError, pa.ArrowException)


@dataclass(frozen=True)
class NamespaceState:
    """The namespace of a repository, and its records of runs."""

    namespace: ObjectStore
    #: Runs with pinned objects.
    pinned: Collection[str]
    #: Folders of trash in the namespace.
    trash: Sequence[str]
    #: The present options of the store to recover deleted objects.
    recovery: Recovery

    @classmethod
    def of(cls, namespace: ObjectStore, now: datetime) -> NamespaceState:
        """Read pins, trash and the store's recovery settings.

        Raises:
            IntegrityError: a pin is damaged.
        """
        lasting = {pin.run for pin, _ in read_pins(namespace) if pin.until > now}
        trash = namespace.list_prefixes(TRASH).prefixes
        return cls(namespace, lasting, trash, namespace.recovery())


def needed(ctx: RunContext, around: NamespaceState, run: Run, now: datetime) -> str:
    """The reason why a run of the repository's present namespace stays; empty without a reason.

    ``run``: with its files.
    """
    if run.needed or run.artifacts is None:
        return run.needed
    reasons = _Reasons(ctx, around, run, run.artifacts, now)
    try:
        return (
            reasons.half_done()
            or reasons.approved()
            or reasons.restored()
            or reasons.undoable()
            or reasons.backed_up()
        )
    except (IntegrityError, *_DAMAGE) as error:
        return unclear(ctx.root, ctx.repository, run.id, error)


@dataclass(frozen=True)
class _Reasons:
    """The reasons to keep a run, each as a sentence; empty if the reason does not apply."""

    ctx: RunContext
    around: NamespaceState
    run: Run
    attempt: AttemptArtifacts
    now: datetime

    def half_done(self) -> str:
        """A mark or a sweep was interrupted."""
        attempt, manifests = self.attempt, self.run.manifests

        def command(name: str) -> str:
            of_run = attempt.repository, "--run", attempt.run
            return command_line(name, *of_run, settings=recorded_settings(attempt))

        if SUCCESS not in manifests:
            published = "deletion_candidates" in manifests and read_summary(
                self.around.namespace, attempt.run
            )
            if not published:
                return ""
            if manifests["deletion_candidates"].protection != PROTECTION_VERSION:
                return (
                    "its mark was published, but not reported, and only the version of lakegc that "
                    f"made it could finish it: remove {attempt.url} by hand (no sweep of it has "
                    "begun), and mark again"
                )
            return f"its mark was published, but not reported: `{command('mark')}` finishes it"
        # Two independent listings are used, because a single listing may wrongly be empty.
        folders = attempt.store().list_prefixes().prefixes
        if SWEPT not in manifests and (
            self.run.has_files_in(f"{SWEPT}/") or f"{SWEPT}/" in folders
        ):
            if manifests[SUCCESS].protection != PROTECTION_VERSION:
                return (
                    "its sweep did not finish, and only the version of lakegc that made its mark "
                    f"could continue it: remove {attempt.url} by hand once no object that it "
                    "deleted is to be restored"
                )
            return f"its sweep did not finish: `{command('sweep')}` continues it"
        return ""

    def approved(self) -> str:
        """The sweep of the run may begin at any time."""
        attempt, now = self.attempt, self.now
        if attempt.has(SWEPT):
            return ""
        approval = approval_of(attempt, now)
        # Another listing shows these keys, including approvals of other marks of this run.
        keys = sorted(k for k in self.run.sizes if k.startswith(APPROVALS) and k.endswith(".json"))
        store = attempt.store()
        if not keys and APPROVALS in store.list_prefixes().prefixes:
            where = f"{attempt.url}/{APPROVALS}"
            return (
                f"it is not known whether its sweep is approved: {where} exists, but a listing "
                "shows no file in it. Prune again"
            )
        others = [Approval.from_bytes(store.get(key), f"{attempt.url}/{key}") for key in keys]
        for one in [*([] if approval is None else [approval]), *others]:
            if now < one.ends:
                return f"its sweep is approved by {one.by} until {one.ends:%Y-%m-%d %H:%M} UTC"
        return ""

    def restored(self) -> str:
        """Objects of the run are pinned, or a restore was interrupted."""
        if self.attempt.run in self.around.pinned:
            pins = command_line("pins", self.attempt.repository)
            return f"restored objects of it are pinned: `{pins}` shows until when"
        ids = restores_of(self.run)
        if ids and not self.attempt.has(folder(ids[-1])):
            return f"its restore {ids[-1]} did not finish: the same `lakegc restore` continues it"
        return ""

    def undoable(self) -> str:
        """The store may still give back objects that the sweep of the run deleted."""
        if SWEPT not in self.run.manifests:
            return ""
        swept = self.run.manifests[SWEPT]
        recovery = swept.facts["recovery"]
        if recovery["kind"] == "nothing" and swept.facts.get("perhaps_kept"):
            return "the store may have kept objects that an earlier try of its sweep deleted"
        if recovery["kind"] == "nothing" or not deleted_objects(swept):
            return ""
        kind = recovery["kind"].replace("_", " ")
        what = f"objects that its sweep deleted can be restored ({kind})"
        if recovery["kind"] == "trash":
            return self._in_trash(recovery["until"])
        days = _days(recovery, self.around.recovery)
        if days is None:
            return f"{what}, until when is not known"
        until = kept_until(swept.finished, days)
        return f"{what} until {until:%Y-%m-%d %H:%M} UTC" if self.now < until + _LATE else ""

    def _in_trash(self, until: str | None) -> str:
        if until is None or self.now < datetime.fromisoformat(until):
            end = f"until {until}" if until else "for an unknown time"
            return f"objects that its sweep deleted are in the trash {end}"
        because = "the trash still holds objects that its sweep deleted"
        # Each try to sweep has a folder in the trash that ends with the try's short name.
        names = tuple(f"-{name}" for name in self.run.folders_in(f"{SWEPT}/"))
        if any(folder.rstrip("/").endswith(names) for folder in self.around.trash):
            return because
        # That listing may wrongly be empty, so some objects are looked up by name.
        rows = ledger.read(self.attempt)
        places = rows.filter(pc.is_valid(rows["version"]))["version"].to_pylist()
        samples = places[:: max(1, len(places) // _ASKED)]
        return because if any(thread_map(self.around.namespace.exists, samples, _THREADS)) else ""

    def backed_up(self) -> str:
        """The run has a backup, finished or not: restores read the run."""
        attempt, manifests = self.attempt, self.run.manifests
        if SUCCESS not in manifests:
            return ""
        place, stores = self.ctx.settings.backup_url, self.ctx.root.stores
        recorded = manifests[SWEPT].facts["backup"] if SWEPT in manifests else None
        where = None
        if place is not None:
            where = open_store(folder_url(place, attempt.repository, attempt.run), stores)
        if recorded is not None and (where is None or recorded != where.url):
            # A backup that is not found at backup_url may be on a server that is not known here.
            return (
                f"its backup was made at {recorded}, and backup_url is {place or 'not set'}: set "
                "backup_url to the place of that backup, so that a prune can check whether it "
                "still exists"
            )
        if where is None or place is None:
            if not self.run.has_files_in(f"{BACKUP}/"):
                return ""
            return (
                "a backup of it was begun, and backup_url is not set: set it to the place of that "
                "backup"
            )
        # A store that cannot be listed raises here, so its backup is not taken for missing.
        return self._backup_at(place) or self._elsewhere(place)

    def _elsewhere(self, place: str) -> str:
        """A backup of the run was begun at another place than backup_url, and is there."""
        keys = [key for key in self.run.sizes if key.startswith(PLACES)]
        store = self.attempt.store()
        swept = self.run.manifests.get(SWEPT)
        unused = swept is not None and swept.facts["backup"] is None
        if unused and not keys and self.run.has_files_in(f"{BACKUP}/"):
            # Earlier versions did not record the place.
            return (
                "a backup of it was begun by an earlier version, which did not record where, and "
                f"there is none below {place}. If there is none elsewhere, or nobody needs it, "
                f"remove {self.attempt.url}/{BACKUP} by hand"
            )
        urls = {BackupPlace.from_bytes(store.get(k), f"{self.attempt.url}/{k}").url for k in keys}
        for url in sorted(urls - {place}):
            try:
                found = self._backup_at(url)
            except LakegcError as error:
                return (
                    f"a backup of it was begun at {url}, and it is not known whether that is there "
                    f"({error}). If nobody needs it, remove {self.attempt.url}/{BACKUP} by hand"
                )
            if found:
                return found
        return ""

    def _backup_at(self, place: str) -> str:
        """The run has a backup, finished or not, below this URL.

        Raises:
            LakegcError: the store cannot be listed.
        """
        attempt, stores = self.attempt, self.ctx.root.stores
        where = open_store(folder_url(place, attempt.repository, attempt.run), stores)
        found = open_store(place, stores).list_prefixes(f"{attempt.repository}/").prefixes
        exists = any(where.exists(key) for key in (MANIFEST, PRUNING, BEGIN))
        name = f"{attempt.repository}/{attempt.run}"
        if exists or f"{name}/" in found:
            prune = command_line("backups", "prune", "--url", place, "--backup", name)
            return f"its backup is at {where.url}: `{prune}` removes that first"
        return ""


def deleted_objects(swept: Manifest) -> int:
    """The number of objects that a sweep deleted or found missing."""
    outcomes = swept.facts["outcomes"]
    stayed = {"spared", "locked"}
    return sum(total["objects"] for name, total in outcomes.items() if name not in stayed)


def _days(recovery: Mapping[str, Any], present: Recovery) -> float | None:
    """The longest time for which the store keeps the deleted objects; None without a known end.

    A rule for versions applies to existing versions, too, regardless of their age. Other settings
    apply to objects that are deleted while the setting is active.
    """
    recorded: float | None = recovery["days"]
    now = present.days if present.kind == "versions" else None
    if recovery["kind"] in {"versions", "unknown"} and now is not None:
        return max(now, recorded or 0)
    # After a rule for versions was removed, the store keeps the remaining versions for ever.
    lifted = recovery["kind"] == "versions" and present.kind in {"versions", "unknown"}
    return None if lifted else recorded
