"""Requests of the gateway's handlers, with the branch or reference in their key."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.header import decode_header, make_header
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.gateway import errors
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Branch, Repository
from lakegc_assets.embedded.refs.refs import resolve

METADATA = "x-amz-meta-"
# lakeFS's prefix of user metadata in an entry. Metadata from the API has other names, and is not
# returned here.
_ENTRY_METADATA = "X-Amz-Meta-"
_MAX_METADATA_BYTES = 2 * 1024
_ENCODED_WORD = re.compile(r"=\?[^?\s]+\?[bBqQ]\?[^?\s]*\?=")
_COPY_SOURCE_FORM = "Copy Source must mention the source bucket and key: sourcebucket/sourcekey."


class Key(NamedTuple):
    """A key of a bucket: ``<ref>/<path>``. Without a slash it names no object."""

    ref: str
    path: str

    @classmethod
    def of(cls, text: str) -> Key:
        """The key, split."""
        ref, _, path = text.partition("/")
        return cls(ref, path)

    def __str__(self) -> str:
        return f"{self.ref}/{self.path}"


@dataclass(frozen=True)
class Call:
    """One request with a valid signature.

    Attributes:
        lake: the server's parts.
        bucket: a repository's name; empty for the list of all.
        name: the unchanged key; empty for the bucket itself.
        query: the first value of each parameter.
        headers: by name in lower case; values as Latin-1, like the bytes on the wire.
        body: unpacked and checked.
        checksums: headers and trailers with checksums of the body.
    """

    lake: Lake
    bucket: str
    name: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The key, split; 404 if it cannot name an object."""
        key = Key.of(self.name)
        if not key.ref or not key.path:
            raise errors.no_such_key()
        return key

    def number(self, name: str, default: int, limit: int) -> int:
        """A numeric parameter of at least 0; a larger number than ``limit`` becomes ``limit``."""
        text = self.query.get(name) or str(default)
        if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 1 << 31:
            raise errors.invalid_argument(
                f"Argument {name} must be an integer between 0 and 2147483647"
            )
        return min(int(text), limit)

    def shown(self, key: str) -> str:
        """A key in the form of the answer: percent-encoded on request."""
        encoding = self.query.get("encoding-type", "")
        if encoding not in {"", "url"}:
            raise errors.invalid_argument("Invalid Encoding Method specified in Request")
        return quote(key, safe="/") if encoding else key

    def target(self) -> Key:
        """The key to write to.

        Raises:
            S3Error: the repository or branch does not exist; the repository is read-only; the key
                names a tag or a commit in place of a branch; or it has no path.
        """
        key = Key.of(self.name)
        check_target(self.lake, self.bucket, key.ref)
        if not key.path:
            raise errors.invalid_argument("A key has the form <branch>/<path>.")
        return key


def require_bucket(lake: Lake, name: str) -> Repository:
    """The repository; NoSuchBucket if there is none."""
    try:
        return lake.repository(name)
    except ApiError:
        raise errors.no_such_bucket() from None


def check_target(lake: Lake, bucket: str, ref: str) -> Branch:
    """The branch to write to; see ``Call.target``."""
    repo = require_bucket(lake, bucket)
    if repo.read_only:
        raise errors.read_only()
    with lake.state.read() as db:
        branch = catalog.find_branch(db, repo, ref)
        if branch is not None:
            return branch
        try:
            resolve(db, repo, ref)
        except ApiError:
            raise errors.no_such_bucket(f"The branch {ref!r} does not exist") from None
    raise errors.access_denied(f"{ref!r} is not a branch: nothing else can be written to.")


def copy_source(header: str) -> tuple[str, Key]:
    """Bucket and key in ``x-amz-copy-source``.

    Raises:
        S3Error: it names none, or an object version.
    """
    text = unquote_key(header.encode("latin-1").partition(b"?")[0])
    if "?" in header:
        raise errors.not_implemented("versions of objects")
    bucket, _, name = text.removeprefix("/").partition("/")
    key = Key.of(name)
    if not bucket or not key.ref or not key.path:
        raise errors.invalid_argument(_COPY_SOURCE_FORM)
    return bucket, key


def unquote_key(raw: bytes) -> str:
    """A decoded path or key; an error if it is not UTF-8, because it would name another object."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise errors.S3Error(400, "InvalidURI", "Couldn't parse the specified URI.") from None


def user_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The user's metadata, under its names in a lakeFS entry.

    Raises:
        S3Error: there are more than 2 KB.
    """
    found: dict[str, str] = {}
    size = 0
    for name, value in headers.items():
        if name.startswith(METADATA):
            key, text = name.removeprefix(METADATA), _decoded(value)
            size += len(key.encode()) + len(text.encode())
            found[_ENTRY_METADATA + key] = text
    if size > _MAX_METADATA_BYTES:
        raise errors.S3Error(
            400,
            "MetadataTooLarge",
            "Your metadata headers exceed the maximum allowed metadata size.",
        )
    return found


def metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Headers with an entry's metadata."""
    found: dict[str, str] = {}
    missing = 0
    for name, value in metadata.items():
        key = name.removeprefix(_ENTRY_METADATA)
        if key == name:
            continue
        if re.fullmatch(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+", key):
            found[METADATA + key.lower()] = _encoded(value)
        else:
            missing += 1
    return {**found, **({"x-amz-missing-meta": str(missing)} if missing else {})}


def _decoded(value: str) -> str:
    """Text that may be encoded by RFC 2047, as S3 and its clients encode non-ASCII text."""
    try:
        if _ENCODED_WORD.search(value):
            return str(make_header(decode_header(value)))
        return value.encode("latin-1").decode()
    except (LookupError, ValueError):
        raise errors.invalid_argument("A metadata header is not in UTF-8 or RFC 2047.") from None


def _encoded(text: str) -> str:
    if re.fullmatch(r"(?:[!-~](?:[ -~]*[!-~])?)?", text) and not _ENCODED_WORD.search(text):
        return text
    return f"=?utf-8?b?{b64encode(text.encode()).decode()}?="
