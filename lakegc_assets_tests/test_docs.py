"""Each file and module that the documents name is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakegc_assets

_ROOT = Path(lakegc_assets.__file__).parent.parent
_DOCUMENTS = [
    _ROOT / "README.md",
    _ROOT / "CONTRIBUTING.md",
    *sorted((_ROOT / "docs").rglob("*.md")),
]
_LINK = re.compile(r"\]\(([^)#\s]+)")
_PATH = re.compile(r"`((?:lakegc_assets|lakegc_assets_tests|bench|examples|tools)/[\w./-]+)`")
_MODULE = re.compile(r"\blakegc_assets(?:_tests)?(?:\.[a-z_]+)+\b")


def _named(document: Path) -> Iterator[Path]:
    text = document.read_text(encoding="utf-8")
    for link in _LINK.findall(text):
        if "://" not in link and not link.startswith("mailto:"):
            yield document.parent / link
    for path in _PATH.findall(text):
        yield _ROOT / path
    for module in _MODULE.findall(text):
        yield _ROOT.joinpath(*module.split("."))


def _is_there(path: Path) -> bool:
    """A module may be named with something in it."""
    modules = [path, *path.parents[:1]]
    return path.exists() or any(one.with_suffix(".py").exists() for one in modules)


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_what_documents_name_is_there(document: Path) -> None:
    assert [str(path) for path in _named(document) if not _is_there(path)] == []


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "[a](gone.md) `bench/gone.py` lakegc_assets.gone.at_all lakegc_assets.mark.explanation"
    )
    assert [path.name for path in _named(document) if not _is_there(path)] == [
        "gone.md", "gone.py", "at_all"
    ]  # fmt: skip
