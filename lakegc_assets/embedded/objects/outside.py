"""The test whether an address lies outside a storage namespace, in any spelling.

What is staged by its full address is not written by lakeFS, so it must never be an object that a
collector may delete. An address that some reader might take for one inside is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError

_CUT = re.compile(r"[?#]")


def why_not_outside(place: StorageNamespace, address: str) -> str | None:
    """Why an address is not provably outside a namespace, or None when it is.

    Args:
        place: the namespace.
        address: full, as a client spells it.
    """
    for reading in _readings(address):
        if not {".", ".."}.isdisjoint(reading.split("/")):
            return "it has '.' or '..' in its path"
        try:
            # What is below it is inside, too, if it is the namespace itself.
            if place.relatives(reading.rstrip("/") + "/x"):
                return "it is inside the repository's storage namespace"
        except UnresolvableAddressError as error:
            return error.reason
    return None


def _readings(address: str) -> Iterator[str]:
    """An address as it stands, and percent-decoded until nothing changes.

    Each of them also with single slashes, and without what URLs do not count to their path.
    """
    seen: set[str] = set()
    while address not in seen:
        seen.add(address)
        for reading in (address, _CUT.split(address, maxsplit=1)[0]):
            scheme, separator, path = reading.partition("://")
            yield reading
            yield scheme + separator + re.sub("/+", "/", path)
        address = unquote(address, errors="surrogateescape")
