"""What the lease of a repository says, where it is, and what stands beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lakegc_assets.errors import IntegrityError

#: Below the namespace: what sweeps, backups and restores tell each other. No mark names it.
FOLDER: Final = "_lakefs/retention/gc/lakegc/"
LEASE: Final = f"{FOLDER}lease.json"
#: Objects that are written to see what a store does with them.
PROBES: Final = f"{FOLDER}probe-"


@dataclass(frozen=True)
class LeaseRecord:
    """What the lease object says.

    Attributes:
        token: random; that of the owner.
        owner: who that is, for people: host, user, pid, command, repository, run and the like.
        expires: by the store's clock, UTC.
        renewed: how often it was written, so that no two of its contents are equal.
        round: which round of its sweep may delete; tasks of an earlier one must not.
        released: whether its owner has given it back.
    """

    token: str
    owner: Mapping[str, str]
    expires: datetime
    renewed: int = 0
    round: int = 0
    released: bool = False

    def to_bytes(self) -> bytes:
        """As it is stored: JSON."""
        values = self.__dict__ | {"expires": self.expires.isoformat()}
        return json.dumps(values, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> LeaseRecord:
        """Read a stored lease.

        Raises:
            IntegrityError: it is damaged.
        """
        try:
            values = json.loads(data)
            expires = datetime.fromisoformat(values["expires"])
            whole = (
                isinstance(values["token"], str)
                and values["token"]
                and isinstance(values["owner"], dict)
                and all(type(values[name]) is int for name in ("renewed", "round"))
                and type(values["released"]) is bool
                and expires.tzinfo is not None
            )
            if not whole:
                raise ValueError("it is not a lease")  # noqa: TRY301 - it is damage
            return cls(**(values | {"expires": expires}))
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"{where} is damaged ({error}): nobody can tell who sweeps this repository. Make "
                "sure that nobody does, then remove it",
            ) from error

    def __str__(self) -> str:
        """The owner and the expiry, for messages."""
        owner = ", ".join(f"{name} {value}" for name, value in self.owner.items())
        return f"{owner}, until {self.expires.isoformat(timespec='seconds')} unless it is renewed"


def sweep_of(token: str) -> str:
    """The short name of what is done under the lease with this token."""
    return token[:16]
