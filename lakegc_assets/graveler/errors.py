"""The errors of damaged files, which are all that the slow and the fast reader share."""

from __future__ import annotations

from lakegc_assets.errors import IntegrityError


class FormatError(IntegrityError):
    """A file is damaged, truncated, or not what it should be.

    Attributes:
        name: the file's, as the caller gave it.
        offset: in bytes from its start; of the block where the damage is inside a compressed one.
        reason: what is wrong.
    """

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(f"{name}: at byte {offset}: {reason}")
        self.name = name
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[FormatError], tuple[str, int, str]]:
        """Survive the way from a Spark worker to the driver."""
        return type(self), (self.name, self.offset, self.reason)


class NoTableError(FormatError):
    """A file cannot be a table: it is shorter than a footer, or ends in the magic of no format."""
