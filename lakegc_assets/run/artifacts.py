"""Artifacts of runs, and the chain of manifests that proves them complete.

``<root>/<repository>/<run>/<attempt>/<asset>/<part>/*.parquet`` holds an asset's rows, those of its
part ``data`` first of all, and ``<asset>/manifest.json``, written last and atomically, says that it
finished: schema version, rows, a digest of the keys, each file with its size and SHA-256, the
settings, the cutoff, start and finish, and the digest of the manifest before it. No manifest means
that the asset did not finish. What a manifest does not name is never read.

``<root>/<repository>/<run>/attempt.json`` names the present attempt, and those before it. A new
listing starts a new attempt; once a mark is published it is frozen, and no attempt can follow it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from lakegc_assets.engine.datasets import Part, read_parts, read_values
from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.json_record import DAMAGE, JsonRecord, Moment
from lakegc_assets.run.settings import Mode
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.opening import open_store

#: Raised with the form of artifacts: what has another one cannot be read, nor restored from.
SCHEMA_VERSION = 5
#: Raised with what a mark spares, or counts as alive: marks of another version are not swept. What
#: they have deleted is restored, and what they knew is handed on.
PROTECTION_VERSION = 2
#: Fact of each manifest: the version that wrote it; there was none before the first.
PROTECTION = "protection_version"

#: The order of the graph, which is part of the safety argument: each manifest names the one before.
MARK_ASSETS = (
    "store_listing",
    "uncommitted_snapshot",
    "active_commits",
    "committed_addresses",
    "deletion_candidates",
    "gc_report",
)

#: Of repositories, looser than lakeFS, and of runs: nothing that Dagster would drop, or that would
#: leave the artifact root.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: The beginning of a URL whose slashes are missing.
_SLIP = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)")

#: Store DF: what the store holds.
LISTING = schema(
    "address string not null",
    HASHES,
    "size bigint not null, last_modified timestamp not null, etag string not null",
    # 0 of an etag that can be no checksum of the content.
    "etag_hash bigint not null",
    # Whether it lies where lakeFS writes objects, now or in older versions.
    "in_place boolean not null",
)
UNCOMMITTED = schema("address string not null, created timestamp, resolved boolean not null")


def is_name(repository: str) -> bool:
    """Return whether a text can be the name of a repository."""
    return _NAME.fullmatch(repository) is not None


def validate_run_id(run: str) -> str:
    """Check the id of a run, which is also its mark id and its partition key.

    Raises:
        ConfigurationError: it is empty, too long, or holds anything but letters, digits and ``._-``
            (Dagster drops partition keys that hold ``|``, and the id becomes part of object keys).
    """
    if not _NAME.fullmatch(run):
        raise ConfigurationError(
            f"{run!r} cannot be the id of a run: use 1 to 128 letters, digits, '.', '_' or '-', "
            "starting with a letter or a digit",
        )
    return run


@dataclass(frozen=True)
class Manifest(JsonRecord, damaged="mark again"):
    """The record of what an asset of an attempt wrote, with the digest of the manifest before it.

    Attempt, namespace and cutoff are equal through a chain.
    """

    asset: str
    repository: str
    run: str
    attempt: str
    #: In its canonical form.
    namespace: str
    cutoff: Moment
    started: Moment
    finished: Moment
    rows: int
    #: ``KeyDigest`` of its keys, as text; empty where it has no keys.
    digest: str
    #: The files of each of its parts, by name; their keys are relative to the attempt.
    parts: Mapping[str, Sequence[Part]]
    #: SHA-256 of the manifest before this one, in hex; empty for the first.
    previous: str
    #: As ``Settings.to_json`` gives them.
    settings: Mapping[str, Any]
    #: What later stages and the report need to know, as JSON values.
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def start(self) -> datetime:
        """Of a listing: when its run began, by the store's clock; ages are taken against it."""
        return datetime.fromisoformat(str(self.facts["start"]))

    @property
    def skew(self) -> timedelta:
        """By how much the clocks of two machines may differ, each being as wrong as it may be."""
        # Manifests of earlier versions have no such setting.
        return 2 * timedelta(seconds=self.settings.get("clock_skew_seconds", 0))

    @property
    def mode(self) -> Mode:
        """The mode that it was made in; that of a mark is that of its listing."""
        mode: Mode = self.settings.get("mode", "unified")
        return mode

    @property
    def protection(self) -> int:
        """The ``PROTECTION_VERSION`` of the code that wrote it; 0 before there was one."""
        return int(self.facts.get(PROTECTION, 0))

    @classmethod
    def _require_version(cls, values: Mapping[str, Any], where: str) -> None:
        if values["schema_version"] != SCHEMA_VERSION:
            raise IntegrityError(
                f"{where} has schema version {values['schema_version']}, this is version "
                f"{SCHEMA_VERSION}: mark again with this version. What was swept by that mark, "
                "the version of lakegc that made it restores",
            )

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """As every record is read.

        Raises:
            IntegrityError: it is damaged, or written by another version.
        """
        manifest = super().from_bytes(data, where)
        # Of the bytes that were read: a version that writes another form reads this one, too.
        vars(manifest)["sha256"] = hashlib.sha256(data).hexdigest()
        return manifest

    @cached_property
    def sha256(self) -> str:
        """The digest of the stored bytes, in hex, which the next manifest carries."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def require_protection(*manifests: Manifest) -> None:
    """Refuse stages of a mark that were made by code which spares something else.

    What such a mark names may be what this version keeps alive, and no later look would find that.

    Raises:
        RefusedError: one was.
    """
    for manifest in manifests:
        if manifest.protection != PROTECTION_VERSION:
            other = "an earlier" if manifest.protection < PROTECTION_VERSION else "a later"
            raise RefusedError(
                f"{manifest.asset} of mark {manifest.run!r} of {manifest.repository!r} was made by "
                f"{other} version of lakegc, which does not keep alive the same as this one: mark "
                "again under a new id. What a sweep of it has deleted can still be restored"
            )


def located(place: str) -> str:
    """A URL as it is; a path as it is from everywhere.

    Raises:
        ConfigurationError: it is a URL with a slip, which would be a folder of this machine, and
            with it a backup; or it has a token, which would be a part of the path and be shown.
    """
    if place != place.strip() or _SLIP.match(place):
        raise ConfigurationError(
            f"{place!r} is no place: write a URL like s3://bucket/folder, or a path"
        )
    if place.startswith(("http://", "https://")) and "?" in place:
        raise ConfigurationError(
            f"{place.partition('?')[0]} is followed by '?': leave that out, and give a SAS token "
            "as AZURE_STORAGE_SAS_TOKEN"
        )
    return place if "://" in place else str(Path(place).expanduser().resolve())


def place_of_artifacts(chosen: str | None, component: str) -> str:
    """The chosen place; else that of all components, where one with a name has its own folder."""
    if chosen:
        return located(chosen)
    shared = os.environ.get("LAKEGC_ARTIFACT_ROOT") or ".lakegc/artifacts"
    # No repository has such a name, so this is none to whoever has all of that place.
    return located(f"{shared.rstrip('/')}/_{component}" if component else shared)


def _names_of(folders: Iterable[str]) -> list[str]:
    """Repositories or runs by their folders; others begin with an underscore."""
    return [name.rstrip("/") for name in folders if not name.startswith("_")]


@dataclass(frozen=True)
class ArtifactRoot:
    """The place of all artifacts: a URL that Spark and ``storage`` both can read and write."""

    url: str
    stores: StoreConfig

    def open(self, *parts: str) -> ObjectStore:
        """The store rooted at a folder below the root."""
        return open_store("/".join((self.url.rstrip("/"), *parts)), self.stores)

    def repositories(self) -> list[str]:
        """The repositories that have left artifacts, in the order of their names.

        One that a list hid, since the store ended it early, would pass for deleted where lakeFS
        hides it, too.
        """
        return _names_of(self.open().prefixes_to_the_end())

    def runs(self, repository: str) -> list[str]:
        """Ids of the runs that have left artifacts, in the order of their names.

        What only a mark knows would be forgotten if a list hid it that the store ended early.
        """
        return _names_of(self.open(repository).prefixes_to_the_end())

    def attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """The present attempt of a run.

        Raises:
            RefusedError: the run is unknown.
            IntegrityError: nobody can tell which it is.
        """
        return self.attempts(repository, run)[0]

    def attempts(self, repository: str, run: str) -> list[AttemptArtifacts]:
        """The attempts of a run, the latest, which is the present one, first.

        Raises:
            RefusedError: the run is unknown.
            IntegrityError: nobody can tell which there are.
        """
        if "/" in run or run in {"", ".", ".."}:
            # A hold, or whatever else others have written, names it: no other folder counts.
            raise RefusedError(f"there is no mark {run!r} of repository {repository!r}")
        where = f"{self.url}/{repository}/{run}/attempt.json"
        try:
            recorded = self.open(repository, run).get("attempt.json")
        except ObjectNotFoundError as error:
            raise RefusedError(
                f"there is no mark {run!r} of repository {repository!r} ({where} does not exist): "
                f"`{command_line('repositories')}` lists those that there are",
            ) from error
        try:
            values = json.loads(recorded)
            # Earlier versions recorded the present one alone.
            names = [values["attempt"], *values.get("earlier", ())]
            return [AttemptArtifacts(self, repository, run, validate_run_id(n)) for n in names]
        except (*DAMAGE, ConfigurationError) as error:
            raise IntegrityError(
                f"{where} is damaged ({error}): mark again under a new id"
            ) from error

    def new_attempt(
        self, repository: str, run: str, now: datetime | None = None
    ) -> AttemptArtifacts:
        """Start a new attempt of a run; the earlier ones stay as they are.

        ``now``: the moment in its name; that of this machine's clock, if none is given.

        Raises:
            RefusedError: the mark of this run is published, hence frozen.
            ConfigurationError: nothing can be written there.
            StorageError: the store does not answer.
        """
        validate_run_id(run)
        try:
            existing = self.attempts(repository, run)
        except RefusedError:
            existing = []
        if existing and existing[0].has("gc_report"):
            raise RefusedError(
                f"mark {run!r} of repository {repository!r} exists already and is frozen: "
                "sweep it, or mark again under another id",
            )
        now = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
        attempt = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        names = {"attempt": attempt, "earlier": [one.attempt for one in existing]}
        try:
            self.open(repository, run).put("attempt.json", json.dumps(names).encode())
        except StorageError as error:
            kind = type(error) if error.transient else ConfigurationError
            raise kind(
                f"the artifacts cannot be written at {self.url}: {error}. Let this process write "
                "there, or name another place in `artifact_root` or LAKEGC_ARTIFACT_ROOT"
            ) from error
        return AttemptArtifacts(self, repository, run, attempt)


@dataclass(frozen=True)
class AttemptArtifacts:
    """The artifacts of one attempt of one run."""

    root: ArtifactRoot
    repository: str
    run: str
    attempt: str

    @property
    def url(self) -> str:
        """URL of the attempt's folder."""
        return f"{self.root.url.rstrip('/')}/{self.repository}/{self.run}/{self.attempt}"

    def store(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self._store

    @cached_property
    def _store(self) -> ObjectStore:
        return self.root.open(self.repository, self.run, self.attempt)

    def __getstate__(self) -> dict[str, object]:
        """Without the store, which tasks open where they run."""
        return {name: value for name, value in vars(self).items() if name != "_store"}

    def has(self, asset: str) -> bool:
        """Return whether the asset finished in this attempt."""
        try:
            self.store().head(f"{asset}/manifest.json")
        except ObjectNotFoundError:
            return False
        return True

    def files(self, asset: str) -> dict[str, int]:
        """Size in bytes of each parquet file below an asset, by its key."""
        infos = self.store().infos(f"{asset}/")
        return {info.key: info.size for info in infos if info.key.endswith(".parquet")}

    def finish(self, manifest: Manifest) -> Manifest:
        """Write the manifest of an asset: from now on it counts.

        Raises:
            IntegrityError: a file that tasks have written is not there.
            RefusedError: the asset has finished already, in another process.
        """
        self.require_files(manifest, "the driver and all executors must share the artifact root")
        key = f"{manifest.asset}/manifest.json"
        try:
            self.store().create(key, manifest.to_bytes())
        except PreconditionFailedError as error:
            then = ": a new listing starts a new attempt" if manifest.asset in MARK_ASSETS else ""
            raise RefusedError(f"{manifest.asset} of {self.run!r} is finished{then}") from error
        return manifest

    def require_files(self, manifest: Manifest, hint: str) -> None:
        """Refuse a manifest whose files are missing, or not as long as it says."""
        there = self.files(manifest.asset)
        for part in (part for parts in manifest.parts.values() for part in parts):
            size: int | None = there.get(part.key)
            if size != part.size:
                # A listing that ends early, or is late, looks like a whole one.
                size = self._size_of(part.key)
            if size != part.size:
                raise IntegrityError(
                    f"{self.url}/{part.key} should have {part.size} bytes, and "
                    f"{'is gone' if size is None else f'has {size}'}: {hint}",
                )

    def holds(self, manifest: Manifest) -> bool:
        """True if each file of a manifest is there, in its size: asked for one by one."""
        return all(
            self._size_of(part.key) == part.size
            for parts in manifest.parts.values()
            for part in parts
        )

    def _size_of(self, key: str) -> int | None:
        """Size in bytes of a file; None where there is none."""
        with suppress(ObjectNotFoundError):
            return self.store().head(key).size
        return None

    def recorded(self, asset: str) -> Manifest:
        """The manifest of a finished asset; whether its files are there was not looked at.

        Raises:
            IntegrityError: it is missing, damaged, or of another attempt.
        """
        found = self.recorded_if_finished(asset)
        if found is None:
            raise IntegrityError(
                f"{asset} did not finish ({self.url}/{asset}/manifest.json does not exist): "
                "materialize it, or mark again",
            )
        return found

    def recorded_if_finished(self, asset: str) -> Manifest | None:
        """As ``recorded``, with one request; None where the asset did not finish.

        Raises:
            IntegrityError: it is damaged, or of another attempt.
        """
        where = f"{self.url}/{asset}/manifest.json"
        try:
            recorded = self.store().get(f"{asset}/manifest.json")
        except ObjectNotFoundError:
            return None
        manifest = Manifest.from_bytes(recorded, where)
        expected = (asset, self.repository, self.run, self.attempt)
        found = (manifest.asset, manifest.repository, manifest.run, manifest.attempt)
        if found != expected:
            raise IntegrityError(f"{where} belongs to {found}, not to {expected}: mark again")
        return manifest

    def manifest(self, asset: str) -> Manifest:
        """The manifest of a finished asset, whose files are there in their sizes.

        Raises:
            IntegrityError: it is missing, damaged, of another attempt, or a file is not as it says.
        """
        manifest = self.recorded(asset)
        self.require_files(manifest, "something removed or cut it. Mark again under a new id")
        if sum(part.rows for part in manifest.parts.get("data", ())) != manifest.rows:
            raise IntegrityError(
                f"{self.url}/{asset}/manifest.json has {manifest.rows} rows, and its files have "
                "not: mark again"
            )
        return manifest

    def chain(self, last: str, namespace: str) -> dict[str, Manifest]:
        """The manifests up to ``last``, each checked against the one before it.

        Raises:
            IntegrityError: one is missing, or the chain is broken: another attempt, cutoff or
                namespace, a digest that does not match, or times out of order, by more than the
                clocks of two machines may differ.
        """
        chain: dict[str, Manifest] = {}
        previous: Manifest | None = None
        for asset in MARK_ASSETS[: MARK_ASSETS.index(last) + 1]:
            manifest = self.manifest(asset)
            if manifest.namespace != namespace:
                raise IntegrityError(
                    f"{asset} of {self.run!r} is about {manifest.namespace}, but the repository is "
                    f"at {namespace} now: mark again under a new id",
                )
            if previous is None:
                sound = manifest.previous == ""
            else:
                # By its digest it was begun behind the one before it, whatever a clock says: each
                # asset may be made on a machine of its own.
                sound = (
                    manifest.previous == previous.sha256
                    and manifest.cutoff == previous.cutoff
                    and manifest.started >= previous.finished - manifest.skew
                )
            if not sound or manifest.finished < manifest.started - manifest.skew:
                raise IntegrityError(
                    f"the manifest of {asset} below {self.url} does not follow the one before it: "
                    "the assets were not made in one pass. Mark again under a new id",
                )
            chain[asset] = previous = manifest
        return chain

    def read(
        self, asset: str, part: str = "data", columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of a part of a finished asset, each file compared with the manifest.

        For what fits into this process; tasks read ``Manifest.parts`` file by file.

        Raises:
            IntegrityError: a file is missing, or is not what the manifest says.
        """
        return self.rows(self.manifest(asset), part, columns)

    def rows(
        self, manifest: Manifest, part: str = "data", columns: Sequence[str] | None = None
    ) -> pa.Table:
        """As ``read``, by a manifest that the caller has read: one written since does not count."""
        tables = list(read_parts(self.store(), self._parts(manifest, part), columns))
        return pa.concat_tables(tables) if tables else pa.table({})

    def values(
        self, manifest: Manifest, part: str = "data", columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """As ``rows``, of few rows, as plain values."""
        store, parts = self.store(), self._parts(manifest, part)
        return [row for one in parts for row in read_values(store, one, columns)]

    def _parts(self, manifest: Manifest, part: str) -> Sequence[Part]:
        if part not in manifest.parts:
            raise IntegrityError(f"{self.url}/{manifest.asset} has no part {part!r}: mark again")
        return manifest.parts[part]
