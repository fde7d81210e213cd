"""Objects that clients write to the store themselves: at issued addresses, or outside.

An issued address is linked once. It ends in a token that signs the address and contains its expiry.
So a used or expired token is not stored, and the server can still tell it from a token that it
never issued.
"""

from __future__ import annotations

import base64
import hmac
import re
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from urllib.parse import unquote

from lakegc_assets.embedded import errors
from lakegc_assets.embedded.errors import ApiError
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Branch, Repository
from lakegc_assets.embedded.objects import objects
from lakegc_assets.embedded.objects.objects import Found
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.storage.errors import ObjectNotFoundError

_MICROSECONDS = 1_000_000
_EXPIRY = struct.Struct(">q")
# With the expiry 32 bytes, the length of lakeFS's tokens.
_SIGNATURE_BYTES = 24
_MD5 = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def new_link_address(lake: Lake, repository: str, branch: str, path: str) -> str:
    """A full address where a client may write an object, to link it once before it expires.

    Raises:
        ApiError: 404 without such a repository or branch, 403 for a read-only repository, 400 for
            an empty path.
    """
    objects.require_path(path)
    with lake.writing(repository) as (db, repo):
        target = catalog.branch(db, repo, branch)
        plain = repo.address(lake.slices.new_address(repo.id, lake.now()))
        expires = _now(lake) + lake.settings.grace_period * _MICROSECONDS
        address = f"{plain},{_token(_key(db), plain, expires)}"
        _forget_expired(lake, db)
        db.execute(
            "INSERT INTO link_tokens VALUES (?, ?, ?, ?, ?)",
            (address, repo.id, target.uid, path, expires),
        )
    return address


def link(
    lake: Lake,
    repository: str,
    branch: str,
    path: str,
    entry: Entry,
    *,
    if_absent: bool = False,
    force: bool = False,
) -> Found:
    """Stage the object at an address from ``new_link_address``, and use up its token.

    The entry has the full address, and the client's size and checksum. ``if_absent`` and ``force``
    are as in ``objects.upload``.

    Raises:
        ApiError: 400 for a token that was used, has expired, belongs to another repository, branch
            or path, or was never issued; for an address without an object; and for a size or
            checksum that differs from the store's. If only the object, size or checksum is wrong,
            the token stays valid.
    """
    objects.require_path(path)
    checksum = entry.e_tag.strip(' "')
    if not checksum:
        raise errors.bad_request("checksum is required")
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository, force=force)
        _check_token(lake, db, repo, catalog.branch(db, repo, branch), path, entry.address)
    relative = entry.address.removeprefix(repo.address(""))
    check_object(lake, repo, relative, entry.size, checksum)

    def use_token(db: sqlite3.Connection, now_repo: Repository, target: Branch) -> None:
        _check_token(lake, db, now_repo, target, path, entry.address)
        if Fault.STATELESS_LINK_TOKENS not in lake.settings.faults:
            db.execute("DELETE FROM link_tokens WHERE address = ?", (entry.address,))
        _forget_expired(lake, db)

    linked = replace(
        entry,
        address=relative,
        e_tag=checksum,
        last_modified=objects.timestamp(lake.now()),
    )
    return objects.stage_entry(
        lake,
        repository,
        branch,
        path,
        linked,
        if_absent=if_absent,
        force=force,
        namespace=repo.namespace,
        first=use_token,
    )


def _check_token(
    lake: Lake, db: sqlite3.Connection, repo: Repository, branch: Branch, path: str, address: str
) -> None:
    """400 with a reason, unless the address's token can be used for this path now."""
    expires = _expiry(_key(db), address)
    if expires is None:
        raise _bad_token("this address was never given out; ask for one")
    if expires <= _now(lake):
        when = _EPOCH + timedelta(microseconds=expires)
        raise _bad_token(f"it expired at {when:%Y-%m-%dT%H:%M:%SZ}; ask for another address")
    if not address.startswith(repo.address("")):
        raise _bad_token("it was given out for another repository")
    if Fault.STATELESS_LINK_TOKENS in lake.settings.faults:
        return
    row = db.execute(
        "SELECT branch, path FROM link_tokens WHERE address = ? AND repository = ?",
        (address, repo.id),
    ).fetchone()
    if row is None:
        raise _bad_token("it has been used; ask for another address")
    if row[0] != branch.uid:
        raise _bad_token("it was given out for another branch")
    if row[1] != path:
        raise _bad_token("it was given out for another path")


def check_object(lake: Lake, repo: Repository, relative: str, size: int, checksum: str) -> None:
    """400 unless the store has the object, with this size and, if the store has one, this MD5."""
    try:
        found = lake.stores.open(repo.namespace).head(relative)
    except ObjectNotFoundError:
        raise errors.bad_request(
            f"nothing was written to {repo.address(relative)}: write the object, then link it"
        ) from None
    if found.size != size:
        raise errors.bad_request(
            f"size_bytes is {size}, but the object at {repo.address(relative)} has {found.size}"
        )
    if _MD5.fullmatch(found.etag) and found.etag.lower() != checksum.lower():
        raise errors.bad_request(
            f"checksum is {checksum}, but the object at {repo.address(relative)} "
            f"has the etag {found.etag}"
        )


def _token(key: bytes, plain: str, expires: int) -> str:
    signed = _EXPIRY.pack(expires)
    signature = hmac.digest(key, signed + plain.encode(), "sha256")[:_SIGNATURE_BYTES]
    return base64.urlsafe_b64encode(signed + signature).decode().rstrip("=")


def _expiry(key: bytes, address: str) -> int | None:
    """The expiry of an address's token; None if no server on this state issued it."""
    plain, _, token = address.rpartition(",")
    try:
        raw = base64.urlsafe_b64decode(token + "=")
    except ValueError:
        return None
    if len(raw) != _EXPIRY.size + _SIGNATURE_BYTES:
        return None
    (expires,) = _EXPIRY.unpack_from(raw)
    expected = _token(key, plain, expires)
    return int(expires) if hmac.compare_digest(token.encode(), expected.encode()) else None


def _key(db: sqlite3.Connection) -> bytes:
    """The key that signs tokens: created with the state, shared by all its servers."""
    (key,) = db.execute("SELECT key FROM link_key").fetchone()
    return bytes(key)


def _forget_expired(lake: Lake, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM link_tokens WHERE expires <= ?", (_now(lake),))


def _now(lake: Lake) -> int:
    return int(lake.now() * _MICROSECONDS)


def _bad_token(why: str) -> ApiError:
    return errors.bad_request(f"bad address token: {why}")


_CUT = re.compile(r"[?#]")


def stage_outside(
    lake: Lake, repository: str, branch: str, path: str, entry: Entry, *, force: bool = False
) -> Found:
    """Stage an object outside of the namespace, by its full address.

    Raises:
        ApiError: 400 for an address that is or may be inside the namespace; 404 if the repository
            was made anew with another namespace meanwhile.
    """
    repo = lake.repository(repository)
    if Fault.STAGE_INSIDE_NAMESPACE in lake.settings.faults:
        relative = entry.address.removeprefix(repo.address(""))
        if relative != entry.address:
            inside = replace(entry, address=relative)
            return objects.stage_entry(
                lake, repository, branch, path, inside, force=force, namespace=repo.namespace
            )
    elif reason := why_not_outside(repo.place, entry.address):
        raise errors.bad_request(
            f"address {entry.address!r} cannot be staged: {reason}; upload the object, link an "
            "address that the server gave out, or stage one that is clearly elsewhere"
        )
    full = replace(entry, address_type=AddressType.FULL)
    return objects.stage_entry(
        lake, repository, branch, path, full, force=force, namespace=repo.namespace
    )


def why_not_outside(place: StorageNamespace, address: str) -> str | None:
    """The reason why a full address may be inside a namespace, or None if it is surely outside.

    lakeFS does not write an object that is staged by its full address, so this must never be an
    object that a collector may delete. An address is refused if any reader might resolve it inside
    the namespace.
    """
    for reading in _readings(address):
        if not {".", ".."}.isdisjoint(reading.split("/")):
            return "it has '.' or '..' in its path"
        try:
            # The appended key also finds an address that is the namespace itself.
            if place.relatives(reading.rstrip("/") + "/x"):
                return "it is inside the repository's storage namespace"
        except UnresolvableAddressError as error:
            return error.reason
    return None


def _readings(address: str) -> Iterator[str]:
    """The spellings of an address: unchanged, and percent-decoded until nothing changes.

    Each of them also comes with single slashes, and without the parts of a URL after its path.
    """
    seen: set[str] = set()
    while address not in seen:
        seen.add(address)
        for reading in (address, _CUT.split(address, maxsplit=1)[0]):
            scheme, separator, path = reading.partition("://")
            yield reading
            yield scheme + separator + re.sub("/+", "/", path)
        address = unquote(address, errors="surrogateescape")
