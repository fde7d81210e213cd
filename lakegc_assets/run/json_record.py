"""Records that are stored as JSON objects, and read strictly: dataclasses of plain values.

A record is often all that is known of what it tells. One that lacks a field, has another one, or
holds a value of another type is damaged, and nothing is taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError
from typing_extensions import Self

from lakegc_assets.errors import IntegrityError

#: Raised by what parses JSON, and takes values out of it, where these are not what was written:
#: others may have nested them more deeply than Python reads.
DAMAGE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    return moment


#: A time with its zone, stored as ISO 8601.
Moment = Annotated[datetime, PlainValidator(_moment)]


@dataclass(frozen=True)
class JsonRecord:
    """Base of records, each of which says as ``damaged`` what follows and what is to be done."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")
    _damaged: ClassVar[str]

    def __init_subclass__(cls, damaged: str) -> None:
        cls._damaged = damaged

    def to_bytes(self) -> bytes:
        """As it is stored: JSON with sorted keys."""
        text = json.dumps(self, sort_keys=True, ensure_ascii=False, default=_plain)
        # A command line may hold what is no text, and would be no JSON.
        return text.encode(errors="replace")

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read a stored record; ``where`` it is stored is for messages.

        Raises:
            IntegrityError: it is damaged, or of another version.
        """
        try:
            values = json.loads(data)
            cls._require_version(values, where)
            if lacking := {one.name for one in fields(cls)}.difference(values):
                raise ValueError(f"no {', '.join(sorted(lacking))}")
            # Earlier versions wrote what is no text as it was, which pydantic does not read.
            text = json.dumps(values, ensure_ascii=False).encode(errors="replace")
            # Mypy takes the hash of its instances for that of a class.
            record: Self = _adapter(cls).validate_json(text)  # type: ignore[arg-type]
        except DAMAGE as error:
            raise IntegrityError(f"{where} is damaged ({_said(error)}): {cls._damaged}") from error
        return record

    @classmethod
    def _require_version(cls, values: Mapping[str, Any], where: str) -> None:
        """Refuse a record of another version: these may have other fields."""


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field, and what JSON has for it
    """A time as text, or the fields of a dataclass; ``asdict`` would copy all that is below it."""
    if isinstance(value, datetime):
        return value.isoformat()
    return {one.name: getattr(value, one.name) for one in fields(value)}


@cache
def _adapter(kind: type[JsonRecord]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _said(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join([*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")])
