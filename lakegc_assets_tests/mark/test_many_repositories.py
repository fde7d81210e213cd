"""What a thousand other repositories cost a mark: so much for each, and nothing that grows with it.

The server is a fake that counts, since what is asked of it is what is looked at here.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from lakegc_assets.engine import progress
from lakegc_assets.engine.progress import PROGRESS
from lakegc_assets.engine.tasks import Tasks
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.ident import commit_id
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.lakefs.models import Branch, Commit, Repository
from lakegc_assets.mark import other_repositories, references
from lakegc_assets.mark.other_repositories import (
    heads_of,
    others_of,
    record_naming,
    record_read,
    tables_of,
)
from lakegc_assets.mark.references import References, read_references
from lakegc_assets.retention.commits import Commit as Node
from lakegc_assets.run.artifacts import ArtifactRoot
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.settings import Settings
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore

_MADE = 1_700_000_000
_HEAD = commit_id("", "Repository created", "", _MADE, {}, ())


class _Server:
    """A server with many repositories, all of which are as they were made."""

    def __init__(self, others: int) -> None:
        self.others = others
        self.asked: Counter[str] = Counter()
        self.moved: set[str] = set()

    def repositories(self) -> Iterator[Repository]:
        self.asked["repositories"] += 1
        names = ("repo", *(f"other-{n}" for n in range(self.others)))
        for name in names:
            yield Repository(
                id=name,
                storage_namespace=f"local://{name}",
                default_branch="main",
                creation_date=_MADE,
            )

    def repository(self, name: str) -> Repository:
        return next(one for one in self.repositories() if one.id == name)

    def branches(self, repository: str, *, after: str = "") -> Iterator[Branch]:
        self.asked["branches"] += 1
        head = self._second().id if repository in self.moved else _HEAD
        if not after:
            yield Branch(id="main", commit_id=head)

    def branch(self, repository: str, name: str) -> Branch:
        raise AssertionError(f"the list of branches of {repository} has {name}")

    def changes(self, _repository: str, _branch: str) -> Iterator[Any]:
        self.asked["diff"] += 1
        return iter(())

    def log(self, _repository: str, ref: str, **how: bool) -> Iterator[Commit]:
        assert how["first_parent"]
        self.asked["log"] += 1
        if ref != _HEAD:
            yield self._second()
        yield self._commit(_HEAD, "Repository created", ())

    def _second(self) -> Commit:
        content = commit_id("ada", "empty", "", _MADE + 1, {}, (_HEAD,))
        return self._commit(content, "empty", (_HEAD,))

    def _commit(self, name: str, message: str, parents: tuple[str, ...]) -> Commit:
        return Commit(
            id=name,
            parents=parents,
            committer="ada" if parents else "",
            message=message,
            creation_date=_MADE + len(parents),
            meta_range_id="",
        )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to the stores, and batches of tasks."""
    seen: Counter[str] = Counter()
    for name in ("list", "get", "put"):
        real = getattr(LocalStore, name)

        def called(
            store: LocalStore, *args: Any, _name: str = name, _real: Any = real, **more: Any
        ) -> Any:
            seen[_name] += 1
            return _real(store, *args, **more)

        monkeypatch.setattr(LocalStore, name, called)
    run = Tasks.run

    def ran(tasks: Tasks, *args: Any) -> Any:
        seen["tasks"] += 1
        return run(tasks, *args)

    monkeypatch.setattr(Tasks, "run", ran)
    return seen


def context(folder: Path, monkeypatch: pytest.MonkeyPatch, others: int) -> RunContext:
    """A run beside so many other repositories, whose namespaces are there."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"LAKECTL_CREDENTIALS_{name}", "of no server")
    for name in (f"other-{n}" for n in range(others)):
        (folder / "objects" / name / "_lakefs").mkdir(parents=True)
        (folder / "objects" / name / "_lakefs/config").touch()

    def no_spark() -> Any:
        raise AssertionError("this takes no Spark")

    return RunContext(
        repository="repo",
        run="m1",
        settings=Settings(),
        lakefs=LakeFSConfig(endpoint="http://127.0.0.1:9"),
        root=ArtifactRoot(
            str(folder / "artifacts"), StoreConfig(local_root=str(folder / "objects"))
        ),
        session=no_spark,
    )


def connected(ctx: RunContext, server: _Server) -> RunContext:
    """The run with a client that stands in for one."""
    connections = ctx.connections_of("repo", StorageNamespace.parse("local://repo"))
    return ctx.at(cast("LakeFSClient", server), connections)


def test_whoever_waits_is_told_which_other_repository_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first mark may spend most of its time there."""
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    ctx = context(tmp_path, monkeypatch, 2)
    awaited = [
        "their branches and staged objects",
        "commits and ranges of other-0 (1 of 2)",
        "commits and ranges of other-1 (2 of 2)",
    ]
    came = {words: threading.Event() for words in awaited}

    class _Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = record.getMessage()
            for words, event in came.items():
                if f"to objects of repo: {words}. " in said:
                    event.set()

    class _Slow(_Server):
        def branches(self, repository: str, *, after: str = "") -> Iterator[Branch]:
            assert came[awaited[0]].wait(600)
            return super().branches(repository, after=after)

    def slow(ctx: RunContext, *_: object, **__: object) -> None:
        name = ctx.connections.namespace_url.removeprefix("local://")
        assert came[awaited[1 + int(name[-1])]].wait(600)
        raise StoreUnavailableError("it went away")

    monkeypatch.setattr(references, "live_ranges", slow)
    listener = _Listener()
    PROGRESS.addHandler(listener)
    PROGRESS.setLevel(logging.INFO)
    try:
        with pytest.raises(IntegrityError, match="it went away"):
            read_references(
                connected(ctx, _Slow(2)), ctx.root.open("repo", "x"), "",
                datetime.now(timezone.utc))  # fmt: skip
    finally:
        PROGRESS.removeHandler(listener)
    assert all(event.is_set() for event in came.values())


@pytest.mark.parametrize(
    ("others", "said"), [(1, "1 other repository"), (2, "2 other repositories")]
)
def test_the_log_says_in_words_how_many_others_are_read(
    others: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ctx = connected(context(tmp_path, monkeypatch, others), _Server(others))
    with caplog.at_level(logging.INFO, ctx.log.name):
        read_references(ctx, ctx.root.open("repo", "x"), "", datetime.now(timezone.utc))
    assert f"reading the references of {said} of the server" in caplog.messages


@pytest.mark.parametrize("others", [100, pytest.param(1000, marks=pytest.mark.conformance)])
def test_what_did_not_change_in_a_thousand_repositories_costs_a_look_at_each(
    others: int, tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path, monkeypatch, others)
    server = _Server(others)

    def look() -> References:
        server.asked.clear()
        counted.clear()
        artifacts = ctx.root.open("repo", "scratch", secrets.token_hex(4))
        start = datetime.now(timezone.utc)
        return read_references(connected(ctx, server), artifacts, "", start)

    assert set(look().counts.values()) == {0}
    assert server.asked["log"] == others

    assert len(look().counts) == others
    # The list until it has nothing new; of each its branches, behind the last one too, and
    # the diff of the only one.
    assert server.asked == {"repositories": 2, "branches": 2 * others, "diff": others}
    # Of each what is below _lakefs/, behind its last key too, and what the last look has found;
    # and with each list of repositories, which were looked at before.
    assert counted == {"list": 2 * others + 2, "get": others}

    server.moved = {"other-7", "other-70"}
    look()
    assert server.asked["log"] == len(server.moved)
    assert counted["put"] <= 4 * len(server.moved)


def test_what_was_found_counts_until_a_table_or_a_head_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _Server(1)
    ctx = connected(context(tmp_path, monkeypatch, 1), server)
    cache, (other,) = ctx.connections.cache(), others_of(ctx)

    def found() -> tuple[str, list[str] | None]:
        tables = tables_of(ctx.client, other, heads_of(ctx.client, other), cache)
        return tables.state, None if tables.naming is None else [*tables.naming]

    first, naming = found()
    assert naming is None
    record_naming(cache, other, first, ["a range"])
    assert found() == (first, ["a range"])
    # An import writes its ranges long before a HEAD leads to them.
    (tmp_path / "objects/other-0/_lakefs" / ("a" * 64)).touch()
    second, naming = found()
    assert naming is None
    record_naming(cache, other, second, [])
    assert found() == (second, [])
    server.moved = {"other-0"}
    assert found()[1] is None
    record_read(cache, other)
    assert found()[1] is None


@pytest.mark.parametrize(
    "new", [{"id": "x"}, {"storage_namespace": "local://x"}, {"creation_date": _MADE + 1}, {}]
)
def test_a_repository_that_is_made_anew_is_another_one(
    new: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of the one before says nothing of it."""
    (other,) = others_of(connected(context(tmp_path, monkeypatch, 1), _Server(1)))
    assert other.is_same(other.repository.model_copy(update=new)) is (not new)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, IntegrityError), (NotFoundError, None), (EndpointNotFoundError, EndpointNotFoundError)],
)
def test_only_a_bare_repository_has_no_branches(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: type[NotFoundError] | None,
    error: type[Exception] | None,
) -> None:
    """Else the list is cut, and what its branches have staged would not be read."""

    class _Cut(_Server):
        def branches(self, repository: str, *, after: str = "") -> Iterator[Branch]:
            return islice(super().branches(repository, after=after), 0)

        def branch(self, repository: str, name: str) -> Branch:
            if answer is not None:
                raise answer(f"{repository} has no branch {name}")
            return Branch(id=name, commit_id=_HEAD)

    ctx = connected(context(tmp_path, monkeypatch, 1), _Cut(1))
    (other,) = others_of(ctx)
    with nullcontext() if error is None else pytest.raises(error):
        assert heads_of(ctx.client, other) == {}


@pytest.mark.parametrize("lost", ["first", "second"])
def test_a_list_without_the_metarange_of_any_ancestor_is_cut(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges that it names would not be read."""
    ctx = connected(context(tmp_path, monkeypatch, 1), _Server(1))
    (other,) = others_of(ctx)
    of = {name: character * 64 for name, character in (("first", "1"), ("second", "2"))}
    commits = {name: Node(name, (), _MADE, metarange, 1) for name, metarange in of.items()}
    merge = Node("merge", ("first", "second"), _MADE, "", 1)
    commits |= {"merge": merge, "head": Node("head", ("merge",), _MADE, "", 1)}
    monkeypatch.setattr(other_repositories, "load_commits", lambda *_: commits)
    folder, heads = tmp_path / "objects/other-0/_lakefs", {"main": "head"}
    for metarange in of.values():
        (folder / metarange).touch()
    assert tables_of(ctx.client, other, heads, ctx.connections.cache()).metaranges == {*of.values()}
    (folder / of[lost]).unlink()
    with pytest.raises(IntegrityError, match=f"{of[lost]}, the metarange of a commit"):
        tables_of(ctx.client, other, heads, ctx.connections.cache())
