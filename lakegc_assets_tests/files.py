"""Folders of files, as tests age and compare them."""

from __future__ import annotations

import os
import time
from pathlib import Path

_DAY = 86_400


def age(folder: Path, days: float) -> None:
    """Let all files of a folder be so old."""
    then = time.time() - days * _DAY
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, with their contents."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
