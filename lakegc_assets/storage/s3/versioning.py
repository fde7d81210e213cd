"""Versioning of a bucket, below a prefix.

MinIO can exclude prefixes from the versioning of a bucket: below them, objects are written and
deleted as if versioning were suspended, and the status of the bucket stays ``Enabled``. botocore
does not know this part of the answer. (``ExcludeFolders`` concerns only keys that end in a slash,
which lakeFS does not write.)

Format: https://github.com/minio/minio/blob/master/docs/bucket/versioning/README.md
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

from lakegc_assets.storage.bucket_store import overlap
from lakegc_assets.storage.s3.listing import keep

_EXCLUDED: Final = "LakegcExcludedPrefixes"
_WILDCARD: Final = re.compile(r"[*?]")
#: A folder in a pattern that lakeFS gives to no object, such as Spark's ``_temporary``; its own is
#: ``_lakefs``.
_FOREIGN_FOLDER: Final = re.compile(r"(?<=/)_(?!lakefs/)[^/*?]*(?=/)")


#: Keeps the excluded prefixes in an answer.
keep_exclusions: Final = partial(keep, _EXCLUDED, "{*}ExcludedPrefixes/{*}Prefix")


def status_below(answer: Any, prefix: str) -> str:  # noqa: ANN401 - botocore's answer, with ours
    """The versioning of the objects below a prefix, by an answer of GetBucketVersioning.

    ``enabled``, ``suspended``, or an empty string without versioning; ``excluded`` if a part of the
    objects may be excluded from it.
    """
    status = str(answer.get("Status", "")).lower()
    patterns = (one.text or "" for one in answer.get(_EXCLUDED, ()))
    if status == "enabled" and any(_may_match(pattern, prefix) for pattern in patterns):
        return "excluded"
    return status


def _may_match(pattern: str, prefix: str) -> bool:
    """True if lakeFS may give an object below a prefix a name that an excluded prefix matches."""
    folders = prefix.split("/")
    return overlap(_WILDCARD.split(pattern)[0], prefix) and all(
        folder in folders for folder in _FOREIGN_FOLDER.findall(pattern)
    )
