"""Google Cloud Storage as an object store, over its JSON API; unfinished uploads by its XML API.

An object's generation is its etag here: it changes with each write, and GCS takes it as a condition
for puts and deletes alike. It names a deleted object for good. With versioning the generation is
copied to its name again, with soft delete it is restored, both if no object has the name now.
Uploads of the XML API keep their parts until a client ends them. Resumable uploads, of the JSON
API, end by themselves after a week.

Format: https://cloud.google.com/storage/docs/json_api/v1,
https://cloud.google.com/storage/docs/json_api/v1/objects/restore and
https://cloud.google.com/storage/docs/xml-api/get-bucket-uploads
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import quote, urlencode

import requests

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.bucket_store import UploadingStore, overlap, path_problem, undelete_each
from lakegc_assets.storage.bulk import Answer, Bulk, Deadline, answer_of_one
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.storage.gcs.objects import GcsObject, copy, is_generation, rewrite
from lakegc_assets.storage.gcs.service import GcsService, next_page_token, open_service, read_page
from lakegc_assets.storage.http import HttpFailure, Request, Sign, each_page, explaining
from lakegc_assets.storage.pages import Page, follow, relative
from lakegc_assets.storage.values import (
    Copied,
    CopyRequest,
    DataProtection,
    KeyRange,
    Lost,
    MultipartUpload,
    Recovery,
    Retained,
    UndeleteOutcome,
)

# A character that a bound may hold, but no object's name: a request has the bound up to it.
_LAST: Final = "\U0010ffff"
_ODD: Final = re.compile(rf"[\x00-\x1f{_LAST}]")
_FIELDS: Final = "name,size,updated,generation"
_DAY_S: Final = 86400
#: Deletes with a deadline that one call sends at a time.
_THREADS: Final = 8
#: The fields of a bucket that ``_recovery_of`` and ``_locks_of`` read.
_SETTINGS: Final = (
    "softDeletePolicy,versioning,lifecycle,retentionPolicy,defaultEventBasedHold,objectRetention"
)
#: The field that only objects that are not the latest have, by the kind of list.
_ENDED: Final = {"versions": "timeDeleted", "softDeleted": "softDeleteTime"}
#: A bucket without a soft delete policy refuses each request about soft-deleted objects as invalid.
_BAD_REQUEST: Final = 400
_NO_POLICY: Final = re.compile("soft delete policy", re.IGNORECASE)
#: The fields of an object about its locks.
_LOCKS: Final = ("temporaryHold", "eventBasedHold", "retentionExpirationTime", "retention")
#: The list that holds elements of a tag, and the fields of its continuation tokens.
_LISTS: Final = {
    "Upload": (
        "ListMultipartUploadsResult",
        {"key-marker": "NextKeyMarker", "upload-id-marker": "NextUploadIdMarker"},
    ),
    "Part": ("ListPartsResult", {"part-number-marker": "NextPartNumberMarker"}),
}


class GcsStore(UploadingStore[GcsObject]):
    """The objects of a bucket below a prefix, and the deleted ones that Google retains in it."""

    keys_per_delete = 100
    sends_deadlines_singly = True
    names_missing_buckets = False
    # A listing begins at a bound that GCS can take, which may be before the wanted one.
    starts_after = False

    @property
    def service(self) -> GcsService:
        """The service at the endpoint: one for all stores of one configuration."""
        return open_service(self.config)

    def _object(self, full_key: str, where: str, config: StoreConfig) -> GcsObject:
        """See ``BucketStore``. The service itself splits a long copy into several requests."""
        return GcsObject(self.service, self.bucket, full_key, where, config.max_attempts)

    @property
    def _bucket_url(self) -> str:
        return f"{self.service.url}/storage/v1/b/{quote(self.bucket, safe='')}"

    def reached_by(self) -> tuple[Any, ...]:
        return GcsStore, self.config.gcs

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: only with the key of a service account."""
        return self.service.key is not None

    def _date(self, where: str) -> str | None:
        # The policy of a managed folder allows to list no more than this.
        query = {"prefix": self.prefix, "maxResults": "1", "fields": "nextPageToken"}
        return self._list_page(query, where).headers.get("Date")

    def _copied(self, source: GcsObject, target: GcsObject, asked: CopyRequest) -> Copied:
        return copy(source, target, asked)

    def _deletes(
        self, deadline: Deadline | None, etags: Mapping[str, str] | None, *, singly: bool
    ) -> Bulk:
        """See ``BucketStore``. With a deadline, one key per request: batches cannot have one.

        So several are sent at a time, each with the same deadline.
        """
        sign = None if deadline is None else self.service.until(deadline)

        def problem(key: str) -> str | None:
            if etags is not None and not is_generation(etags[key]):
                return f"it cannot have the etag {etags[key]!r}: generations are numbers"
            found = self._problem(key)
            return path_problem(self.prefix + key) if sign and not found else found

        many = 1 if singly or sign else self.keys_per_delete
        send = self._delete if sign is None else partial(self._delete_until, sign)
        return Bulk(
            self._url, many, problem, send, lambda key: self.object_at(key).fetch_state().etag,
            deadline=deadline, threads=_THREADS if sign and not singly else 1,
        )  # fmt: skip

    def _delete(self, keys: Sequence[str], etags: Mapping[str, str] | None) -> Mapping[str, Answer]:
        """Delete up to 100 keys in one call. Raises HttpFailure: the call failed as a whole.

        Format: https://cloud.google.com/storage/docs/batch
        """
        conditions = [{} if etags is None else {"ifGenerationMatch": etags[key]} for key in keys]
        named = zip(keys, conditions, strict=True)
        urls = [self.object_at(key).url(**condition) for key, condition in named]
        answers: Mapping[str, Answer]
        if len(keys) == 1:
            answers = {keys[0]: answer_of_one(lambda: self._delete_one(urls[0]))}
        else:
            deletes = {k: Request("DELETE", url) for k, url in zip(keys, urls, strict=True)}
            answers = self.service.delete_batch(f"{self.service.url}/batch/storage/v1", deletes)
        if any(isinstance(one, HttpFailure) and one.code == "notFound" for one in answers.values()):
            self._require_bucket_exists()
        return answers

    def _delete_until(
        self, sign: Sign, keys: Sequence[str], etags: Mapping[str, str] | None
    ) -> Mapping[str, Answer]:
        """Delete one object, unless the deadline is over. Raises HttpFailure."""
        (key,) = keys
        headers = {} if etags is None else {"x-goog-if-generation-match": etags[key]}
        url = self._xml_url(self.prefix + key)
        return {key: answer_of_one(lambda: self._delete_one(url, headers=headers, sign=sign))}

    def _delete_one(self, url: str, **more: Any) -> None:  # noqa: ANN401 - send's
        answer = self.service.send("DELETE", url, **more)
        # GCS answers a delete with no body; an emulator answers with JSON's null.
        if answer.content.strip() not in {b"", b"null"}:
            raise HttpFailure("NoAnswer", f"a delete was answered with {answer.content[:80]!r}")

    def _list_page(self, query: Mapping[str, str], where: str) -> requests.Response:
        try:
            with explaining(where):
                return self.service.send("GET", f"{self._bucket_url}/o?{urlencode(query)}")
        except ObjectNotFoundError as error:
            raise ConfigurationError(
                f"{where}: the bucket does not exist: check its name and the endpoint ({error})"
            ) from error

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        where = self._listing(wanted.prefix)
        prefix = self.prefix + wanted.prefix
        query = {
            "prefix": prefix,
            "maxResults": str(self.config.page_size),
            "fields": f"kind,nextPageToken,prefixes,items({_FIELDS})",
            **({"delimiter": "/"} if one_level else {}),
        }
        if wanted.start_after:
            query["startOffset"] = self.prefix + _ODD.split(wanted.start_after, maxsplit=1)[0]
        if wanted.end_before:
            # A space sorts after every control character; surplus keys are removed later.
            plain, *odd = _ODD.split(wanted.end_before, maxsplit=1)
            if not odd or not wanted.end_before.startswith(plain + _LAST):
                query["endOffset"] = self.prefix + plain + (" " if odd else "")

        def ask(token: str | None) -> Page:
            if token is not None:
                query["pageToken"] = token
            return read_page(self._list_page(query, where).content, where)

        for page in follow(ask, prefix, where, one_level=one_level):
            yield relative(page, self.prefix)

    def recovery(self) -> Recovery:
        """See ``ObjectStore``: soft delete, versions and retention policies of the bucket."""
        return self._settings()[0]

    def data_protection(self) -> DataProtection:
        """See ``ObjectStore``: as ``recovery``, and holds of single objects."""
        recovery, locks = self._settings()
        return DataProtection.of(recovery).with_locks(locks)

    def _settings(self) -> tuple[Recovery, Sequence[str]]:
        """The protection of deleted objects by the bucket, and possible holds of single objects."""
        fields = urlencode({"fields": _SETTINGS})
        try:
            answer = self.service.send("GET", f"{self._bucket_url}?{fields}")
            settings = json.loads(answer.content)
            return _recovery_of(settings, self.prefix, self._url), _locks_of(settings)
        except (HttpFailure, ValueError, AttributeError, TypeError) as error:
            code = error.code if isinstance(error, HttpFailure) else error
            advice = "check its soft delete and its versioning, or allow storage.buckets.get"
            return Recovery.unknown(self._url, code, advice), ()

    def _expirations(self) -> Iterable[tuple[str, float]]:
        """See ``UploadingStore``: rules that depend on the age of an object only."""
        answer = self.service.send("GET", f"{self._bucket_url}?fields=lifecycle")
        try:
            rules = json.loads(answer.content).get("lifecycle", {}).get("rule", ())
            return [found for rule in rules for found in _expiries(rule)]
        except (ValueError, TypeError, AttributeError) as error:
            raise HttpFailure("NoAnswer", f"damaged lifecycle rules: {error!r}") from error

    def retained(self, prefix: str = "") -> Retained:
        """See ``ObjectStore``: generations that are not the latest, and soft-deleted objects."""
        # No list of versions has soft-deleted objects; without permission their list is refused.
        with explaining(f"{self._url}: listing versions"):
            found = (self._kept(which, self.prefix + prefix) for which in _ENDED)
            return Retained.counting(chain.from_iterable(found))

    def _kept(self, which: str, prefix: str) -> Iterator[tuple[int, bool, datetime | None]]:
        """Size, hold and last lock of the objects in a kind of list that are not the latest."""
        fields = f"items({','.join(['size', *_LOCKS, _ENDED[which]])}),kind,nextPageToken"
        query = {which: "true", "prefix": prefix, "fields": fields}

        def ask(token: str | None) -> tuple[list[tuple[int, bool, datetime | None]], str | None]:
            asked = {**query, "pageToken": token} if token else query
            try:
                answer = self.service.send("GET", f"{self._bucket_url}/o?{urlencode(asked)}")
            except HttpFailure as failure:
                if not _has_no_policy(failure):
                    raise
                return [], None
            try:
                page = json.loads(answer.content)
                following = next_page_token(page)
                old = [one for one in page.get("items", ()) if one.get(_ENDED[which])]
                return [
                    (int(one["size"]), _is_held(one), _locked_until(one)) for one in old
                ], following
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise HttpFailure("NoAnswer", f"a damaged list of versions: {error!r}") from error

        return chain.from_iterable(each_page(ask, "versions"))

    def _uploads(self) -> Iterator[MultipartUpload]:
        """See ``UploadingStore``: those of the XML API."""
        for element in self._listed("", {"uploads": "", "prefix": self.prefix}, "Upload"):
            names = ("Key", "UploadId", "Initiated")
            key, upload_id, begun = (_text(element, name) for name in names)
            yield MultipartUpload(key, upload_id, _time(begun), _time(begun), 0)

    def _parts(self, upload: MultipartUpload) -> Iterator[tuple[int, datetime]]:
        for element in self._listed(upload.key, {"uploadId": upload.upload_id}, "Part"):
            size = _text(element, "Size")
            if not size.isdecimal():
                raise HttpFailure("NoAnswer", f"a part has the size {size!r}")
            yield int(size), _time(_text(element, "LastModified"))

    def _listed(self, full_key: str, query: Mapping[str, str], tag: str) -> Iterator[ET.Element]:
        """The elements of a list of the XML API. Raises HttpFailure."""
        root_tag, markers = _LISTS[tag]
        url = f"{self._xml_url(full_key)}?{urlencode(query, quote_via=quote)}"

        def ask(begins: str | None) -> tuple[Iterator[ET.Element], str | None]:
            answer = self.service.send("GET", url + (begins or ""))
            try:
                root = ET.fromstring(answer.content)  # noqa: S314 - expat refuses what would grow
            except ET.ParseError as error:
                raise HttpFailure("NoAnswer", f"a damaged list of {tag}s: {error}") from error
            for element in root.iter():
                element.tag = element.tag.rpartition("}")[2]
            if root.tag != root_tag:
                raise HttpFailure("NoAnswer", f"the answer is no list of {tag}s, but a {root.tag}")
            follows = _text(root, "IsTruncated").lower()
            if follows not in {"true", "false"}:
                raise HttpFailure("NoAnswer", f"a list of {tag}s has IsTruncated {follows!r}")
            named = {name: root.findtext(tag) or "" for name, tag in markers.items()}
            next_page = f"&{urlencode(named, quote_via=quote)}" if follows == "true" else None
            return root.iter(tag), next_page

        return chain.from_iterable(each_page(ask, f"{tag}s"))

    def _abort(self, full_key: str, upload_id: str) -> None:
        query = urlencode({"uploadId": upload_id}, quote_via=quote)
        self.service.send("DELETE", f"{self._xml_url(full_key)}?{query}")

    def _xml_url(self, full_key: str = "") -> str:
        """The URL of an object, or of the bucket, in the XML API."""
        name = f"{self.bucket}/{full_key}" if full_key else self.bucket
        return f"{self.service.url}/{quote(name, safe='/~')}"

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        ways = (_is_kept,) if dry_run else (_copied, _restored)

        def bring_back(lost: Lost) -> UndeleteOutcome:
            if not is_generation(lost.etag):
                detail = f"it cannot have the etag {lost.etag!r}: generations are numbers"
                return UndeleteOutcome(lost.key, "failed", "InvalidKey", detail)
            one = self.object_at(lost.key)
            # The condition protects the object, but emulators ignore it, and would overwrite.
            if _found(one.fetch_state):
                return UndeleteOutcome(lost.key, "already_there")
            self._require_bucket_exists()
            if any(way(one, lost.etag) for way in ways):
                return UndeleteOutcome(lost.key, "restored")
            detail = (
                f"the bucket keeps no generation {lost.etag} of it, or its soft delete is off now, "
                "so that nothing comes back from an earlier one before it is on again"
            )
            return UndeleteOutcome(lost.key, "not_kept", None, detail)

        return undelete_each(objects, bring_back, self._url)

    def _require_bucket_exists(self) -> None:
        """Raise HttpFailure for a missing bucket: then the object is not known to be missing."""
        try:
            self._require_bucket()
        except ConfigurationError as error:
            raise HttpFailure("NoSuchBucket", error) from error
        except StorageError as error:
            raise HttpFailure("NoAnswer", error) from error


def _copied(one: GcsObject, generation: str) -> bool:
    """Copy a generation that is not the current one; False if there is none."""
    query = {"sourceGeneration": generation, "ifGenerationMatch": "0"}
    return _found(lambda: rewrite(one, one, query))


def _restored(one: GcsObject, generation: str) -> bool:
    """Restore a generation that soft delete keeps; False if there is none."""
    query = urlencode({"generation": generation, "ifGenerationMatch": "0"})
    return _found(lambda: one.service.send("POST", f"{one.url()}/restore?{query}"))


def _is_kept(one: GcsObject, generation: str) -> bool:
    """True if versions or soft delete retain a generation."""
    query = {"generation": generation, "fields": "generation"}
    urls = [one.url(**query), one.url(**query, softDeleted="true")]
    return any(_found(partial(one.service.send, "GET", url)) for url in urls)


def _found(send: Callable[[], object]) -> bool:
    """Return False if the answer is that nothing is there. Raises HttpFailure."""
    try:
        send()
    except HttpFailure as failure:
        if failure.kind is not ObjectNotFoundError and not _has_no_policy(failure):
            raise
        return False
    return True


def _has_no_policy(failure: HttpFailure) -> bool:
    return failure.status == _BAD_REQUEST and bool(_NO_POLICY.search(str(failure.message)))


def _is_held(listed: Mapping[str, Any]) -> bool:
    return bool(listed.get("temporaryHold") or listed.get("eventBasedHold"))


def _locked_until(listed: Mapping[str, Any]) -> datetime | None:
    """The end of the last lock of an object, UTC; None if it never had one."""
    dates = (
        listed.get("retentionExpirationTime"),
        listed.get("retention", {}).get("retainUntilTime"),
    )
    return max(map(_time, filter(None, dates)), default=None)


def _recovery_of(settings: Mapping[str, Any], prefix: str, where: str) -> Recovery:
    """The protection below a prefix by ``_SETTINGS``. Raises ValueError and others: damaged."""
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
        # After a rule removes an object, soft delete retains it from then on.
        return Recovery("versions", min(ends) + soft if ends else None, notice)
    return Recovery("soft_delete", soft, notice) if soft else Recovery("nothing", None, notice)


def _locks_of(settings: Mapping[str, Any]) -> list[str]:
    """Holds on single objects besides the policy of the bucket, each as a sentence."""
    found = []
    if settings.get("defaultEventBasedHold"):
        found.append("each new object is under an event-based hold, and cannot be deleted")
    if settings.get("objectRetention"):
        found.append("single objects may have a retention, and cannot be deleted before its end")
    return found


def _days(rule: Mapping[str, Any], prefix: str) -> float | None:
    """The days after which a rule may remove deleted objects below a prefix; None for never."""
    condition = rule.get("condition", {})
    # A deleted object's last generation has no newer version, so such a rule spares it.
    spared = condition.get("isLive") is True or condition.get("numNewerVersions")
    if spared or not any(overlap(start, prefix) for start in _starts_deleted(rule)):
        return None
    return float(condition.get("daysSinceNoncurrentTime", 0))


def _starts_deleted(rule: Mapping[str, Any]) -> Sequence[str]:
    """The prefixes of the keys that a rule deletes; none if the rule does something else."""
    deletes = rule.get("action", {}).get("type") == "Delete"
    return (rule.get("condition", {}).get("matchesPrefix") or [""]) if deletes else ()


def _expiries(rule: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Prefixes of keys, and the days after which a rule removes their objects."""
    condition = rule.get("condition", {})
    by_age = condition.keys() - {"matchesPrefix", "isLive"} == {"age"}
    if not by_age or condition.get("isLive") is False:
        return []
    return [(start, float(condition["age"])) for start in _starts_deleted(rule)]


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
