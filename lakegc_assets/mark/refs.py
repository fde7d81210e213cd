"""Reads branches, tags and commits of lakeFS, and proves that no answer was cut."""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import chain, product
from typing import Final

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import EndpointNotFoundError, NotFoundError
from lakegc_assets.lakefs.models import Commit as ApiCommit
from lakegc_assets.lakefs.models import as_picked, is_changed, is_proven
from lakegc_assets.retention.commits import Commit
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.wording import counted

_RENAMED: Final = (
    "lakeFS has changed the name of the namespace where it wrote them, as it does with percent "
    "signs in it, and with blanks and other letters than those of ASCII on local storage: such a "
    "repository cannot be collected"
)
#: Advice for a location of lakeFS's at which this process finds no object.
LOOKED_ELSEWHERE: Final = (
    "correct endpoint, region, account or local_root of the store, so that both look at the same "
    f"place. If they do, {_RENAMED}"
)
#: Advice for a location of lakeFS's outside of the namespace.
WRITTEN_OUTSIDE: Final = (
    f"if the repository was made anew at another place meanwhile, run again. Otherwise {_RENAMED}"
)
#: Advice for a list of active commits that lakegc cannot read.
_LIST_DAMAGED: Final = (
    "run again, so that lakeFS writes a new list. If the message stays, please report it, with "
    "this file and the version of lakeFS"
)
_HEADER: Final = ["commit_id", "expired", "metarange_id"]
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{64}")
_METARANGE_ID: Final = re.compile(r"([0-9a-f]{64})?")


def read_heads(client: LakeFSClient, repository: str, known: Iterable[str] = ()) -> dict[str, str]:
    """HEAD of every branch, hidden ones too, with proof that the list was not cut.

    ``known``: branches that existed earlier; lakeFS is asked for each one that the list lacks.

    Raises:
        IntegrityError: the list lacks the default branch, which lakeFS never deletes, or a branch
            that still exists.
    """
    heads = listed_heads(client, repository)
    default = client.repository(repository).default_branch
    if default not in heads:
        # lakeFS remembers a repository for some seconds after it was deleted with its branches.
        branches = counted(len(heads), "branch", "branches")
        raise IntegrityError(
            f"the list of branches of {repository!r} has {branches}, and not its "
            f"default branch {default!r}: it is not complete, or the repository was just deleted. "
            "If `lakegc repositories` still lists it, run again",
        )
    require_gone("branch", repository, set(known) - heads.keys(), client.branch)
    return heads


def listed_heads(client: LakeFSClient, repository: str) -> dict[str, str]:
    """HEAD of every branch, hidden ones too; accepts an empty list."""
    return _read_all(
        lambda last: {b.id: b.commit_id for b in client.branches(repository, after=last)}
    )


def read_tags(client: LakeFSClient, repository: str, known: Iterable[str] = ()) -> dict[str, str]:
    """Commit of every tag.

    ``known``: tags that existed earlier; lakeFS is asked for each one that the list lacks.

    Raises:
        IntegrityError: the list lacks a tag that still exists.
    """
    tags = _read_all(lambda last: {t.id: t.commit_id for t in client.tags(repository, after=last)})
    require_gone("tag", repository, set(known) - tags.keys(), client.tag)
    return tags


def _read_all(read: Callable[[str], dict[str, str]]) -> dict[str, str]:
    """All commits by name, from as many reads as needed.

    A list that the server ends early looks complete. So each read starts after the last name, until
    one returns nothing new.
    """
    found: dict[str, str] = {}
    last = ""
    while not (more := read(last)).keys() <= found.keys():
        found |= more
        last = next(reversed(more))
    return found


def require_gone(
    kind: str, repository: str, names: Iterable[str], ask: Callable[[str, str], object]
) -> None:
    """Raise IntegrityError if a branch or tag exists although a list lacks it."""
    for name in names:
        try:
            ask(repository, name)
        except EndpointNotFoundError:
            raise
        except NotFoundError:
            continue
        raise IntegrityError(
            f"{kind} {name!r} of {repository!r} exists, but the list lacks it: the list is not "
            "complete. Run again",
        )


def read_commits_csv(
    store: ObjectStore, namespace: StorageNamespace, location: str
) -> dict[str, str]:
    """The list of active commits that lakeFS wrote: metarange id by commit id.

    Raises:
        IntegrityError: the list is missing, cut, not in lakeFS's form, or has a commit twice.
    """
    key = namespace.relative(location)
    if key is None:
        raise IntegrityError(
            f"lakeFS wrote its commits to {location}, outside of {namespace.url()}: "
            f"{WRITTEN_OUTSIDE}"
        )
    try:
        text = store.get(key).decode()
    except ObjectNotFoundError as error:
        raise IntegrityError(
            f"lakeFS wrote its commits to {location}, and there is no such object where this "
            f"process looks: {LOOKED_ELSEWHERE}"
        ) from error
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{location} is not text ({error}): {_LIST_DAMAGED}") from error
    return _parsed(text, location)


def _parsed(text: str, location: str) -> dict[str, str]:
    if not text.endswith("\n"):
        raise IntegrityError(f"{location} does not end with a whole line, so it is cut: run again")
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise IntegrityError(f"{location} is damaged ({error}): {_LIST_DAMAGED}") from error
    if rows[0] != _HEADER:
        raise IntegrityError(
            f"{location} starts with {rows[0]}, not with {_HEADER}: {_LIST_DAMAGED}"
        )
    listed: dict[str, str] = {}
    for number, row in enumerate(rows[1:], 2):
        sound = (
            len(row) == len(_HEADER)
            and _COMMIT_ID.fullmatch(row[0])
            and row[1] in ("true", "false")
            and _METARANGE_ID.fullmatch(row[2])
            and row[0] not in listed
        )
        if not sound:
            raise IntegrityError(
                f"line {number} of {location} is damaged or repeated ({row}): {_LIST_DAMAGED}"
            )
        if row[1] == "false":
            listed[row[0]] = row[2]
    return listed


def load_commits(
    client: LakeFSClient,
    repository: str,
    roots: Iterable[str],
    known: Collection[str] = frozenset(),
    read: dict[str, Commit] | None = None,
    *,
    by_name: bool = True,
) -> dict[str, Commit]:
    """Every commit that can be reached from the roots, by all parents.

    Main ancestries are read page by page until a known commit. Each commit's id is computed again
    from its content: this proves that the commit was made with the metarange that it names.

    ``roots``: commit ids, HEADs first.
    ``known``: commits that were read before with all their ancestors; they are left out. They are
        read again if a cherry-picked commit can be proven in no other way.
    ``read``: receives the commits one by one, for progress.
    ``by_name``: see ``LakeFSClient.commit``.

    Raises:
        IntegrityError: a parent is missing, or a commit's content does not match its id.
    """
    commits = {} if read is None else read
    roots = list(dict.fromkeys(roots))
    waiting = deque(roots)
    changed: list[ApiCommit] = []
    while waiting:
        # HEADs come before merged commits: the log of a HEAD has most of them.
        ref = waiting.popleft()
        if ref in commits or ref in known:
            continue
        try:
            for found in client.log(repository, ref, first_parent=True, by_name=by_name):
                if found.id in commits or found.id in known:
                    break
                if is_changed(found):
                    # The commit from which it was picked may come later.
                    changed.append(found)
                    commits[found.id] = _commit(found)
                else:
                    commits[found.id] = _checked(repository, found)
                waiting.extend(parent for parent in found.parents if parent not in commits)
        except NotFoundError as error:
            raise IntegrityError(
                f"commit {ref} of {repository!r} is named by a branch, tag, child, lakeFS's list "
                f"of active commits or our previous mark, but the server does not know it "
                f"({error}). If the repository was restored or made anew, remove the artifacts of "
                "its earlier runs",
            ) from error
        if ref not in commits:
            raise IntegrityError(
                f"the log of {ref} in {repository!r} does not start with it: the answer is not "
                "complete. Run again; if the message stays, check the log of the lakeFS server"
            )
    committers = {one.committer for one in commits.values()}
    for changed_commit in changed:
        origins = ((one.id, one.committer) for one in commits.values())
        original = as_picked(changed_commit, chain(origins, product(known, committers)))
        if original is None and known:
            # Known commits come without committers, so they are read again with them.
            commits.clear()
            return load_commits(client, repository, roots, read=commits, by_name=by_name)
        commits[changed_commit.id] = _checked(repository, original or changed_commit)
    return commits


def read_commits(client: LakeFSClient, repository: str, ids: Iterable[str]) -> dict[str, Commit]:
    """Commits by their ids, without their ancestors.

    Raises:
        IntegrityError: a commit's content does not match its id.
    """
    return {i: _checked(repository, client.commit(repository, i)) for i in sorted(set(ids))}


def _checked(repository: str, found: ApiCommit) -> Commit:
    if is_proven(found):
        return _commit(found)
    if is_changed(found):
        raise IntegrityError(
            f"commit {found.id} of {repository!r} was cherry-picked, and lakeFS answers with the "
            "copy in its cache, which it has changed: run again in ten minutes, when lakeFS has "
            "read the commit again"
        )
    raise IntegrityError(
        f"the content of commit {found.id} of {repository!r} has another id: the commit in lakeFS, "
        "or its answer, is damaged. Run again. If the message stays, restore the commit in the "
        "database of lakeFS from a backup; if the commit is sound there, please report this, with "
        f"the answer of `lakectl show commit lakefs://{repository}/{found.id}` and the version of "
        "lakeFS",
    )


def _commit(found: ApiCommit) -> Commit:
    return Commit(
        id=found.id,
        parents=tuple(found.parents),
        creation_date=found.creation_date,
        metarange_id=found.meta_range_id,
        version=found.version,
        committer=found.committer,
        metadata=tuple(found.metadata.items()),
    )
