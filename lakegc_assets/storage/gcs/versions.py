"""Generations, deleted objects and uploads in parts of a bucket of GCS, which usual listings lack.

The generation of an object, which is its etag here, names it for good: where versioning is on it is
copied to its name again, and where soft delete is on it is restored, both on the condition that no
object has the name now.

Uploads in parts of the XML API keep their parts until somebody completes or aborts them. Resumable
uploads, which the JSON API makes, end by themselves after a week and are in no list.

Format: https://cloud.google.com/storage/docs/json_api/v1/objects/restore and
https://cloud.google.com/storage/docs/xml-api/get-bucket-uploads
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

import requests

from lakegc_assets.storage.bucket_store import undelete_each
from lakegc_assets.storage.errors import ObjectNotFoundError, error_class
from lakegc_assets.storage.gcs.objects import GcsObject, is_generation, rewrite
from lakegc_assets.storage.gcs.service import GcsService
from lakegc_assets.storage.http import HttpFailure, explaining
from lakegc_assets.storage.values import Lost, MultipartUpload, Recovery, Retained, UndeleteOutcome

_DAY_S: Final = 86400
#: The fields of a bucket that ``recovery_of`` and ``locks_of`` read.
SETTINGS: Final = (
    "softDeletePolicy,versioning,lifecycle,retentionPolicy,defaultEventBasedHold,objectRetention"
)
#: The field that only objects that are not the latest have, by the kind of list.
_ENDED: Final = {"versions": "timeDeleted", "softDeleted": "softDeleteTime"}

#: The fields of an object about its locks.
_LOCKS: Final = ("temporaryHold", "eventBasedHold", "retentionExpirationTime", "retention")
_GONE: Final = frozenset({"NoSuchUpload", "notFound", "NoSuchKey"})
#: The list that has elements of a tag, and where what a request has to go on with stands in it.
_LISTS: Final = {
    "Upload": (
        "ListMultipartUploadsResult",
        {"key-marker": "NextKeyMarker", "upload-id-marker": "NextUploadIdMarker"},
    ),
    "Part": ("ListPartsResult", {"part-number-marker": "NextPartNumberMarker"}),
}


def undelete(
    objects: Sequence[Lost],
    object_at: Callable[[str], GcsObject],
    exists: Callable[[GcsObject], bool],
    where: str,
    *,
    dry_run: bool,
) -> list[UndeleteOutcome]:
    """See ``ObjectStore.undelete_many``, and ``kept_many`` in a dry run.

    Args:
        objects: each key once.
        object_at: an object. Raises InvalidKeyError.
        exists: True if an object is there. Raises HttpFailure.
        where: URL of the store, for messages.
        dry_run: change nothing.
    """
    ways = (_is_kept,) if dry_run else (_copied, _restored)

    def bring_back(lost: Lost) -> UndeleteOutcome:
        if not is_generation(lost.etag):
            detail = f"it cannot have the etag {lost.etag!r}: generations are numbers"
            return UndeleteOutcome(lost.key, "failed", "InvalidKey", detail)
        one = object_at(lost.key)
        # The condition is what counts; but emulators know none, and would overwrite.
        if exists(one):
            return UndeleteOutcome(lost.key, "already_there")
        if any(way(one, lost.etag) for way in ways):
            return UndeleteOutcome(lost.key, "restored")
        detail = f"the bucket keeps no generation {lost.etag} of it"
        return UndeleteOutcome(lost.key, "not_kept", None, detail)

    return undelete_each(objects, bring_back, where)


def _copied(one: GcsObject, generation: str) -> bool:
    """Copy a generation that is not the current one; False if there is none."""
    query = {"sourceGeneration": generation, "ifGenerationMatch": "0"}
    return _found(lambda: rewrite(one, one, query))


def _restored(one: GcsObject, generation: str) -> bool:
    """Restore a generation that soft delete keeps; False if there is none."""
    query = urlencode({"generation": generation, "ifGenerationMatch": "0"})
    return _found(lambda: one.service.client.send("POST", f"{one.url()}/restore?{query}"))


def _is_kept(one: GcsObject, generation: str) -> bool:
    """True if versions or soft delete have a generation."""
    query = {"generation": generation, "fields": "generation"}
    urls = [one.url(**query), one.url(**query, softDeleted="true")]
    return any(_found(partial(one.service.client.send, "GET", url)) for url in urls)


def _found(send: Callable[[], object]) -> bool:
    """False where the answer is that nothing is there. Raises HttpFailure."""
    try:
        send()
    except HttpFailure as failure:
        if error_class(failure.code) is not ObjectNotFoundError:
            raise
        return False
    return True


def retained_by(
    send: Callable[[str, str], requests.Response], bucket_url: str, prefix: str
) -> Retained:
    """Generations below a prefix that are not the latest, and what soft delete has.

    Raises:
        HttpFailure: a request was refused, or its answer is damaged.
    """
    objects = size = locked = 0
    until: list[datetime] = []
    # What soft delete has is in no list of versions, and who may not see it sees a refusal.
    for which in ("versions", "softDeleted"):
        fields = f"items({','.join(['size', *_LOCKS, _ENDED[which]])}),nextPageToken"
        query = {which: "true", "prefix": prefix, "fields": fields}
        while True:
            answer = send("GET", f"{bucket_url}/o?{urlencode(query)}")
            try:
                page = json.loads(answer.content)
                old = [one for one in page.get("items", ()) if one.get(_ENDED[which])]
                objects, size = objects + len(old), size + sum(int(one["size"]) for one in old)
                ends = [_locked_until(one) for one in old]
                token = page.get("nextPageToken")
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise HttpFailure("NoAnswer", "a damaged list of versions") from error
            locked += sum(held or end is not None for held, end in ends)
            until = sorted([*until, *(end for _, end in ends if end)])[-1:]
            if not token or token == query.get("pageToken"):
                break
            query["pageToken"] = token
    return Retained(objects, size, 0, locked, *until)


def _locked_until(listed: Mapping[str, Any]) -> tuple[bool, datetime | None]:
    """True if an object is on hold; and when the last of its locks ends, if one has not ended."""
    dates = (
        listed.get("retentionExpirationTime"),
        listed.get("retention", {}).get("retainUntilTime"),
    )
    times = [datetime.fromisoformat(one.replace("Z", "+00:00")) for one in dates if one]
    now = datetime.now(timezone.utc)
    held = bool(listed.get("temporaryHold") or listed.get("eventBasedHold"))
    return held, max((one for one in times if one > now), default=None)


def recovery_of(settings: Mapping[str, Any], prefix: str, where: str) -> Recovery:
    """The protection of deleted objects below a prefix by the settings (``SETTINGS``) of a bucket.

    Raises:
        ValueError, AttributeError, TypeError: these are no settings.
    """
    soft = int(settings.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)) / _DAY_S
    versions = bool(settings.get("versioning", {}).get("enabled"))
    rules = settings.get("lifecycle", {}).get("rule", [])
    ends = [days for rule in rules if (days := _days(rule, prefix)) is not None]
    found = []
    if soft:
        found.append(
            f"soft delete is on: deleted objects stay for {soft:g} days, and are paid for until "
            "then"
        )
    if versions:
        until = f"for {min(ends):g} days, by" if ends else "until it is removed by"
        found.append(
            f"versioning is on: deleted objects stay, and are paid for, {until} a lifecycle rule"
        )
    if settings.get("retentionPolicy"):
        found.append("a retention policy is set: younger objects cannot be deleted")
    notice = f"{where}: {'; '.join(found or ['the bucket keeps nothing of what is deleted'])}"
    if versions:
        # What a rule removes is kept by soft delete from then on.
        return Recovery("versions", min(ends) + soft if ends else None, notice)
    return Recovery("soft_delete", soft, notice) if soft else Recovery("nothing", None, notice)


def locks_of(settings: Mapping[str, Any]) -> list[str]:
    """Holds on single objects besides the policy of the bucket, each as a sentence."""
    found = []
    if settings.get("defaultEventBasedHold"):
        found.append("each new object is under an event-based hold, and cannot be deleted")
    if settings.get("objectRetention"):
        found.append("objects may have a retention of their own, and cannot be deleted before it")
    return found


def _days(rule: Mapping[str, Any], prefix: str) -> float | None:
    """After how many days a rule may remove what was deleted below a prefix; None for never."""
    condition = rule.get("condition", {})
    starts = condition.get("matchesPrefix") or [""]
    concerns = any(prefix.startswith(start) or start.startswith(prefix) for start in starts)
    # What was deleted last has no newer version.
    spared = condition.get("isLive") is True or condition.get("numNewerVersions")
    if rule.get("action", {}).get("type") != "Delete" or not concerns or spared:
        return None
    return float(condition.get("daysSinceNoncurrentTime", 0))


@dataclass(frozen=True)
class GcsUnfinished:
    """The unfinished uploads of a bucket below a prefix; ``where`` is the URL of the store."""

    service: GcsService
    bucket: str
    prefix: str
    where: str

    def begun_before(self, moment: datetime) -> Sequence[MultipartUpload]:
        """See ``ObjectStore.multipart_uploads``."""
        found: list[MultipartUpload] = []
        with explaining(f"{self.where}: listing uploads in parts"):
            for element in self._items("", {"uploads": "", "prefix": self.prefix}, "Upload"):
                begun = _time(_text(element, "Initiated"))
                name = _text(element, "Key")
                if begun < moment and name.startswith(self.prefix):
                    one = self._with_parts(name, _text(element, "UploadId"), begun)
                    found += [one] if one else []
        return found

    def abort(self, upload: MultipartUpload) -> bool:
        """See ``ObjectStore.abort_upload``."""
        query = {"uploadId": upload.upload_id}
        with explaining(f"{self.where}: aborting the upload of {upload.key!r}"):
            try:
                self.service.client.send("DELETE", self._url(self.prefix + upload.key, query))
            except HttpFailure as failure:
                if failure.code not in _GONE:
                    raise
                return False
        return True

    def _with_parts(self, name: str, upload_id: str, begun: datetime) -> MultipartUpload | None:
        """An upload with size and time of its parts; None if it has ended meanwhile."""
        try:
            parts = list(self._items(name, {"uploadId": upload_id}, "Part"))
        except HttpFailure as failure:
            if failure.code not in _GONE:
                raise
            return None
        newest = max([begun, *(_time(_text(part, "LastModified")) for part in parts)])
        size = sum(int(_text(part, "Size")) for part in parts)
        return MultipartUpload(name.removeprefix(self.prefix), upload_id, begun, newest, size)

    def _items(self, name: str, query: dict[str, str], tag: str) -> Iterator[ET.Element]:
        """The elements of a list, page by page. Raises HttpFailure."""
        root_tag, markers = _LISTS[tag]
        while True:
            answer = self.service.client.send("GET", self._url(name, query))
            try:
                root = ET.fromstring(answer.content)  # noqa: S314 - expat refuses what would grow
                for element in root.iter():
                    element.tag = element.tag.rpartition("}")[2]
                if root.tag != root_tag:
                    raise ValueError(f"it is a {root.tag}")  # noqa: TRY301 - it is damage
                yield from root.iter(tag)
                more = (root.findtext("IsTruncated") or "").lower() == "true"
                following = {name: root.findtext(tag) or "" for name, tag in markers.items()}
            except (ET.ParseError, ValueError) as error:
                raise HttpFailure(
                    "NoAnswer", f"the answer is no list of {tag}s: {error}"
                ) from error
            if not more:
                return
            if following.items() <= query.items():
                raise HttpFailure("NoAnswer", f"the list of {tag}s does not go on")
            query = {**query, **following}

    def _url(self, name: str, query: dict[str, str]) -> str:
        path = f"{quote(self.bucket, safe='')}/{quote(name, safe='/')}".rstrip("/")
        return f"{self.service.url}/{path}?{urlencode(query, quote_via=quote)}"


def _text(element: ET.Element, tag: str) -> str:
    text = element.findtext(tag)
    if not text:
        raise HttpFailure("NoAnswer", f"a list lacks a {tag}")
    return text


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError as error:
        raise HttpFailure("NoAnswer", f"{text!r} is no time") from error
