"""For how long a bucket keeps what is deleted, by its settings, and how much it is."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.s3.client import failing
from lakegc_assets.storage.values import Recovery, Retained

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_NO_RULES: Final = "NoSuchLifecycleConfiguration"
_NO_LOCK: Final = "ObjectLockConfigurationNotFoundError"
#: Days, at least.
_YEAR: Final = 365


def kept_by(client: S3Client, bucket: str, prefix: str, where: str) -> Recovery:
    """What versioning and lifecycle rules say of the keys below a prefix; never an error."""
    try:
        with failing():
            answer = client.get_bucket_versioning(Bucket=bucket)
    except HttpFailure as failure:
        return Recovery(
            "unknown",
            None,
            f"{where}: whether the bucket keeps deleted objects could not be found out "
            f"({failure.code}): look at its versioning, or allow s3:GetBucketVersioning",
        )
    status = str(answer.get("Status", "")).lower()
    if status == "suspended":
        return Recovery(
            "nothing",
            None,
            f"{where}: versioning is suspended: what is written and deleted now is not kept, and "
            "older versions stay, and are paid for, until a lifecycle rule ends them",
        )
    if status != "enabled":
        return Recovery("nothing", None, f"{where}: the bucket keeps nothing of what is deleted")
    kept = f"{where}: versioning is enabled: deleted objects stay as versions, and are paid for,"
    try:
        with failing():
            rules = client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    except HttpFailure as failure:
        if failure.code != _NO_RULES:
            why = f"{failure.code}: allow s3:GetLifecycleConfiguration"
            return Recovery("versions", None, f"{kept} until when could not be found out ({why})")
        rules = []
    days = [found for rule in rules if (found := _days(rule, prefix)) is not None]
    if not days:
        return Recovery("versions", None, f"{kept} until a lifecycle rule ends them; none does now")
    return Recovery("versions", min(days), f"{kept} for {min(days):g} days, by a lifecycle rule")


def retained_by(client: S3Client, bucket: str, prefix: str) -> Retained:
    """Versions below a prefix that are not the latest, and delete markers. Raises HttpFailure.

    Locks are counted by the default of the bucket; of those of single objects no list tells.
    """
    objects = size = markers = locked = 0
    until = now = datetime.now(timezone.utc)
    with failing():
        if not str(client.get_bucket_versioning(Bucket=bucket).get("Status", "")):
            return Retained()
        pages = client.get_paginator("list_object_versions")
        lock = _default_lock(client, bucket)
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            old = [one for one in page.get("Versions", ()) if not one.get("IsLatest")]
            objects += len(old)
            size += sum(one["Size"] for one in old)
            markers += len(page.get("DeleteMarkers", ()))
            ends = [one["LastModified"] + (lock or timedelta()) for one in old]
            locked += sum(end > now for end in ends)
            until = max([until, *ends])
    return Retained(
        objects, size, markers, None if lock is None else locked, until if until > now else None
    )


def _default_lock(client: S3Client, bucket: str) -> timedelta | None:
    """For how long a bucket locks what is written to it; None where it does not tell."""
    try:
        with failing():
            told = client.get_object_lock_configuration(Bucket=bucket)
    except HttpFailure as failure:
        return timedelta() if failure.code == _NO_LOCK else None
    default = told.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention", {})
    return timedelta(days=default.get("Days", 0) + _YEAR * default.get("Years", 0))


def _days(rule: Any, prefix: str) -> float | None:  # noqa: ANN401 - boto3's
    """After how many days a rule may remove what was deleted below a prefix; None for never."""
    ends = rule.get("NoncurrentVersionExpiration", {})
    if rule.get("Status") != "Enabled" or "NoncurrentDays" not in ends:
        return None
    # A rule that spares the newest of the old versions spares what was deleted last.
    if ends.get("NewerNoncurrentVersions"):
        return None
    chosen = rule.get("Filter", {})
    chosen = chosen.get("And", chosen)
    start = str(chosen.get("Prefix") or rule.get("Prefix") or "")
    if not (start.startswith(prefix) or prefix.startswith(start)):
        return None
    return float(ends["NoncurrentDays"])
