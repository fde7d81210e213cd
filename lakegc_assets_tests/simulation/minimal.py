"""Makes a schedule that fails as small as it gets: sets choices to 0 while it goes on failing."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def minimal(
    made: Sequence[int], fails: Callable[[Sequence[int]], bool], most: int = 2000
) -> list[int]:
    """The same choices with as many as possible set to 0, and none behind the last that matters.

    ``most``: of the tries.
    """
    best = _cut(list(made))
    tries = 0
    size = max(1, len([c for c in best if c]) // 2)
    while size:
        at, changed = 0, False
        while tries < most:
            places = [place for place, choice in enumerate(best) if choice]
            some = places[at : at + size]
            if not some:
                break
            tries += 1
            fewer = _cut([0 if place in some else choice for place, choice in enumerate(best)])
            if fails(fewer):
                best, changed = fewer, True
            else:
                at += size
        if not changed:
            size //= 2
    return best


def _cut(choices: list[int]) -> list[int]:
    while choices and not choices[-1]:
        choices.pop()
    return choices
