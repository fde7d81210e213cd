"""The checks share neither readers, relations, hashes nor sets with the mark."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import lakegc_assets

PACKAGE = Path(lakegc_assets.__file__).parent
CHECKS = list((PACKAGE / "checks").glob("*.py"))
SECOND = [
    *(f"checks.{name}" for name in sorted(path.stem for path in CHECKS if path.stem != "__init__")),
    "retention.naive_active_commits",
    "graveler.sstable",
    "graveler.entry",
    "graveler.ranges",
]
FAST = {
    *(f"mark.{path.stem}" for path in (PACKAGE / "mark").glob("*.py")),
    "graveler.decode",
    "graveler.decode_kernels",
    "retention.active_commits",
    "retention.retained_commits",
    "retention.union",
}


@cache
def imported(module: str) -> frozenset[str]:
    """Modules of this package that a module names in an import, in functions too."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = {name.removeprefix("lakegc_assets.") for name in names if "lakegc_assets." in name}
    return frozenset(n for n in found if (PACKAGE / f"{n.replace('.', '/')}.py").is_file())


def reached(module: str) -> set[str]:
    found: set[str] = set()
    waiting = {module}
    while waiting:
        found |= waiting
        waiting = {name for each in waiting for name in imported(each)} - found
    return found


@pytest.mark.parametrize("module", SECOND)
def test_the_second_opinion_shares_nothing_with_the_mark(module: str) -> None:
    assert reached(module) & FAST == set()


def test_the_walk_over_imports_sees_what_is_there() -> None:
    read = {"graveler.decode", "graveler.decode_kernels", "mark.ranges"}
    assert reached("mark.served_candidates") >= read
    assert {m for m in FAST if (PACKAGE / f"{m.replace('.', '/')}.py").is_file()} == FAST
    assert len(SECOND) > 10


OWN = [name for name in SECOND if name.startswith("checks.")]


@pytest.mark.parametrize("module", OWN)
def test_the_checks_compare_whole_addresses_by_relations_of_their_own(module: str) -> None:
    """What all stages stand on may use hashes; what the checks compare is never made with them."""
    used = imported(module)
    assert used & {"run.hashing"} == set()
    of_others = {name for name in used if name.endswith("relations")}
    assert of_others <= {"checks.relations"}


def test_the_relations_of_the_checks_use_nothing_but_the_engine() -> None:
    assert imported("checks.relations") == {"engine.relation"}
    assert any("checks.relations" in imported(module) for module in OWN)
