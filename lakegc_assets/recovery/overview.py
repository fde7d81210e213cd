"""The backups at a place, in whatever state they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakegc_assets.errors import IntegrityError
from lakegc_assets.recovery.backups import (
    Record,
    State,
    folder_name,
    folder_url,
    read_state,
)
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store


@dataclass(frozen=True)
class Found:
    """A backup at a place, in whatever state.

    Attributes:
        store: rooted at its folder.
        record: what it says of itself; what its manifest said while it is being removed.
        state: whether it is finished.
    """

    store: ObjectStore
    record: Record
    state: State

    @property
    def name(self) -> str:
        """Name for people: the folder, since a copied folder is a second backup of a mark."""
        return folder_name(self.store.url)

    @property
    def copy_of(self) -> str:
        """Name of the backup that was copied or moved to this folder; empty where none was."""
        subject = self.record.subject
        made = f"{subject.repository}/{subject.run}"
        return "" if made == self.name else made


@dataclass(frozen=True)
class Damaged:
    """A backup that says nothing of itself that can be read.

    Attributes:
        repository: whose folder it is in.
        run: likewise.
        url: of its folder.
        error: what is wrong with it.
    """

    repository: str
    run: str
    url: str
    error: IntegrityError


def backups_at(stores: StoreConfig, backup_url: str) -> Iterator[Found | Damaged]:
    """The backups below ``backup_url``, by repository and run.

    Args:
        stores: how the store is reached.
        backup_url: the place of all backups.

    Raises:
        StorageError: the store does not tell.
    """
    place = open_store(backup_url, stores)
    for folder in place.list_prefixes().prefixes:
        repository = folder.rstrip("/")
        for below in place.list_prefixes(folder).prefixes:
            run = below.removeprefix(folder).rstrip("/")
            store = open_store(folder_url(backup_url, repository, run), stores)
            try:
                found = found_at(store)
            except IntegrityError as error:
                yield Damaged(repository, run, store.url, error)
                continue
            if found is not None:
                yield found


def all_backups(stores: StoreConfig, backup_url: str) -> Iterator[Found]:
    """As ``backups_at``, where all of them can be read.

    Raises:
        IntegrityError: what one says of itself is damaged.
        StorageError: the store does not tell.
    """
    for found in backups_at(stores, backup_url):
        if isinstance(found, Damaged):
            raise found.error
        yield found


def found_at(store: ObjectStore) -> Found | None:
    """The backup in a folder; None where there is none.

    Args:
        store: rooted at the folder.

    Raises:
        IntegrityError: what it says of itself is damaged.
        StorageError: the store does not tell.
    """
    found = read_state(store)
    return None if found is None else Found(store, *found)
