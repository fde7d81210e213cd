"""The retention of deleted objects by the settings of a bucket, and their number and size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakegc_assets.storage.bucket_store import UploadingStore, overlap
from lakegc_assets.storage.http import HttpFailure, explaining
from lakegc_assets.storage.s3.client import Clients, clients, failing, whole
from lakegc_assets.storage.s3.objects import S3Object
from lakegc_assets.storage.values import DataProtection, Recovery, Retained

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_NO_RULES: Final = "NoSuchLifecycleConfiguration"
#: A server that does not know the question has no locks.
_NO_LOCK: Final = frozenset({"ObjectLockConfigurationNotFoundError", "NotImplemented"})
#: Days, at least.
_YEAR: Final = 365
_DATA: Final = "data/"
#: Storage classes whose objects cannot be read; tiers of Intelligent-Tiering are in no list.
ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})


class ObjectLock(NamedTuple):
    """Object Lock of a bucket, with mode (GOVERNANCE, COMPLIANCE) and days of any default."""

    enabled: bool
    mode: str = ""
    days: float = 0


class S3Retention(UploadingStore[S3Object]):
    """A bucket, with what S3 keeps of deleted objects: versions, lifecycle rules, locks."""

    @property
    def clients(self) -> Clients:
        """The clients of the server: the same for all stores of one configuration."""
        return clients(self.config)

    @property
    def client(self) -> S3Client:
        """The one whose requests are repeated."""
        return self.clients.usual

    def recovery(self) -> Recovery:
        return self._settings()[0]

    def _settings(self) -> tuple[Recovery, str, Sequence[Any] | None]:
        """Recovery, versioning and lifecycle rules; None for rules that are not known."""
        where = self._url
        try:
            versioning = self._versioning()
        except HttpFailure as failure:
            advice = ": look at the versioning of the bucket, or allow s3:GetBucketVersioning"
            return Recovery.unknown(where, failure.code, advice), "unknown", ()
        if versioning != "enabled":
            notice = f"{where}: the bucket keeps nothing of what is deleted"
            if versioning == "suspended":
                notice = (
                    f"{where}: versioning is suspended: what is written and deleted now is not "
                    "kept, and older versions stay, and are paid for, until a lifecycle rule ends "
                    "them"
                )
            return Recovery("nothing", None, notice), versioning, ()
        kept = f"{where}: versioning is enabled: deleted objects stay as versions, and are paid for"
        try:
            rules = self._rules()
        except HttpFailure as failure:
            why = f"{failure.code}: allow s3:GetLifecycleConfiguration"
            notice = f"{kept}, until when could not be found out ({why})"
            return Recovery("versions", None, notice), versioning, None
        ends = [days for one in rules if (days := _days(one, self.prefix)) is not None]
        until = "until a lifecycle rule ends them; none does now"
        if ends:
            until = f"for {min(ends):g} days, by a lifecycle rule"
        notice = "; ".join([f"{kept}, {until}", *_archives(rules, self.prefix)])
        return Recovery("versions", min(ends, default=None), notice), versioning, rules

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``.

        A delete that names no version leaves a marker, whatever is locked, and the space is freed
        when a lifecycle rule may remove the version below.
        """
        recovery, versioning, rules = self._settings()
        found, lock = DataProtection.of(recovery), self._object_lock()
        if versioning == "suspended":
            # What was written before that has a version, which stays.
            found = found._replace(held=None)
        if rules is not None:
            concerned = [rule for rule in rules if _days(rule, self.prefix) is not None]
            exact = len(concerned) == 1 and _ends_all(concerned[0], self.prefix)
            found = found._replace(at_least=not exact)
        return found._replace(locked_days=lock.days if lock else 0).with_locks(_in_words(lock))

    def _expirations(self) -> Iterable[tuple[str, float]]:
        """See ``UploadingStore``: rules for some tags are not about what lakeFS, or we, write."""
        found = ((_start(rule), _expiry(rule)) for rule in self._rules())
        return [(start, days) for start, days in found if days is not None]

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``. Locks of single objects are in no list: the default counts."""
        markers = 0

        def kept(lock: timedelta | None) -> Iterator[tuple[int, bool, datetime | None]]:
            nonlocal markers
            pages = self.client.get_paginator("list_object_versions")
            listed = pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix)
            for page in whole(listed, "versions"):
                markers += len(page.get("DeleteMarkers", ()))
                for one in page.get("Versions", ()):
                    if not one.get("IsLatest"):
                        yield one["Size"], False, one["LastModified"] + lock if lock else None

        with explaining(f"{self._url}: listing versions"), failing():
            if not self._versioning():
                return Retained()
            lock = self._object_lock()
            found = Retained.counting(kept(timedelta(lock.days) if lock and lock.days else None))
        return found._replace(markers=markers, locked=None if lock is None else found.locked)

    def _object_lock(self) -> ObjectLock | None:
        """Object Lock of the bucket; None where nobody can tell."""
        try:
            with failing():
                answer = self.client.get_object_lock_configuration(Bucket=self.bucket)
        except HttpFailure as failure:
            return ObjectLock(enabled=False) if failure.code in _NO_LOCK else None
        lock = answer.get("ObjectLockConfiguration", {})
        default = lock.get("Rule", {}).get("DefaultRetention", {})
        days = default.get("Days", 0) + _YEAR * default.get("Years", 0)
        return ObjectLock(lock.get("ObjectLockEnabled") == "Enabled", default.get("Mode", ""), days)

    def _versioning(self) -> str:
        """``enabled``, ``suspended``, or nothing where there never were any. Raises HttpFailure."""
        with failing():
            answer = self.client.get_bucket_versioning(Bucket=self.bucket)
        return str(answer.get("Status", "")).lower()

    def _rules(self) -> Sequence[Any]:
        """The lifecycle rules of the bucket. Raises HttpFailure."""
        try:
            with failing():
                answer = self.client.get_bucket_lifecycle_configuration(Bucket=self.bucket)
                return answer.get("Rules", [])
        except HttpFailure as failure:
            if failure.code != _NO_RULES:
                raise
            return []


def _in_words(lock: ObjectLock | None) -> Sequence[str]:
    """Object Lock of a bucket, in a sentence; None for what is not known."""
    if lock is None:
        allow = "allow s3:GetBucketObjectLockConfiguration"
        return [f"whether objects are locked could not be found out: {allow}"]
    if lock.days:
        since = f"for {lock.days:g} days from when it was written ({lock.mode})"
        longer = "or longer by a lock or a legal hold of its own"
        return [f"Object Lock is enabled: each object is locked {since}, {longer}"]
    if lock.enabled:
        return ["Object Lock is enabled: objects may have locks and legal holds of their own"]
    return []


def _days(rule: Any, prefix: str) -> float | None:  # noqa: ANN401 - boto3's
    """After how many days a rule may remove what was deleted below a prefix; None for never."""
    ends = rule.get("NoncurrentVersionExpiration", {})
    # A rule that spares the newest of the old versions spares what was deleted last.
    if "NoncurrentDays" not in ends or ends.get("NewerNoncurrentVersions"):
        return None
    return float(ends["NoncurrentDays"]) if _concerns(rule, prefix) else None


def _concerns(rule: Any, prefix: str) -> bool:  # noqa: ANN401 - as above
    """True if a rule is in effect, and may be about something below a prefix."""
    return rule.get("Status") == "Enabled" and overlap(_start(rule), prefix)


def _expiry(rule: Any) -> float | None:  # noqa: ANN401 - as above
    """The days after which a rule removes objects; None for never."""
    ends, tags = rule.get("Expiration", {}), {"Tag", "Tags"} & _chosen(rule).keys()
    days = 0 if "Date" in ends else ends.get("Days")
    return None if tags or days is None or rule.get("Status") != "Enabled" else float(days)


def _archives(rules: Sequence[Any], prefix: str) -> list[str]:
    """A sentence on rules that move what was deleted to where it cannot be read."""
    days = [
        one.get("NoncurrentDays", 0)
        for rule in rules
        if _concerns(rule, prefix)
        for one in rule.get("NoncurrentVersionTransitions", ())
        if one.get("StorageClass") in ARCHIVES
    ]
    since = f"{min(days):g} days after they were deleted" if days else ""
    return [f"{since} a rule moves them into an archive, where they cannot be read"] * bool(days)


def _ends_all(rule: Any, prefix: str) -> bool:  # noqa: ANN401 - as above
    """True if a rule removes all objects below a prefix, and not those of some tags or sizes."""
    return f"{prefix}{_DATA}".startswith(_start(rule)) and not _chosen(rule).keys() - {"Prefix"}


def _start(rule: Any) -> str:  # noqa: ANN401 - as above
    """The prefix of the keys that a rule is about."""
    return str(_chosen(rule).get("Prefix") or rule.get("Prefix") or "")


def _chosen(rule: Any) -> Any:  # noqa: ANN401 - as above
    chosen = rule.get("Filter", {})
    return chosen.get("And", chosen)
