"""The manifest of an asset: the proof that it finished, which names the one before it.

A manifest has the schema version, rows, a digest of the keys, each file with its size and SHA-256,
the settings, the cutoff, start and finish, and the digest of the previous manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from typing_extensions import Self

from lakegc_assets.engine.datasets import Part
from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.run.json_record import JsonRecord, Moment
from lakegc_assets.run.settings import Mode

#: Version of the form of artifacts: other versions can neither be read nor restored from.
SCHEMA_VERSION = 5
#: Version of the rules for spared and live objects: a mark of another version is not swept. The
#: objects that it deleted can be restored, and later marks use its knowledge.
PROTECTION_VERSION = 4
#: Fact of each manifest: the ``PROTECTION_VERSION`` of its writer; early manifests lack it.
PROTECTION = "protection_version"

#: The order of the graph, a part of the safety argument: each manifest names the one before it.
MARK_ASSETS = (
    "store_listing",
    "uncommitted_snapshot",
    "active_commits",
    "committed_addresses",
    "deletion_candidates",
    "gc_report",
)


@dataclass(frozen=True)
class Manifest(JsonRecord, damaged="mark again under a new id"):
    """The record of an asset's files in one attempt, with the digest of the previous manifest.

    Attempt, namespace and cutoff are equal in all manifests of a chain.
    """

    asset: str
    repository: str
    run: str
    attempt: str
    #: URL in canonical form.
    namespace: str
    cutoff: Moment
    started: Moment
    finished: Moment
    rows: int
    #: ``KeyDigest`` of its keys, as text; empty for an asset without keys.
    digest: str
    #: The files of each part, by its name; their keys are relative to the attempt.
    parts: Mapping[str, Sequence[Part]]
    #: SHA-256 of the previous manifest, in hex; empty for the first.
    previous: str
    #: Settings in the form of ``Settings.to_json``.
    settings: Mapping[str, Any]
    #: Facts for later stages and the report, as JSON values.
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def start(self) -> datetime:
        """The start of a listing's run, by the store's clock; ages are counted back from it."""
        return datetime.fromisoformat(str(self.facts["start"]))

    @property
    def skew(self) -> timedelta:
        """The largest difference between two machines' clocks, each off by the allowed skew."""
        # Manifests of earlier versions lack this setting.
        return 2 * timedelta(seconds=self.settings.get("clock_skew_seconds", 0))

    @property
    def mode(self) -> Mode:
        """The mode of the asset; the mode of a mark is the mode of its listing."""
        mode: Mode = self.settings.get("mode", "unified")
        return mode

    @property
    def protection(self) -> int:
        """The ``PROTECTION_VERSION`` of its writer; 0 for a writer from before this version."""
        return int(self.facts.get(PROTECTION, 0))

    @classmethod
    def _require_version(cls, values: Mapping[str, Any], where: str) -> None:
        if (found := values["schema_version"]) != SCHEMA_VERSION:
            later = isinstance(found, int) and found > SCHEMA_VERSION
            raise IntegrityError(
                f"{where} has schema version {found}, this is version {SCHEMA_VERSION}: "
                f"{way_out(later=later)}. Objects that a sweep of it deleted can be "
                "restored with the version of lakegc that made it",
            )

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read a stored manifest.

        Raises:
            IntegrityError: it is damaged, or of another version.
        """
        manifest = super().from_bytes(data, where)
        # The digest of the stored bytes: another version may write another form.
        vars(manifest)["sha256"] = hashlib.sha256(data).hexdigest()
        return manifest

    @cached_property
    def sha256(self) -> str:
        """The digest of the stored bytes, in hex, which the next manifest carries."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def require_protection(*manifests: Manifest) -> None:
    """Refuse stages of a mark by code with other rules for spared and live objects.

    Such a mark may name objects that this version keeps alive, and no later look would find them.

    Raises:
        RefusedError: a stage is of another version.
    """
    for manifest in manifests:
        if manifest.protection != PROTECTION_VERSION:
            later = manifest.protection > PROTECTION_VERSION
            raise RefusedError(
                f"{manifest.asset} of mark {manifest.run!r} of {manifest.repository!r} was made by "
                f"{'a later' if later else 'an earlier'} version of lakegc, which has other rules "
                f"for live objects: {way_out(later=later)}. Objects that a sweep of it deleted can "
                "still be restored"
            )


def require_no_later_version(marks: Iterable[Manifest], url: str) -> None:
    """Refuse to sweep a repository that a version with later rules has marked.

    Those rules may keep objects alive that marks of this version name.

    Args:
        marks: a manifest of each mark of the repository.
        url: the artifacts of the repository.

    Raises:
        RefusedError: a later version made one of them.
    """
    for mark in marks:
        if mark.protection > PROTECTION_VERSION:
            raise RefusedError(
                f"a later version of lakegc has marked {mark.repository!r} (run {mark.run!r}), "
                "with rules for live objects that this version does not know. Nothing more is "
                "deleted: update lakegc here, and mark again under a new id. To stay with this "
                f"version, remove {url}/{mark.run} first, with all that is recorded there for "
                "later marks and undos"
            )


def way_out(*, later: bool) -> str:
    """Return what to do about a mark of a later version, or of an earlier one."""
    if not later:
        return "mark again under a new id"
    return (
        "update lakegc here, and run this again (a mark by this version, under a new id, would not "
        "know the later rules)"
    )


def require_begun(listing: Manifest, now: datetime, skew: timedelta) -> None:
    """Refuse a mark that began later than now: it took young objects and commits for old.

    ``listing``: its ``store_listing``. ``now``: by the clock of the object store. ``skew``: by how
    much that clock may be off.

    Raises:
        RefusedError: it began later.
    """
    if listing.start > now + skew:
        raise RefusedError(
            f"mark {listing.run!r} of {listing.repository!r} was begun at {listing.start}, which "
            f"is later than {now}, the time of the object store: the clocks were ahead when it "
            "was made, so it took objects and commits for older than they are. Mark again "
            "under a new id"
        )
