"""The calls of the lakeFS client that a collector makes, answered by the lake in memory."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pydantic import BaseModel

from lakegc_assets.lakefs.errors import ConnectionFailedError, NoRulesError, NotFoundError
from lakegc_assets.lakefs.models import (
    Branch,
    Commit,
    DiffEntry,
    ObjectStats,
    PreparedCommits,
    Repository,
    Tag,
    UncommittedPage,
)
from lakegc_assets_tests.simulation import row_files
from lakegc_assets_tests.simulation.lake import MAIN, Entry, Lake

if TYPE_CHECKING:
    from lakegc_assets_tests.simulation.world import World

M = TypeVar("M", bound=BaseModel)

REPOSITORY: Final = "repo"
NAMESPACE: Final = "s3://lake/repo"
GRACE: Final = timedelta(hours=24)
_PAGE: Final = 2


def namespace_of(repository: str) -> str:
    """Where a repository of the server is."""
    return f"s3://lake/{repository}"


def _in_full(repository: str, address: str) -> str:
    return address if "://" in address else f"{namespace_of(repository)}/{address}"


@dataclass(eq=False)
class SimConfig:
    """Stands where the settings of a lakeFS connection do."""

    world: World

    def connect(self) -> SimClient:
        return SimClient(self.world)

    def settled(self) -> SimConfig:
        return self

    def without_waiting(self) -> SimConfig:
        return self

    def access(self) -> str:
        return "simulated"


def _made(kind: type[M], **values: Any) -> M:
    """A model, unchecked; most are those of other interleavings, too."""
    made: M = _models(kind, **values)
    return made


@lru_cache(maxsize=16_384)
def _models(kind: type[BaseModel], **values: Any) -> Any:
    return kind.model_construct(**values)


@lru_cache(maxsize=4096)
def _page(branches: tuple[tuple[str, str], ...], after: str) -> tuple[tuple[Branch, ...], bool]:
    """A page of a list of branches, and whether it is the last one."""
    behind = sorted(one for one in branches if one[0] > after)
    page = tuple(_made(Branch, id=name, commit_id=head) for name, head in behind[:_PAGE])
    return page, len(behind) <= _PAGE


@lru_cache(maxsize=64)
def _token(branch: str) -> str:
    """Where a list of staged objects goes on."""
    return base64.b64encode(json.dumps({"branch": branch, "path": ""}).encode()).decode()


@lru_cache(maxsize=64)
def _repository(name: str, made: int = 0) -> Repository:
    return _made(
        Repository,
        id=name,
        storage_namespace=namespace_of(name),
        default_branch=MAIN,
        creation_date=made,
        read_only=False,
        storage_id="",
    )


def _stats(repository: str, path: str, entry: Entry) -> ObjectStats:
    return _made(
        ObjectStats,
        path=path,
        path_type="object",
        physical_address=_in_full(repository, entry.address),
        checksum=entry.etag,
        size_bytes=entry.size,
        mtime=0,
        content_type="",
    )


#: A list of staged objects, as lakeFS writes it.
_STAGED: Final = pa.schema([("physical_address", pa.string()), ("creation_date", pa.int64())])


class SimClient:
    """A client of the lake of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _call(self, what: str) -> str:
        return self._world.ask("lakefs", what)

    def _lake(self, repository: str) -> Lake:
        if repository == REPOSITORY:
            return self._world.own
        try:
            return self._world.others[repository]
        except KeyError:
            raise NotFoundError(f"repository {repository!r} not found") from None

    def check_supported(self) -> str:
        return "1.84.0"

    def writable_repository(self, repository: str) -> Repository:
        return self.repository(repository)

    def repository(self, repository: str) -> Repository:
        return _repository(repository, int(self._world.is_second))

    def may_have_repository(self, name: str) -> bool:
        return name in self._world.others

    def installation_id(self) -> str | None:
        return self._world.installation(second=self._world.is_second)

    def repositories(self) -> Iterator[Repository]:
        """Page by page, so that one may be made while they are read."""
        yield self.repository(REPOSITORY)
        if self._world.unlike != "others":
            return
        after = ""
        while True:
            self._call("repositories")
            names = sorted(name for name in self._world.others if name > after)
            yield from map(_repository, names[:_PAGE])
            if len(names) <= _PAGE:
                return
            after = names[_PAGE - 1]

    def grace_period(self) -> timedelta:
        return GRACE

    def server_time(self) -> datetime:
        self._call("time")
        return self._world.lake_time()

    def branches(self, repository: str, *, after: str = "") -> Iterator[Branch]:
        """Page by page, so that a branch may move while they are read."""
        world, begun, first = self._world, None, {}
        counts = repository == REPOSITORY and not after
        if counts:
            world.looks()
        while True:
            fault = self._call("branches")
            if begun is None:
                begun, first = world.scheduler.steps, dict(self._lake(repository).branches)
            found, last = _page(tuple(self._lake(repository).branches.items()), after)
            # Who cuts each answer hides branches from whoever asks.
            world.cut = fault == "cut list" and not world.cut
            if world.cut:
                return
            if last and counts:
                world.has_looked(begun, first)
            yield from found
            if last:
                return
            after = found[-1].id

    def branch(self, repository: str, branch: str) -> Branch:
        self._call("branch")
        branches = self._lake(repository).branches
        if branch not in branches:
            raise NotFoundError(f"branch {branch!r} not found")
        return _made(Branch, id=branch, commit_id=branches[branch])

    def tags(self, repository: str, *, after: str = "") -> Iterator[Tag]:
        # Behind the last one there is none, whoever comes in between: that is no step of its own.
        if not after:
            self._call("tags")
        found = sorted(pair for pair in self._lake(repository).tags.items() if pair[0] > after)
        return iter([_made(Tag, id=tag, commit_id=commit) for tag, commit in found])

    def tag(self, repository: str, tag: str) -> Tag:
        self._call("tag")
        tags = self._lake(repository).tags
        if tag not in tags:
            raise NotFoundError(f"tag {tag!r} not found")
        return _made(Tag, id=tag, commit_id=tags[tag])

    def log(self, repository: str, ref: str, **_how: bool) -> Iterator[Commit]:
        self._call("log")
        lake = self._lake(repository)
        if ref not in lake.commits:
            raise NotFoundError(f"ref {ref!r} not found")
        return iter(list(lake.ancestry(ref)))

    def commit(self, repository: str, commit_id: str, **_how: bool) -> Commit:
        return next(self.log(repository, commit_id))

    def gc_rules(self, repository: str) -> dict[str, Any] | None:
        self._call("rules")
        rules = self._lake(repository).rules
        if repository == REPOSITORY:
            self._world.tells_rules(rules)
        if rules is None:
            return None
        branches = [
            {"branch_id": name, "retention_days": days} for name, days in rules.items() if name
        ]
        return {"default_retention_days": rules[""], "branches": branches}

    def diff_branch(self, repository: str, branch: str, after: str = "") -> Iterator[DiffEntry]:
        self._call("diff")
        lake = self._lake(repository)
        if branch not in lake.branches:
            raise NotFoundError(f"branch {branch!r} not found")
        head = lake.tree(lake.branches[branch])
        changes = []
        for path, entry in sorted(lake.staged.get(branch, {}).items()):
            if path > after:
                kind = "removed" if entry is None else "changed" if path in head else "added"
                size = entry.size if entry else 0
                how = {"path_type": "object", "type": kind, "size_bytes": size}
                changes.append(_made(DiffEntry, path=path, **how))
        return iter(changes)

    def stat(self, repository: str, ref: str, path: str) -> ObjectStats:
        self._call("stat")
        lake = self._lake(repository)
        entry = lake.served(ref).get(path) if ref in lake.branches else None
        if entry is None:
            raise NotFoundError(f"{path!r} not found on {ref!r}")
        return _stats(repository, path, entry)

    def objects_page(
        self, repository: str, ref: str, after: str = "", **_amount: int
    ) -> tuple[list[ObjectStats], bool]:
        # One answer with the diff before it: nothing that is staged here lies elsewhere.
        lake, branch = self._lake(repository), ref.removesuffix("$")
        if branch not in lake.branches:
            raise NotFoundError(f"branch {branch!r} not found")
        served = sorted(lake.served(branch).items())
        return [_stats(repository, path, one) for path, one in served if path > after], False

    def prepare_commits(self, repository: str) -> PreparedCommits:
        world = self._world
        fault = self._call("prepare_commits")
        lake, number = self._lake(repository), world.serial()
        if lake.rules is None:
            raise NoRulesError("the repository has no retention rules")
        now = world.epoch()
        active = lake.on_branches(now) | lake.dangling(now)
        if fault == "order-dependent walk":
            # It stops at a commit that another branch has visited before it looks at the child.
            visited = lake.on_branches(now) - lake.dangling(now) - set(lake.branches.values())
            active -= set(sorted(visited)[:1])
        lines = [f"{c},false,{lake.commits[c].meta_range_id}\n" for c in sorted(active)]
        if fault == "cut file":
            lines = lines[:-1]
        key = f"_lakefs/retention/gc/commits/{number}/commits.csv"
        data = ("commit_id,expired,metarange_id\n" + "".join(lines)).encode()
        world.write_directly(key, data, of=repository)
        location = _in_full(repository, key)
        return _made(PreparedCommits, run_id=number, gc_commits_location=location)

    def prepare_uncommitted(self, _repository: str) -> Iterator[UncommittedPage]:
        world, number = self._world, self._world.serial()
        folder = f"_lakefs/retention/gc/uncommitted/{number}/uncommitted"
        location: str | None = f"{NAMESPACE}/{folder}/"
        after, page = "", 0
        while True:
            fault = self._call("prepare_uncommitted")
            lake = world.own
            names = sorted(name for name in lake.branches if name > after)
            rows = sorted(
                {
                    entry.address
                    for name in names[:_PAGE]
                    for entry in lake.staged.get(name, {}).values()
                    if entry is not None
                }
            )
            if fault == "cut rows":
                rows = []
            page += 1
            more = names[_PAGE:]
            where = location
            if fault == "no location":
                where = None
            else:
                listed = [{"physical_address": one, "creation_date": 0} for one in rows]
                data = row_files.encode_rows(listed, _STAGED)
                world.write_directly(f"{folder}/{page}.parquet", data)
            token = None
            if more:
                token = _token(more[0])
            told = {"gc_uncommitted_location": where, "continuation_token": token}
            yield _made(UncommittedPage, run_id=number, **told)
            if not more:
                return
            after = names[_PAGE - 1]

    @staticmethod
    def unavailable(what: str) -> ConnectionFailedError:
        """What a call ends in that gets no answer."""
        return ConnectionFailedError(f"{what}: no answer")
