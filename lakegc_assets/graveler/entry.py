"""Entries and range data: the protobuf messages inside ranges and metaranges.

The descriptors follow lakeFS's catalog.proto and committed.proto, and Google's protobuf runs them.
So this codec is a second opinion, independent of the fast decoder.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError, Message

from lakegc_assets.graveler import ident


class AddressType(enum.IntEnum):
    """The address type of an entry."""

    BY_PREFIX_DEPRECATED = 0
    RELATIVE = 1
    FULL = 2


class Timestamp(NamedTuple):
    """Seconds since 1970 and nanoseconds, as the protobuf has them."""

    seconds: int = 0
    nanos: int = 0

    @classmethod
    def of(cls, moment: datetime) -> Timestamp:
        """Convert an aware datetime exactly."""
        since = moment - _EPOCH
        return cls(since.days * 86_400 + since.seconds, since.microseconds * 1000)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NEVER: Final = Timestamp()


@dataclass(frozen=True)
class Entry:
    """One object at one path of a commit."""

    #: Address of the object, in the form that ``address_type`` names.
    address: str
    #: The time at which lakeFS recorded the object.
    last_modified: Timestamp = _NEVER
    #: Bytes.
    size: int = 0
    #: Etag of the object, as the store gave it, without quotes.
    e_tag: str = ""
    #: The user's metadata.
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: The form of ``address``.
    address_type: AddressType = AddressType.RELATIVE
    #: May be empty.
    content_type: str = ""


class CommitData(NamedTuple):
    """A commit in a dump of refs: its id, the metarange of its objects, its parents."""

    id: str
    metarange_id: str
    parents: tuple[str, ...] = ()


def _messages() -> tuple[type[Message], ...]:
    file = descriptor_pb2.FileDescriptorProto(
        name="lakegc_assets/graveler.proto",
        package="lakegc_assets.graveler",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    entry = file.message_type.add(name="Entry")
    pair = entry.nested_type.add(name="MetadataEntry")
    pair.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        pair.field.add(name=name, number=number, type=kinds.TYPE_STRING, label=one)
    timestamp, metadata = (
        ".google.protobuf.Timestamp",
        ".lakegc_assets.graveler.Entry.MetadataEntry",
    )
    for number, name, kind, of in (
        (1, "address", kinds.TYPE_STRING, None),
        (2, "last_modified", kinds.TYPE_MESSAGE, timestamp),
        (3, "size", kinds.TYPE_INT64, None),
        (4, "e_tag", kinds.TYPE_STRING, None),
        (5, "metadata", kinds.TYPE_MESSAGE, metadata),
        (6, "address_type", kinds.TYPE_INT32, None),
        (7, "content_type", kinds.TYPE_STRING, None),
    ):
        label = many if of == metadata else one
        entry.field.add(name=name, number=number, type=kind, type_name=of, label=label)
    range_data = file.message_type.add(name="RangeData")
    for number, name, kind in (
        (1, "min_key", kinds.TYPE_BYTES),
        (2, "max_key", kinds.TYPE_BYTES),
        (3, "estimated_size", kinds.TYPE_UINT64),
        (4, "count", kinds.TYPE_INT64),
    ):
        range_data.field.add(name=name, number=number, type=kind, label=one)
    commit = file.message_type.add(name="CommitData")
    for number, name in ((1, "id"), (5, "meta_range_id")):
        commit.field.add(name=name, number=number, type=kinds.TYPE_STRING, label=one)
    commit.field.add(name="parents", number=7, type=kinds.TYPE_STRING, label=many)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return tuple(
        message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"lakegc_assets.graveler.{name}")
        )
        for name in ("Entry", "RangeData", "CommitData")
    )


_ENTRY, _RANGE_DATA, _COMMIT_DATA = _messages()


def encode_entry(entry: Entry) -> bytes:
    """Encode an entry as protobuf: fields by number, metadata by key."""
    message: Any = _ENTRY(
        address=entry.address,
        size=entry.size,
        e_tag=entry.e_tag,
        metadata=dict(entry.metadata),
        address_type=int(entry.address_type),
        content_type=entry.content_type,
    )
    message.last_modified.seconds, message.last_modified.nanos = entry.last_modified
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_entry(data: bytes) -> Entry:
    """Decode the protobuf of an entry; ValueError if it is invalid."""
    message = _parse(_ENTRY, data)
    return Entry(
        address=message.address,
        last_modified=Timestamp(message.last_modified.seconds, message.last_modified.nanos),
        size=message.size,
        e_tag=message.e_tag,
        metadata=dict(message.metadata),
        address_type=AddressType(message.address_type),
        content_type=message.content_type,
    )


class Place(NamedTuple):
    """The address of an entry's object, and the time of the entry in lakeFS (epoch seconds)."""

    address: str
    address_type: int
    seconds: int


def decode_place(data: bytes) -> Place:
    """Decode address and time only, four times as fast as ``decode_entry``; ValueError too."""
    message = _parse(_ENTRY, data)
    return Place(message.address, message.address_type, message.last_modified.seconds)


def entry_identity(entry: Entry) -> bytes:
    """The 32 bytes by which lakeFS identifies an entry's content; the address is no part of it."""
    return ident.entry_identity(entry.size, entry.e_tag, entry.metadata, entry.content_type)


def encode_range_data(min_key: bytes, max_key: bytes, estimated_size: int, count: int) -> bytes:
    """Encode the data of a range in a metarange as protobuf."""
    message = _RANGE_DATA(
        min_key=min_key, max_key=max_key, estimated_size=estimated_size, count=count
    )
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_range_data(data: bytes) -> tuple[bytes, bytes, int, int]:
    """Decode first and last key, size and number of entries; ValueError if they are invalid."""
    message = _parse(_RANGE_DATA, data)
    return message.min_key, message.max_key, message.estimated_size, message.count


def decode_commit_data(data: bytes) -> CommitData:
    """Decode the protobuf of a commit in a dump; ValueError if it is invalid."""
    message = _parse(_COMMIT_DATA, data)
    return CommitData(message.id, message.meta_range_id, tuple(message.parents))


def _parse(kind: type[Message], data: bytes) -> Any:  # noqa: ANN401 - made at run time
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return message
