"""Addresses that lakeFS serves where a HEAD has an entry that looks like a candidate.

Both the questions and the code that asks them are independent of the mark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final

import pyarrow as pa

from lakegc_assets.checks.live_set import as_paths, write_addresses
from lakegc_assets.checks.witness import paths_of
from lakegc_assets.engine.datasets import Part, read_part
from lakegc_assets.engine.ddl import schema
from lakegc_assets.graveler.namespace import UnresolvableAddressError
from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.transport import LARGEST_PAGE
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.scratch import Folder

#: Columns of a question: the number of an entry in a range, and a branch whose HEAD holds it.
QUESTIONS: Final = schema("range_id string, branch string, number bigint")
#: Seconds of one core to ask for the object at a path of a branch.
QUESTION_S: Final = 3e-4
#: Most questions of one task, and number of addresses that are written at a time.
_QUESTIONS: Final = 20_000
_ANSWERS: Final = 10_000


def pieces_of(questions: Sequence[Part]) -> list[tuple[Part, int]]:
    """Split files of ``QUESTIONS``, which are sorted, into (file, first row) for each task."""
    return [(part, at) for part in questions for at in range(0, part.rows, _QUESTIONS)]


def ask(scratch: Folder, repository: str, piece: tuple[Part, int]) -> list[Part]:
    """Write the addresses that lakeFS serves, in every spelling, to files; a task.

    Raises:
        LakeFSError: lakeFS did not answer.
    """
    served = served_addresses(scratch.connections, repository, _places(scratch, piece))
    batches = iter(lambda: list(islice(served, _ANSWERS)), [])
    return write_addresses(scratch, (pa.array(addresses, pa.string()) for addresses in batches))


def _places(scratch: Folder, piece: tuple[Part, int]) -> Iterator[tuple[str, str]]:
    """Yield branches and paths, in the order of a range so that pages answer the next paths."""
    part, first = piece
    rows = read_part(scratch.store(), part).slice(first, _QUESTIONS)
    asked = zip(*(rows[name].to_pylist() for name in QUESTIONS.names), strict=True)
    for range_id, questions in groupby(asked, lambda row: row[0]):
        of_branch = [(branch, number) for _, branch, number in questions]
        paths = _paths(scratch.connections, range_id, {number for _, number in of_branch})
        yield from ((branch, paths[number]) for branch, number in of_branch)


def _paths(connections: Connections, range_id: str, numbers: set[int]) -> dict[int, str]:
    """Return the paths of some entries of a range, by their numbers."""
    wanted = sorted(numbers)
    paths = paths_of(connections.fetch_table(range_id), range_id, wanted)
    # A path that is not UTF-8 gets escapes: the API cannot be asked for it.
    texts = [path.decode(errors="backslashreplace") for path in paths]
    return dict(zip(wanted, texts, strict=True))


_SMALLEST_PAGE = 16


def served_addresses(
    connections: Connections, repository: str, places: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """Yield the physical addresses that lakeFS serves at some places, in every spelling.

    ``places``: branches and paths, sorted.
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
    """Asks for a path, and lists the objects after it, in pages that adapt to their use.

    A page only proves that an object is served: lakeFS is asked for a path that no page showed.
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
        """Return the physical address at a path of a branch; None if nothing is served there."""
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
