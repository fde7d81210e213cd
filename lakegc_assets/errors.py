"""The errors that stop a run, in one tree.

* ``LakegcError``: every error that this package raises on purpose.

  * ``ConfigurationError``: a setting, a credential or a rule is wrong; nothing was started.
  * ``RefusedError``: the request contradicts itself, or a check refuses to go on.
  * ``IntegrityError``: a file or record that must be whole is missing, partial, damaged or
    inconsistent.

Packages derive their own errors from these; ``lakefs.errors`` and ``storage.errors`` list theirs. A
message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class LakegcError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        figures: the numbers that the message counts or compares, by name, as JSON values.
        transient: true where the same request may succeed later without any change: the server did
            not answer, or it is busy.
    """

    figures: Mapping[str, object] = MappingProxyType({})
    transient: bool = False


class ConfigurationError(LakegcError):
    """A setting, a credential or a rule is wrong; nothing was started."""


class RefusedError(LakegcError):
    """The request contradicts itself, or a check refuses to go on."""


class IntegrityError(LakegcError):
    """A file or record that must be whole is missing, partial, damaged or inconsistent."""


def out_of_memory() -> LakegcError:
    """The error that replaces a MemoryError, which ended a command or a step."""
    return LakegcError(
        "this process got no more memory: give the machine or its container more, or raise the "
        "limit of its address space (ulimit -v). A smaller embedded_memory lets joins spill to "
        "disk sooner. Then start the same run again"
    )


def kind_of(error: LakegcError) -> str:
    """The word that the command and Dagster print in front of the message of an error."""
    if isinstance(error, RefusedError):
        return "refused"
    return "configuration" if isinstance(error, ConfigurationError) else "failed"
