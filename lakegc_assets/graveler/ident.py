"""Content ids: how lakeFS hashes entries, ranges, metaranges and commits.

The encodings of typed values are lakeFS's (pkg/ident/ident.go): a tag, then int64 lengths and
values in big-endian order.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence


def encode_int64(value: int) -> bytes:
    """Tag 02, the length 8, and the value."""
    return b"\x02\x08" + struct.pack(">q", value)


def encode_string(value: str) -> bytes:
    """Tag 01, the length in bytes, and the UTF-8 bytes."""
    raw = value.encode("utf-8", "surrogateescape")
    return b"\x01" + encode_int64(len(raw)) + raw


def encode_string_map(values: Mapping[str, str]) -> bytes:
    """Tag 04, the number of pairs, and key and value of each, by key."""
    pairs = sorted(values.items(), key=lambda pair: pair[0].encode("utf-8", "surrogateescape"))
    body = b"".join(encode_string(key) + encode_string(value) for key, value in pairs)
    return b"\x04" + encode_int64(len(values)) + body


def entry_identity(size: int, e_tag: str, metadata: Mapping[str, str], content_type: str) -> bytes:
    """The 32 bytes before an entry in its range; the address is no part of them."""
    parts = encode_int64(size) + encode_string(e_tag) + encode_string_map(metadata)
    if content_type:
        parts += encode_string(content_type)
    return hashlib.sha256(parts).digest()


def content_id(records: Iterable[tuple[bytes, bytes]], metadata: Mapping[str, str]) -> str:
    """The id of a range or metarange.

    Args:
        records: key and whole value (identity and protobuf, each with its length) in their order.
        metadata: the user properties that the writer received, such as ``type``, without those that
            lakeFS computes.

    Returns:
        64 hex digits.
    """
    digest = hashlib.sha256()
    for key, value in records:
        digest.update(b"%d%b|%d%b|" % (len(key), key, len(value), value))
    digest.update(encode_string_map(metadata))
    return digest.hexdigest()


def commit_id(
    committer: str,
    message: str,
    metarange_id: str,
    creation_date: int,
    metadata: Mapping[str, str],
    parents: Sequence[str],
) -> str:
    """The id of a commit, 64 hex digits.

    ``metarange_id`` is empty for the initial commit, ``creation_date`` in seconds since 1970.
    """
    # Tags: 03 and their number for strings, 05 for an identity, 00 for bytes.
    parents_list = b"\x03" + encode_int64(len(parents)) + b"".join(map(encode_string, parents))
    identity = hashlib.sha256(parents_list).digest()
    return hashlib.sha256(
        encode_string("commit:v1")
        + encode_string(committer)
        + encode_string(message)
        + encode_string(metarange_id)
        + encode_int64(creation_date)
        + encode_string_map(metadata)
        + b"\x05\x00"
        + encode_int64(len(identity))
        + identity
    ).hexdigest()
