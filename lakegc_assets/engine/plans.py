"""The cache of SQL that earlier processes have planned for relations, in the user's cache folder.

SQLFrame takes some 1.5 s of CPU for the relations of a collection, a fifth of the CPU time for a
small repository. A file belongs to one state of the code: its name is a digest of all modules of
this package and of the versions of the SQL libraries. It can be deleted without harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from inspect import unwrap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import duckdb

import lakegc_assets
from lakegc_assets import LOADED_AT
from lakegc_assets.engine.folders import cache_folder
from lakegc_assets.engine.package_code import modules_digest, package_folder

#: Most plans in a cache; a plan has some kilobytes.
_MOST: Final = 1_000
_PREFIX: Final = "plans-"
#: Seconds without an addition after which a file is taken for one of old code: 30 days.
_UNUSED_S: Final = 30 * 86_400


@dataclass(frozen=True)
class Query:
    """A query with a name.

    Attributes:
        name: its name in other queries.
        sql: its SQL, which may name other queries; None for rows of this process, which are
            registered in DuckDB under the name.
        columns: names and DuckDB's types.
    """

    name: str
    sql: str | None
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """A planned relation for some arguments: its SQL and its columns.

    Attributes:
        inputs: names of the queries of its frames.
        queries: the queries that it made, in order.
        result: name of the query of its result.
    """

    inputs: Sequence[str]
    queries: Sequence[Query]
    result: str


class PlanCache:
    """Plans by relation and arguments, from this process and from others with the same code.

    Args:
        file: the file of the lasting plans; None for plans of this process only.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._plans: dict[Hashable, Plan] = {}
        self._kept = _read(file)
        self._new: dict[str, dict[str, Any]] = {}

    def get(self, rule: Callable[..., Any], arguments: Hashable) -> Plan | None:
        """Return the plan of a relation for some arguments, or None.

        ``arguments``: equal, with an equal ``repr``, for calls with the same plan.
        """
        plan = self._plans.get((rule, arguments))
        if plan is None and (kept := self._kept.get(_lasting_key(rule, arguments))):
            plan = self._plans[rule, arguments] = _plan_of(kept)
        return plan

    def add(self, rule: Callable[..., Any], arguments: Hashable, plan: Plan) -> None:
        """Add a plan; see ``get``."""
        if len(self._plans) >= _MOST:
            self._plans.clear()
        self._plans[rule, arguments] = plan
        if key := _lasting_key(rule, arguments):
            self._new[key] = asdict(plan)

    def save(self) -> None:
        """Write the new plans to the file, together with other processes' plans."""
        # Modules loaded since may be newer than the code in the file's name.
        if self._file is None or not self._new or _is_changed():
            return
        kept = _read(self._file) | self._new
        body = json.dumps(self._new if len(kept) > _MOST else kept)
        self._new = {}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A kill may leave this temporary file, which is later removed as unused.
            with NamedTemporaryFile(
                "w", dir=self._file.parent, prefix=_PREFIX, delete=False
            ) as written:
                written.write(f"{_digest(body)}\n{body}")
            Path(written.name).replace(self._file)
            for other in self._file.parent.glob(f"{_PREFIX}*"):
                if other != self._file and other.stat().st_mtime < time.time() - _UNUSED_S:
                    other.unlink(missing_ok=True)


def plans_file() -> Path | None:
    """Return the file of plans for the code of this process; None if that is unknown.

    A module file that is newer than the loading may differ from the loaded code.
    """
    folder = cache_folder()
    if folder is None or _is_changed():
        return None
    versions = (sys.version, duckdb.__version__, version("sqlframe"), version("sqlglot"))
    try:
        made_of = repr((*versions, modules_digest(package_folder())))
    except OSError:
        return None
    return folder / f"{_PREFIX}{_digest(made_of)[:32]}.json"


def _is_changed() -> bool:
    """Return True if a module file is newer than the loading, or if that is unknown."""
    try:
        times = [_time(module) for module in package_folder().rglob("*.py")]
    except OSError:
        # A module file is missing during its replacement.
        return True
    return not times or max(times) >= LOADED_AT


def _time(file: Path) -> float:
    status = file.stat()
    return max(status.st_mtime, status.st_ctime)


def _read(file: Path | None) -> dict[str, Any]:
    """Read the plans of a file; none if it is missing, damaged, or writable by other users."""
    if file is None:
        return {}
    try:
        with file.open(encoding="utf-8") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return {}
            digest, _, body = opened.read().partition("\n")
    except (OSError, UnicodeError):
        return {}
    plans: dict[str, Any] = json.loads(body) if digest == _digest(body) else {}
    return plans


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _lasting_key(rule: Callable[..., Any], arguments: Hashable) -> str:
    """Return a key for other processes; empty unless it is a module's function of this package."""
    module = rule.__module__
    found = getattr(sys.modules.get(module), rule.__qualname__, None)
    ours = module.startswith(f"{lakegc_assets.__name__}.")
    if not ours or found is None or unwrap(found) is not rule:
        return ""
    return f"{module}.{rule.__qualname__}{arguments!r}"


def _plan_of(kept: dict[str, Any]) -> Plan:
    queries = [
        Query(one["name"], one["sql"], tuple((name, kind) for name, kind in one["columns"]))
        for one in kept["queries"]
    ]
    return Plan(kept["inputs"], queries, kept["result"])
