"""Which of the objects that a mark names are to be restored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import ObjectStats
from lakegc_assets.lakefs.reads import branch_ref
from lakegc_assets.mark.addresses import live_spellings
from lakegc_assets.run import strings
from lakegc_assets.wording import counted

_SHOWN = 5


@dataclass(frozen=True)
class Choice:
    """What is asked for: all of a mark, some addresses, or what a ref shows.

    Attributes:
        everything: all that the mark names.
        addresses: of objects, relative to the namespace or full.
        ref: branch, tag or commit.
        path: of one object at the ref.
        prefix: of paths at the ref; without it and ``path`` all of them.
    """

    everything: bool = False
    addresses: tuple[str, ...] = ()
    ref: str | None = None
    path: str | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            RefusedError: not exactly one thing is asked for.
        """
        if sum((self.everything, bool(self.addresses), self.ref is not None)) != 1:
            raise RefusedError(
                "say what to restore, and one of these only: all of the mark (--all), objects by "
                "their addresses (--address), or what a branch shows (--branch)"
            )
        if (self.path is not None or self.prefix is not None) and self.ref is None:
            raise RefusedError("a path or a prefix is one of a branch: add --branch")
        if self.path is not None and self.prefix is not None:
            raise RefusedError("give a path or a prefix, not both")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"addresses": sorted(set(self.addresses))}


def chosen(
    client: LakeFSClient,
    repository: str,
    namespace: StorageNamespace,
    marked: pa.Table,
    choice: Choice,
) -> pa.Table:
    """The rows of a mark that are asked for, in the order of their addresses.

    Args:
        client: of lakeFS.
        repository: lakeFS repository.
        namespace: of the repository.
        marked: what the mark names, with a column ``address``.
        choice: what is asked for.

    Raises:
        RefusedError: the mark names nothing of it, or not all of the addresses.
    """
    if choice.everything:
        return strings.in_order(marked, "address")
    if choice.addresses:
        wanted = _named(namespace, marked, choice.addresses)
    else:
        wanted = _shown(client, repository, namespace, marked, choice)
    return strings.in_order(_among(marked, wanted), "address")


def _among(marked: pa.Table, addresses: Collection[str]) -> pa.Table:
    return marked.filter(pc.is_in(marked["address"], pa.array(sorted(addresses), pa.string())))


def _named(
    namespace: StorageNamespace, marked: pa.Table, addresses: Collection[str]
) -> Collection[str]:
    meanings = {address: set(_meanings(namespace, address)) for address in addresses}
    found = set(_among(marked, set().union(*meanings.values()))["address"].to_pylist())
    unknown = sorted(address for address, of in meanings.items() if not of & found)
    if unknown:
        which = counted(len(unknown), "of these objects is", "of these objects are")
        raise RefusedError(
            f"{which} not named by the mark, so that it did not delete "
            f"{'it' if len(unknown) == 1 else 'them'}: {', '.join(map(repr, unknown[:_SHOWN]))}. "
            "`lakegc why` says what it knows of an object; addresses are relative to "
            f"{namespace.url()}"
        )
    return found


def _shown(
    client: LakeFSClient,
    repository: str,
    namespace: StorageNamespace,
    marked: pa.Table,
    choice: Choice,
) -> Collection[str]:
    """The marked objects that lakeFS shows at a ref."""
    count, spellings = 0, set[str]()
    for found in _listed(client, repository, choice):
        count += 1
        spellings.update(_meanings(namespace, found.physical_address))
    addresses: list[str] = _among(marked, spellings)["address"].to_pylist()
    if not addresses:
        where = f"{choice.ref!r}" if choice.path is None else f"{choice.path!r} of {choice.ref!r}"
        raise RefusedError(
            f"the mark names nothing of what lakeFS shows at {where}"
            + (f" below {choice.prefix!r}" if choice.prefix else "")
            + f" ({counted(count, 'object')}), so that it deleted nothing of that. "
            "`lakegc repositories` lists the other runs"
        )
    return addresses


def _listed(client: LakeFSClient, repository: str, choice: Choice) -> Iterator[ObjectStats]:
    ref = known_ref(client, repository, choice.ref or "")
    for found in client.objects(repository, ref, choice.path or choice.prefix or ""):
        if choice.path is None:
            yield found
        elif found.path == choice.path:
            yield found
            return


def known_ref(client: LakeFSClient, repository: str, ref: str) -> str:
    """A ref as lakeFS takes it: a branch, if there is one of this name.

    Raises:
        RefusedError: there is neither branch, tag nor commit.
    """
    try:
        if branch_ref(ref) != ref:
            try:
                client.branch(repository, ref)
                return branch_ref(ref)
            except NotFoundError:
                pass
        next(client.objects(repository, ref, amount=1), None)
    except NotFoundError as error:
        raise RefusedError(f"{repository!r} has no branch, tag or commit {ref!r}") from error
    return ref


def _meanings(namespace: StorageNamespace, address: str) -> list[str]:
    try:
        return live_spellings(namespace, address)
    except UnresolvableAddressError:
        return []
