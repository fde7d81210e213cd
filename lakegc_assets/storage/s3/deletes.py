"""Deletes on S3, many keys in XML or a single one in a URL; and recovery from versions.

Conditions: ``If-Match`` of DeleteObject, and ``ETag`` of a key in DeleteObjects. AWS honours both,
and requires ``s3:GetObject`` besides ``s3:DeleteObject``; other servers honour one, both or none.

In a bucket with versions each delete puts a marker on top of an object's versions, also if the
object is deleted already. The object is restored once all markers on top are gone. Only markers are
ever removed here, by their ids, and only if the newest version below has the etag and size of the
object to restore. A concurrent write puts a version on top of the marker, which readers then no
longer see. A marker without an id of its own (``null``) is never removed: a concurrent object may
have taken its place, and its id.

Format: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-deletes.html and
https://docs.aws.amazon.com/AmazonS3/latest/userguide/DeleteMarker.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakegc_assets.storage.bucket_store import UploadingStore, key_problem, path_problem
from lakegc_assets.storage.bulk import UNNAMED, Answer, Deadline, answer_of_one
from lakegc_assets.storage.errors import AccessDeniedError, usual_code
from lakegc_assets.storage.http import HttpFailure, etag_in
from lakegc_assets.storage.pages import shared_prefix
from lakegc_assets.storage.s3.client import Clients, clients, ending, failing
from lakegc_assets.storage.s3.lifecycle import ARCHIVES
from lakegc_assets.storage.s3.objects import S3Object
from lakegc_assets.storage.s3.versioning import status_below
from lakegc_assets.storage.values import ARCHIVED, KeyRange, Lost, UndeleteOutcome

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_NO_CONTENT: Final = 204
# Characters that XML 1.0 cannot carry, or parsers change: such keys can only be sent in a URL.
_NOT_IN_XML: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
# Some servers trim a key in XML, or unite its blanks (Riak CS), or decode it (LocalStack before 3),
# and then delete the object with that other key. A URL carried the key when the object was written.
# Line ends stay in XML, where each is written as an entity: not every server takes them in a URL.
_TRIMMED: Final = re.compile(r"\A[^\S\n]|[^\S\n]\Z|[^\S\n]{2}")
_ENCODED: Final = re.compile(r"[%+]")
#: The most markers on top of one object: a retry of a delete whose answer was lost adds one.
_MARKERS: Final = 16
_THREADS: Final = 8
#: The least number of keys for one thread, and the most markers removed at once. So many keys fill
#: a page of versions. A server that works long on each marker removes so many before the client's
#: time-out.
_PORTION: Final = 250
#: Versions in a page about few keys.
_FEW: Final = 16
#: Characters in keys that some servers cannot list.
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_UNKNOWN_CALL: Final = frozenset({"NotImplemented", "501"})
_ADVICE: Final = (
    "it takes s3:ListBucketVersions and s3:DeleteObjectVersion, and where MFA delete is on the "
    "root user with its device"
)


def needs_url(prefix: str, key: str) -> bool:
    """True if the key of an object below a prefix of the bucket is not safe in XML."""
    full_key = prefix + key
    if _NOT_IN_XML.search(full_key):
        return True
    is_unclear = _TRIMMED.search(full_key) or _ENCODED.search(key)
    return is_unclear is not None and path_problem(full_key) is None


@dataclass(frozen=True)
class S3Deletes:
    """The calls of ``Bulk`` on S3; a repeated delete does no harm.

    ``versions`` gives the version id to delete for each key; by default the latest version.
    """

    client: S3Client
    bucket: str
    prefix: str
    singly: bool
    deadline: Deadline | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def problem(self, key: str) -> str | None:
        """The reason that a key cannot be sent, or None."""
        if not key:
            return "it is empty"
        full_key = self.prefix + key
        return path_problem(full_key) if self.alone(key) else key_problem(full_key)

    def alone(self, key: str) -> bool:
        """True if a key must be sent in a URL."""
        if key in self.versions:
            # No other key has a version with this id.
            return self.singly or _NOT_IN_XML.search(self.prefix + key) is not None
        return self.singly or needs_url(self.prefix, key)

    def send(self, keys: Sequence[str], etags: Mapping[str, str] | None) -> Mapping[str, Answer]:
        """Send one call. Raises HttpFailure: it failed as a whole."""
        if self.alone(keys[0]):
            (key,) = keys
            return {key: answer_of_one(lambda: self._send_one(key, etags))}
        objects: list[Any] = [{"Key": self.prefix + key, **self._version(key)} for key in keys]
        if etags is not None:
            for identifier, key in zip(objects, keys, strict=True):
                identifier["ETag"] = f'"{etags[key]}"'
        with _renewing(), ending(self.deadline):
            answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})
        answers = _answers_in(answer)
        strangers = answers.keys() - {entry["Key"] for entry in objects}
        if strangers:
            raise HttpFailure(
                "NoAnswer",
                f"the answer names {min(map(str, strangers))!r}, which was not requested",
            )
        return {key: answers[self.prefix + key] for key in keys if self.prefix + key in answers}

    def _version(self, key: str) -> dict[str, Any]:
        return {"VersionId": self.versions[key]} if key in self.versions else {}

    def etag_at(self, key: str) -> str:
        """The etag of the object at a key. Raises HttpFailure."""
        if problem := path_problem(self.prefix + key):
            raise HttpFailure(
                "PreconditionFailed", f"the object there cannot be requested: {problem}"
            )
        with failing():
            answer = self.client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        return etag_in(answer.get("ETag"))

    def _send_one(self, key: str, etags: Mapping[str, str] | None) -> str | None:
        condition: dict[str, Any] = {} if etags is None else {"IfMatch": f'"{etags[key]}"'}
        with _renewing(), ending(self.deadline):
            answer = self.client.delete_object(
                Bucket=self.bucket, Key=self.prefix + key, **condition, **self._version(key)
            )
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        if status != _NO_CONTENT:
            raise HttpFailure("NoAnswer", f"a delete was answered with {status}", status)
        return answer.get("VersionId") if answer.get("DeleteMarker") else None


def _answers_in(answer: Any) -> Mapping[str | None, Answer]:  # noqa: ANN401 - boto3's answer
    """The result for each key that an answer names; contradictory results are a failure."""
    answers: dict[str | None, Answer] = {}
    for entry in answer.get("Deleted", ()):
        marker = entry.get("DeleteMarkerVersionId") if entry.get("DeleteMarker") else None
        answers[entry.get("Key")] = marker
    for entry in answer.get("Errors", ()):
        key, message = entry.get("Key"), entry.get("Message")
        code = usual_code(entry.get("Code") or "NoCode", "", message)
        if key in answers:
            code = "NoAnswer"
        answers[key] = HttpFailure(code, message or "it names this key twice")
    return answers


@contextmanager
def _renewing() -> Iterator[None]:
    try:
        with failing():
            yield
    except RuntimeError as error:
        # botocore raises this if renewed credentials are still expired.
        raise HttpFailure("ExpiredToken", error) from error


class Entry(NamedTuple):
    """A version, or a marker (without etag and size); ``archived`` if it cannot be read."""

    version: str
    etag: str = ""
    size: int = -1
    archived: str = ""


@dataclass
class History:
    """Versions and markers of one key in a listing.

    ``latest`` is the entry that readers see, ``newest`` the newest version that is no marker.
    """

    latest: Entry | None = None
    markers: set[str] = field(default_factory=set)
    newest: Entry | None = None


class _Page(NamedTuple):
    histories: Mapping[str, History]
    entries: Mapping[str, int]
    following: Mapping[str, str] | None

    @property
    def last(self) -> str:
        return max(self.histories, default="")

    def passed(self, key: str) -> bool:
        """True if the page continues past all versions of a key."""
        return self.following is None or key < self.last

    def begins_before(self, key: str) -> bool:
        """True if the page has an entry before a key."""
        return any(named < key for named in self.histories)


class S3Versions(UploadingStore[S3Object]):
    """A bucket, and the recovery of deleted objects in it. All of its calls may be repeated."""

    @property
    def clients(self) -> Clients:
        """The clients of the server: the same for all stores of one configuration."""
        return clients(self.config)

    @property
    def client(self) -> S3Client:
        """The client that repeats requests."""
        return self.clients.usual

    @property
    def _patient_client(self) -> S3Client:
        # Some servers never restore an object if the request is repeated while they work on it.
        return clients(self._patient()).usual

    def _bring_back(self, objects: Sequence[Lost], *, dry_run: bool) -> Sequence[UndeleteOutcome]:
        """Remove delete markers, or check if they could be removed."""
        outcomes: dict[str, UndeleteOutcome] = {}
        wanted: dict[str, Lost] = {}
        for one in objects:
            problem = key_problem(self.prefix + one.key) if one.key else "it is empty"
            if problem:
                outcomes[one.key] = UndeleteOutcome(one.key, "failed", "InvalidKey", problem)
            else:
                wanted[self.prefix + one.key] = one
        tried: dict[str, HttpFailure | None] = {}
        for _ in range(_MARKERS + 1):
            markers: dict[str, str] = {}
            histories = self.histories(wanted)
            for key, history in histories.items():
                verdict = self._judge(wanted[key], history, tried, key)
                if isinstance(verdict, str):
                    markers[key] = verdict
                else:
                    outcomes[verdict.key] = verdict
            if dry_run:
                back = [_restored(wanted[key], histories[key]) for key in markers]
                outcomes |= {one.key: one for one in back}
            if dry_run or not markers:
                break
            tried |= self.remove_markers(markers)
            wanted = {key: wanted[key] for key in markers}
        for one in objects:
            detail = "it has many delete markers, or gets new ones: restore again, which goes on"
            outcomes.setdefault(one.key, UndeleteOutcome(one.key, "failed", "DeletedAgain", detail))
        return [outcomes[one.key] for one in objects]

    def histories(self, full_keys: Iterable[str]) -> dict[str, History | HttpFailure]:
        """The history of each key, or the failure to read it."""
        keys = sorted(full_keys)
        plain = [key for key in keys if not _CONTROL.search(key)]
        each = max(_PORTION, -(-len(plain) // _THREADS))
        portions = [plain[at : at + each] for at in range(0, len(plain), each)]
        portions += [[key] for key in keys if _CONTROL.search(key)]
        with ThreadPoolExecutor(_THREADS) as pool:
            walked = list(pool.map(self._walk, portions))
        found = {key: history for one in walked for key, history in one.items()}
        refused = [key for key, one in found.items() if _unknown_call(one)]
        if refused and self._knows_no_versions():
            found |= dict.fromkeys(refused, History())
        return found

    def _versioning(self) -> str:
        """Versioning below the prefix of the store, see ``status_below``. Raises HttpFailure."""
        with failing():
            answer = self.client.get_bucket_versioning(Bucket=self.bucket)
        return status_below(answer, self.prefix)

    def _knows_no_versions(self) -> bool:
        """True for a server without versions, which does not know the calls about them.

        A server may refuse a list for its parameters, so a plain list is requested, too.
        """
        try:
            if self._versioning():
                return False
        except HttpFailure as failure:
            if not _unknown_call(failure):
                return False
        try:
            self.read_page(self.prefix, {}, 1)
        except HttpFailure as failure:
            return _unknown_call(failure)
        return False

    def _judge(
        self,
        lost: Lost,
        history: History | HttpFailure,
        tried: Mapping[str, HttpFailure | None],
        key: str,
    ) -> UndeleteOutcome | str:
        """The outcome of an object, or the next marker to remove."""
        if isinstance(history, HttpFailure):
            return self._failed(lost, history)
        latest = history.latest
        if latest is not None and latest.version not in history.markers:
            ours = key in tried and (latest.etag, latest.size) == (lost.etag, lost.size)
            return _restored(lost, history) if ours else UndeleteOutcome(lost.key, "already_there")
        if failure := tried.get(key):
            return self._failed(lost, failure)
        why = _not_kept(lost, latest, history.newest)
        if latest is None or why:
            return UndeleteOutcome(lost.key, "not_kept", None, why)
        # Also a marker of a later delete may go: that delete found the object deleted already.
        return latest.version

    def _failed(self, lost: Lost, failure: HttpFailure) -> UndeleteOutcome:
        detail = str(failure.explained(self._url))
        if failure.kind is AccessDeniedError:
            detail = f"{detail}: {_ADVICE}"
        return UndeleteOutcome(lost.key, "failed", failure.code, detail)

    def _walk(self, keys: Sequence[str]) -> dict[str, History | HttpFailure]:
        """Read the versions of ordered keys, page by page, and skip the keys between them."""
        found: dict[str, History | HttpFailure] = {}
        prefix = shared_prefix(KeyRange("", keys[0], keys[-1]))
        size, at, last = self.config.page_size, 0, ""
        try:
            while at < len(keys):
                start = max(last, keys[at][:-1])
                # No key of the prefix comes before it; MinIO answers such a marker with 501.
                inside = start.startswith(prefix) and start != ""
                page = self.read_page(prefix, {"KeyMarker": start} if inside else {}, size)
                first, certain = at, False
                while at < len(keys) and page.passed(keys[at]):
                    listed = page.histories.get(keys[at])
                    # Some servers omit the first version after the key from which a page continues.
                    certain = certain or page.begins_before(keys[at])
                    if (listed and not listed.latest) or not (listed or certain):
                        listed = self._alone(keys[at])
                    found[keys[at]] = listed or History()
                    certain = certain or bool(listed and listed.latest)
                    at += 1
                used = sum(page.entries.get(key, 0) for key in keys[first:at])
                if at == first:
                    found[keys[at]] = self._alone(keys[at])
                    at += 1
                last = page.last
                size = min(self.config.page_size, max(_FEW, 8 * used))
        except HttpFailure as failure:
            return dict.fromkeys(keys[at:], failure) | found
        return found

    def _alone(self, key: str) -> History:
        """Read the versions of one key, which come before all other keys that start with it."""
        history = History()
        following: Mapping[str, str] | None = {}
        while following is not None and history.newest is None:
            page = self.read_page(key, following, _FEW)
            listed = page.histories.get(key, History())
            history = History(
                history.latest or listed.latest, history.markers | listed.markers, listed.newest
            )
            following = None if page.passed(key) else page.following
        if history.latest is None and (history.markers or history.newest):
            raise HttpFailure("NoAnswer", "the list of versions does not mark the latest one")
        return history

    def read_page(self, prefix: str, start: Mapping[str, str], size: int) -> _Page:
        """Read one page of the versions. Raises HttpFailure."""
        with failing():
            answer: Any = self._patient_client.list_object_versions(
                Bucket=self.bucket,
                Prefix=prefix,
                MaxKeys=size,
                **start,  # type: ignore[arg-type]
            )
        histories: dict[str, History] = {}
        entries: dict[str, int] = {}
        encoded = answer.get("EncodingType") == "url"
        for kind in ("Versions", "DeleteMarkers"):
            for item in answer.get(kind, ()):
                key, version = item.get("Key", ""), item.get("VersionId", "")
                if not key.startswith(prefix) or not version:
                    raise HttpFailure("NoAnswer", f"a list of versions of {prefix!r} has {key!r}")
                if not encoded and _CONTROL.search(key):
                    # XML may have changed the key into another key.
                    if _CONTROL.search(prefix):
                        raise HttpFailure("NoAnswer", f"the key {key!r} is not percent-encoded")
                    continue
                history = histories.setdefault(key, History())
                entries[key] = entries.get(key, 0) + 1
                _add(history, item, version, marker=kind == "DeleteMarkers")
        following = None
        if answer.get("IsTruncated") is not False:
            named = {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"}
            following = {
                name: answer[member] for name, member in named.items() if answer.get(member)
            }
            if not entries or not following or following == start:
                raise HttpFailure("NoAnswer", f"the list of versions of {prefix!r} does not go on")
        return _Page(histories, entries, following)

    def remove_markers(self, markers: Mapping[str, str]) -> dict[str, HttpFailure | None]:
        """Remove markers by their ids, and return the store's answers."""
        calls = S3Deletes(self._patient_client, self.bucket, "", singly=False, versions=markers)
        together = [key for key in markers if not calls.alone(key)]
        batches = [together[at : at + _PORTION] for at in range(0, len(together), _PORTION)]
        batches += [[key] for key in markers if calls.alone(key)]

        def remove(keys: Sequence[str]) -> Mapping[str, HttpFailure | None]:
            if problem := calls.problem(keys[0]):
                return dict.fromkeys(keys, HttpFailure("InvalidKey", problem))
            try:
                answers = calls.send(keys, None)
            except HttpFailure as failure:
                return dict.fromkeys(keys, failure)
            found = {key: answers.get(key, UNNAMED) for key in keys}
            return {k: one if isinstance(one, HttpFailure) else None for k, one in found.items()}

        with ThreadPoolExecutor(_THREADS) as pool:
            return {key: one for found in pool.map(remove, batches) for key, one in found.items()}


def _unknown_call(found: History | HttpFailure) -> bool:
    return isinstance(found, HttpFailure) and found.code in _UNKNOWN_CALL


def _restored(lost: Lost, history: History | HttpFailure) -> UndeleteOutcome:
    """The outcome of an object whose newest version readers see, or will see."""
    newest = None if isinstance(history, HttpFailure) else history.newest
    if newest is None or not newest.archived:
        return UndeleteOutcome(lost.key, "restored")
    detail = f"{ARCHIVED} ({newest.archived}): restore it from there (RestoreObject) to read it"
    return UndeleteOutcome(lost.key, "restored", None, detail)


def _not_kept(lost: Lost, marker: Entry | None, newest: Entry | None) -> str | None:
    """The reason that removing a marker does not restore an object, or None."""
    if marker is None:
        return "the bucket has no version of it"
    if newest is None:
        return "only delete markers are left: its versions were removed, as lifecycle rules do"
    if (newest.etag, newest.size) != (lost.etag, lost.size):
        return (
            f"the newest version, {newest.version}, has {newest.size} bytes and the etag "
            f"{newest.etag}; {lost.size} and {lost.etag} were expected"
        )
    if lost.copied and newest.archived:
        return f"{ARCHIVED} ({newest.archived})"
    if marker.version == "null":
        return (
            "its delete marker has no unique id, since versioning is suspended: copy its "
            f"version {newest.version} by hand"
        )
    return None


def _add(history: History, item: Mapping[str, Any], version: str, *, marker: bool) -> None:
    """Add an entry of a page to a history. Raises HttpFailure: the entry contradicts the page."""
    entry = Entry(version)
    if marker:
        history.markers.add(version)
    else:
        kind = item.get("StorageClass", "")
        etag, archived = str(item.get("ETag", "")).strip('"'), kind if kind in ARCHIVES else ""
        entry = Entry(version, etag, item.get("Size", -1), archived)
        # Newer entries come first.
        history.newest = history.newest or entry
    if item.get("IsLatest"):
        if history.latest is not None:
            raise HttpFailure("NoAnswer", f"two versions of {item.get('Key')!r} are the latest")
        history.latest = entry
