"""The compiled loop of ``evidence``."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit(cache=True, nogil=True)
def compare_all(listed: Any, places: Any, entries: Any, told: Any) -> None:  # noqa: ANN401 - arrays
    """Compare each listed object with each entry of its address.

    Args:
        listed: hash of the address, sorted, ``etag_hash`` and time of writing of each object.
        places: where the first entry of each of them stands, or would.
        entries: hash of the address, sorted, ``etag_hash``, whether it is small, and number of the
            range, of each entry.
        told: by the number of the range whether an entry of it was compared, and whether one had
            another etag than its object, and a small one the same; and the latest time of writing.
    """
    hashes, etags, modified = listed
    addresses, of_entries, small, ranges = entries
    compared, differs, small_agrees, newest = told
    for i in range(len(hashes)):
        entry = places[i]
        while entry < len(addresses) and addresses[entry] == hashes[i]:
            number = ranges[entry]
            # An unclear etag is evidence neither for nor against any other.
            if of_entries[entry] != 0:
                compared[number] = True
                newest[number] = max(newest[number], modified[i])
                if of_entries[entry] != etags[i]:
                    differs[number] = True
                elif small[entry]:
                    small_agrees[number] = True
            entry += 1
