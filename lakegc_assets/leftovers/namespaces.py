"""Storage namespaces below the configured roots that no repository of the server has.

lakeFS leaves all objects where they are when a repository is deleted. A folder is a namespace where
lakeFS's own ``_lakefs/`` or ``dummy`` is in it. Which repository it was, and of which server, only
the marker of a collection tells (``mark.installation``): without one, another lakeFS server may
use the namespace today.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from lakegc_assets.errors import ConfigurationError, LakegcError
from lakegc_assets.estate.guards import read_guards
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.models import Repository
from lakegc_assets.leftovers.ledger import removals
from lakegc_assets.leftovers.server import Problem, Server, noting
from lakegc_assets.mark.installation import known_server
from lakegc_assets.recovery.backup_location import overlapping
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.wording import counted

#: A namespace in which something younger lies may be in use.
MIN_AGE: Final = timedelta(days=30)
#: Who had a namespace, as far as its marker tells.
OURS, OTHERS, NOBODY_KNOWS = "this server", "another server", "nobody knows"
#: Folders below a root that are looked into: lakeFS takes any depth, people make few.
_DEPTH: Final = 4
#: Objects of one folder beyond which it is none that holds namespaces.
_MOST_OBJECTS: Final = 10_000
_OWN_FOLDER: Final = "_lakefs/"
_OWN_OBJECT: Final = "dummy"
_OWN: Final = r"^(_lakefs/|dummy$)"
#: Names that lakeFS gives: a UUID or an xid; behind it the token of an address that was linked.
_ID: Final = r"([0-9a-f]{32}|[0-9a-v]{20})(,[^/]+)?"
#: Where lakeFS writes: into slices, in sharded slices, and in older versions flat.
_SLICE: Final = r"(![^/]{2}/[^/]/)?[0-9a-v]{20}/"
_IN_PLACE: Final = rf"^(_lakefs/.*|dummy|(data/({_SLICE})?)?{_ID})$"
#: Another namespace in this one: below ``data/`` none is in place anyway.
_NESTED: Final = r"^_lakefs/((.*/)?_lakefs/.*|.*/dummy)$"


@dataclass(frozen=True)
class LeftoverNamespace:
    """A namespace that no repository of the server has."""

    url: str
    #: ``OURS``, ``OTHERS`` or ``NOBODY_KNOWS``.
    server: str
    #: That its marker names; None without one.
    repository: str | None
    #: In it, lakeFS's own included, and their bytes.
    objects: int
    size: int
    #: When the newest of them was written, UTC; None where there is none.
    newest: datetime | None
    #: Why it is not to be removed; empty for no reason.
    stays: str


def leftover_namespaces(server: Server) -> tuple[list[LeftoverNamespace], list[Problem]]:
    """The leftover namespaces below all roots, and what could not be looked at."""
    found: dict[str, LeftoverNamespace] = {}
    problems: list[Problem] = []
    repositories = server.repositories()
    for url in server.namespace_roots:
        places: list[StorageNamespace] = []
        with noting(problems, url):
            root = StorageNamespace.parse(url)
            places = list(_namespaces_below(server, root, repositories, problems))
        for place in places:
            if place.url() not in found:
                with noting(problems, place.url()):
                    found[place.url()] = read_namespace(server, place)
    return [found[url] for url in sorted(found)], problems


def read_namespace(server: Server, place: StorageNamespace) -> LeftoverNamespace:
    """Read the contents of a namespace that no repository has, and the reasons why it stays.

    Raises:
        LakegcError: it cannot be read wholly.
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
    mine = server.client.installation_id()
    whose = NOBODY_KNOWS
    if known is not None and known.installation_id:
        # A server that does not say who it is may be any.
        whose = OURS if known.installation_id == mine else OTHERS
    return LeftoverNamespace(
        place.url(),
        whose,
        known.repository if known else None,
        objects,
        size,
        newest,
        _not_lakefs(objects, strange, is_namespace=is_namespace)
        or _stays(server, place, store, whose, newest),
    )


def _not_lakefs(objects: int, strange: Sequence[str], *, is_namespace: bool) -> str:
    """Why a folder may hold what lakeFS did not write; empty where it holds nothing else."""
    if strange:
        return f"it holds what lakeFS does not write there: {strange[0]!r}"
    if objects and not is_namespace:
        return f"nothing in it says that it is a namespace: neither {_OWN_FOLDER} nor {_OWN_OBJECT}"
    return ""


def _stays(
    server: Server, place: StorageNamespace, store: ObjectStore, whose: str, newest: datetime | None
) -> str:
    """Why a namespace must stay, whoever wants it removed; empty for no reason."""
    if whose == OTHERS:
        return "by its server.json another lakeFS server collects it, or this one that hides its id"
    if newest is not None and (age := store.server_time() - newest) < MIN_AGE:
        return f"its newest object is {counted(max(age.days, 0), 'day')} old"
    return guarded(server, place) or _around(server, place)


def guarded(server: Server, place: StorageNamespace) -> str:
    """The hold or lease of a namespace that forbids a removal; empty without one."""
    guards = read_guards(place.url(), server.root.stores)
    if guards.problem:
        return f"whether it is on hold cannot be known: {guards.problem}"
    if guards.hold is not None:
        return f"it is on hold: {guards.url}"
    if guards.lease_problem:
        return f"whether somebody is at work on it cannot be known: {guards.lease_problem}"
    return "" if guards.lease is None else f"somebody is at work on it: {guards.lease}"


def _around(server: Server, place: StorageNamespace) -> str:
    """Artifacts and backups of ours in a namespace, or around it."""
    backups = server.context("any").settings.backup_url or ""
    copies = [(f"copies of removal {one.id}", one.backup) for one in removals(server.root)]
    others = [("the artifacts", server.root.url), ("backups", backups), *copies]
    found = overlapping(place, [one for one in others if one[1]], server.root.stores)
    return found and f"{found} lie in it, or around it"


def _namespaces_below(
    server: Server,
    root: StorageNamespace,
    repositories: Sequence[Repository],
    problems: list[Problem],
) -> Iterator[StorageNamespace]:
    """The leftover namespaces at and below a root.

    Raises:
        LakegcError: the root cannot be listed.
    """
    store = server.open(root.url())
    owned = set()
    for one in repositories:
        if root.is_same_kind(one.storage_namespace):
            namespace = StorageNamespace.parse(one.storage_namespace)
            if namespace.overlaps(root) and len(namespace.prefix) < len(root.prefix):
                raise ConfigurationError(f"the root lies in the namespace of repository {one.id!r}")
            owned.add(namespace.url())
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        place = _below(root, folder)
        if place.url() in owned:
            continue
        try:
            level = _level(store, folder, depth)
            if level is None:
                if owner := server.owner_of(place, repositories):
                    raise ConfigurationError(
                        f"it looks like a namespace, and that of repository {owner.id!r} is in "
                        "it or around it"
                    )
                yield place
                continue
            waiting += [(prefix, depth + 1) for prefix in reversed(level)]
        except LakegcError as error:
            if not folder:
                raise
            problems.append(Problem(place.url(), str(error)))


def _level(store: ObjectStore, folder: str, depth: int) -> list[str] | None:
    """The folders in a folder; None where it is a namespace.

    Raises:
        ConfigurationError: it is not to be looked into.
        StorageError: it cannot be listed.
    """
    if "//" in f"/{folder}":
        raise ConfigurationError(f"it was not looked into: {folder!r} has a segment without a name")
    level = store.list_prefixes(folder, max_objects=_MOST_OBJECTS)
    names = {one.key.removeprefix(folder) for one in level.objects}
    below = {prefix.removeprefix(folder) for prefix in level.prefixes}
    if _OWN_FOLDER in below or _OWN_OBJECT in names:
        return None
    if len(names) > _MOST_OBJECTS or (below and depth == _DEPTH):
        raise ConfigurationError(
            f"it was not looked into: it is {depth} folders deep, or holds more than "
            f"{_MOST_OBJECTS:,} objects. If namespaces are below it, name it as a root"
        )
    return level.prefixes


def _below(root: StorageNamespace, folder: str) -> StorageNamespace:
    parts = (root.prefix, folder.rstrip("/"))
    return replace(root, prefix="/".join(part for part in parts if part))
