"""The digest of this package's code, so that a task can compare it with its starter's code."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import lakegc_assets
from lakegc_assets.errors import ConfigurationError


def package_folder() -> Path:
    """Return the folder of this package."""
    return Path(lakegc_assets.__file__).parent


def modules_digest(package: Path) -> str:
    """Return the SHA-256 of all modules below a folder and their names; OSError if one is gone."""
    found = hashlib.sha256()
    for module in sorted(package.rglob("*.py")):
        found.update(f"{module.relative_to(package)}\0".encode())
        found.update(hashlib.sha256(module.read_bytes()).digest())
    return found.hexdigest()


@cache
def package_digest() -> str:
    """Return the digest of this package, computed once in a process.

    A later installation changes the files, but not the code that this process has loaded.
    """
    return modules_digest(package_folder())


def require_code(digest: str) -> None:
    """Require that this process runs the same code as the process that started its task.

    Args:
        digest: digest of the starter's code; empty if both run the same files.

    Raises:
        ConfigurationError: the code differs, and might delete by other rules.
    """
    if digest and digest != package_digest():
        raise ConfigurationError(
            f"a task runs another lakegc_assets (in {package_folder()}) than the process that "
            "started it: do not install the package while a run is in progress, and install no "
            "other version of it on the nodes of a cluster. See docs/clusters.md"
        )
