"""Storage namespaces, physical addresses, slices and their xids."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from lakegc_assets.errors import ConfigurationError, IntegrityError
from lakegc_assets.graveler.entry import AddressType

_BUCKET_SCHEMES: Final = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "local": "local"}
_HADOOP_AZURE: Final = {"abfs": "dfs", "abfss": "dfs", "wasb": "blob", "wasbs": "blob"}
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Domains of Azure's accounts: the public cloud, the US government's, and China's.
AZURE_DOMAINS: Final = ("core.windows.net", "core.usgovcloudapi.net", "core.chinacloudapi.cn")
_AZURE_HOST: Final = re.compile(
    rf"([a-z0-9]{{3,24}})\.(?:blob|dfs)\.({'|'.join(map(re.escape, AZURE_DOMAINS))})"
)
_AZURE_CONTAINER: Final = re.compile(r"[a-z0-9$][a-z0-9-]*")
# Suffixes of access points and similar aliases: each is another name of some bucket.
_ALIASES: Final = ("-s3alias", "--ol-s3", "--op-s3", "--xa-s3")
_SLASH: Final = re.compile("/")
_SLASHES: Final = re.compile("/{2,}")
#: The most characters that one UTF-8 character takes, percent-encoded.
_LONGEST_ENCODED: Final = 12
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: The start of a URL whose path lakeFS parses.
_PARSED_START: Final = re.compile(r"(?:s3|gs)://[^/]*/", re.IGNORECASE)
#: Characters, besides letters and digits, that Go does not encode in a path.
_UNQUOTED: Final = "-_.~$&+,/:;=@"


class UnresolvableAddressError(IntegrityError):
    """The object that a full address names cannot be determined.

    Attributes:
        address: the address as the entry has it.
        last_components: its last path component as it is, percent-decoded, and as servers and file
            systems read paths. Every object whose key ends in one of these must be spared.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot tell which object the address {address!r} names: {reason}")
        self.address = address
        self.reason = reason
        paths = {address, unquote(address), *_readings(address)}
        paths |= {posixpath.normpath(path.replace("\\", "/")) for path in paths}
        # No key ends in bytes that are not UTF-8.
        last = {path.rsplit("/", 1)[-1] for path in paths if is_utf8(path)}
        # Azure drops dots at the end of a name.
        self.last_components = frozenset({*last, *filter(None, (one.rstrip(".") for one in last))})

    def __reduce__(self) -> tuple[type[UnresolvableAddressError], tuple[str, str]]:
        """Keep the attributes when the error is pickled from a Spark worker to the driver."""
        return type(self), (self.address, self.reason)


@dataclass(frozen=True)
class StorageNamespace:
    """The place of one repository in an object store."""

    #: ``s3`` (also for s3a and s3n), ``azure``, ``gs``, ``local`` (below the directory of a lakeFS
    #: with local storage) or ``file``.
    scheme: str
    #: Bucket; ``ACCOUNT.DOMAIN/CONTAINER`` for azure, the domain being one of ``AZURE_DOMAINS``;
    #: empty for file.
    authority: str
    #: Path without slashes at its ends, empty for a whole bucket. As it stands in the URL;
    #: percent-decoded for the https form of azure, as lakeFS reads it.
    prefix: str

    @classmethod
    def parse(cls, url: str) -> StorageNamespace:
        """Read a URL or a plain path.

        Args:
            url: s3, s3a, s3n, gs and local URLs; ``https://ACCOUNT.{blob,dfs}.DOMAIN/C/P``, abfs,
                abfss, wasb and wasbs for azure; file URLs and plain paths (made absolute).

        Raises:
            ConfigurationError: for anything else.
        """
        # The meaning of a plain path depends on the working directory and on links, so it is not
        # cached.
        return _parsed(url) if _SCHEME.match(url) else _parsed.__wrapped__(url)

    def url(self) -> str:
        """The canonical URL, without a slash at its end."""
        if self.scheme == "azure":
            host, _, container = self.authority.partition("/")
            base = f"{azure_service_url(host)}/{container}"
            return f"{base}/{quote(self.prefix)}" if self.prefix else base
        base = f"{self.scheme}://{self.authority}"
        return f"{base}/{self.prefix}" if self.prefix else base

    def key(self, relative: str) -> str:
        """The full key, in the bucket or container, of a relative address."""
        return f"{self.prefix}/{relative}" if self.prefix else relative.removeprefix("/")

    def relative(self, address: str) -> str | None:
        """The relative address of a full one, or None if the full one is provably outside.

        Raises:
            UnresolvableAddressError: the address may or may not be inside.
        """
        found = self.relatives(address)
        # lakeFS itself wrote the files below ``_lakefs/``: one such reading decides.
        below = [one for one in found if one.startswith("_lakefs/")]
        if len(below) == 1:
            return below[0]
        if len(found) > 1:
            raise UnresolvableAddressError(
                address, "its plain and its percent-decoded form name different objects"
            )
        return next(iter(found), None)

    def relatives(self, address: str) -> AbstractSet[str]:
        """Every relative address that a full address may name; empty if it is provably outside.

        lakeFS parses a full address as a URL: it cuts the path at ``?``, and percent-decodes it or
        not, depending on its version and on the path. lakeFS serves the key as it is after the
        namespace, and importers have written plain keys, too. Every reading counts, also the
        reading of a server that drops empty path components.

        A lakeFS with local storage gives the place of a file on its own machine: absolute, or
        relative to the folder in which lakeFS was started (``local.QualifiedKey.Format``).
        Everything after the name of the namespace counts.

        Raises:
            UnresolvableAddressError: for unknown schemes and hosts, and paths that stores
                normalise.
        """
        try:
            scheme, authority, path = _split(address)
        except ValueError as error:
            raise UnresolvableAddressError(address, str(error)) from None
        named = self._behind_name(address, authority, path) if scheme == "local" else set()
        if scheme != self.scheme or authority != self.authority:
            return frozenset(named) or self._elsewhere(address, scheme, authority, path)
        readings = _readings(path)
        for reading in readings:
            if problem := _doubtful(scheme, reading):
                raise UnresolvableAddressError(address, problem)
        start = f"{self.prefix}/" if self.prefix else ""
        # Some servers read //a//b as /a/b.
        readings |= {_SLASHES.sub("/", f"/{r}")[1:] for r in readings if not r.startswith(start)}
        inside = named | {r[len(start) :] for r in readings if r.startswith(start)}
        # The namespace may be percent-encoded in front of a key that is not.
        for reading in (r for r in readings if "%" in r):
            # Only a prefix as long as the encoded namespace is decoded: addresses may have any
            # length.
            longest = len(self.prefix) * _LONGEST_ENCODED + 1
            ends = (slash.start() for slash in _SLASH.finditer(reading, 0, longest))
            inside |= {reading[at + 1 :] for at in ends if unquote(reading[:at]) == self.prefix}
        return frozenset(inside - {""})

    def _elsewhere(self, address: str, scheme: str, authority: str, path: str) -> AbstractSet[str]:
        """Nothing, for another bucket. Raises UnresolvableAddressError: it may be this one."""
        if {scheme, self.scheme} == {"local", "file"} or (scheme == "local" and not authority):
            raise UnresolvableAddressError(address, "where the server keeps local:// is not known")
        if scheme == self.scheme and authority.lower() == self.authority.lower():
            raise UnresolvableAddressError(
                address, f"its bucket differs from {self.authority!r} only in case"
            )
        if scheme == self.scheme == "local" and any(
            ".." in reading.split("/") for reading in _readings(path)
        ):
            raise UnresolvableAddressError(address, "its '..' may lead to another namespace")
        return frozenset()

    def _behind_name(self, address: str, authority: str, path: str) -> set[str]:
        """The keys after the name of this namespace, if it is local, in a path of a server.

        Raises:
            UnresolvableAddressError: the server's file system may read the path as another one.
        """
        if self.scheme != "local":
            return set()
        name = f"/{self.authority}/{self.prefix}/" if self.prefix else f"/{self.authority}/"
        found: set[str] = set()
        for reading in _readings(path):
            whole = f"/{authority}/{reading}" if authority else f"/{reading}"
            ends = [at + len(name) for at in range(len(whole)) if whole.startswith(name, at)]
            if ends and (problem := _doubtful("local", whole[1:])):
                raise UnresolvableAddressError(address, problem)
            found |= {whole[end:] for end in ends}
        return found - {""}

    def resolve(self, address: str, address_type: int) -> AbstractSet[str]:
        """Every relative address that an entry may keep alive in this namespace.

        Args:
            address: as the entry has it.
            address_type: an ``AddressType``. The deprecated type means a full address if there is a
                scheme.

        Raises:
            UnresolvableAddressError: the address may or may not be inside.
        """
        kind = AddressType(address_type)
        full = kind is AddressType.FULL or (
            kind is AddressType.BY_PREFIX_DEPRECATED and _SCHEME.match(address) is not None
        )
        return self.relatives(address) if full else frozenset({address})

    def may_hold(self, start: str) -> bool:
        """Return False only if no full address with this start can be inside.

        Args:
            start: the address up to the end of the bucket, or for https of the container.
        """
        try:
            scheme, authority, _ = _split(start)
        except ValueError:
            return True
        if "local" in {scheme, self.scheme} and (scheme in _kind(self.scheme) or not authority):
            return True
        return scheme == self.scheme and authority.lower() == self.authority.lower()

    def is_same_kind(self, url: str) -> bool:
        """True if another namespace is in a store of the same kind, or if its URL is unusual."""
        try:
            return StorageNamespace.parse(url).scheme in _kind(self.scheme)
        except ConfigurationError:
            schemes = {"azure": ("http", "https", "abfs", "wasb")}.get(self.scheme, ("s3",))
            return self.scheme not in {"s3", "azure"} or url.lower().startswith(schemes)

    def overlaps(self, other: StorageNamespace) -> bool:
        """True if one of two namespaces equals or contains the other, by whole path segments."""
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        ours, theirs = (f"{p}/" if p else "" for p in (self.prefix, other.prefix))
        return ours.startswith(theirs) or theirs.startswith(ours)


def namespace_as_lakefs_reads_it(url: str) -> str:
    """The URL of a namespace whose undecoded path is the real place of the objects.

    On S3 and Google, lakeFS parses the URL as Go does (``block.DefaultResolveNamespace``). It cuts
    the path at ``?``, and percent-decodes it, unless encoding the result again gives another text.
    (Servers before 1.68 decode such a path, too. Their ``migrate task run storage-ns-encoded``
    writes the URL that is returned here.) URLs in our own settings, such as those of backups, are
    not changed.
    """
    start = _PARSED_START.match(url)
    if start is None:
        return url
    path = url[start.end() :].partition("?")[0]
    decoded = unquote(path)
    return start[0] + (decoded if quote(decoded, safe=_UNQUOTED) == path else path)


def azure_service_url(host: str) -> str:
    """The URL of the blob service of an account, given as ``ACCOUNT.DOMAIN``."""
    account, _, domain = host.partition(".")
    return f"https://{account}.blob.{domain}"


@lru_cache(maxsize=256)
def _parsed(url: str) -> StorageNamespace:
    try:
        plain = url and not _SCHEME.match(url)
        scheme, authority, path = _split(f"file://{Path(url).resolve()}" if plain else url)
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is no storage namespace: {error}") from None
    if url.startswith(("https://", "HTTPS://")):
        path = _decoded(path)
    prefix = path.strip("/")
    problem = _doubtful(scheme, prefix)
    if scheme == "local" and not authority:
        problem = "a name must follow local://, of a folder below the directory of the server"
    if problem:
        raise ConfigurationError(f"{url!r} is no storage namespace: {problem}")
    return StorageNamespace(scheme, authority, prefix)


def _kind(scheme: str) -> AbstractSet[str]:
    return frozenset({"local", "file"}) if scheme in {"local", "file"} else frozenset({scheme})


def _readings(path: str) -> set[str]:
    """The readings of a URL's path: as it is, cut at ``?``, and then percent-decoded."""
    cut = path.partition("?")[0]
    return {path, cut, _decoded(cut)}


def _decoded(path: str) -> str:
    return unquote(path, errors="surrogateescape")


def _split(address: str) -> tuple[str, str, str]:
    """Return scheme, authority and undecoded path; ValueError with a reason for an unknown form."""
    found = _SCHEME.match(address)
    if not found:
        raise ValueError("it has no scheme")
    scheme = found[1].lower()
    host, _, path = address[found.end() :].partition("/")
    if scheme == "file" and host in {"", "localhost"}:
        return "file", "", path
    if scheme == "local" and not host:
        return "local", "", path
    if scheme in _BUCKET_SCHEMES:
        if not _BUCKET.fullmatch(host) or host.endswith(_ALIASES):
            raise ValueError(f"{host!r} is not the name of a bucket")
        return _BUCKET_SCHEMES[scheme], host, path
    container = ""
    if scheme in _HADOOP_AZURE:
        container, _, host = host.rpartition("@")
    elif scheme == "https":
        container, _, path = path.partition("/")
        container = unquote(container)
    else:
        raise ValueError(f"the scheme {scheme!r} is not known here")
    account = _AZURE_HOST.fullmatch(host.lower().removesuffix(":443"))
    if not account:
        raise ValueError(f"{host!r} is not the host of an Azure storage account")
    if not _AZURE_CONTAINER.fullmatch(container):
        raise ValueError(f"{container!r} is not the name of a container")
    return "azure", f"{account[1]}.{account[2]}/{container}", path


def _doubtful(scheme: str, path: str) -> str | None:
    """The reason that a store or file system may read this path as another one, or None."""
    segments = path.split("/")
    if "." in segments or ".." in segments:
        return "it has '.' or '..' in its path"
    if scheme in {"azure", "file", "local"} and "" in segments[:-1]:
        return "it has an empty path segment"
    if scheme == "azure" and "\\" in path:
        return "it has a backslash, which Azure reads as a slash"
    if scheme == "azure" and any(part.endswith(".") for part in segments):
        return "it has a dot at the end of a path component, which Azure drops"
    return None if is_utf8(path) else "it is not UTF-8 once percent-decoded"


def is_utf8(text: str) -> bool:
    """True if a name, as Python reads it, has only bytes of UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuv"
_XID_LENGTH: Final = 20
# The xid of a slice counts the seconds down to this moment, so that newer slices sort first.
_SLICE_EPOCH: Final = 64_060_588_800


@dataclass(frozen=True)
class Xid:
    """The four fields of a 12-byte xid (https://github.com/rs/xid)."""

    #: 32 bits, since 1970.
    seconds: int
    #: 3 bytes.
    machine: bytes
    #: 16 bits.
    pid: int
    #: 24 bits.
    counter: int


def encode_xid(xid: Xid) -> str:
    """Encode as 20 characters of base32hex; ValueError if a field does not fit."""
    if len(xid.machine) != 3:  # noqa: PLR2004 - the width that the format has
        raise ValueError(f"the machine of an xid has 3 bytes, not {len(xid.machine)}")
    try:
        raw = (
            xid.seconds.to_bytes(4, "big")
            + xid.machine
            + xid.pid.to_bytes(2, "big")
            + xid.counter.to_bytes(3, "big")
        )
    except OverflowError:
        raise ValueError(f"a field of {xid} does not fit") from None
    bits = int.from_bytes(raw, "big") << 4
    return "".join(_ALPHABET[bits >> shift & 31] for shift in range(95, -1, -5))


def decode_xid(text: str) -> Xid:
    """Decode the fields of an xid; ValueError if ``text`` is no xid."""
    bits = 0
    for character in text:
        bits = bits << 5 | _ALPHABET.index(character)
    if len(text) != _XID_LENGTH or bits & 15:
        raise ValueError(f"{text!r} is not an xid")
    raw = (bits >> 4).to_bytes(12, "big")
    return Xid(
        seconds=int.from_bytes(raw[:4], "big"),
        machine=raw[4:7],
        pid=int.from_bytes(raw[7:9], "big"),
        counter=int.from_bytes(raw[9:], "big"),
    )


def new_slice_name(created: datetime, machine: bytes, pid: int, counter: int) -> str:
    """The name of a slice made at ``created`` (aware; cut to whole seconds)."""
    seconds = (_SLICE_EPOCH - int(created.timestamp())) & 0xFFFFFFFF
    return encode_xid(Xid(seconds, machine, pid, counter))


@lru_cache(maxsize=4096)
def slice_time(name: str) -> datetime | None:
    """The time at which a slice was made (UTC, whole seconds); None if ``name`` is no slice."""
    try:
        xid = decode_xid(name)
    except ValueError:
        return None
    return datetime.fromtimestamp((_SLICE_EPOCH - xid.seconds) & 0xFFFFFFFF, tz=timezone.utc)
