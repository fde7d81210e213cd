"""Records that are stored as JSON objects, and read strictly: dataclasses of plain values.

A record is often the only source of its facts. A record with a missing field, an unknown field, or
a value of another type is damaged, and nothing of it is used.
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

#: Errors of damaged JSON when it is parsed, and when values are taken from it. A foreign file may
#: be nested more deeply than Python reads.
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
    """Base of records; ``damaged`` names the consequence of damage, and the remedy."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")
    _damaged: ClassVar[str]

    def __init_subclass__(cls, damaged: str) -> None:
        cls._damaged = damaged

    def to_bytes(self) -> bytes:
        """Return the stored form: JSON with sorted keys."""
        text = json.dumps(self, sort_keys=True, ensure_ascii=False, default=_plain)
        # A command line may hold bytes that are no text, and so no JSON.
        return text.encode(errors="replace")

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """Read a stored record; ``where`` is its place, for messages.

        Raises:
            IntegrityError: it is damaged, or of another version.
        """
        try:
            values = json.loads(data)
            cls._require_version(values, where)
            if lacking := {item.name for item in fields(cls)}.difference(values):
                raise ValueError(f"no {', '.join(sorted(lacking))}")
            # Earlier versions wrote such bytes unchanged, and pydantic does not read them.
            text = json.dumps(values, ensure_ascii=False).encode(errors="replace")
            # Mypy takes the hash of an instance for the hash of the class.
            record: Self = _adapter(cls).validate_json(text)  # type: ignore[arg-type]
        except DAMAGE as error:
            raise IntegrityError(
                f"{where} is damaged ({_text_of(error)}): {cls._damaged}"
            ) from error
        return record

    @classmethod
    def _require_version(cls, values: Mapping[str, Any], where: str) -> None:
        """Refuse a record of another version, which may have other fields."""


def _plain(value: Any) -> Any:  # noqa: ANN401 - any field, and what JSON has for it
    """Return a time as text, or a dataclass as its fields; ``asdict`` would copy all values."""
    if isinstance(value, datetime):
        return value.isoformat()
    return {item.name: getattr(value, item.name) for item in fields(value)}


@cache
def _adapter(kind: type[JsonRecord]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _text_of(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        name = ".".join(map(str, first["loc"]))
        return f"{name} is unknown here: if a later version of lakegc wrote it, update lakegc"
    return ": ".join([*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")])
