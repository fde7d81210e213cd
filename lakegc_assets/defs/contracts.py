"""The contract at the head of an asset's module, as the description that Dagster shows."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Final

_PARTS: Final = re.compile(r"^(?=(?:Reads|Writes|Guarantees): )", re.MULTILINE)


def contract(doc: str | None) -> str:
    """Markdown of what an asset is, reads, writes and guarantees.

    Args:
        doc: the docstring of its module: a line with its name and what it is, an empty one, and
            paragraphs that begin with ``Reads:``, ``Writes:`` and ``Guarantees:``.
    """
    head, _, rest = cleandoc(doc or "").replace("``", "`").partition("\n\n")
    what = head.partition(": ")[2]
    told = [" ".join(part.split()) for part in _PARTS.split(rest) if part.strip()]
    parts = (f"**{name}:** {said}" for name, _, said in (part.partition(": ") for part in told))
    return "\n\n".join((what[:1].upper() + what[1:], *parts))
