"""The answers of lakeFS's API as values, validated on receipt.

Fields are lakeFS's own (https://docs.lakefs.io, api/swagger.yml); other fields are ignored. A field
that is missing or of another type raises ``UnexpectedAnswerError``. Dates are epoch seconds, sizes
bytes.

lakeFS may show a commit changed by a cherry-pick: ``graveler.CherryPick`` adds its keys to the
metadata of the picked commit, in the server's cache. Until the server reads that commit again (by
default after ten minutes), logs show the commit with these keys. A read by its id fails with 404 or
returns the new commit, because the server computes the id anew from the content. Children, branches
and tags keep the original id, which is the id of the original content: ``as_made`` and
``as_picked`` find the original commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    with_config,
)
from typing_extensions import NotRequired, TypedDict

from lakegc_assets.graveler.ident import commit_id as content_id
from lakegc_assets.graveler.namespace import namespace_as_lakefs_reads_it

NonEmpty = Field(min_length=1)
NoneIfEmpty = Annotated[str | None, AfterValidator(lambda value: value or None)]
#: The server writes a mapping without items as null.
Metadata = Annotated[dict[str, str], BeforeValidator(lambda value: {} if value is None else value)]
#: Key of the metadata of a cherry-pick: the id of the commit that was picked.
ORIGIN: Final = "cherry-pick-origin"
_COMMITTER: Final = "cherry-pick-committer"


class Model(BaseModel):
    """Frozen; unknown fields are ignored, and no value is converted from another type."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Repository(Model):
    """A repository and its storage namespace.

    ``storage_namespace`` is a URL, as ``namespace_as_lakefs_reads_it`` returns it.
    """

    id: str = NonEmpty
    storage_namespace: Annotated[
        str, Field(min_length=1), AfterValidator(namespace_as_lakefs_reads_it)
    ]
    default_branch: str
    creation_date: int
    read_only: bool = False
    storage_id: str = ""


class Branch(Model):
    """A branch and its HEAD."""

    id: str = NonEmpty
    commit_id: str = NonEmpty


class Tag(Branch):
    """A tag and its commit."""


class Commit(Model):
    """A commit; ``meta_range_id`` is empty for the initial commit of a repository.

    ``version`` is 1 if the server does not tell it: commits of version 0 were made before 2021.
    """

    id: str = NonEmpty
    parents: tuple[str, ...]
    committer: str
    message: str
    creation_date: int
    meta_range_id: str
    metadata: Metadata = Field(default_factory=dict)
    generation: int | None = None
    version: int = 1


class VersionConfig(Model):
    """The version that a server reports."""

    version: str


class ServerConfig(Model):
    """The configuration that a server reports.

    Its block storage is left out: nothing here needs it, and it may be blank.
    """

    version_config: VersionConfig


class UsageReport(Model):
    """The usage report of a server."""

    installation_id: str = ""


class GracePeriod(Model):
    """The time in which an address that was handed out may be linked, in seconds."""

    grace_period: NonNegativeInt


class PreparedCommits(Model):
    """The location of the list of active commits (``commits.csv``) that the server wrote.

    The presigned URL of the real answer is left out on purpose: it is a credential.
    """

    run_id: str = NonEmpty
    gc_commits_location: str = NonEmpty


class TaskCreated(Model):
    """The id of a task that was started."""

    id: str = NonEmpty


class TaskStatus(Model):
    """The state of a task."""

    task_id: str
    completed: bool


class TaskError(Model):
    """The error of a task, in the server's words."""

    message: str


class PrepareCommitsStatus(TaskStatus):
    """The state of a task; a completed task has a result or an error."""

    result: PreparedCommits | None = None
    error: TaskError | None = None


class DumpedRefs(Model):
    """The location of a dump of refs: the metaranges of its commits, branches and tags."""

    commits_meta_range_id: str = NonEmpty
    branches_meta_range_id: str
    tags_meta_range_id: str

    @property
    def metaranges(self) -> frozenset[str]:
        """The ids of the metaranges that exist: a repository without tags has none for tags."""
        ids = (self.commits_meta_range_id, self.branches_meta_range_id, self.tags_meta_range_id)
        return frozenset(filter(None, ids))


class DumpStatus(TaskStatus):
    """The state of a dump of refs; a finished dump has refs or an error."""

    task_id: str = Field(alias="id")
    completed: bool = Field(alias="done")
    refs: DumpedRefs | None = None
    error: str | None = None


class UncommittedPage(Model):
    """One page of the staged addresses: a directory of parquet files, or None if it has none.

    No location does not mean that the branches of the page have nothing staged.
    """

    run_id: str = NonEmpty
    gc_uncommitted_location: NoneIfEmpty = None
    continuation_token: NoneIfEmpty = None


class ObjectStats(Model):
    """An object as a ref serves it: its path there, and the address of its bytes."""

    path: str
    path_type: Literal["object"]
    physical_address: str = NonEmpty
    checksum: str
    size_bytes: int
    mtime: int
    metadata: Metadata = Field(default_factory=dict)
    content_type: str = ""


ChangeType = Literal["added", "removed", "changed", "conflict", "prefix_changed"]


class DiffEntry(Model):
    """One difference between a branch and its HEAD."""

    path: str
    path_type: str
    type: ChangeType
    size_bytes: int | None = None


@with_config(Model.model_config)
class Change(TypedDict):
    """A ``DiffEntry`` as a dict, read in a third of the time: a branch may stage millions."""

    path: str
    path_type: str
    type: ChangeType
    size_bytes: NotRequired[int | None]


class MergeResult(Model):
    """The commit of a merge."""

    reference: str = NonEmpty


class Pagination(Model):
    """Pagination of a list: whether more follow, and the item to continue after."""

    has_more: bool
    next_offset: str
    results: int


T = TypeVar("T")


class Page(Model, Generic[T]):
    """One page of a list."""

    pagination: Pagination
    results: list[T]


def as_made(told: Commit, commit_id: str) -> Commit:
    """A commit without the keys of a cherry-pick; unchanged if its id does not prove the result.

    ``commit_id``: the id that was asked for, that a child names, or that the server returned.
    """
    if told.metadata.get(ORIGIN) != commit_id:
        return told
    own = {name: v for name, v in told.metadata.items() if name not in {ORIGIN, _COMMITTER}}
    made = _with(told, commit_id, own)
    return made if is_proven(made) else told


def is_changed(told: Commit) -> bool:
    """True if a commit names itself as its origin: it is a cherry-pick that was picked again."""
    return told.metadata.get(ORIGIN) == told.id


def as_picked(told: Commit, origins: Iterable[tuple[str, str]]) -> Commit | None:
    """The original of a commit that ``is_changed``; None if no origin fits.

    ``origins``: ids of commits that it may be picked from, each with a possible committer.
    """
    for origin, committer in origins:
        metadata = {**told.metadata, ORIGIN: origin, _COMMITTER: committer}
        made = _with(told, told.id, metadata)
        if is_proven(made):
            return made
    return None


def is_proven(told: Commit) -> bool:
    """True if a commit's id is the id of its content."""
    content = (told.committer, told.message, told.meta_range_id, told.creation_date)
    return content_id(*content, told.metadata, told.parents) == told.id


def _with(told: Commit, commit_id: str, metadata: Mapping[str, str]) -> Commit:
    return told.model_copy(update={"id": commit_id, "metadata": metadata})
