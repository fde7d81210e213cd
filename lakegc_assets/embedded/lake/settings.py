"""Settings of the embedded lakeFS, for trials and for tests that need small numbers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import time

from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.lake.layouts import Layout
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.config import StoreConfig


def _number(default: int, what: str) -> int:
    """A whole number of at least 1, which is also an option of the command."""
    found: int = field(default=default, metadata={"help": what})
    return found


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server process; the defaults are lakeFS's own.

    The declarations and the help of the command describe each number.

    Attributes:
        data_dir: directory of the state, and of the objects without a ``store``.
        store: ``s3://bucket[/prefix]`` below which repositories are, or None for local files.
        store_config: credentials and endpoint of the store.
        access_key: the one user's access key id.
        secret_key: its secret.
        clock: returns the server's time in epoch seconds. It also sets the ``Date`` headers and the
            time of objects in local files.
        layout: of repositories that are created without a layout of their own.
        uncommitted_page_steps: limit of entries and branches that one call of prepare_uncommited
            reads, or None for no limit.
        uncommitted_page_seconds: seconds after which a page of prepare_uncommited ends.
        at_scan_step: called with a branch's name before each step of prepare_uncommited on that
            branch; a test can change the branch at that moment.
        faults: behaviour of today's real lakeFS that endangers data and that this server copies.
    """

    data_dir: Path
    store: str | None = None
    store_config: StoreConfig = field(default_factory=StoreConfig)
    access_key: str = "AKIALAKEGCEMBEDDED"
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    clock: Callable[[], float] = time
    slice_max_age: int = _number(3600, "Seconds until a slice is replaced.")
    slice_max_objects: int = _number(50_000, "Objects until a slice is replaced.")
    range_raggedness: int = _number(
        50_000, "A range ends where a key's hash modulo this number is 0."
    )
    range_max_bytes: int = _number(
        20 * 1024 * 1024, "Bytes of keys and values at which a range ends."
    )
    layout: Layout = Layout.SLICES
    uncommitted_page_steps: int | None = None
    uncommitted_page_seconds: float = 60.0
    uncommitted_file_bytes: int = _number(
        20 * 1024 * 1024, "Bytes at which a page of prepare_uncommited, one file, is full."
    )
    at_scan_step: Callable[[str], None] = lambda _: None
    copies_kept: int = _number(
        7 * 24 * 3600,
        "Seconds for which prepare_uncommited lists a shallow copy; each run of it must end within "
        "half of that, so it must be far longer than the longest collection.",
    )
    max_upload_bytes: int = _number(
        1 << 30,
        "Bytes of the largest body and the largest object that the S3 gateway takes; it holds "
        "them in memory.",
    )
    grace_period: int = _number(
        24 * 3600, "Seconds for which an address that was handed out can be linked."
    )
    presign_seconds: int = _number(15 * 60, "Seconds for which a presigned URL can be used.")
    faults: frozenset[Fault] = frozenset()

    def __post_init__(self) -> None:
        """Refuse settings that the server cannot use.

        Raises:
            ConfigurationError: the store is not on S3; or a number that must be positive is not.
        """
        for name in self.numbers():
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: it must be 1 or more")
        if self.store and StorageNamespace.parse(self.store).scheme != "s3":
            raise ConfigurationError(
                f"the store {self.store!r} is not on S3; leave it out for objects in local files"
            )

    @classmethod
    def numbers(cls) -> dict[str, str]:
        """The settings that are whole numbers of at least 1, with the description of each."""
        return {each.name: each.metadata["help"] for each in fields(cls) if each.metadata}

    @property
    def blockstore_type(self) -> str:
        """``local`` or ``s3``, lakeFS's name of its block adapter."""
        return "s3" if self.store else "local"

    @property
    def objects_dir(self) -> Path:
        """The folder of ``local://`` namespaces."""
        return self.data_dir / "objects"
