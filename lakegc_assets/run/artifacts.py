"""Artifacts of runs: files of rows, and the chain of manifests that proves them complete.

``<root>/<repository>/<run>/<attempt>/<asset>/<part>/*.parquet`` holds the rows of an asset; its
main part is ``data``. ``<asset>/manifest.json``, written last and atomically, proves that the asset
finished. An asset without a manifest did not finish. A file that no manifest names is never read.

``<root>/<repository>/<run>/attempt.json`` names the present attempt and the earlier ones. A new
listing starts a new attempt. A published mark is frozen: no attempt can follow it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_parts, read_values
from lakegc_assets.engine.ddl import schema
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.hashing import HASHES
from lakegc_assets.run.json_record import DAMAGE
from lakegc_assets.run.manifest import MARK_ASSETS, Manifest
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store

#: Record of the attempts of a run.
_ATTEMPT = "attempt.json"
#: Names of repositories (looser than lakeFS) and ids of runs: Dagster drops none of them, and none
#: of them leaves the artifact root.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: The beginning of a URL without its slashes.
_SLIP = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)")

#: Store DF: the objects in the store.
LISTING = schema(
    "address string not null",
    HASHES,
    "size bigint not null, last_modified timestamp not null, etag string not null",
    # 0 for an etag that cannot be a checksum of the content.
    "etag_hash bigint not null",
    # True if lakeFS, in this or an older version, writes objects to such a place.
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


def located(place: str) -> str:
    """Return a URL unchanged, and a path as an absolute path.

    Raises:
        ConfigurationError: spaces surround it, or a URL lacks its slashes: a local folder would be
            used, even for a backup. Or a URL has a SAS token, which would become a part of the path
            and be shown.
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
    """Return the chosen place; else the default place, with a folder for a named component."""
    if chosen:
        return located(chosen)
    shared = os.environ.get("LAKEGC_ARTIFACT_ROOT") or ".lakegc/artifacts"
    # No repository name begins with ``_``, so readers of the whole place ignore this folder.
    return located(f"{shared.rstrip('/')}/_{component}" if component else shared)


def _names_of(folders: Iterable[str]) -> list[str]:
    """Return the names of repository or run folders; other folders begin with an underscore."""
    return [name.rstrip("/") for name in folders if not name.startswith("_")]


@dataclass(frozen=True)
class ArtifactRoot:
    """The place of all artifacts: a URL that both Spark and ``storage`` can read and write."""

    url: str
    stores: StoreConfig

    def open(self, *parts: str) -> ObjectStore:
        """Return the store rooted at a folder below the root."""
        return open_store("/".join((self.url.rstrip("/"), *parts)), self.stores)

    def repositories(self) -> list[str]:
        """Return the repositories with artifacts, ordered by name.

        The list is read to its end even if the store ends a page early: a missing repository that
        lakeFS hides too would be taken for deleted.
        """
        return _names_of(self.open().prefixes_to_the_end())

    def runs(self, repository: str) -> list[str]:
        """Return the ids of runs with artifacts, ordered.

        The list is read to its end even if the store ends a page early: some facts are in one mark
        only, and would be lost with it.
        """
        return _names_of(self.open(repository).prefixes_to_the_end())

    def attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """Return the present attempt of a run.

        Raises:
            RefusedError: the run is unknown.
            IntegrityError: the record of its attempts is damaged.
        """
        return self.attempts(repository, run)[0]

    def attempts(self, repository: str, run: str) -> list[AttemptArtifacts]:
        """Return the attempts of a run, newest first; the first is the present attempt.

        A published mark stays the present attempt: a process that read this record before the
        publication, and was suspended, may have recorded another attempt after it.

        Raises:
            RefusedError: the run is unknown.
            IntegrityError: the record of its attempts is damaged.
        """
        if "/" in run or run in {"", ".", ".."}:
            # Holds and foreign files can name any run id: it must not lead to another folder.
            raise RefusedError(f"there is no mark {run!r} of repository {repository!r}")
        where = f"{self.url}/{repository}/{run}/{_ATTEMPT}"
        try:
            recorded = self.open(repository, run).get(_ATTEMPT)
        except ObjectNotFoundError as error:
            raise RefusedError(
                f"there is no mark {run!r} of repository {repository!r} ({where} does not exist): "
                f"`{command_line('repositories')}` lists those that there are",
            ) from error
        try:
            values = json.loads(recorded)
            names = [values["attempt"], *values["earlier"]]
            found = [AttemptArtifacts(self, repository, run, validate_run_id(n)) for n in names]
        except (*DAMAGE, ConfigurationError) as error:
            raise IntegrityError(
                f"{where} is damaged ({error}): mark again under a new id"
            ) from error
        # Sorting is stable: all others keep their order.
        return sorted(found, key=lambda one: not one.has("gc_report")) if found[1:] else found

    def new_attempt(
        self, repository: str, run: str, now: datetime | None = None
    ) -> AttemptArtifacts:
        """Start a new attempt of a run; earlier attempts stay unchanged.

        ``now``: the time in its name; None for this machine's time.

        Raises:
            RefusedError: the mark of this run is published, and so frozen; or another process has
                begun an attempt meanwhile.
            ConfigurationError: the artifacts cannot be written.
            StorageError: the store did not answer.
        """
        validate_run_id(run)
        store, etag = self.open(repository, run), ""
        existing: list[AttemptArtifacts] = []
        with suppress(ObjectNotFoundError):
            etag = store.head(_ATTEMPT).etag
            existing = self.attempts(repository, run)
        if existing and existing[0].has("gc_report"):
            raise RefusedError(
                f"mark {run!r} of repository {repository!r} exists already and is frozen: "
                "sweep it, or mark again under another id",
            )
        now = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
        attempt = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        names = {"attempt": attempt, "earlier": [one.attempt for one in existing]}
        try:
            _replace(store, _ATTEMPT, json.dumps(names).encode(), etag)
        except PreconditionFailedError as error:
            raise RefusedError(
                f"another process has begun run {run!r} of repository {repository!r} at the same "
                "time: this process ends, and the other one continues"
            ) from error
        except StorageError as error:
            kind = type(error) if error.transient else ConfigurationError
            raise kind(
                f"the artifacts cannot be written at {self.url}: {error}. Let this process write "
                "there, or name another place in `artifact_root` or LAKEGC_ARTIFACT_ROOT"
            ) from error
        return AttemptArtifacts(self, repository, run, attempt)


def _replace(store: ObjectStore, key: str, data: bytes, etag: str) -> None:
    """Write an object that nobody else writes, in place of one with this etag; empty for none.

    Raises PreconditionFailedError, or StorageError: the write may have happened.
    """
    try:
        if etag:
            store.put_if_match(key, data, etag)
        else:
            store.create(key, data)
    except (PreconditionFailedError, StoreUnavailableError):
        # An answer may be lost, also that of an earlier try of the same request.
        if store.get(key) != data:
            raise
    except (ConfigurationError, StorageError) as error:
        # A shared folder, as on NFS, cannot lock a directory, and a server may refuse If-Match:
        # compare without it.
        if not etag or error.transient:
            raise
        if store.head(key).etag != etag:
            raise PreconditionFailedError(f"{store.url}/{key} was replaced") from None
        store.put(key, data)


@dataclass(frozen=True)
class AttemptArtifacts:
    """The artifacts of one attempt of one run."""

    root: ArtifactRoot
    repository: str
    run: str
    attempt: str

    @property
    def url(self) -> str:
        """The URL of the attempt's folder."""
        return f"{self.root.url.rstrip('/')}/{self.repository}/{self.run}/{self.attempt}"

    def store(self) -> ObjectStore:
        """Return the store rooted at the attempt."""
        return self._store

    @cached_property
    def _store(self) -> ObjectStore:
        return self.root.open(self.repository, self.run, self.attempt)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the store, which each task opens where it runs."""
        return {name: value for name, value in vars(self).items() if name != "_store"}

    def has(self, asset: str) -> bool:
        """Return True if the asset finished in this attempt."""
        try:
            self.store().head(f"{asset}/manifest.json")
        except ObjectNotFoundError:
            return False
        return True

    def files(self, asset: str) -> dict[str, int]:
        """Return the size in bytes of each Parquet file below an asset, by its key."""
        infos = self.store().infos(f"{asset}/")
        return {info.key: info.size for info in infos if info.key.endswith(".parquet")}

    def finish(self, manifest: Manifest) -> Manifest:
        """Write the manifest of an asset, which makes the asset valid.

        Raises:
            IntegrityError: a file of a task is missing.
            RefusedError: another process has finished the asset before.
        """
        self.require_files(manifest, "the driver and all executors must share the artifact root")
        key = f"{manifest.asset}/manifest.json"
        try:
            self.store().create(key, manifest.to_bytes())
        except PreconditionFailedError as error:
            then = ""
            if manifest.asset in MARK_ASSETS:
                then = ". To make it again, make the whole mark again, from the listing"
            raise RefusedError(
                f"{manifest.asset} of {self.run!r} is finished already{then}"
            ) from error
        return manifest

    def require_files(self, manifest: Manifest, hint: str) -> None:
        """Refuse a manifest if a file is missing, or has another size."""
        sizes = self.files(manifest.asset)
        for part in (part for parts in manifest.parts.values() for part in parts):
            size: int | None = sizes.get(part.key)
            if size != part.size:
                # A listing may end early or be stale, and still look complete.
                size = self._size_of(part.key)
            if size != part.size:
                raise IntegrityError(
                    f"{self.url}/{part.key} should have {part.size} bytes, and "
                    f"{'is gone' if size is None else f'has {size}'}: {hint}",
                )

    def holds(self, manifest: Manifest) -> bool:
        """Return True if each file of a manifest exists in its size, by a request for each file."""
        return all(
            self._size_of(part.key) == part.size
            for parts in manifest.parts.values()
            for part in parts
        )

    def _size_of(self, key: str) -> int | None:
        """Return the size in bytes of a file; None for none."""
        with suppress(ObjectNotFoundError):
            return self.store().head(key).size
        return None

    def recorded(self, asset: str) -> Manifest:
        """Return the manifest of a finished asset, without a look at its files.

        Raises:
            IntegrityError: the manifest is missing, damaged, or of another attempt.
        """
        found = self.recorded_if_finished(asset)
        if found is None:
            raise IntegrityError(
                f"{asset} did not finish ({self.url}/{asset}/manifest.json does not exist): "
                "materialize it, or mark again",
            )
        return found

    def recorded_if_finished(self, asset: str) -> Manifest | None:
        """Return the manifest as ``recorded`` does, by one request; None for an unfinished asset.

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
            raise IntegrityError(
                f"{where} belongs to {found}, not to {expected}: mark again under a new id"
            )
        return manifest

    def manifest(self, asset: str) -> Manifest:
        """Return the manifest of a finished asset after a check that its files have their sizes.

        Raises:
            IntegrityError: it is missing, damaged, of another attempt, or a file differs from it.
        """
        manifest = self.recorded(asset)
        self.require_files(manifest, "something removed or cut it. Mark again under a new id")
        if (rows := sum(part.rows for part in manifest.parts.get("data", ()))) != manifest.rows:
            raise IntegrityError(
                f"{self.url}/{asset}/manifest.json has {manifest.rows} rows, and its files have "
                f"{rows}: mark again under a new id"
            )
        return manifest

    def chain(self, last: str, namespace: str) -> dict[str, Manifest]:
        """Return the manifests up to ``last``, each checked against the previous one.

        Raises:
            IntegrityError: a manifest is missing, or the chain is broken: another attempt, cutoff
                or namespace, a wrong digest, or times out of order by more than the clocks of two
                machines may differ.
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
                # The digest proves the order, whatever a clock says: each asset may be made on a
                # machine of its own.
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
        """Read the rows of a part of a finished asset; each file is compared with the manifest.

        For data that fits into this process; tasks read ``Manifest.parts`` file by file.

        Raises:
            IntegrityError: a file is missing, or differs from the manifest.
        """
        return self.rows(self.manifest(asset), part, columns)

    def rows(
        self, manifest: Manifest, part: str = "data", columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read rows as ``read`` does, by a manifest in memory, even if a newer one is stored."""
        tables = list(read_parts(self.store(), self._parts(manifest, part), columns))
        return pa.concat_tables(tables) if tables else pa.table({})

    def values(
        self, manifest: Manifest, part: str = "data", columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Read a few rows as ``rows`` does, as plain values."""
        store, parts = self.store(), self._parts(manifest, part)
        return [row for one in parts for row in read_values(store, one, columns)]

    def _parts(self, manifest: Manifest, part: str) -> Sequence[Part]:
        if part not in manifest.parts:
            raise IntegrityError(
                f"{self.url}/{manifest.asset} has no part {part!r}: mark again under a new id"
            )
        return manifest.parts[part]
