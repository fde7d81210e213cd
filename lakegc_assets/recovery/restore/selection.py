"""Selects the marked objects to restore, with the data that a restore of them needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from lakegc_assets.engine.session import Dataset
from lakegc_assets.errors import LakegcError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace, UnresolvableAddressError
from lakegc_assets.lakefs.client import LakeFSClient, branch_ref
from lakegc_assets.lakefs.errors import NotFoundError
from lakegc_assets.lakefs.models import ObjectStats
from lakegc_assets.mark.addresses import live_spellings
from lakegc_assets.mark.marked_objects import digest_of, marked_in_order
from lakegc_assets.recovery import relations
from lakegc_assets.recovery.backups import Backup
from lakegc_assets.recovery.workspace import Workspace
from lakegc_assets.run.artifacts import LISTING
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.hashing import KeyDigest
from lakegc_assets.run.manifest import Manifest
from lakegc_assets.sweep import relations as of_sweep
from lakegc_assets.sweep.ledger import FOLDER, SWEPT
from lakegc_assets.sweep.lost_objects import LOST, other_backup, usable_copies
from lakegc_assets.wording import counted

_SHOWN: Final = 5
_ADDRESSES: Final = pa.schema([("address", pa.string())])
_VERSIONS: Final = pa.schema([SWEPT.field(name) for name in ("address", "version")])
#: Addresses in memory before they are written.
_BATCH: Final = 10_000


@dataclass(frozen=True)
class Choice:
    """The request: all of a mark, some addresses, or the objects that a ref shows."""

    #: True for all marked objects.
    everything: bool = False
    #: Addresses relative to the namespace, or full.
    addresses: tuple[str, ...] = ()
    #: A branch, tag or commit.
    ref: str | None = None
    path: str | None = None
    #: Prefix of paths at the ref; without prefix and ``path`` all paths.
    prefix: str | None = None

    def __post_init__(self) -> None:
        """Refuse a contradictory request.

        Raises RefusedError: it asks for none or for several of the three kinds, has a path or a
            prefix without a ref, or has both.
        """
        if sum((self.everything, bool(self.addresses), self.ref is not None)) != 1:
            raise RefusedError(
                "give one of these: all objects of the mark (--all), objects by their addresses "
                "(--address), or the objects that a branch shows (--branch)"
            )
        if (self.path is not None or self.prefix is not None) and self.ref is None:
            raise RefusedError("a path or a prefix needs a branch: add --branch")
        if self.path is not None and self.prefix is not None:
            raise RefusedError("give a path or a prefix, not both")

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON values."""
        return asdict(self) | {"addresses": sorted(set(self.addresses))}


def select(space: Workspace, marked: Dataset, choice: Choice) -> Dataset:
    """Return the chosen objects of a mark, ordered by address.

    ``marked``: ordered by address, too.

    Raises:
        RefusedError: the mark names none of the objects, or not all of the addresses.
    """
    if choice.everything:
        return marked
    if choice.addresses:
        return _named(space, marked, choice.addresses)
    return _shown(space, marked, choice)


def _among(space: Workspace, marked: Dataset, addresses: Iterable[str]) -> Dataset:
    """Return the marked objects with given addresses, which are written to files first."""
    waiting = iter(addresses)
    batches = iter(lambda: list(islice(waiting, _BATCH)), [])
    tables = (pa.table([some], schema=_ADDRESSES) for some in batches)
    both = marked, space.write_tables("addresses", _ADDRESSES, tables)
    return space.derive("chosen", LISTING, "choose objects", relations.chosen, *both)


def _named(space: Workspace, marked: Dataset, addresses: Collection[str]) -> Dataset:
    namespace = space.connections.namespace()
    meanings = {address: set(_meanings(namespace, address)) for address in addresses}
    some = _among(space, marked, set().union(*meanings.values()))
    # The rows are as few as the requested addresses.
    tables = space.tables(some.select("address"))
    found = {address for table in tables for address in table["address"].to_pylist()}
    unknown = sorted(address for address, of in meanings.items() if not of & found)
    if unknown:
        which = counted(len(unknown), "of these objects is", "of these objects are")
        raise RefusedError(
            f"{which} not named by the mark, so that it did not delete "
            f"{'it' if len(unknown) == 1 else 'them'}: {', '.join(map(repr, unknown[:_SHOWN]))}. "
            "`lakegc why` explains each object of a run; addresses are relative to "
            f"{namespace.url()}"
        )
    return some


def _shown(space: Workspace, marked: Dataset, choice: Choice) -> Dataset:
    """Return the marked objects that lakeFS shows at a ref."""
    count, namespace = 0, space.connections.namespace()

    def shown() -> Iterator[str]:
        nonlocal count
        for found in _listed(space.ctx.client, space.ctx.repository, choice):
            count += 1
            yield from _meanings(namespace, found.physical_address)

    some = _among(space, marked, shown())
    if not some.rows:
        where = f"{choice.ref!r}" if choice.path is None else f"{choice.path!r} of {choice.ref!r}"
        raise RefusedError(
            f"the mark names none of the objects that lakeFS shows at {where}"
            + (f" below {choice.prefix!r}" if choice.prefix else "")
            + f" ({counted(count, 'object')}), so its sweep deleted none of them. "
            f"`{command_line('repositories')}` lists the other runs"
        )
    return some


def _listed(client: LakeFSClient, repository: str, choice: Choice) -> Iterator[ObjectStats]:
    ref = known_ref(client, repository, choice.ref or "")
    for found in client.objects(repository, ref, choice.path or choice.prefix or ""):
        if choice.path is None:
            yield found
        elif found.path == choice.path:
            yield found
            return


def known_ref(client: LakeFSClient, repository: str, ref: str) -> str:
    """Return a ref in lakeFS's form, where a branch takes precedence over tags and commits.

    Raises RefusedError: there is neither a branch, tag nor commit of this name.
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
        raise RefusedError(
            f"{repository!r} has no branch, tag or commit {ref!r}: check the name. For a "
            "deleted branch or tag, give the id of a commit that it had"
        ) from error
    return ref


def _meanings(namespace: StorageNamespace, address: str) -> list[str]:
    try:
        return live_spellings(namespace, address)
    except UnresolvableAddressError:
        return []


@dataclass(frozen=True)
class LostObjects:
    """The chosen objects of a restore, missing or not."""

    #: ``LISTING``.
    chosen: Dataset
    digest: KeyDigest
    #: ``LOST``, ordered by address.
    objects: Dataset
    #: The backup with the copies; None if no backup is usable.
    backup: Backup | None
    #: Messages about unusable or misplaced backups.
    problems: Sequence[str]
    #: The message that the sweep's backup is at another place, which was not read; else empty.
    elsewhere: str


def find_objects(space: Workspace, chain: Mapping[str, Manifest], choice: Choice) -> LostObjects:
    """Find the chosen objects, and their possible sources.

    Raises:
        RefusedError: the mark names none of the objects.
        IntegrityError: the mark differs from its manifests.
    """
    ctx, attempt = space.ctx, space.attempt
    candidates, folder = chain["deletion_candidates"], f"{space.folder}marked/"
    marked = marked_in_order(ctx, attempt, candidates, folder)
    chosen = select(space, marked, choice)
    backup, copies, problem = usable_copies(space, chain)
    # A backup that was moved is usable at its new place.
    elsewhere = "" if backup else other_backup(ctx, attempt)
    sources, what = (chosen, deleted_versions(space), copies), "find versions and copies"
    rows = space.derive("lost", LOST, what, relations.lost_objects, *sources)
    digest = digest_of(ctx, chosen)
    problems = [p for p in (problem, elsewhere) if p]
    return LostObjects(chosen, digest, rows, backup, problems, elsewhere)


def deleted_versions(space: Workspace) -> Dataset:
    """Return the versions under which a store may keep swept objects, each address once."""
    try:
        swept = space.gather("swept", space.attempt.url, FOLDER, SWEPT, skip_damaged=False)
        if swept.parts:
            what = "find what was deleted"
            return space.derive("versions", _VERSIONS, what, of_sweep.outcomes, swept)
    except (LakegcError, pa.ArrowException, ValueError, OSError):
        # The ledger only makes it faster: without it, the restore searches for the versions.
        pass
    return space.dataset((), _VERSIONS)
