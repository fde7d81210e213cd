"""Stage 5, ``deletion_candidates``: listing - committed - uncommitted, older than the cutoff.

Only keys below ``data/`` and keys at the root without ``/`` can be candidates; everything else is
reported as unknown and left alone. What cannot be proven dead is spared, with the reason why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lakegc_assets.engine.datasets import Part, read_part, read_parts, write_part
from lakegc_assets.engine.tasks import bin_pack
from lakegc_assets.errors import IntegrityError, LakegcError
from lakegc_assets.mark.adoption import adopt
from lakegc_assets.mark.carrying import swept_since
from lakegc_assets.mark.evidence import EtagFiles
from lakegc_assets.mark.installation import require_one_server
from lakegc_assets.mark.reasons import CANDIDATES, last_holders, with_reasons
from lakegc_assets.mark.served import LEAST_SECONDS, SPARED, served_candidates
from lakegc_assets.mark.sifting import Sieve, Sifted, seen_before, sift
from lakegc_assets.run.artifacts import AttemptArtifacts, Manifest
from lakegc_assets.run.connections import Connections
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import Hashes, KeyDigest, address_hashes
from lakegc_assets.run.history import earlier, of_whole_store
from lakegc_assets.run.pins import among, pinned
from lakegc_assets.run.selection import Selection
from lakegc_assets.run.sets import members_of, write_set
from lakegc_assets.storage.base import ObjectStore

ASSET = "deletion_candidates"
#: Work on one core, in seconds, to write a candidate.
_ROW_S = 2e-6


def find_candidates(ctx: RunContext) -> Manifest:
    """Write the ``deletion_candidates`` asset, with what was spared beside it.

    Raises:
        OtherServerError: the mark was begun with another server.
        IntegrityError: an input is not what its manifest says, or a range is damaged.
        LakeFSError: lakeFS did not say what it serves.
    """
    started = ctx.clocks.now()
    client, connections = ctx.connect()
    require_one_server(client, ctx.repository, connections.store())
    attempt = ctx.root.attempt(ctx.repository, ctx.run)
    chain = attempt.chain("committed_addresses", connections.namespace_url)
    listing, store = chain["store_listing"], attempt.store()

    gone = write_set(store, f"{ASSET}/gone/", [address_hashes(swept_since(ctx, listing))])
    files, kept_files = _in_order(listing)
    sifted = sift(ctx, connections, files, _sieve(attempt, chain, gone))
    # What was looked at by name says nothing of the etags of what HEADs hold.
    etags = EtagFiles(sifted.etags, kept_files) if listing.mode != "committed" else EtagFiles()
    unlisted = _old_enough_uploads(ctx, connections, attempt, listing, sifted)
    kept = write_part(store, f"{ASSET}/spared/", _pinned(connections, store, unlisted.parts))
    spent = (ctx.clocks.now() - listing.started).total_seconds()
    served = served_candidates(
        ctx,
        connections,
        attempt.read("active_commits", "heads"),
        store,
        f"{ASSET}/served/",
        Selection(unlisted.parts, [kept]),
        etags,
        max(LEAST_SECONDS, spent),
        int(chain["uncommitted_snapshot"].facts["listed"]),
    )
    more = pa.concat_tables([unlisted.spared, served])
    spared = [*sifted.spared, kept, write_part(store, f"{ASSET}/spared/", more)]

    adopted = adopt(ctx, connections, attempt, Selection(unlisted.parts, spared), gone)
    dead, spared = adopted.dead, [*spared, *adopted.spared]
    holders = last_holders(ctx, connections, attempt, _hashes(store, dead))
    pieces = bin_pack(dead.parts, [p.rows * _ROW_S for p in dead.parts], _tasks(ctx))
    task = partial(with_reasons, connections, attempt.url, dead, holders)
    written = ctx.tasks.run("write candidates", task, pieces, dead.rows * _ROW_S)
    parts = [part for one in written for part in one.parts]
    parts = parts or [write_part(store, f"{ASSET}/data/", CANDIDATES.empty_table())]
    facts = {
        **sifted.facts,
        "by_reason": _by_reason([one.by_reason for one in written]),
        "spared": dict(Counter(w for t in read_parts(store, spared) for w in t["why"].to_pylist())),
        "skipped_slices": len(listing.facts.get("skipped_slices", ())),
        **adopted.facts,
    }
    return ctx.finish(
        ASSET,
        chain["committed_addresses"],
        started,
        {"data": parts, "spared": spared, "etags": etags.parts, **adopted.parts},
        facts,
        sum((one.digest for one in written), KeyDigest()),
    )


def _in_order(listing: Manifest) -> tuple[list[Part], list[int]]:
    """The files of a listing: those that the last run had, what the next one will have, all others.

    Returns:
        The files, and how many of them are the first of these, and the first two.
    """
    last, settled = (
        {part.key for part in listing.parts.get(name, ())} for name in ("carried", "settled")
    )
    files = sorted(listing.parts["data"], key=lambda p: (p.key not in last, p.key not in settled))
    return files, [len(last), len(last | settled)]


def _tasks(ctx: RunContext) -> int:
    return ctx.settings.address_num_partitions


def _sieve(attempt: AttemptArtifacts, chain: dict[str, Manifest], gone: Sequence[Part]) -> Sieve:
    """What keeps an object from being a candidate: that it is live, or known to be gone.

    Raises:
        IntegrityError: there are live ranges, and no addresses of them.
    """
    committed, uncommitted = chain["committed_addresses"], chain["uncommitted_snapshot"]
    if "referenced" not in committed.parts:
        raise IntegrityError(
            f"{attempt.url}/committed_addresses is of an earlier version, which did not read what "
            "other repositories name: mark again"
        )
    for name, manifest, rows, live in (
        ("committed_addresses", committed, "ranges", "data"),
        ("uncommitted_snapshot", uncommitted, "data", "hashes"),
    ):
        if _rows(manifest.parts[rows]) and not _rows(manifest.parts[live]):
            raise IntegrityError(
                f"{attempt.url}/{name} names what is live, and holds no address of it: mark again"
            )
    return Sieve(
        attempt.url,
        f"{ASSET}/",
        chain["store_listing"].cutoff,
        [
            *committed.parts["data"],
            *committed.parts["referenced"],
            *uncommitted.parts["hashes"],
            *gone,
        ],
        [*committed.parts["unresolved"], *uncommitted.parts["unresolved"]],
    )


def _rows(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


class _Unlisted(NamedTuple):
    """What is on no list and old enough; and of the rest what is spared."""

    parts: Sequence[Part]
    spared: pa.Table


def _old_enough_uploads(
    ctx: RunContext,
    connections: Connections,
    attempt: AttemptArtifacts,
    listing: Manifest,
    sifted: Sifted,
) -> _Unlisted:
    """Sort out what was uploaded in parts.

    Such objects carry the time at which the upload began, so they age from the first finished
    listing that saw them.
    """
    store = attempt.store()
    looks = [
        seen_before(ctx, connections, attempt.url, sifted.multipart, before)
        for before in _earlier_listings(ctx, listing)
    ]
    parts, spared = list(sifted.unlisted), [SPARED.empty_table()]
    for number, part in enumerate(sifted.multipart):
        rows = read_part(store, part)
        known = np.any([np.zeros(part.rows, np.bool_), *(seen[number] for seen in looks)], axis=0)
        if known.any():
            parts.append(write_part(store, f"{ASSET}/unlisted/", rows.filter(pa.array(known))))
        new = rows["address"].filter(pa.array(~known))
        why = pa.array(
            ["uploaded in parts, and not seen before the cutoff"] * len(new), pa.string()
        )
        spared.append(pa.table([new, why], schema=SPARED))
    return _Unlisted(parts, pa.concat_tables(spared))


def _pinned(connections: Connections, store: ObjectStore, parts: Sequence[Part]) -> pa.Table:
    """Of what would be a candidate that which was restored, and is to stay for a while.

    Raises:
        IntegrityError: nobody can tell what that is.
    """
    pins = pinned(connections.store())
    tables = read_parts(store, parts if pins.num_rows else (), ["address"])
    return pa.concat_tables([SPARED.empty_table(), *(among(pins, t["address"]) for t in tables)])


def _earlier_listings(ctx: RunContext, listing: Manifest) -> Iterator[tuple[str, Sequence[Part]]]:
    """The latest earlier listings of this namespace that were finished before the cutoff.

    Returns:
        That of the whole store, and the one of any mode; of each the URL of its attempt, and what
        it saw that was uploaded in parts.
    """
    found = earlier(ctx.root, ctx.repository, "store_listing", listing.namespace, ctx.run)
    seen: set[str] = set()
    for listings in (of_whole_store(found), found):
        for one in listings:
            if one.manifest.finished < listing.cutoff:
                with suppress(LakegcError):
                    whole = one.attempt.manifest("store_listing")
                    if one.attempt.url not in seen:
                        # What no listing wrote down was not seen, and stays.
                        yield one.attempt.url, whole.parts.get("multipart", ())
                    seen.add(one.attempt.url)
                    break


def _hashes(store: ObjectStore, dead: Selection) -> Hashes:
    """The sorted hashes of all candidates.

    Raises:
        IntegrityError: the listing holds one of them twice.
    """
    tables = (dead.read(store, part, ["address"]) for part in dead.parts)
    found = np.concatenate(
        [np.empty(0, np.uint64), *(address_hashes(t["address"]) for t in tables)]
    )
    hashes, counts = np.unique(found, return_counts=True)
    if len(hashes) != len(found) and _twice(store, dead, hashes[counts > 1]):
        raise IntegrityError(f"{store.url} lists an object twice: mark again under a new id")
    return hashes


def _twice(store: ObjectStore, dead: Selection, hashes: Hashes) -> bool:
    """Whether candidates of some hashes, which are sorted, have equal addresses."""
    found: list[str] = []
    for part in dead.parts:
        addresses = dead.read(store, part, ["address"])["address"]
        mask = members_of([hashes], address_hashes(addresses))
        found += addresses.filter(pa.array(mask)).to_pylist()
    return len(set(found)) != len(found)


def _by_reason(counts: Sequence[pa.Table]) -> dict[str, dict[str, int]]:
    if not counts:
        return {}
    total = pa.concat_tables(counts).group_by("reason", use_threads=False)
    rows = total.aggregate([("objects", "sum"), ("bytes", "sum")]).sort_by("reason").to_pylist()
    return {r["reason"]: {"objects": r["objects_sum"], "bytes": r["bytes_sum"]} for r in rows}
