"""Copies that Google Cloud Storage makes itself, under conditions for both objects."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from lakegc_assets.storage.codes import error_class, explained
from lakegc_assets.storage.errors import (
    ChangedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from lakegc_assets.storage.gcs.objects import FIELDS, GcsObject, ObjectState, require_absent
from lakegc_assets.storage.http import HttpFailure
from lakegc_assets.storage.values import Copied


def copy(source: GcsObject, target: GcsObject, *, size: int, etag: str, if_absent: bool) -> Copied:
    """See ``ObjectStore.copy_from``."""
    asked = source.look()
    if (asked.size, asked.generation) != (size, etag):
        raise ChangedError(
            f"{source.where}: size and generation are {asked[:2]}, {(size, etag)} were expected"
        )
    if if_absent:
        # Compatible servers ignore the condition without a word.
        require_absent(target)
    copied = _rewritten(source, target, etag, if_absent=if_absent)
    if copied.size != size:
        raise StorageError(f"{target.where}: the copy has {copied.size} of {size} bytes")
    for name in ("md5", "crc32c"):
        if name in asked.checksums and name in copied.checksums:
            there, here = asked.checksums[name], copied.checksums[name]
            if there != here:
                _require_same(source, etag)
                raise StorageError(
                    f"{target.where}: the copy has the {name} {here}, the object {there}"
                )
            return Copied(copied.generation, name)
    _require_same(source, etag)
    return Copied(copied.generation, "size")


def _rewritten(source: GcsObject, target: GcsObject, etag: str, *, if_absent: bool) -> ObjectState:
    """A large object takes several requests."""
    url = f"{source.service.url}/storage/v1{source.path}/rewriteTo{target.path}"
    query = {
        "ifSourceGenerationMatch": etag,
        "fields": f"done,rewriteToken,resource({FIELDS})",
        **({"ifGenerationMatch": "0"} if if_absent else {}),
    }
    while True:
        try:
            answer = target.service.client.send(
                "POST", f"{url}?{urlencode(query)}", repeatable=not if_absent
            )
        except HttpFailure as failure:
            raise _explained(failure, source, target, etag) from failure
        rewrite = _read(answer.content, target)
        if rewrite.get("done") is True:
            return target.read(rewrite.get("resource"))
        if not isinstance(token := rewrite.get("rewriteToken"), str) or not token:
            raise StorageError(f"{target.where}: the store neither copies nor says where it is")
        query["rewriteToken"] = token


def _read(body: bytes, target: GcsObject) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise StorageError(f"{target.where}: the store's answer is damaged: {body[:80]!r}")
    return answer


def _explained(failure: HttpFailure, source: GcsObject, target: GcsObject, etag: str) -> Exception:
    """The error for a copy that was refused: the service does not say which condition failed."""
    if error_class(failure.code) in {PreconditionFailedError, ObjectNotFoundError}:
        try:
            _require_same(source, etag)
        except StorageError as error:
            return error
    return explained(failure.code, failure.message, target.where)


def _require_same(source: GcsObject, etag: str) -> None:
    found = source.look().generation
    if found != etag:
        raise ChangedError(f"{source.where} has the generation {found}, {etag} was expected")
