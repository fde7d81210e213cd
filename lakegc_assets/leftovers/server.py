"""The lakeFS server to search for leftovers, with access to its repositories and stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.recovery.backup_location import repository_at
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import RunContext
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store

#: The URL of the directory of a lakeFS with local storage, which is no namespace itself.
_LOCAL: Final = "local://"
_LOCAL_ROOT: Final = StorageNamespace("local", "", "")
_NOT_WHOLE: Final = (
    "the list of repositories is incomplete: these credentials need fs:ListRepositories on *"
)


@dataclass(frozen=True)
class Problem:
    """A repository, or the URL of a place, that could not be read, and the reason as a sentence."""

    where: str
    what: str


@contextmanager
def noting(problems: list[Problem], where: str, what: str = "") -> Iterator[None]:
    """Add an error of the block to ``problems``, prefixed with ``what``; go on after the block."""
    try:
        yield
    except LakegcError as error:
        problems.append(Problem(where, f"{what}{error}"))


@dataclass(frozen=True)
class Server:
    """A lakeFS server."""

    #: Root of the artifacts; it also has the settings of the stores.
    root: ArtifactRoot
    #: Returns the context of a repository, by its name.
    context: Callable[[str], RunContext]
    client: LakeFSClient
    #: URLs below which the server keeps storage namespaces.
    namespace_roots: Sequence[str] = ()

    def repositories(self) -> list[Repository]:
        """All repositories that the server lists now."""
        return list(self.client.repositories())

    def every_repository(self, names: Collection[str] = ()) -> list[Repository]:
        """All repositories, after a check that lakeFS hides none from this user.

        Each repository with artifacts, and each of ``names``, must be in the list, or must no
        longer exist.

        Raises:
            RefusedError: the list lacks a repository that exists or may exist, or it is empty.
            LakeFSError: the server does not answer whether a repository exists.
        """
        found = self.repositories()
        for name in sorted({*self.root.repositories(), *names} - {one.id for one in found}):
            if self.client.may_have_repository(name):
                raise RefusedError(f"{_NOT_WHOLE}. It lacks {name!r}, which may exist")
        if not found:
            raise RefusedError(f"{_NOT_WHOLE}. It is empty")
        return found

    def chosen(self, names: Sequence[str]) -> list[Repository]:
        """Repositories by their names; all for no names.

        Raises:
            ConfigurationError: the server has no repository of such a name.
        """
        found = self.repositories()
        if unknown := sorted(set(names) - {one.id for one in found}):
            raise ConfigurationError(
                f"there is no repository {unknown[0]!r}: `{command_line('repositories')}` lists "
                "them"
            )
        return [one for one in found if not names or one.id in names]

    def open(self, url: str) -> ObjectStore:
        """The store at a URL."""
        return open_store(url, self.root.stores)

    def root_at(self, url: str) -> StorageNamespace:
        """The place of a root.

        ``local://`` is the directory in which a lakeFS with local storage keeps all namespaces. A
        folder in that directory gets the name that lakeFS has for it, so that repositories there
        are recognized.

        Raises:
            ConfigurationError: it is not the URL of a place in a store.
        """
        local_root = self.root.stores.local_root
        if url == _LOCAL and local_root is not None:
            return _LOCAL_ROOT
        root = StorageNamespace.parse(url)
        if root.scheme == "file" and local_root is not None:
            folder = Path("/", root.prefix).resolve()
            kept = Path(local_root).resolve()
            if folder.is_relative_to(kept):
                parts = folder.relative_to(kept).parts
                return StorageNamespace("local", "".join(parts[:1]), "/".join(parts[1:]))
        return root

    def open_root(self, url: str) -> ObjectStore:
        """The store at a root."""
        root = self.root_at(url)
        if root == _LOCAL_ROOT:
            return self.open(str(self.root.stores.local_root))
        return self.open(root.url())

    def owner_of(
        self, place: StorageNamespace, repositories: Sequence[Repository]
    ) -> Repository | None:
        """The repository with its namespace at a place, in it or around it; None for none.

        Raises:
            IntegrityError: the namespace of a repository is not known.
        """
        return repository_at(repositories, self.root.stores, place)
