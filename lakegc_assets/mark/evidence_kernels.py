"""The compiled loop of ``evidence``."""

from __future__ import annotations

from typing import Any

import numba


@numba.njit(cache=True, nogil=True)
def compare_all(listed: Any, entries: Any, told: Any) -> None:  # noqa: ANN401 - numpy arrays
    """Compare each listed object with each entry of its address.

    Args:
        listed: hash of the address, sorted, ``etag_hash`` and time of writing of each object.
        entries: hash of the address, sorted, ``etag_hash``, whether it is small, and number of the
            range, of each entry.
        told: by the number of the range whether an entry of it was compared, and whether one had
            another etag than its object, and a small one the same; and the latest time of writing.
    """
    hashes, etags, modified = listed
    addresses, of_entries, small, ranges = entries
    compared, differs, small_agrees, newest = told
    at = 0
    for i in range(len(hashes)):
        value, step = hashes[i], 1
        # Steps get longer until they go too far.
        while at + step <= len(addresses) and addresses[at + step - 1] < value:
            at += step
            step *= 2
        high = min(at + step - 1, len(addresses))
        while at < high:
            middle = (at + high) // 2
            if addresses[middle] < value:
                at = middle + 1
            else:
                high = middle
        entry = at
        while entry < len(addresses) and addresses[entry] == value:
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
