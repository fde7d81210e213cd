"""Dumps of a repository's commits, branches and tags, as lakeFS writes them below ``_lakefs/``.

They are metaranges and ranges like those of commits, but their records are protobufs of refs. The
property ``entity`` identifies them. A collector must not read them as entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    timestamp_pb2,
)

from lakegc_assets.embedded.lake import Lake, catalog
from lakegc_assets.embedded.lake.catalog import Commit, Repository
from lakegc_assets.embedded.lake.trees import TreeWriter
from lakegc_assets.graveler.sstable import Record

TASK_PREFIX = "DR"
_PACKAGE = "io.treeverse.lakefs.graveler"
_KINDS = descriptor_pb2.FieldDescriptorProto
_TEXT, _NUMBER, _MESSAGE = _KINDS.TYPE_STRING, _KINDS.TYPE_INT32, _KINDS.TYPE_MESSAGE
_ONE, _MANY = _KINDS.LABEL_OPTIONAL, _KINDS.LABEL_REPEATED


def _descriptors() -> descriptor_pb2.FileDescriptorProto:
    """Descriptors of the lakeFS messages in dumps."""
    file = descriptor_pb2.FileDescriptorProto(
        name="lakegc_assets/embedded/refs/dumps.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    fields: dict[str, list[tuple[str, int, int]]] = {
        "BranchData": [
            ("id", _TEXT, _ONE),
            ("commit_id", _TEXT, _ONE),
            ("staging_token", _TEXT, _ONE),
            ("sealed_tokens", _TEXT, _MANY),
        ],
        "TagData": [("id", _TEXT, _ONE), ("commit_id", _TEXT, _ONE)],
        "CommitData": [
            ("id", _TEXT, _ONE),
            ("committer", _TEXT, _ONE),
            ("message", _TEXT, _ONE),
            ("creation_date", _MESSAGE, _ONE),
            ("meta_range_id", _TEXT, _ONE),
            ("metadata", _MESSAGE, _MANY),
            ("parents", _TEXT, _MANY),
            ("version", _NUMBER, _ONE),
            ("generation", _NUMBER, _ONE),
        ],
    }
    of = {
        "creation_date": ".google.protobuf.Timestamp",
        "metadata": f".{_PACKAGE}.CommitData.MetadataEntry",
    }
    for message, described in fields.items():
        made = file.message_type.add(name=message)
        for number, (name, kind, label) in enumerate(described, 1):
            made.field.add(
                name=name,
                number=number,
                type=kind,
                label=label,
                type_name=of.get(name),
                json_name=_json_name(name),
            )
    pair = file.message_type[-1].nested_type.add(name="MetadataEntry")
    pair.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        pair.field.add(name=name, number=number, type=_TEXT, label=_ONE, json_name=name)
    return file


def _json_name(name: str) -> str:
    """The name of a field in protobuf's JSON form: ``metaRangeId`` for ``meta_range_id``."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_FILE = _descriptors()
_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
_POOL.AddSerializedFile(_FILE.SerializeToString())


def message(name: str) -> Any:  # noqa: ANN401 - made at run time
    """The class of one of lakeFS's messages: ``CommitData``, ``BranchData`` or ``TagData``."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


_COMMIT, _BRANCH, _TAG = map(message, ("CommitData", "BranchData", "TagData"))


def dump(lake: Lake, repository: str) -> dict[str, str]:
    """Write all commits, branches and tags; the metaranges, as the API returns them.

    Raises:
        ApiError: 404 when there is no such repository, 403 for a read-only one.
    """
    with lake.state.read() as db:
        repo = catalog.writable_repository(db, repository)
        commits = sorted(catalog.all_commits(db, repo), key=lambda commit: commit.id)
        branches = [(branch.name, branch.commit_id) for branch in catalog.branches(db, repo)]
        tags = catalog.tags(db, repo)
    return {
        "commits_meta_range_id": _write(
            lake, repo, "CommitData", ((c.id, c.id, _commit(c)) for c in commits)
        ),
        "branches_meta_range_id": _write(
            lake, repo, "BranchData", ((n, c, _BRANCH(id=n, commit_id=c)) for n, c in branches)
        ),
        "tags_meta_range_id": _write(
            lake, repo, "TagData", ((n, c, _TAG(id=n, commit_id=c)) for n, c in tags)
        ),
    }


def _commit(commit: Commit) -> Any:  # noqa: ANN401 - made at run time
    made = _COMMIT(
        id=commit.id,
        committer=commit.committer,
        message=commit.message,
        meta_range_id=commit.metarange_id,
        metadata=dict(commit.metadata),
        parents=commit.parents,
        version=1,
        generation=commit.generation,
    )
    made.creation_date.seconds = commit.creation_date
    return made


def _write(lake: Lake, repo: Repository, kind: str, refs: Iterable[tuple[str, str, Any]]) -> str:
    """Write one dump; each ref has a key, an identity and a message."""
    (described,) = (each for each in _FILE.message_type if each.name == kind)
    schema = json.dumps(json_format.MessageToDict(described), separators=(",", ":"))
    writer = TreeWriter(
        lake.stores.trees(repo),
        {
            "entity": kind.removesuffix("Data").lower(),
            "schema_name": f"{_PACKAGE}.{kind}",
            "schema_definition": schema,
        },
    )
    for key, identity, ref in refs:
        value = ref.SerializeToString(deterministic=True)
        writer.add_record(Record(key.encode(), identity.encode(), value))
    return writer.finish()
