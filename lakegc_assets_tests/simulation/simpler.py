"""What stands in place of slower things that do the same: rows, JSON, hashes, and what was parsed.

The same few values come again and again, so what is a function of values is asked once for each.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow  # noqa: ICN001 - those that are called pa here are rows
import pyarrow.compute

from lakegc_assets import storage
from lakegc_assets.engine import datasets
from lakegc_assets.graveler import decode, namespace
from lakegc_assets.graveler.ident import commit_id
from lakegc_assets.mark import listing_rows, refs
from lakegc_assets.retention.commits import instant
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run import artifacts, context, hashing, sets, strings
from lakegc_assets.run.artifacts import Manifest
from lakegc_assets.run.settings import Settings
from lakegc_assets.sweep import delta_extension_task, liveness_look
from lakegc_assets.sweep.lease_record import LeaseRecord
from lakegc_assets_tests.simulation import columns
from lakegc_assets_tests.simulation import rows as pa
from lakegc_assets_tests.simulation.frozen import frozen

_MOST: Final = 256
_MANY: Final = 16_384


def simpler() -> list[tuple[object, str, object]]:
    """What is replaced where."""
    return [
        *_constants(),
        *frozen(),
        *((module, "etag_hashes", etag_hashes) for module in (delta_extension_task, listing_rows)),
        *((module, "hashlib", _DIGESTS) for module in (datasets, context)),
        (hashing, "_hashes", hashes_of),
        (strings, "among", columns.is_in),
        (strings, "places", columns.index_in),
        (strings, "taken", pa.Array.take),
        (strings, "in_order", pa.Table.sort_by),
        (sets, "distinct", distinct),
        (sets, "members_of", members_of),
        (namespace.StorageNamespace, "parse", _parsed),
        (refs, "content_id", _content_id),
        (refs, "_parsed", _commits_in),
        (Rules, "parse", _rules),
        (Settings, "to_json", _to_json),
        (artifacts, "_sizes", sizes_of),
        (liveness_look, "_digest", _digest),
        (Manifest, "from_bytes", manifest_of),
        (Manifest, "to_bytes", _encoded),
        (Manifest, "sha256", property(_sha256)),
        (LeaseRecord, "from_bytes", lease_of),
    ]


def _constants() -> Iterator[tuple[object, str, object]]:
    """In all modules rows in place of Arrow, also of their constants; and JSON not indented."""
    values = SimpleNamespace(loads=_loads, dumps=_dumps)
    ours = {
        id(pyarrow): pa,
        id(pyarrow.compute): columns,
        id(json): values,
        id(hashing.key_digest): digest_of,
        id(instant): _instant,
    }
    # What is imported only while all this is replaced would keep it.
    for late in walk_packages(storage.__path__, f"{storage.__name__}."):
        import_module(late.name)
    for name, module in list(sys.modules.items()):
        if not name.startswith("lakegc_assets.") or module is decode:
            continue
        for constant, value in list(vars(module).items()):
            if id(value) in ours:
                yield module, constant, ours[id(value)]
            elif isinstance(value, pyarrow.Schema):
                yield module, constant, pa.schema_of(value)
            elif isinstance(value, pyarrow.Table):
                yield module, constant, pa.table_of(value)
            elif isinstance(value, pyarrow.Array):
                yield module, constant, pa.array(value)


def _dumps(values: object, indent: int | None = None, **how: Any) -> str:
    """As ``json.dumps``, without the indentation that takes most of its time."""
    del indent
    if how != {"sort_keys": True}:
        return json.dumps(values, **how)
    if isinstance(values, dict) and "settings" in values:
        text = _sorted(values | {"settings": _PLACE})
        return text.replace(f'"{_PLACE}"', _settings_text(marshal.dumps(values["settings"], 2)), 1)
    return _sorted(values)


def _sorted(values: object) -> str:
    """As ``json.dumps`` with sorted keys, which makes an encoder each time, and looks for loops."""
    return "".join(_encode(values, 0))


def _unknown(value: object) -> str:
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


_encode: Final = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _unknown, json.encoder.encode_basestring_ascii, None, ": ", ", ", True, False, True
)


def _loads(data: str | bytes) -> Any:
    """As ``json.loads``; the settings in a manifest, which most have in common, are known."""
    if isinstance(data, bytes):
        begin, end = data.find(_SETTINGS), data.rfind(_BEHIND)
        if 0 < begin < end and (settings := _settings(data[begin + len(_SETTINGS) : end])):
            values = _read(data[:begin] + _SETTINGS + b"null" + data[end:])
            if isinstance(values, dict) and values.get("settings", settings) is None:
                return values | {"settings": settings.copy()}
    return _read(data)


def _read(data: str | bytes) -> Any:
    """As ``json.loads``, which first looks how bytes are encoded."""
    text = data if isinstance(data, str) else data.decode()
    try:
        values, end = _DECODER.raw_decode(text)
    except ValueError:
        end = -1
    # What is left of nothing is nothing, too: most texts end where their value does, or in a line.
    return values if end >= 0 and not text[end:].strip(_SPACE) else json.loads(data)


_SPACE: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder()
#: Stands where settings do, in a text of which they are most.
_PLACE: Final = "<settings>"
_SETTINGS: Final = b'"settings": '
_BEHIND: Final = b', "started": '


@lru_cache(maxsize=_MOST)
def _settings_text(marshalled: bytes) -> str:
    return _sorted(marshal.loads(marshalled))


@lru_cache(maxsize=_MOST)
def _settings(text: bytes) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


# Hashes


def hashes_of(strings: Any, offset: np.uint64) -> hashing.Hashes:
    """As the hashes of an array."""
    return _hashes_of_all(tuple(pa.values_of(strings)), int(offset))


def digest_of(keys: Any) -> hashing.KeyDigest:
    """As the digest of an array."""
    return _digest_of_all(tuple(pa.values_of(keys)))


@lru_cache(maxsize=_MANY)
def _digest_of_all(keys: tuple[str | None, ...]) -> hashing.KeyDigest:
    first, second = (
        sum(hash_of(key, offset) for key in keys) % 2**64
        for offset in (int(hashing._FNV_OFFSET), int(hashing._SECOND_OFFSET))
    )
    return hashing.KeyDigest(len(keys), first, second)


@lru_cache(maxsize=_MANY)
def _hashes_of_all(strings: tuple[str | None, ...], offset: int) -> hashing.Hashes:
    hashes = np.array([hash_of(one, offset) for one in strings], np.uint64)
    # Whoever wrote to it would write to what others get.
    hashes.flags.writeable = False
    return hashes


@lru_cache(maxsize=_MANY)
def hash_of(string: str | None, offset: int) -> int:
    """As the hash of one string, which takes several times as long in an array."""
    if string is None:
        raise ValueError("a key that is null has no hash")
    value = offset
    for byte in string.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


#: The bytes that stand for rows are the same in many worlds.
_DIGESTS: Final = SimpleNamespace(sha256=lru_cache(maxsize=_MANY)(hashlib.sha256))


def distinct(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As that of sets: for a few numbers Python's own take a third of the time."""
    return np.array(sorted(set(numbers.tolist())), numbers.dtype)


def members_of(runs: Iterable[hashing.Hashes], hashes: hashing.Hashes) -> npt.NDArray[np.bool_]:
    """As that of sets."""
    known: set[int] = set().union(*(run.tolist() for run in runs))
    return np.array([one in known for one in hashes.tolist()], np.bool_)


#: Of the pages of lists that were the same again, which are then the same objects.
_sizes_known: Final[dict[int, tuple[pa.Table, dict[str, int]]]] = {}


def sizes_of(pages: Iterable[pa.Table]) -> dict[str, int]:
    """As the sizes of the files in a listing."""
    found: dict[str, int] = {}
    for page in pages:
        known = _sizes_known.get(id(page))
        if known is None:
            if len(_sizes_known) > _MOST:
                _sizes_known.clear()
            known = _sizes_known[id(page)] = (page, _real_sizes([page]))
        found = found | known[1] if found else known[1]
    return found


_etag_hash: Final = lru_cache(maxsize=4096)(decode.etag_hash)


def etag_hashes(etags: pa.Array) -> pa.Array:
    """As the hashes of an array of etags."""
    return pa.Array([_etag_hash(etag) for etag in etags.values], pa.int64())


_instant: Final = lru_cache(maxsize=_MANY)(instant)
_real_digest: Final = liveness_look._digest


def _digest(told: Any) -> str:
    """As that of values in a fingerprint."""
    return _digest_of(marshal.dumps(told, 2))


@lru_cache(maxsize=_MANY)
def _digest_of(marshalled: bytes) -> str:
    return _real_digest(marshal.loads(marshalled))


def _content_id(
    committer: str,
    message: str,
    metarange_id: str,
    date: int,
    metadata: Mapping[str, str],
    parents: Sequence[str],
) -> str:
    """As that of a commit."""
    told = (committer, message, metarange_id, date, tuple(metadata.items()), tuple(parents))
    return _content_id_of(*told)


@lru_cache(maxsize=4096)
def _content_id_of(
    committer: str,
    message: str,
    metarange_id: str,
    date: int,
    metadata: tuple[tuple[str, str], ...],
    parents: tuple[str, ...],
) -> str:
    return commit_id(committer, message, metarange_id, date, dict(metadata), parents)


# What is parsed

_parsed: Final = lru_cache(maxsize=64)(namespace.StorageNamespace.parse)
_real_commits: Final = refs._parsed
_commits_known: Final[dict[str, dict[str, str]]] = {}


def _commits_in(text: str, location: str) -> dict[str, str]:
    """As the commits in lakeFS's list of them, where it is whole."""
    known = _commits_known.get(text)
    if known is None:
        if len(_commits_known) > _MOST:
            _commits_known.clear()
        known = _commits_known[text] = _real_commits(text, location)
    return known.copy()


_real_rules: Final = Rules.parse


def _rules(told: Any) -> Rules:
    """As ``Rules.parse``; what it answers is not changed by anybody."""
    return _rules_of(marshal.dumps(told, 2))


@lru_cache(maxsize=_MOST)
def _rules_of(marshalled: bytes) -> Rules:
    return _real_rules(marshal.loads(marshalled))


lease_of: Final = lru_cache(maxsize=64)(LeaseRecord.from_bytes)
_from_bytes: Final = Manifest.from_bytes
_real_sizes: Final = artifacts._sizes
_to_bytes: Final = Manifest.to_bytes
_real_to_json: Final = Settings.to_json
_as_json: Final[dict[int, tuple[Settings, dict[str, Any]]]] = {}
_written: Final[set[bytes]] = set()
_digests: Final[dict[int, tuple[Manifest, str]]] = {}
_real_sha256: Final[Callable[[Manifest], str]] = vars(Manifest)["sha256"].fget


def _encoded(manifest: Manifest) -> bytes:
    """As ``Manifest.to_bytes``; what was encoded is known again when it is read."""
    data = _to_bytes(manifest)
    if len(_written) > _MOST:
        _written.clear()
    _written.add(data)
    return data


def _to_json(settings: Settings) -> dict[str, Any]:
    known = _as_json.get(id(settings))
    if known is None or known[0] is not settings:
        if len(_as_json) > _MOST:
            _as_json.clear()
        known = _as_json[id(settings)] = (settings, _real_to_json(settings))
    return known[1].copy()


@lru_cache(maxsize=_MOST)
def manifest_of(data: bytes, where: str) -> Manifest:
    """As ``Manifest.from_bytes``."""
    manifest = _from_bytes(data, where)
    if data in _written:
        _note(manifest, hashlib.sha256(data).hexdigest())
    return manifest


def _sha256(manifest: Manifest) -> str:
    known = _digests.get(id(manifest))
    if known is not None and known[0] is manifest:
        return known[1]
    return _note(manifest, _real_sha256(manifest))


def _note(manifest: Manifest, digest: str) -> str:
    if len(_digests) > _MOST:
        _digests.clear()
    _digests[id(manifest)] = (manifest, digest)
    return digest
