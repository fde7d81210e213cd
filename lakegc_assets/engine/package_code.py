"""The code of this package, by which a task knows whether it runs that of who has started it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import lakegc_assets
from lakegc_assets.errors import ConfigurationError


def package_folder() -> Path:
    """The folder of this package."""
    return Path(lakegc_assets.__file__).parent


def modules_digest(package: Path) -> str:
    """The SHA-256 of all modules below a folder, with their names; OSError if one has gone."""
    found = hashlib.sha256()
    for module in sorted(package.rglob("*.py")):
        found.update(f"{module.relative_to(package)}\0".encode())
        found.update(hashlib.sha256(module.read_bytes()).digest())
    return found.hexdigest()


@cache
def package_digest() -> str:
    """The digest of this package, as it was when this process first asked for it.

    What is put in its place later is not what this process has loaded.
    """
    return modules_digest(package_folder())


def require_code(digest: str) -> None:
    """Require that this process runs the code of the one that has started its task.

    Args:
        digest: of that; empty where both run the same files.

    Raises:
        ConfigurationError: it runs another: it might delete by other rules.
    """
    if digest and digest != package_digest():
        raise ConfigurationError(
            f"a task runs another lakegc_assets, that of {package_folder()}, than the process that "
            "has started it: install none while a run goes on, and let the nodes of a cluster have "
            "none of their own, or the very same. See docs/clusters.md"
        )
