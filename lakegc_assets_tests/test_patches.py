"""Tests replace names that the code under test owns, never what the whole process shares.

Another thread, as of a server that a test before has not ended yet, calls ``time.sleep`` and
``os.fsync`` too: it would be counted, or made to fail, in a test that has nothing to do with it. So
a module imports what tests replace by name (``from time import sleep``), and they replace that.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator, Sequence
from inspect import isclass, ismodule
from pathlib import Path
from typing import Final

import pytest

import lakegc_assets_tests

_OURS: Final = ("lakegc_assets", "lakegc_assets_tests", "bench", "examples")
#: Calls of ``pytest.MonkeyPatch`` and ``mock.patch`` that replace an attribute.
_REPLACING: Final = re.compile(r"(.*\.)?\w*patch\w*\.(setattr|delattr|object)|(mock\.)?patch")
#: How the names of such calls end: to look at that is quicker.
_ENDS: Final = {"setattr", "delattr", "object", "patch"}
_DOTTED: Final = re.compile(r"\w+(\.\w+)+")
#: What of libraries is replaced knowingly: it behaves the same for whoever else calls it, or is
#: called by one thread only.
_KNOWN: Final = {
    "alembic.script.base.ScriptDirectory.from_config": "reads the same migrations once",
    "botocore.retries.standard.ExponentialBackoff.delay_amount": "shorter pauses",
    "botocore.session.create_loader": "reads the same files once",
    **dict.fromkeys(
        (
            "dagster._core.storage.event_log.sqlite.sqlite_event_log.create_engine",
            "dagster._core.storage.runs.sqlite.sqlite_run_storage.create_engine",
            "dagster._core.storage.schedules.sqlite.sqlite_schedule_storage.create_engine",
        ),
        "compiles the same SQL once",
    ),
    "dagster._config.pythonic_config.resource.infer_schema_from_config_class": "remembers",
    "dagster._daemon.monitoring.run_monitoring.get_current_timestamp": "of a daemon's iteration",
    "dagster_pipes.PipesContext._instance": "that of the process that a test stands for",
    "moto.core.serialize.parse_to_aware_datetime": "remembers",
    "moto.moto_server.werkzeug_app.DomainDispatcherApplication.get_backend_for_host": "remembers",
    "moto.s3.responses.S3Response._bucket_response_delete_keys": "of the test's server",
    "moto.s3.responses.S3Response.put_object": "checks and writes in one step",
    "pyspark.util.local_connect_and_auth": "of the thread that waits for the test's job",
    "sqlframe.base.dataframe.zlib": "worse names for parts of a plan",
    "uvicorn.server.asyncio": "shorter pauses",
}


def _imported(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """The names that imports bind anywhere in a module, and what each stands for."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                found[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _spelled(node: ast.expr, imported: dict[str, str]) -> str | None:
    """The dotted name that an expression of imported names stands for; None for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if _DOTTED.fullmatch(node.value) else None
    if isinstance(node, ast.Attribute):
        of = _spelled(node.value, imported)
        return None if of is None else f"{of}.{node.attr}"
    return imported.get(node.id) if isinstance(node, ast.Name) else None


def _replaced(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines that replace an attribute, and the dotted names by which they do."""
    nodes = list(ast.walk(tree))
    imported = _imported(nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            if not _is_replacing(node.func):
                continue
            owner = _spelled(node.args[0], imported)
            if owner is not None and isinstance(node.args[0], ast.Constant):
                yield node.lineno, owner
            elif owner is not None:
                names = [str(arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
                yield node.lineno, f"{owner}.{''.join(names) or '*'}"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and (name := _spelled(target, imported)):
                    yield node.lineno, name


def _is_replacing(called: ast.expr) -> bool:
    end = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return end in _ENDS and _REPLACING.fullmatch(ast.unparse(called)) is not None


def _owned(dotted: str) -> str:
    """An attribute of a module or a class by the owner's own name; empty for any other name.

    So it is where a fixture that is imported has the name of an argument, and where an import is
    relative, hence ours.
    """
    path, _, name = dotted.rpartition(".")
    try:
        owner = pkgutil.resolve_name(path)
    except (AttributeError, ImportError):
        return ""
    if isclass(owner):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}" if ismodule(owner) else ""


def _offences(source: str) -> list[tuple[int, str]]:
    """What a test replaces that belongs neither to us nor to the known."""
    found = ((line, _owned(dotted)) for line, dotted in _replaced(ast.parse(source)))
    return [
        (line, name)
        for line, name in found
        if name and name.split(".")[0] not in _OURS and name not in _KNOWN
    ]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("import time\nmonkeypatch.setattr(time, 'sleep', print)", ["time.sleep"]),
        ("import os\nwith mock.patch.object(os, name): ...", ["os.*"]),
        ("patch('lakegc_assets.storage.files.os.link')", ["os.link"]),
        ("from lakegc_assets.run import lock\npatch.setattr(lock.os, 'link', 1)", ["os.link"]),
        ("import tempfile\ntempfile.tempdir = None", ["tempfile.tempdir"]),
        ("from socket import socket\nsocket.send = print", ["socket.socket.send"]),
        ("patch.setattr('lakegc_assets.storage.files.fsync', print)", []),
        ("from lakegc_assets.storage import files\npatch.setattr(files, 'fsync', print)", []),
    ],
)
def test_what_the_process_shares_is_told_from_what_a_module_owns(
    statement: str, found: list[str]
) -> None:
    assert [name for _line, name in _offences(statement)] == found


def test_no_test_replaces_what_the_whole_process_shares() -> None:
    folder = Path(lakegc_assets_tests.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{line} replaces {name}"
        for path in sorted(folder.rglob("*.py"))
        for line, name in _offences(path.read_text(encoding="utf-8"))
    ]
    assert not found, "import it by name in the module under test, and replace that name"
