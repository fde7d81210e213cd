"""Reads a component from the file that Dagster loads it from, for the command line."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

import dagster as dg
import pydantic
import yaml

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.errors import ConfigurationError

#: Separates the path from the name of a component, if there are several.
_SEPARATOR: Final = "#"
_FILES: Final = ("defs.yaml", "component.yaml")
_KIND: Final = "lakegc_assets.GarbageCollection"


@lru_cache(maxsize=4)
def load(place: str) -> GarbageCollection:
    """The component of a file, or of the one file in a folder, at any depth.

    If there are several components, ``#`` and the name of one follow the path.

    Raises:
        ConfigurationError: there is no component, there are several, or it cannot be read.
    """
    path, separator, name = place, "", ""
    if not Path(place).exists() and _SEPARATOR in place:
        path, separator, name = place.rpartition(_SEPARATOR)
    where = Path(path)
    if not where.exists():
        raise ConfigurationError(
            f"there is no file or folder {path}: correct --defs, or LAKEGC_DEFS if that names it"
        )
    try:
        found = _of_project(where) or _of_file(where)
        for one in found:
            # Fails if a translation or a subclass makes wrong assets.
            one.names()
    except Exception as error:
        raise ConfigurationError(
            f"the component at {path} cannot be loaded: {what_is_wrong(error)}"
        ) from error
    chosen = [one for one in found if not separator or (one.name or "") == name]
    if len(chosen) == 1:
        (one,) = chosen
        one.place = one.place or where
        return one
    said = f"there is no {_KIND} called {name!r}" if separator else f"there is no {_KIND}"
    if not chosen:
        raise ConfigurationError(f"{said} at {path}: name its defs.yaml, or a folder above it")
    names = [one.name or "" for one in chosen]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"there are {len(chosen)} components at {path} that no names tell apart: give each of "
            "them a `name` of its own (docs/automation.md, Several in one Dagster)"
        )
    some = ", ".join(f"{path}{_SEPARATOR}{one}" for one in names)
    raise ConfigurationError(f"there are {len(chosen)} components: choose one with --defs {some}")


def _of_project(where: Path) -> list[GarbageCollection]:
    """The components at a path, as Dagster loads their project; none outside of a project."""
    place = where.resolve()
    configs = [f / c for f in (place, *place.parents) for c in ("dg.toml", "pyproject.toml")]
    config = next(filter(Path.is_file, configs), None)
    if config is None:
        return []
    root, python = config.parent, config.parent / "pyproject.toml"
    if python.is_file() and "[tool.dg." not in python.read_text(encoding="utf-8"):
        return []
    # The project need not be installed.
    sys.path += [one for one in (str(root / "src"), str(root)) if one not in sys.path]
    return [
        one
        for one in dg.ComponentTree.for_project(root).get_all_components(GarbageCollection)
        if one.place is not None
        and (one.place.is_relative_to(place) or place in [one.place / name for name in _FILES])
    ]


def _of_file(where: Path) -> list[GarbageCollection]:
    """The components of a file alone, without the settings of a project around it."""
    files = [where] if where.is_file() else [f for f in map(where.joinpath, _FILES) if f.exists()]
    return [
        GarbageCollection.resolve_from_dict(document.get("attributes") or {})
        for file in files
        for document in yaml.safe_load_all(file.read_text())
        if isinstance(document, dict) and document.get("type") == _KIND
    ]


#: Parts of a path that are pydantic's own: models, and the choices of a union.
_OWN: Final = re.compile(
    r"\.(?:\w+Model|function-[^.]*\[.*?\]|tuple\[.*?\.\.\.\]|dict\[.*?\]|str|int|float|bool)"
    r"(?=\.|$)"
)
#: The message that Dagster shows below the lines of a file.
_NAMED: Final = re.compile(
    r"^(?:\w+Error: |Exception occurred in Resolver for .*\n)(.+)$", re.MULTILINE
)
_WORDS: Final = {
    "Extra inputs are not permitted": "there is no such field",
    # YAML reads yes, no, on, off and numbers as other types.
    "Input should be a valid string": "it must be text: write it in quotes",
    "Input should be a valid list": "it must be a list: write it as [a, b]",
}


def what_is_wrong(error: BaseException) -> str:
    """The first error of a chain, as one sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, pydantic.ValidationError):
        return _invalid(error)
    # Errors of rendered values come from Dagster with the traceback of pydantic's error.
    inner = error.__context__
    first, _, rest = str(error).strip().partition("\n")
    if isinstance(inner, pydantic.ValidationError):
        place, _, field = first.partition(" - ")
        return _invalid(inner, field.removeprefix("attributes."), place)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, in line {error.problem_mark.line + 1}"
    place, _, field = first.partition(" - ")
    if field and (named := _NAMED.findall(rest)):
        return _wrong(field.removeprefix("attributes."), named[-1], place)
    said = " ".join(f"{first} {rest.partition('Traceback')[0]}".split())
    return said or type(error).__name__


def _invalid(error: pydantic.ValidationError, within: str = "", place: str = "") -> str:
    """One sentence for each wrong field; for a union, pydantic reports each of its choices.

    ``within``: the field whose value is the model; or one of the wrong fields if the model is the
    whole file. ``place``: its file and line.
    """
    found: dict[str, str] = {}
    errors = error.errors(include_url=False)
    before = "" if within in {str(next(iter(one["loc"]), "")) for one in errors} else within
    for one in errors:
        path, _, at = ".".join(map(str, one["loc"])).partition(" at ")
        path = _OWN.sub("", f".{path.removeprefix('attributes.')}").lstrip(".")
        field = ".".join(filter(None, (before, path)))
        said = one["msg"].removeprefix("Value error, ")
        line = at or (place if field.startswith(within) else "")
        found.setdefault(field, _wrong(field or "attributes", _WORDS.get(said, said), line))
    # The second choice of a union is a template in text, which nobody meant.
    return "; ".join(
        said
        for field, said in found.items()
        if not any(other.startswith(f"{field}.") for other in found)
    )


def _wrong(field: str, said: str, place: str) -> str:
    line = f" ({place})" if place and not place.startswith("<") else ""
    return f"{field}: {said.removeprefix(field.rpartition('.')[2] + ': ')}{line}"
