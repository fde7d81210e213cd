"""Deletes on S3, with exactly one outcome for each key, from the store's own answer.

Conditions: ``If-Match`` of DeleteObject, and ``ETag`` of a key in DeleteObjects. AWS honours both,
and asks for ``s3:GetObject`` besides ``s3:DeleteObject``; other servers honour one, both or none.

Format: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-deletes.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakegc_assets.storage.base import DeleteOutcome
from lakegc_assets.storage.codes import error_class
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.s3_client import BOTO_ERRORS, code_of, translate

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

KEYS_PER_CALL: Final = 1000
MAX_KEY_BYTES: Final = 1024
_EXPIRED: Final = "ExpiredToken"
# What XML 1.0 cannot carry, or parsers change: such keys can be sent in a URL only.
_NOT_IN_XML: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
# What proxies and servers rewrite in URLs: such keys can be deleted through XML only.
_DOTS: Final = re.compile(r"(^|/)\.{1,2}(/|$)")
_EMPTY_SEGMENT: Final = re.compile(r"^/|//")


def key_problem(full_key: str) -> str | None:
    """Why S3 cannot hold a key, or None."""
    try:
        size = len(full_key.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if not full_key:
        return "it is empty"
    return f"it has {size} bytes, S3 allows {MAX_KEY_BYTES}" if size > MAX_KEY_BYTES else None


def url_problem(full_key: str) -> str | None:
    """Why a key cannot be sent in a URL, or None."""
    if _DOTS.search(full_key):
        return "it has a '.' or '..' path component, which servers and proxies rewrite in URLs"
    return None


def delete_keys(
    client: S3Client,
    bucket: str,
    keys: Mapping[str, str],
    where: str,
    *,
    etags: Mapping[str, str] | None = None,
    singly: bool = False,
) -> Sequence[DeleteOutcome]:
    """Delete keys with as few calls as possible; after a call that fails as a whole send no other.

    Args:
        client: its retries are the retries of the calls; a repeated delete does no harm.
        bucket: of the keys.
        keys: the full key of each key to report.
        where: URL of the store, for messages.
        etags: what each key to report must still have; None for whatever is there.
        singly: one DeleteObject for each key.
    """
    calls = _Calls(client, bucket, where, None if etags is None else {k: etags[k] for k in keys})
    outcomes: dict[str, DeleteOutcome] = {}
    failure: str | None = None
    for batch in _batches(keys, outcomes, singly=singly):
        if failure is not None:
            detail = f"an earlier call failed: {failure}"
            outcomes |= {key: DeleteOutcome(key, "failed", "NotSent", detail) for key in batch.keys}
            continue
        try:
            outcomes |= calls.send(batch)
        except RuntimeError as error:
            # That is how botocore says that credentials were renewed, and are expired still.
            failure = f"{where}: the credentials have expired: renew them and run again: {error}"
            outcomes |= {k: DeleteOutcome(k, "failed", _EXPIRED, failure) for k in batch.keys}
        except BOTO_ERRORS as error:
            code, detail = code_of(error), str(translate(error, where))
            # What is said of a single key says nothing about the others.
            told = {StorageError, ObjectNotFoundError, PreconditionFailedError}
            if len(batch.keys) == 1 and error_class(code) in told:
                outcomes |= {k: calls.refused(k, f, code, detail) for k, f in batch.keys.items()}
            else:
                outcomes |= {key: DeleteOutcome(key, "failed", code, detail) for key in batch.keys}
                failure = detail
    return [outcomes[key] for key in keys]


class _Batch(NamedTuple):
    """The keys of one call, and whether they are sent in XML or, a single one, in the URL."""

    keys: Mapping[str, str]
    in_xml: bool


def _batches(
    keys: Mapping[str, str], outcomes: dict[str, DeleteOutcome], *, singly: bool
) -> Iterator[_Batch]:
    """The keys of each call: many that XML can carry, or a single one that a URL can carry."""
    bulk = {}
    single = {}
    for key, full_key in keys.items():
        in_xml = not singly and not _NOT_IN_XML.search(full_key)
        problem = key_problem(full_key)
        if problem is None and not in_xml:
            problem = url_problem(full_key)
            if problem is None and _EMPTY_SEGMENT.search(full_key):
                problem = "it has an empty path component, which proxies rewrite in URLs"
        if problem is not None:
            outcomes[key] = DeleteOutcome(key, "failed", "InvalidKey", problem)
        elif in_xml:
            bulk[key] = full_key
        else:
            single[key] = full_key
    waiting = iter(bulk.items())
    while batch := dict(islice(waiting, KEYS_PER_CALL)):
        yield _Batch(batch, in_xml=True)
    for key, full_key in single.items():
        yield _Batch({key: full_key}, in_xml=False)


@dataclass(frozen=True)
class _Calls:
    """Sends the calls of one ``delete_keys``, and sorts their answers by key."""

    client: S3Client
    bucket: str
    where: str
    etags: Mapping[str, str] | None

    def send(self, batch: _Batch) -> Mapping[str, DeleteOutcome]:
        """Send one call. Raises what boto3 raises where the call failed as a whole."""
        if batch.in_xml:
            return self._send_bulk(batch.keys)
        ((key, full_key),) = batch.keys.items()
        condition: dict[str, Any] = {}
        if self.etags is not None:
            condition["IfMatch"] = f'"{self.etags[key]}"'
        self.client.delete_object(Bucket=self.bucket, Key=full_key, **condition)
        return {key: DeleteOutcome(key, "deleted")}

    def _send_bulk(self, keys: Mapping[str, str]) -> Mapping[str, DeleteOutcome]:
        objects: list[ObjectIdentifierTypeDef] = [{"Key": name} for name in keys.values()]
        if self.etags is not None:
            for identifier, key in zip(objects, keys, strict=True):
                identifier["ETag"] = f'"{self.etags[key]}"'
        answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})
        deleted = {entry.get("Key") for entry in answer.get("Deleted", ())}
        errors = {entry.get("Key"): entry for entry in answer.get("Errors", ())}
        strangers = (deleted | errors.keys()) - set(keys.values())
        unnamed = "the store's answer does not name this key"
        if strangers:
            unnamed += f"; it names {min(map(str, strangers))!r}, which was not asked for"
        outcomes = {}
        for key, full_key in keys.items():
            if full_key in errors:
                entry = errors[full_key]
                code = entry.get("Code") or "NoCode"
                outcomes[key] = self.refused(key, full_key, code, entry.get("Message"))
            elif full_key in deleted:
                outcomes[key] = DeleteOutcome(key, "deleted")
            else:
                outcomes[key] = DeleteOutcome(key, "failed", "NoAnswer", unnamed)
        return outcomes

    def refused(self, key: str, full_key: str, code: str, detail: str | None) -> DeleteOutcome:
        """The outcome of a key that the store did not delete."""
        kind = error_class(code)
        if kind is ObjectNotFoundError:
            return DeleteOutcome(key, "already_missing", None, detail)
        if kind is not PreconditionFailedError or self.etags is None or url_problem(full_key):
            return DeleteOutcome(key, "failed", code, detail)
        return self._look(key, full_key, self.etags[key], code)

    def _look(self, key: str, full_key: str, etag: str, code: str) -> DeleteOutcome:
        """What is there instead of the object with an etag, by HEAD."""
        try:
            answer = self.client.head_object(Bucket=self.bucket, Key=full_key)
        except BOTO_ERRORS as error:
            found = translate(error, self.where)
            if isinstance(found, ObjectNotFoundError):
                return DeleteOutcome(key, "already_missing", None, str(found))
            return DeleteOutcome(key, "failed", code_of(error), str(found))
        present = str(answer.get("ETag", "")).strip('"')
        if present == etag:
            detail = f"the store says that its etag is not {etag}, and then that it is"
            return DeleteOutcome(key, "failed", code, detail)
        return DeleteOutcome(key, "spared", None, f"it has the etag {present}, {etag} was expected")
