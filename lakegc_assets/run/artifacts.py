"""Where the artifacts of a run live, and the chain of manifests that says they are whole.

``<root>/<repository>/<run>/<attempt>/<asset>/data/*.parquet`` holds an asset's rows, and
``<asset>/manifest.json``, written last and atomically, says that it finished: schema version, row
count, a digest of the keys, the files with their sizes, the settings, the cutoff, start and finish,
and the digest of the manifest before it. No manifest means that the asset did not finish.

``<root>/<repository>/<run>/attempt.json`` names the present attempt. A new listing starts a new
attempt; once a mark is published it is frozen, and no attempt can follow it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.opening import open_store

#: Raised with the form of artifacts, and with what counts as alive: older marks are then not swept.
SCHEMA_VERSION = 2

#: The order of the graph, which is part of the safety argument: each manifest names the one before.
MARK_ASSETS = (
    "store_listing",
    "uncommitted_snapshot",
    "active_commits",
    "committed_addresses",
    "deletion_candidates",
    "gc_report",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TIMESTAMP = T.TimestampType()

LISTING = T.StructType(
    [
        T.StructField("address", T.StringType(), nullable=False),
        T.StructField("size", T.LongType(), nullable=False),
        T.StructField("last_modified", _TIMESTAMP, nullable=False),
        T.StructField("etag", T.StringType(), nullable=False),
    ],
)
UNCOMMITTED = T.StructType(
    [
        T.StructField("address", T.StringType(), nullable=False),
        T.StructField("created", _TIMESTAMP, nullable=True),
        T.StructField("resolved", T.BooleanType(), nullable=False),
    ],
)


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
class KeyDigest:
    """Digest of a set of keys that does not depend on their order.

    ``count`` keys, and the sums modulo 2^64 of two xxHash64 values of each key with different
    seeds: 128 bits in all, computed by Spark where the keys are.
    """

    count: int
    first: int
    second: int

    def __str__(self) -> str:
        """``count-hex``, as manifests and messages show it."""
        return f"{self.count}-{self.first:016x}{self.second:016x}"


def _everybody_reads(spark: SparkSession, url: str) -> bool:
    """Whether all processes of a session see the same place, whatever is mounted where."""
    local = str(spark.sparkContext.master).startswith("local")
    return local or ("://" in url and not url.startswith("file:"))


def _write_and_count(frame: DataFrame, where: str) -> None:
    """Write rows to a folder that a cluster should share.

    Where it does not, Spark commits what the driver's machine has, and says nothing of the rest.
    """
    written = Observation()
    counted = frame.observe(written, F.count(F.lit(1)).alias("rows"))
    counted.write.mode("overwrite").parquet(where)
    found = frame.sparkSession.read.schema(frame.schema).parquet(where).count()
    if found != written.get["rows"]:
        raise IntegrityError(
            f"executors wrote {written.get['rows']} rows below {where}, and {found} are there: the "
            "driver and all executors must share the artifact root. Let LAKEGC_ARTIFACT_ROOT name "
            "a shared folder or an object store"
        )


def key_digest(frame: DataFrame, key: str = "address") -> KeyDigest:
    """The digest of a key, which is an SQL expression of strings; reads every row once."""
    hashes = frame.select(
        F.xxhash64(F.expr(key)).cast("decimal(38,0)").alias("first"),
        F.xxhash64(F.lit("lakegc"), F.expr(key)).cast("decimal(38,0)").alias("second"),
    )
    row = hashes.agg(F.count("*"), F.sum("first"), F.sum("second")).first()
    if row is None:
        raise IntegrityError(f"Spark gave no answer for the digest of {key}")
    count, first, second = row
    return KeyDigest(count, int(first or 0) % 2**64, int(second or 0) % 2**64)


@dataclass(frozen=True)
class Manifest:
    """What an asset of an attempt wrote, and after which manifest.

    Attributes:
        asset: name of the asset.
        repository: lakeFS repository.
        run: id of the run, the mark id.
        attempt: id of the attempt; equal through a chain.
        namespace: storage namespace, in its canonical form.
        cutoff: the one cutoff of the attempt; equal through a chain.
        started: when the asset started.
        finished: when its rows were written.
        rows: number of rows.
        digest: ``KeyDigest`` of its keys, as text; empty where it has no keys.
        files: size in bytes of each data file.
        previous: SHA-256 of the manifest before this one, in hex; empty for the first.
        settings: the settings of the run, as ``Settings.to_json`` gives them.
        facts: what later stages and the report need to know, as JSON values.
    """

    asset: str
    repository: str
    run: str
    attempt: str
    namespace: str
    cutoff: datetime
    started: datetime
    finished: datetime
    rows: int
    digest: str
    files: Mapping[str, int]
    previous: str
    settings: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_bytes(self) -> bytes:
        """The manifest as it is stored: JSON with sorted keys."""
        values = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in self.__dict__.items()
        }
        return json.dumps(values, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Read a stored manifest.

        Raises:
            IntegrityError: it is damaged, or written by another version.
        """
        try:
            values = json.loads(data)
            if values["schema_version"] != SCHEMA_VERSION:
                raise IntegrityError(
                    f"{where} has schema version {values['schema_version']}, this is version "
                    f"{SCHEMA_VERSION}: mark again with this version",
                )
            for name in ("cutoff", "started", "finished"):
                values[name] = datetime.fromisoformat(values[name])
                if values[name].tzinfo is None:
                    raise ValueError(f"{name} has no time zone")  # noqa: TRY301 - it is damage
            return cls(**values)
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"{where} is damaged ({error}): mark again") from error

    @property
    def sha256(self) -> str:
        """The digest that the next manifest carries."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


@dataclass(frozen=True)
class ArtifactRoot:
    """The place of all artifacts: a URL that Spark and ``storage`` both can read and write."""

    url: str
    stores: StoreConfig

    def open(self, *parts: str) -> ObjectStore:
        """The store rooted at a folder below the root."""
        return open_store("/".join((self.url.rstrip("/"), *parts)), self.stores)

    def runs(self, repository: str) -> list[str]:
        """Ids of the runs that have left artifacts, in the order of their names."""
        prefixes = self.open(repository).list_prefixes().prefixes
        return [name.rstrip("/") for name in prefixes if not name.startswith("_")]

    def attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """The present attempt of a run.

        Raises:
            RefusedError: the run is unknown.
        """
        where = f"{self.url}/{repository}/{run}/attempt.json"
        try:
            told = self.open(repository, run).get("attempt.json")
        except ObjectNotFoundError as error:
            raise RefusedError(
                f"there is no mark {run!r} of repository {repository!r} ({where} does not exist)",
            ) from error
        try:
            attempt = json.loads(told)["attempt"]
            validate_run_id(attempt)
        except (ValueError, KeyError, TypeError, ConfigurationError) as error:
            raise IntegrityError(
                f"{where} is damaged ({error}): mark again under a new id"
            ) from error
        return AttemptArtifacts(self, repository, run, attempt)

    def new_attempt(self, repository: str, run: str) -> AttemptArtifacts:
        """Start a new attempt of a run; the earlier ones stay as they are.

        Raises:
            RefusedError: the mark of this run is published, hence frozen.
        """
        validate_run_id(run)
        try:
            existing = self.attempt(repository, run)
        except RefusedError:
            existing = None
        if existing is not None and existing.has("gc_report"):
            raise RefusedError(
                f"mark {run!r} of repository {repository!r} exists already and is frozen: "
                "sweep it, or mark again under another id",
            )
        attempt = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self.open(repository, run).put("attempt.json", json.dumps({"attempt": attempt}).encode())
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

    def data_url(self, asset: str, part: str = "data") -> str:
        """Where Spark writes and reads the rows of an asset."""
        return f"{self.url}/{asset}/{part}"

    def store(self) -> ObjectStore:
        """The store rooted at the attempt."""
        return self.root.open(self.repository, self.run, self.attempt)

    def has(self, asset: str) -> bool:
        """Whether the asset finished in this attempt."""
        try:
            self.store().head(f"{asset}/manifest.json")
        except ObjectNotFoundError:
            return False
        return True

    def write(self, frame: DataFrame, asset: str, part: str = "data") -> None:
        """Write rows below an asset; they count only once its manifest is there.

        What an earlier try of the same asset left without a manifest is replaced. An asset that
        has finished is never written again.

        Raises:
            RefusedError: it has finished.
            IntegrityError: the driver does not see what executors wrote.
        """
        if self.has(asset):
            raise RefusedError(
                f"{asset} of {self.run!r} is finished: a new listing starts a new attempt",
            )
        where = self.data_url(asset, part)
        if _everybody_reads(frame.sparkSession, where):
            frame.write.mode("overwrite").parquet(where)
        else:
            _write_and_count(frame, where)

    def keep(self, spark: SparkSession, asset: str, frame: DataFrame, part: str) -> DataFrame:
        """Write rows below an asset and read them back, so that they are computed once."""
        self.write(frame, asset, part)
        return self.read(spark, asset, part)

    def files(self, asset: str) -> dict[str, int]:
        """Size in bytes of each parquet file below an asset, by key below the asset."""
        sizes: dict[str, int] = {}
        for batch in self.store().list(f"{asset}/"):
            for key, size in zip(batch["key"].to_pylist(), batch["size"].to_pylist(), strict=True):
                if key.endswith(".parquet"):
                    sizes[key[len(asset) + 1 :]] = size
        return sizes

    def finish(self, manifest: Manifest) -> Manifest:
        """Write the manifest of an asset: from now on it counts.

        Raises:
            RefusedError: the asset has finished already, in another process.
        """
        store = self.store()
        key = f"{manifest.asset}/manifest.json"
        store.put_if_absent(key, manifest.to_bytes())
        return manifest

    def manifest(self, asset: str) -> Manifest:
        """The manifest of a finished asset, with its files checked.

        Raises:
            IntegrityError: it is missing, damaged, of another attempt, or a file is not as it says.
        """
        where = f"{self.url}/{asset}/manifest.json"
        try:
            manifest = Manifest.from_bytes(self.store().get(f"{asset}/manifest.json"), where)
        except ObjectNotFoundError as error:
            raise IntegrityError(
                f"{asset} did not finish ({where} does not exist): materialize it first",
            ) from error
        expected = (asset, self.repository, self.run, self.attempt)
        found = (manifest.asset, manifest.repository, manifest.run, manifest.attempt)
        if found != expected:
            raise IntegrityError(f"{where} belongs to {found}, not to {expected}: mark again")
        if dict(manifest.files) != self.files(asset):
            raise IntegrityError(
                f"the data files below {self.url}/{asset} are not those that its manifest names: "
                "something wrote, removed or cut them. Mark again under a new id",
            )
        return manifest

    def chain(self, last: str, namespace: str) -> dict[str, Manifest]:
        """The manifests up to ``last``, each checked against the one before it.

        Raises:
            IntegrityError: one is missing, or the chain is broken: another attempt, cutoff or
                namespace, a digest that does not match, or times out of order.
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
                sound = (
                    manifest.previous == previous.sha256
                    and manifest.cutoff == previous.cutoff
                    and manifest.started >= previous.finished
                )
            if not sound or manifest.finished < manifest.started:
                raise IntegrityError(
                    f"the manifest of {asset} below {self.url} does not follow the one before it: "
                    "the assets were not made in one pass. Mark again under a new id",
                )
            chain[asset] = previous = manifest
        return chain

    def read(self, spark: SparkSession, asset: str, part: str = "data") -> DataFrame:
        """The rows of an asset. Call ``manifest`` or ``chain`` before; this checks nothing."""
        return spark.read.parquet(self.data_url(asset, part))

    def read_verified(
        self, spark: SparkSession, manifest: Manifest, key: str = "address"
    ) -> DataFrame:
        """The rows of an asset after count and digest of its keys were compared with its manifest.

        Raises:
            IntegrityError: they differ.
        """
        frame = self.read(spark, manifest.asset)
        digest = key_digest(frame, key)
        if str(digest) != manifest.digest or digest.count != manifest.rows:
            raise IntegrityError(
                f"{manifest.asset} below {self.url} holds {digest}, but its manifest says "
                f"{manifest.digest}: something changed it. Mark again under a new id",
            )
        return frame
