"""Deletes on S3, with exactly one outcome for each key, from the store's own answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from lakegc_assets.storage.base import DeleteOutcome
from lakegc_assets.storage.errors import ObjectNotFoundError, StorageError
from lakegc_assets.storage.s3_client import BOTO_ERRORS, code_of, error_class, translate

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

KEYS_PER_CALL: Final = 1000
MAX_KEY_BYTES: Final = 1024
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
    client: S3Client, bucket: str, keys: Mapping[str, str], where: str
) -> Sequence[DeleteOutcome]:
    """Delete keys with as few calls as possible; after a call that fails as a whole send no other.

    Args:
        client: its retries are the retries of the calls; a repeated delete does no harm.
        bucket: of the keys.
        keys: the full key of each key to report.
        where: URL of the store, for messages.
    """
    outcomes: dict[str, DeleteOutcome] = {}
    failure: str | None = None
    for batch in _batches(keys, outcomes):
        if failure is not None:
            detail = f"an earlier call failed: {failure}"
            outcomes |= {key: DeleteOutcome(key, "failed", "NotSent", detail) for key in batch}
            continue
        try:
            outcomes |= _delete(client, bucket, batch)
        except BOTO_ERRORS as error:
            code, detail = code_of(error), str(translate(error, where))
            if len(batch) == 1 and error_class(code) in {StorageError, ObjectNotFoundError}:
                outcomes |= {key: _failed(key, code, detail) for key in batch}
            else:
                outcomes |= {key: DeleteOutcome(key, "failed", code, detail) for key in batch}
                failure = detail
    return [outcomes[key] for key in keys]


def _batches(
    keys: Mapping[str, str], outcomes: dict[str, DeleteOutcome]
) -> Iterator[Mapping[str, str]]:
    """The keys of each call: many that XML can carry, or a single one that a URL can carry."""
    bulk = {}
    single = {}
    for key, full_key in keys.items():
        in_xml = not _NOT_IN_XML.search(full_key)
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
        yield batch
    for key, full_key in single.items():
        yield {key: full_key}


def _delete(client: S3Client, bucket: str, batch: Mapping[str, str]) -> Mapping[str, DeleteOutcome]:
    """Send one call, and sort its answer by key."""
    (key, full_key), *others = batch.items()
    if not others and _NOT_IN_XML.search(full_key):
        client.delete_object(Bucket=bucket, Key=full_key)
        return {key: DeleteOutcome(key, "deleted")}
    answer = client.delete_objects(
        Bucket=bucket, Delete={"Objects": [{"Key": name} for name in batch.values()]}
    )
    deleted = {entry.get("Key") for entry in answer.get("Deleted", ())}
    errors = {entry.get("Key"): entry for entry in answer.get("Errors", ())}
    strangers = (deleted | errors.keys()) - set(batch.values())
    unnamed = "the store's answer does not name this key"
    if strangers:
        unnamed += f"; it names {min(map(str, strangers))!r}, which was not asked for"
    outcomes = {}
    for key, full_key in batch.items():
        if full_key in errors:
            entry = errors[full_key]
            outcomes[key] = _failed(key, entry.get("Code") or "NoCode", entry.get("Message"))
        elif full_key in deleted:
            outcomes[key] = DeleteOutcome(key, "deleted")
        else:
            outcomes[key] = DeleteOutcome(key, "failed", "NoAnswer", unnamed)
    return outcomes


def _failed(key: str, code: str, detail: str | None) -> DeleteOutcome:
    if error_class(code) is ObjectNotFoundError:
        return DeleteOutcome(key, "already_missing", None, detail)
    return DeleteOutcome(key, "failed", code, detail)
