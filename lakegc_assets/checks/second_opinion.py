"""Second reads of lakeFS: commit logs, served addresses, spellings of addresses.

It shares neither the walk over commits nor the questions with the mark that it checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lakegc_assets.graveler.namespace import UnresolvableAddressError
from lakegc_assets.lakefs.calls import LARGEST_PAGE
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.reads import branch_ref
from lakegc_assets.retention.commits import Commit
from lakegc_assets.run.connections import Connections

_SMALLEST_PAGE = 16


def main_ancestries(
    client: LakeFSClient, repository: str, refs: Iterable[str]
) -> dict[str, Commit]:
    """The commits of the main ancestries of some commits, as the server's log lists them.

    ``refs``: ids of commits. Many branches may have one HEAD, or one that is an ancestor of
        another's: no log is asked for whose commits have been read.
    """
    commits: dict[str, Commit] = {}
    for ref in refs:
        if ref in commits:
            continue
        for found in client.log(repository, ref, first_parent=True):
            if found.id in commits:
                break
            commits[found.id] = Commit(
                id=found.id,
                parents=tuple(found.parents),
                creation_date=found.creation_date,
                metarange_id=found.meta_range_id,
                version=found.version,
            )
    return commits


def served_addresses(
    connections: Connections, repository: str, places: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """The physical addresses that lakeFS serves at some places, in every spelling.

    ``places``: branches and paths, in order.
    """
    served = _Served(connections.client(), repository)
    namespace = connections.namespace()
    for branch, path in places:
        found = served.address(branch, path)
        if found is None:
            continue
        yield found
        try:
            yield from as_paths(namespace.relatives(found))
        except UnresolvableAddressError as error:
            yield from sorted(error.last_components)


class _Served:
    """Asks for a path, and lists what follows it: as much as answered questions lately.

    A page tells what is served, never what is not: a path that no page showed is asked for.
    """

    def __init__(self, client: LakeFSClient, repository: str) -> None:
        self._client = client
        self._repository = repository
        self._branch = ""
        self._known: dict[str, str] = {}
        self._until = ""
        self._amount = _SMALLEST_PAGE
        self._answered = 0

    def address(self, branch: str, path: str) -> str | None:
        """The physical address at a path of a branch; None where nothing is served."""
        if branch == self._branch and path <= self._until:
            known = self._known.get(path)
            self._answered += known is not None
            return known or self._asked(branch, path)
        found = self._asked(branch, path)
        self._turn(branch, path)
        return found

    def _asked(self, branch: str, path: str) -> str | None:
        try:
            return self._client.stat(self._repository, branch_ref(branch), path).physical_address
        except NotFoundError:
            return None

    def _turn(self, branch: str, path: str) -> None:
        factor = 2 if self._answered > 1 else 0.5
        self._amount = min(max(int(self._amount * factor), _SMALLEST_PAGE), LARGEST_PAGE)
        self._branch, self._answered = branch, 0
        try:
            objects, _ = self._client.objects_page(
                self._repository, branch_ref(branch), after=path, amount=self._amount
            )
        except NotFoundError:
            objects = []
        self._known = {o.path: o.physical_address for o in objects}
        self._until = max(self._known, default=path)


def as_paths(addresses: Iterable[str]) -> list[str]:
    """Relative addresses, and the paths that some stores take them for: ``data//a``, ``data/a``."""
    paths = []
    for address in addresses:
        parts: list[str] = []
        for part in re.split(r"[/\\]", address):
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                parts.append(part)
        paths += [address, "/".join(parts)]
    return paths
