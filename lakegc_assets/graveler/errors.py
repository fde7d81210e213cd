"""The errors of damaged files, the only code that the slow and the fast reader share."""

from __future__ import annotations

from lakegc_assets.errors import IntegrityError


class FormatError(IntegrityError):
    """A file is damaged, truncated, or of another kind than expected.

    Attributes:
        name: the name of the file, as the caller gave it.
        offset: bytes from the start of the file; for damage in a compressed block, the block's
            offset.
        reason: the kind of damage.
    """

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{name}: at byte {offset}: {reason}. If the file was changed since lakeFS wrote it, "
            "restore it; if not, report this with the file"
        )
        self.name = name
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[FormatError], tuple[str, int, str]]:
        """Keep the attributes when the error is pickled from a Spark worker to the driver."""
        return type(self), (self.name, self.offset, self.reason)


class NoTableError(FormatError):
    """A file is no table: it is shorter than a footer, or its magic is of no known format."""
