"""Spellings of the address of an entry, relative to the storage namespace.

If the meaning of a spelling is in doubt, every meaning counts: extra addresses in a live set are
safe. The caches of decoded ranges store the results of this module and of ``StorageNamespace``. A
change to either must raise ``DECODER_VERSION``, and the version in ``KIND`` of the witness.
"""

from __future__ import annotations

import posixpath
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.graveler.entry import AddressType
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError

#: Addresses that ``plain_paths`` may change.
UNUSUAL: Final = r"(^|/)(/|$)|\.(/|$)|\\"
_LAST = "\U0010ffff"
#: lakeFS's own object at the root, written when a repository is created.
DUMMY: Final = "dummy"
#: Addresses as lakeFS writes nearly all of them; this one search saves seven.
_USUAL: Final = r"^data/[0-9a-v]{20}/[0-9a-v]{20}$"
_ODD: Final = r"(^|/)\.\.?(/|$)|://"
#: Keys below the folders that lakeFS makes: ``data/<slice>/<id>``, ``data/!ab/c/<partition>/<id>``.
_DEEPER: Final = r"^data/(([^/!][^/]*)?/[^/]*/|![^/]*(/[^/]*){3}/)"
#: Keys of a nested repository. Such a candidate stops the run, so that none of its objects go.
_NESTED: Final = r"/_lakefs/|/dummy$"
#: Characters that break a list with one address per line, or that a bulk delete cannot name. Such
#: keys would be deleted one by one, the last of a batch long after the HEADs were read. A server
#: writes U+FFFD for a character that its listing cannot hold; the key then names another object.
UNNAMEABLE: Final = r"[\x00-\x1f\x7f-\x9f\x{fffd}-\x{ffff}]"


def plain_paths(address: str) -> list[str]:
    """A relative address as file systems, Azure and older servers read it.

    lakeFS keeps addresses as clients gave them: ``data//a`` is the file ``data/a``. Azure drops the
    dots at the end of a name, and perhaps at the end of each path component: ``data/a.`` is its
    blob ``data/a``.
    """
    path = posixpath.normpath("/" + address.replace("\\", "/")).lstrip("/")
    parts = (part.rstrip(".") for part in path.split("/"))
    return [path, path.rstrip("./"), "/".join(filter(None, parts))]


def live_spellings(namespace: StorageNamespace, address: str) -> list[str]:
    """The relative addresses that an address of unknown type keeps alive.

    The first one is the literal text. A full address inside the namespace adds its relative form,
    both as written and percent-decoded. The plain paths of each count, too.

    Raises:
        UnresolvableAddressError: the address has a scheme, and its place cannot be determined.
    """
    relative = sorted(namespace.relatives(address)) if "://" in address else [address]
    plain = chain.from_iterable(map(plain_paths, relative))
    return list(dict.fromkeys([address, *relative, *plain]))


def entry_spellings(
    namespace: StorageNamespace, address: str, address_type: int
) -> tuple[list[str], bool]:
    """The relative addresses that an entry keeps alive, and True if its address was resolved.

    A full address outside the namespace keeps nothing alive here. An address that cannot be
    resolved gives its last path components and False: candidates that end in one are spared.
    """
    try:
        found = namespace.resolve(address, address_type)
        return sorted({*found, *chain.from_iterable(map(plain_paths, found))}), True
    except UnresolvableAddressError as error:
        return sorted(error.last_components), False


def are_plain(addresses: pa.Array, types: pa.Array) -> pa.Array:
    """Mark the addresses of entries that have no other meaning than their literal text."""
    relative = pc.equal(types, AddressType.RELATIVE)
    return pc.and_not(relative, pc.match_substring_regex(addresses, UNUSUAL))


def is_elsewhere(namespace: StorageNamespace, address: str, address_type: int) -> bool:
    """True if the object of an entry may be in another store, which gives its own etags."""
    spellings, resolved = entry_spellings(namespace, address, address_type)
    return not (resolved and spellings)


def just_before(path: str) -> str:
    """A string before ``path`` with few paths in between; for listings that start after a path."""
    if not path:
        return ""
    last = ord(path[-1])
    if last == 0:
        return path[:-1]
    lower = last - 1
    if 0xD800 <= lower <= 0xDFFF:  # noqa: PLR2004 - surrogates are no characters
        lower = 0xD7FF
    return path[:-1] + chr(lower) + _LAST


def in_data(addresses: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Mark the addresses in places where lakeFS writes objects, now or in older versions.

    Names that lakeFS never gives are not marked: the invariants would refuse the whole mark for
    them. Files in deeper folders are not marked either: clients of tables in lakeFS Enterprise's
    Iceberg catalog write data files into a namespace, and no entry names them.
    """
    usual = pc.match_substring_regex(addresses, _USUAL)
    if pc.all(usual).as_py():
        return usual
    foreign = pc.or_(
        pc.match_substring(addresses, "/"),
        pc.or_(pc.equal(addresses, DUMMY), pc.starts_with(addresses, "_lakefs")),
    )
    below = pc.and_not(pc.starts_with(addresses, "data/"), pc.equal(addresses, "data/"))
    deeper = pc.match_substring_regex(addresses, _DEEPER)
    odd = pc.or_(
        pc.match_substring_regex(addresses, _ODD),
        pc.and_not(deeper, pc.match_substring_regex(addresses, _NESTED)),
    )
    return pc.and_not(pc.or_(below, pc.invert(foreign)), odd)
