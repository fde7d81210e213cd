"""The test whether an address lies outside a storage namespace, in any spelling.

lakeFS does not write an object that is staged by its full address, so this must never be an object
that a collector may delete. An address is refused if any reader might resolve it inside the
namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError

_CUT = re.compile(r"[?#]")


def why_not_outside(place: StorageNamespace, address: str) -> str | None:
    """The reason why a full address may be inside a namespace, or None if it is surely outside."""
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
