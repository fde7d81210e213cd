"""Storage namespaces below the configured roots that no repository of the server has.

When a repository is deleted, lakeFS leaves all of its objects. A folder is a namespace if it has
lakeFS's own ``_lakefs/`` or ``dummy``. Only the marker of a collection says which repository and
which server it belonged to (``mark.installation``). Without a marker, another lakeFS server may
still use the namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from lakegc_assets.errors import ConfigurationError, LakegcError, RefusedError
from lakegc_assets.estate.run_state import read_guards
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.leftovers.removal import removals
from lakegc_assets.leftovers.server import Problem, Server, noting
from lakegc_assets.mark.installation import Server as Marker
from lakegc_assets.mark.installation import known_server
from lakegc_assets.recovery.backup_location import overlapping
from lakegc_assets.run.command_line import command_line
from lakegc_assets.run.context import placed
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.sweep.lease_record import describe
from lakegc_assets.wording import counted

#: Age of the newest object below which a namespace may be in use.
MIN_AGE: Final = timedelta(days=30)
#: Owners of a namespace, by its marker.
OURS, OTHERS, NOBODY_KNOWS = "this server", "another server", "not known"
#: Depth of folders below a root that are searched: lakeFS allows any depth, people use few levels.
_DEPTH: Final = 4
#: Number of objects directly in a folder above which the folder cannot hold namespaces.
_MOST_OBJECTS: Final = 10_000
_OWN_FOLDER: Final = "_lakefs/"
_OWN_OBJECT: Final = "dummy"
_OWN: Final = r"^(_lakefs/|dummy$)"
#: Names that lakeFS makes: a UUID or an xid, optionally followed by the token of a linked address.
_ID: Final = r"([0-9a-f]{32}|[0-9a-v]{20})(,[^/]+)?"
#: Folders that lakeFS writes to: slices, sharded slices, and none in older versions.
_SLICE: Final = r"(![^/]{2}/[^/]/)?[0-9a-v]{20}/"
_IN_PLACE: Final = rf"^(_lakefs/.*|dummy|(data/({_SLICE})?)?{_ID})$"
#: Another namespace in this one: below ``data/`` such a key is not in place anyway.
_NESTED: Final = r"^_lakefs/((.*/)?_lakefs/.*|.*/dummy)$"


class _NotSearchedError(Exception):
    """A folder is too deep or too large to be searched for namespaces."""


@dataclass(frozen=True)
class LeftoverNamespace:
    """A namespace that no repository of the server has."""

    url: str
    #: ``OURS``, ``OTHERS`` or ``NOBODY_KNOWS``.
    server: str
    #: Repository that its marker names; None without a marker.
    repository: str | None
    #: Number of its objects, including lakeFS's own, and their bytes.
    objects: int
    size: int
    #: Time of the newest object, UTC; None without objects.
    newest: datetime | None
    #: Reason why it must stay; empty without a reason.
    stays: str


def leftover_namespaces(server: Server) -> tuple[list[LeftoverNamespace], list[Problem]]:
    """The leftover namespaces below all roots, and the places that could not be read."""
    found: dict[str, LeftoverNamespace] = {}
    problems: list[Problem] = []
    repositories = server.repositories()
    for url in server.namespace_roots:
        places: list[StorageNamespace] = []
        with noting(problems, url):
            places = list(_namespaces_below(server, url, repositories, problems))
        for place in places:
            if place.url() not in found:
                with noting(problems, place.url()):
                    found[place.url()] = read_namespace(server, place)
    return [found[url] for url in sorted(found)], problems


def read_namespace(server: Server, place: StorageNamespace) -> LeftoverNamespace:
    """Read the contents of a namespace that no repository has, and the reasons why it stays.

    Raises:
        LakegcError: the namespace cannot be read completely.
    """
    store = server.open(place.url())
    objects = size = 0
    newest: datetime | None = None
    strange: list[str] = []
    is_namespace = False
    for page in store.list_to_the_end():
        objects += page.num_rows
        keys = page["key"]
        is_namespace |= pc.any(pc.match_substring_regex(keys, _OWN)).as_py()
        foreign = pc.or_(
            pc.invert(pc.match_substring_regex(keys, _IN_PLACE)),
            pc.match_substring_regex(keys, _NESTED),
        )
        strange = strange or keys.filter(foreign).slice(0, 1).to_pylist()
        size += pc.sum(page["size"]).as_py()
        latest = pc.max(page["last_modified"]).as_py()
        newest = latest if newest is None else max(newest, latest)
    known = known_server(store)
    owner = whose(server, known)
    return LeftoverNamespace(
        place.url(),
        owner,
        known.repository if known else None,
        objects,
        size,
        newest,
        _not_lakefs(objects, strange, is_namespace=is_namespace)
        or _stays(server, place, store, owner, newest),
    )


def whose(server: Server, known: Marker | None) -> str:
    """The owner of a namespace by its marker: ``OURS``, ``OTHERS`` or ``NOBODY_KNOWS``."""
    mine = server.client.installation_id()
    if known is None or not known.installation_id:
        return NOBODY_KNOWS
    # A server that hides its id may be any server, so it is not taken for this one.
    return OURS if known.installation_id == mine else OTHERS


def require_claimed(owner: str, what: str, *, unclaimed: bool) -> None:
    """Require that this server had a namespace, or that a person confirms that no other uses it.

    Raises:
        RefusedError: neither is the case, so ``what`` stays.
    """
    if owner != OURS and not unclaimed:
        raise RefusedError(
            f"{what} stays: nothing in it shows that this server had it, and another lakeFS server "
            "may use it. If you know that none does, and these credentials see all repositories, "
            "add --unclaimed"
        )


def _not_lakefs(objects: int, strange: Sequence[str], *, is_namespace: bool) -> str:
    """The reason why a folder may hold objects that lakeFS did not write; empty without one."""
    if strange:
        return f"it holds an object that lakeFS does not write there: {strange[0]!r}"
    if objects and not is_namespace:
        return f"it has neither {_OWN_FOLDER} nor {_OWN_OBJECT}, so it may be no namespace"
    return ""


def _stays(
    server: Server, place: StorageNamespace, store: ObjectStore, owner: str, newest: datetime | None
) -> str:
    """The reason why a namespace must stay, despite a request to remove it; empty without one."""
    if owner == OTHERS:
        return (
            "its server.json names another lakeFS server, or this one, which does not show its id"
        )
    if newest is not None and (age := store.server_time() - newest) < MIN_AGE:
        days = counted(max(age.days, 0), "day")
        return f"its newest object is {days} old, and must be older than {MIN_AGE.days} days"
    return guarded(server, place) or _around(server, place)


def guarded(server: Server, place: StorageNamespace) -> str:
    """The hold or lease of a namespace that forbids a removal; empty without one."""
    guards = read_guards(place.url(), server.root.stores)
    if guards.problem:
        return f"it is not known whether it is on hold: {guards.problem}"
    if guards.hold is not None:
        shown = command_line("hold", place.url())
        return f"it is on hold ({guards.url}): `{shown}` shows why, and can end it"
    if guards.lease_problem:
        return f"it is not known whether somebody works on it: {guards.lease_problem}"
    return "" if guards.lease is None else f"it is in use by {describe(guards.lease.owner)}"


def _around(server: Server, place: StorageNamespace) -> str:
    """Artifacts and backups of this product in a namespace, or around it."""
    backups = server.context("any").settings.backup_url or ""
    copies = [(f"copies of removal {one.id}", one.backup) for one in removals(server.root)]
    others = [("the artifacts", server.root.url), ("backups", backups), *copies]
    found = overlapping(place, [one for one in others if one[1]], server.root.stores)
    return found and f"{found} lie in it, or around it"


def _namespaces_below(
    server: Server,
    url: str,
    repositories: Sequence[Repository],
    problems: list[Problem],
) -> Iterator[StorageNamespace]:
    """The leftover namespaces at and below a root.

    Raises:
        LakegcError: the root cannot be listed.
    """
    root = server.root_at(url)
    store = server.open_root(url)
    owned = _owned(root, repositories)
    unsearched: list[str] = []
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        place = _below(root, folder)
        where = place.url() if place else f"{root.url()}{folder}"
        if where in owned:
            continue
        try:
            level = _level(store, folder, depth)
            if level is not None:
                waiting += [(prefix, depth + 1) for prefix in reversed(level)]
                continue
            # It looks like a namespace: one that cannot be named is refused here.
            place = place or StorageNamespace.parse(where)
            owner = server.owner_of(place, repositories)
            if owner is None:
                yield place
            elif not _is_at(server, owner, place):
                raise ConfigurationError(
                    f"it looks like a namespace, but the namespace of repository {owner.id!r} is "
                    "in it or around it"
                )
        except _NotSearchedError:
            unsearched.append(where)
        except LakegcError as error:
            if not folder:
                raise
            problems.append(Problem(where, str(error)))
    if unsearched:
        others = counted(len(unsearched) - 1, "other folder", "other folders")
        also = f", and so do {others} below {url}" if unsearched[1:] else ""
        problems.append(
            Problem(
                unsearched[0],
                f"it was not searched: it has folders more than {_DEPTH} folders below {url}, or "
                f"more than {_MOST_OBJECTS:,} objects{also}. If namespaces are below it, add it to "
                f"namespace_roots or --root. If there can be none, name narrower roots in place of "
                f"{url}",
            )
        )


def _owned(root: StorageNamespace, repositories: Sequence[Repository]) -> set[str]:
    """The URLs of the repositories' namespaces on the same kind of store as a root.

    Raises:
        ConfigurationError: the root is inside a namespace.
    """
    owned = set()
    for one in repositories:
        if root.is_same_kind(one.storage_namespace):
            namespace = StorageNamespace.parse(one.storage_namespace)
            if namespace.overlaps(root) and len(namespace.prefix) < len(root.prefix):
                raise ConfigurationError(
                    f"the root lies in the namespace of repository {one.id!r}: remove it from "
                    "namespace_roots or --root"
                )
            owned.add(namespace.url())
    return owned


def _is_at(server: Server, repository: Repository, place: StorageNamespace) -> bool:
    """Return True if a place, by whatever name, is the namespace of a repository."""
    stores = server.root.stores
    return placed(repository.storage_namespace, stores) == placed(place.url(), stores)


def _level(store: ObjectStore, folder: str, depth: int) -> list[str] | None:
    """The folders in a folder; None if it is a namespace.

    Raises:
        _NotSearchedError: it is too deep, or has too many objects.
        ConfigurationError: it has a segment without a name.
        StorageError: the folder cannot be listed.
    """
    if "//" in f"/{folder}":
        raise ConfigurationError(f"it was not searched: {folder!r} has a segment without a name")
    level = store.list_prefixes(folder, max_objects=_MOST_OBJECTS)
    names = {one.key.removeprefix(folder) for one in level.objects}
    below = {prefix.removeprefix(folder) for prefix in level.prefixes}
    if _OWN_FOLDER in below or _OWN_OBJECT in names:
        return None
    if len(names) > _MOST_OBJECTS or (below and depth == _DEPTH):
        raise _NotSearchedError
    return level.prefixes


def _below(root: StorageNamespace, folder: str) -> StorageNamespace | None:
    """A folder at or below a root; None for a folder of ``local://`` that cannot be in a URL."""
    parts = [part for part in (root.prefix, folder.rstrip("/")) if part]
    if root.scheme != "local" or root.authority:
        return replace(root, prefix="/".join(parts))
    try:
        return StorageNamespace.parse(f"local://{folder}")
    except ConfigurationError:
        return None
