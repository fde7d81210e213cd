"""Writes a local file that somebody asked for: as a whole, in place of any other, or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.files import flush


def write_file(path: Path, content: bytes) -> None:
    """Write a file as a whole, in place of any other, or leave what is there.

    Raises:
        ConfigurationError: it cannot be written there.
    """
    path = path.resolve()
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise ConfigurationError(f"{path} is no file that could be replaced: name another")
        _replace(path, content)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error


def _replace(path: Path, content: bytes) -> None:
    name = path.parent / f".{path.name}-{secrets.token_hex(8)}"
    # As if it had been made in the usual way: others may read it, if they may.
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            flush(file.fileno())
        name.replace(path)
    except BaseException:
        with suppress(OSError):
            name.unlink()
        raise
