"""The retention of deleted objects by the settings of a bucket, and their number and size."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.s3.client import failing
from lakegc_assets.storage.values import DataProtection, Recovery, Retained

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_NO_RULES: Final = "NoSuchLifecycleConfiguration"
#: A server that does not know the question has no locks.
_NO_LOCK: Final = frozenset({"ObjectLockConfigurationNotFoundError", "NotImplemented"})
#: Days, at least.
_YEAR: Final = 365
_DATA: Final = "data/"


class ObjectLock(NamedTuple):
    """Object Lock of a bucket, with mode (GOVERNANCE, COMPLIANCE) and days of any default."""

    enabled: bool
    mode: str = ""
    days: float = 0


def recovery_of(client: S3Client, bucket: str, prefix: str, where: str) -> Recovery:
    """The protection of keys below a prefix by versioning and lifecycle rules; never an error."""
    return _settings(client, bucket, prefix, where)[0]


def _settings(
    client: S3Client, bucket: str, prefix: str, where: str
) -> tuple[Recovery, str, Sequence[Any] | None]:
    """Recovery, versioning and lifecycle rules of a bucket; None for rules that are not known."""
    try:
        versioning = _versioning(client, bucket)
    except HttpFailure as failure:
        notice = (
            f"{where}: whether the bucket keeps deleted objects could not be found out "
            f"({failure.code}): look at its versioning, or allow s3:GetBucketVersioning"
        )
        return Recovery("unknown", None, notice), "unknown", ()
    if versioning != "enabled":
        notice = f"{where}: the bucket keeps nothing of what is deleted"
        if versioning == "suspended":
            notice = (
                f"{where}: versioning is suspended: what is written and deleted now is not kept, "
                "and older versions stay, and are paid for, until a lifecycle rule ends them"
            )
        return Recovery("nothing", None, notice), versioning, ()
    kept = f"{where}: versioning is enabled: deleted objects stay as versions, and are paid for,"
    try:
        rules = _rules(client, bucket)
    except HttpFailure as failure:
        why = f"{failure.code}: allow s3:GetLifecycleConfiguration"
        notice = f"{kept} until when could not be found out ({why})"
        return Recovery("versions", None, notice), versioning, None
    days = min((ends for one in rules if (ends := _days(one, prefix)) is not None), default=None)
    until = "until a lifecycle rule ends them; none does now"
    if days is not None:
        until = f"for {days:g} days, by a lifecycle rule"
    return Recovery("versions", days, f"{kept} {until}"), versioning, rules


def protection_of(client: S3Client, bucket: str, prefix: str, where: str) -> DataProtection:
    """The use of space below a prefix by versioning, lifecycle rules and Object Lock.

    A delete that names no version leaves a delete marker, whatever is locked: it succeeds, and the
    space is freed when a lifecycle rule may remove the version below.
    """
    recovery, versioning, rules = _settings(client, bucket, prefix, where)
    found, lock = DataProtection.of(recovery), object_lock(client, bucket)
    if versioning == "suspended":
        # What was written before that has a version, which stays.
        found = found._replace(held=None)
    if rules is not None:
        concerned = [rule for rule in rules if _days(rule, prefix) is not None]
        exact = len(concerned) == 1 and _ends_all(concerned[0], prefix)
        found = found._replace(at_least=not exact)
    return found._replace(locked_days=lock.days if lock else 0).with_locks(_in_words(lock))


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


def retained_by(client: S3Client, bucket: str, prefix: str) -> Retained:
    """Versions below a prefix that are not the latest, and delete markers. Raises HttpFailure.

    Locks are counted by the default of the bucket; of those of single objects no list tells.
    """
    objects = size = markers = locked = 0
    until = now = datetime.now(timezone.utc)
    if not _versioning(client, bucket):
        return Retained()
    lock = object_lock(client, bucket)
    with failing():
        pages = client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            old = [one for one in page.get("Versions", ()) if not one.get("IsLatest")]
            objects += len(old)
            size += sum(one["Size"] for one in old)
            markers += len(page.get("DeleteMarkers", ()))
            ends = [one["LastModified"] + timedelta(lock.days if lock else 0) for one in old]
            locked += sum(end > now for end in ends)
            until = max([until, *ends])
    return Retained(
        objects, size, markers, None if lock is None else locked, until if until > now else None
    )


def object_lock(client: S3Client, bucket: str) -> ObjectLock | None:
    """Object Lock of a bucket; None where nobody can tell."""
    try:
        with failing():
            answer = client.get_object_lock_configuration(Bucket=bucket)
    except HttpFailure as failure:
        return ObjectLock(enabled=False) if failure.code in _NO_LOCK else None
    lock = answer.get("ObjectLockConfiguration", {})
    default = lock.get("Rule", {}).get("DefaultRetention", {})
    days = default.get("Days", 0) + _YEAR * default.get("Years", 0)
    return ObjectLock(lock.get("ObjectLockEnabled") == "Enabled", default.get("Mode", ""), days)


def _versioning(client: S3Client, bucket: str) -> str:
    """``enabled``, ``suspended``, or nothing where a bucket never had versions. Raises HttpFailure.

    S3 answers without a status of a bucket that never had any.
    """
    with failing():
        answer = client.get_bucket_versioning(Bucket=bucket)
    return str(answer.get("Status", "")).lower()


def _rules(client: S3Client, bucket: str) -> Sequence[Any]:
    """The lifecycle rules of a bucket. Raises HttpFailure."""
    try:
        with failing():
            return client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    except HttpFailure as failure:
        if failure.code != _NO_RULES:
            raise
        return []


def _days(rule: Any, prefix: str) -> float | None:  # noqa: ANN401 - boto3's
    """After how many days a rule may remove what was deleted below a prefix; None for never."""
    ends = rule.get("NoncurrentVersionExpiration", {})
    if rule.get("Status") != "Enabled" or "NoncurrentDays" not in ends:
        return None
    # A rule that spares the newest of the old versions spares what was deleted last.
    if ends.get("NewerNoncurrentVersions"):
        return None
    start = _start(rule)
    if not (start.startswith(prefix) or prefix.startswith(start)):
        return None
    return float(ends["NoncurrentDays"])


def _ends_all(rule: Any, prefix: str) -> bool:  # noqa: ANN401 - as above
    """True if a rule removes all objects below a prefix, and not those of some tags or sizes."""
    return f"{prefix}{_DATA}".startswith(_start(rule)) and not _chosen(rule).keys() - {"Prefix"}


def _start(rule: Any) -> str:  # noqa: ANN401 - as above
    """The prefix of the keys that a rule is about."""
    return str(_chosen(rule).get("Prefix") or rule.get("Prefix") or "")


def _chosen(rule: Any) -> Any:  # noqa: ANN401 - as above
    chosen = rule.get("Filter", {})
    return chosen.get("And", chosen)
