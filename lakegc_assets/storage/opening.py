"""Opens the object store at a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.local import LocalStore

#: End of the name of every S3 directory bucket, and of no other bucket.
_DIRECTORY_BUCKET: Final = "--x-s3"


def open_store(url: str, config: StoreConfig | None = None) -> ObjectStore:
    """The store at the URL of a bucket, container or directory, or of a prefix in one.

    Cheap: clients and connections are made at first use, once for a process and its settings.
    Raises ConfigurationError: the URL cannot be opened, or a setting is missing.
    """
    config = config or StoreConfig()
    if config.opener is not None:
        opened: ObjectStore = config.opener(url, config)
        return opened
    config = config.at(url)
    namespace = StorageNamespace.parse(url)
    # The imports of each store take longer than most work on local files.
    if namespace.scheme == "s3":
        if namespace.authority.endswith(_DIRECTORY_BUCKET):
            raise ConfigurationError(
                f"{url}: S3 lists a directory bucket in no order, and its etags do not show "
                "uploads in parts, so no listing of it can be trusted: use a general purpose bucket"
            )
        from lakegc_assets.storage.s3.store import S3Store  # noqa: PLC0415

        return S3Store(namespace, config)
    if namespace.scheme == "azure":
        from lakegc_assets.storage.azure.store import AzureStore  # noqa: PLC0415

        return AzureStore(namespace, config)
    if namespace.scheme == "gs":
        from lakegc_assets.storage.gcs.store import GcsStore  # noqa: PLC0415

        return GcsStore(namespace, config)
    if namespace.scheme == "file":
        return LocalStore(Path("/", namespace.prefix), namespace.url())
    if config.local_root is None:
        raise ConfigurationError(
            f"{url}: set local_root to the directory where the lakeFS server keeps "
            "local:// namespaces (its blockstore.local.path); no API has it"
        )
    root = Path(config.local_root)
    if not root.is_dir():
        raise ConfigurationError(f"{url}: local_root {root} is not a directory")
    return LocalStore(root / namespace.authority / namespace.prefix, namespace.url())
