"""Tests use the public names of other modules: behind an underscore anything may change.

What a test must reach, a batch size or the step before which a process dies, has a public name with
a meaning of its own. Some things of libraries have no public name; each of these has its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

_PROJECT: Final = Path(__file__).parents[1]
_OURS: Final = ("lakegc_assets", "lakegc_assets_tests", "bench", "examples")
_PRIVATE: Final = re.compile(r"_(?!_)\w+")
_DOTTED: Final = re.compile(r"[a-zA-Z]\w*(\.\w+)+")
#: A name, or a step that a test lets a process die at.
_NAMED: Final = re.compile(r"(?:(?:before|after) )?(_(?!_)\w+)")
#: Public all the same: those of named tuples, and of ``os``.
_PUBLIC: Final = {"_replace", "_asdict", "_fields", "_make", "_exit"}
#: Folders, which some private names are called after.
_FOLDERS: Final = {"_cache", "_compared", "_lakefs"}
#: Kinds of nodes that define a name, or may name one.
_NAMING: Final = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom,
    ast.Name, ast.Attribute, ast.Constant, ast.JoinedStr,
)  # fmt: skip
_DAEMON: Final = "what only Dagster's daemon writes, in a test that stands for it"
_LAUNCHED: Final = "a run as the process executes it that Dagster launches"
_SQLITE: Final = "the same SQL is compiled once"
#: Modules and names of libraries for which there is nothing public, and what they are used for.
_KNOWN: Final = {
    "dagster._config.pythonic_config.config": "schemas of resources are inferred once",
    "dagster._config.pythonic_config.resource": "where that is replaced",
    "dagster._core.definitions.job_base": _LAUNCHED,
    "dagster._core.definitions.run_request": _DAEMON,
    "dagster._core.execution.api": _LAUNCHED,
    "dagster._core.execution.backfill": "what only Dagster's pages write",
    "dagster._core.execution.plan.objects": _DAEMON,
    "dagster._core.remote_origin": _DAEMON,
    "dagster._core.scheduler.instigation": _DAEMON,
    "dagster._core.snap.snap_to_yaml": "what the Launchpad fills in",
    "dagster._core.storage.event_log.sqlite": _SQLITE,
    "dagster._core.storage.runs.sqlite": _SQLITE,
    "dagster._core.storage.schedules.sqlite": _SQLITE,
    "dagster._core.types.loadable_target_origin": _DAEMON,
    "dagster._daemon.monitoring": "the end of runs that take too long",
    "_bucket_response_delete_keys": "moto's answer to a bulk delete, of which a part is refused",
    "_cache": "botocore's descriptions of services are read once",
    "_code_location_origin": "that of a sensor's context, which nothing offered to tests takes",
    "_instance": "that of Dagster Pipes, in a process that a test stands for",
    "_jvm": "the process id of Spark's JVM",
    "_time_fetcher": "the clock by which botocore's credentials expire",
}


def _defined(nodes: Sequence[ast.AST]) -> set[str]:
    """What a module defines: functions, classes, variables, and attributes of ``self``."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            found.add(node.attr)
    return found


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def _private(nodes: Sequence[ast.AST], ours: AbstractSet[str]) -> Iterator[tuple[int, str]]:
    """The lines of a module that name what is private elsewhere, and the names.

    ``ours``: private names of our own modules, which are found as strings, too.
    """
    own = _defined(nodes)
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {a.asname or a.name.split(".")[0] for node in imports for a in node.names}
    in_texts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for one in imports:
        yield from ((one.lineno, name) for name in _imports_of(one) if _hides(name))
    for node in nodes:
        if isinstance(node, ast.Attribute) and _hides(node.attr):
            of_module = isinstance(node.value, ast.Name) and node.value.id in imported
            if of_module or node.attr not in own:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and node not in in_texts:
            name = _spelled(str(node.value), own, ours)
            yield from [(node.lineno, name)] if name else ()


def _imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules that an import is of, and private names of them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        yield node.module or ""
        names = (alias.name for alias in node.names if _PRIVATE.fullmatch(alias.name))
        yield from (f"{node.module}.{name}" for name in names if not _hides(node.module or ""))


def _nodes(source: str) -> list[ast.AST]:
    """The nodes of a module that may name something; all of them are many times as many."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, _NAMING)]


def _hides(dotted: str) -> bool:
    return any(_PRIVATE.fullmatch(part) and part not in _PUBLIC for part in dotted.split("."))


def _spelled(text: str, own: AbstractSet[str], ours: AbstractSet[str]) -> str:
    """The private name that a string is; empty for any other."""
    if _DOTTED.fullmatch(text):
        return text if _hides(text) and find_spec(text.split(".", maxsplit=1)[0]) else ""
    name = _NAMED.fullmatch(text)
    if not name or name[1] in own or name[1] not in ours - _FOLDERS:
        return ""
    return name[1]


def _known(name: str, known: Mapping[str, str]) -> str:
    """The entry of the known that a name belongs to; empty for none."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((each for each in (*prefixes, parts[-1]) if each in known), "")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from lakegc_assets.sweep.lease import _look", ["lakegc_assets.sweep.lease._look"]),
        ("from dagster._core import events", ["dagster._core"]),
        ("import dagster._core", ["dagster._core"]),
        ("lease._look()", ["_look"]),
        ("open_store(url)._root.path", ["_root"]),
        ("from a import lease\nlease._look\ndef _look(): ...", ["_look"]),
        ("def _look(): ...\nclass A:\n  def _see(self): ...\nA._see\nself._see", []),
        ("class A(Lease):\n  def see(self): self._look()", ["_look"]),
        ("patch('lakegc_assets.sweep.lease._look')", ["lakegc_assets.sweep.lease._look"]),
        ("(lease, '_look')", ["_look"]),
        ("'before _look'", ["_look"]),
        ("store.put('_lakefs/_look', b'')\nf'{x}_look'\n'a._look'\n'_unknown'", []),
        ("one._replace(a=1)\nos._exit(1)", []),
    ],
)
def test_private_names_of_other_modules_are_found(source: str, found: list[str]) -> None:
    assert [name for _line, name in _private(_nodes(source), {"_look", "_lakefs"})] == found


def test_no_test_names_what_is_private_elsewhere() -> None:
    modules = {
        path.relative_to(_PROJECT): _nodes(path.read_text(encoding="utf-8"))
        for package in _OURS
        for path in sorted((_PROJECT / package).rglob("*.py"))
    }
    names = set[str]().union(*map(_defined, modules.values()))
    ours = {name for name in names if _PRIVATE.fullmatch(name)}
    used, found = set(), []
    for path, nodes in modules.items():
        if path.parts[0] != "lakegc_assets_tests" or path.name == Path(__file__).name:
            continue
        for line, name in _private(nodes, ours):
            if known := _known(name, _KNOWN):
                used.add(known)
            else:
                found.append(f"{path}:{line} names {name}")
    assert not found, "give it a public name, or test what is public"
    assert used == _KNOWN.keys()
