"""Says in one sentence what is wrong in a component's file, where Dagster and pydantic use many."""

from __future__ import annotations

import re
from typing import Final

import pydantic
import yaml

#: Parts of a path that are pydantic's own: models, and the choices of a union.
_OWN: Final = re.compile(
    r"\.(?:\w+Model|function-[^.]*\[.*?\]|tuple\[.*?\.\.\.\]|str|int|float|bool)(?=\.|$)"
)
#: What Dagster shows below the lines of a file.
_NAMED: Final = re.compile(r"^\w+Error: (.+)$", re.MULTILINE)
_WORDS: Final = {"Extra inputs are not permitted": "there is no such field"}


def what_is_wrong(error: BaseException) -> str:
    """What was wrong at first, without the errors that are around it.

    Args:
        error: raised while a component was loaded.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, pydantic.ValidationError):
        return _invalid(error)
    # What shows only once a value is filled in Dagster tells with the trace of pydantic's error.
    inner = error.__context__
    first, _, rest = str(error).strip().partition("\n")
    if isinstance(inner, pydantic.ValidationError):
        place, _, field = first.partition(" - ")
        return _invalid(inner, field.removeprefix("attributes."), place)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, in line {error.problem_mark.line + 1}"
    place, _, field = first.partition(" - ")
    if field and (named := _NAMED.findall(rest)):
        return _told(field.removeprefix("attributes."), named[-1], place)
    said = " ".join(f"{first} {rest.partition('Traceback')[0]}".split())
    return said or type(error).__name__


def _invalid(error: pydantic.ValidationError, within: str = "", place: str = "") -> str:
    """What pydantic says, a field once: of a union it tells why each of its choices was none.

    Args:
        error: of a model.
        within: the field that the model is the value of.
        place: file and line of it.
    """
    found: dict[str, str] = {}
    for one in error.errors(include_url=False):
        path, _, at = ".".join(map(str, one["loc"])).partition(" at ")
        path = _OWN.sub("", f".{path.removeprefix('attributes.')}").lstrip(".")
        field = ".".join(filter(None, (within, path)))
        said = one["msg"].removeprefix("Value error, ")
        # Of a union's last choice, text that is to be filled in, nobody has thought.
        if not any(known.startswith(f"{field}.") for known in found):
            found.setdefault(
                field, _told(field or "attributes", _WORDS.get(said, said), at or place)
            )
    return "; ".join(found.values())


def _told(field: str, said: str, place: str) -> str:
    line = f" ({place})" if place and not place.startswith("<") else ""
    return f"{field}: {said}{line}"
