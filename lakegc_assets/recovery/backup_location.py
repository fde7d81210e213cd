"""Allows backups only outside of storage namespaces, of the artifacts and of other backups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lakegc_assets.errors import ConfigurationError, IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.recovery.backups import BEGIN, folder_url
from lakegc_assets.run.context import RunContext, overlap, placed
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.opening import open_store

#: Folder of ranges in every storage namespace that has a commit.
_LAKEFS: Final = "_lakefs/"


def require_free_places(ctx: RunContext) -> None:
    """Refuse ``backup_url`` or ``backup_log`` if it overlaps another place, or each other.

    Raises:
        ConfigurationError: a place overlaps, or is no URL of a store.
        IntegrityError: the location of a repository is unknown.
    """
    url, log = ctx.settings.backup_url, ctx.settings.backup_log
    for name, place in (("backup_url", url), ("backup_log", log)):
        if place is not None:
            _require_free(ctx, name, place)
            folder = folder_url(place, ctx.repository, ctx.run)
            # A symbolic link below the place may lead elsewhere.
            if not _within(*(placed(one, ctx.connections.stores) for one in (folder, place))):
                _require_free(ctx, f"{name}: the folder", folder)
    if url is not None and log is not None:
        places = (placed(place, ctx.connections.stores) for place in (url, log))
        if next(places).overlaps(next(places)):
            raise ConfigurationError(
                f"backup_log {log} and backup_url {url} overlap: logs would lie among the copies. "
                "Set backup_log to a folder outside of backup_url"
            )


def repository_at(
    repositories: Iterable[Repository], stores: StoreConfig, place: StorageNamespace
) -> Repository | None:
    """Return the repository whose namespace equals, contains or lies in a place; None for none.

    Raises IntegrityError: the location of a repository is unknown.
    """
    resolved = placed(place.url(), stores)
    for one in repositories:
        try:
            if overlap(place, one.storage_namespace) or resolved.overlaps(
                placed(one.storage_namespace, stores)
            ):
                return one
        except ConfigurationError as error:
            # A namespace of a kind unknown here cannot be at a place of a known kind.
            if place.is_same_kind(one.storage_namespace):
                raise IntegrityError(
                    f"it is not known whether {place.url()} lies in the storage namespace of "
                    f"repository {one.id!r} ({one.storage_namespace}): {error}. Delete that "
                    "repository if nobody needs it, or create it anew in a bucket that its "
                    "namespace names directly"
                ) from error
    return None


def overlapping(
    place: StorageNamespace, others: Iterable[tuple[str, str]], stores: StoreConfig
) -> str:
    """Return the first of other places (name and URL) that equals, contains or lies in a place.

    Returns:
        Name and URL in the form of error messages; empty for none.
    """
    resolved = placed(place.url(), stores)
    found = (f"{what} ({url})" for what, url in others if resolved.overlaps(placed(url, stores)))
    return next(found, "")


def _require_free(ctx: RunContext, name: str, url: str) -> None:
    """Refuse a place where copies would be collected, or would mix with other files."""
    try:
        place = placed(url, ctx.connections.stores)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name} cannot be used: {error}") from error
    if found := repository_at(ctx.client.repositories(), ctx.connections.stores, place):
        raise ConfigurationError(
            f"{name} {url} lies in the storage namespace of repository {found.id!r} "
            f"({found.storage_namespace}), or around it: copies there would be collected as "
            "garbage. Choose another place"
        )
    if place.overlaps(placed(ctx.root.url, ctx.connections.stores)):
        raise ConfigurationError(
            f"{name} {url} and the artifacts at {ctx.root.url} overlap: choose another place"
        )


def require_no_other_backup(store: ObjectStore, stores: StoreConfig) -> None:
    """Refuse the folder of a new backup if it is not empty, or lies in another backup.

    Refuse it in a storage namespace too: another server, unknown here, may use that namespace.

    Raises:
        ConfigurationError: the folder is one of these.
    """
    for above in _above(placed(store.url, stores)):
        # Credentials for one folder of the bucket cannot have written a backup around it.
        with suppress(AccessDeniedError):
            around = open_store(above.url(), stores)
            if around.exists(BEGIN):
                raise ConfigurationError(
                    f"{store.url} lies in the backup at {above.url()}: choose another backup_url"
                )
            if any(around.list_prefixes(_LAKEFS, max_objects=0)):
                raise ConfigurationError(
                    f"{store.url} lies in a storage namespace, perhaps of another lakeFS server: "
                    f"{above.url()}/{_LAKEFS} exists. Copies there would be collected as garbage: "
                    "choose another backup_url"
                )
    first = next(iter(store.list()), None)
    if first is not None:
        raise ConfigurationError(
            f"{store.url} is the place of a new backup, and is not empty: it holds "
            f"{first['key'][0].as_py()!r}, perhaps of another backup. Choose another backup_url, "
            "or remove these objects if nothing needs them"
        )


def _within(inner: StorageNamespace, outer: StorageNamespace) -> bool:
    return inner.overlaps(outer) and len(inner.prefix) >= len(outer.prefix)


def _above(place: StorageNamespace) -> Iterator[StorageNamespace]:
    prefix = place.prefix
    while prefix:
        prefix = prefix.rpartition("/")[0]
        yield replace(place, prefix=prefix)
