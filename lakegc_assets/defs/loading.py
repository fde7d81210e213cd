"""Reads a component from the file that Dagster loads it from, for the command line."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

import dagster as dg
import yaml

from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets.defs.file_errors import what_is_wrong
from lakegc_assets.errors import ConfigurationError

#: Behind the path, where there are several components: the name of one.
_SEPARATOR: Final = "#"
_FILES: Final = ("defs.yaml", "component.yaml")
_KIND: Final = "lakegc_assets.GarbageCollection"


@lru_cache(maxsize=4)
def load(place: str) -> GarbageCollection:
    """The component of a file.

    Args:
        place: path of the file, or of a folder that holds it, in whatever depth; where there are
            several, ``#`` and the name of the component follow.

    Raises:
        ConfigurationError: there is none, there are several, or it cannot be read.
    """
    path, separator, name = place, "", ""
    if not Path(place).exists() and _SEPARATOR in place:
        path, separator, name = place.rpartition(_SEPARATOR)
    where = Path(path)
    if not where.exists():
        raise ConfigurationError(f"there is no file or folder {path}: --defs names it")
    try:
        found = _of_project(where) or _of_file(where)
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
    if chosen:
        some = ", ".join(f"{path}{_SEPARATOR}{one.name or ''}" for one in chosen)
        said = f"there are {len(chosen)} components, so say which: --defs {some}"
    raise ConfigurationError(f"{said} at {path}" if not chosen else said)


def _of_project(where: Path) -> list[GarbageCollection]:
    """Those at a path of a project, as Dagster loads them; none where it is of no project."""
    place = where.resolve()
    root = next((folder for folder in (place, *place.parents) if _has_config(folder)), None)
    if root is None or not _is_project(root):
        return []
    # It need not be installed to be looked at.
    sys.path += [one for one in (str(root / "src"), str(root)) if one not in sys.path]
    return [
        one
        for one in dg.ComponentTree.for_project(root).get_all_components(GarbageCollection)
        if one.place is not None
        and (one.place.is_relative_to(place) or place in _files_of(one.place))
    ]


def _has_config(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("dg.toml", "pyproject.toml"))


def _is_project(folder: Path) -> bool:
    config = folder / "pyproject.toml"
    return not config.is_file() or "[tool.dg." in config.read_text(encoding="utf-8")


def _files_of(folder: Path) -> list[Path]:
    return [folder / name for name in _FILES]


def _of_file(where: Path) -> list[GarbageCollection]:
    """Those of a file by itself, and of nothing that the project around it gives to its files."""
    files = [where] if where.is_file() else [f for f in _files_of(where) if f.exists()]
    return [
        GarbageCollection.resolve_from_dict(document.get("attributes") or {})
        for file in files
        for document in yaml.safe_load_all(file.read_text())
        if isinstance(document, dict) and document.get("type") == _KIND
    ]
