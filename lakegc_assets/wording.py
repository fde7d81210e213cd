"""Words of messages that depend on numbers."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its words in the singular or plural: 1 object, 2,000 objects.

    Args:
        number: how many.
        one: the words behind 1.
        many: those behind all other numbers; None for ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
