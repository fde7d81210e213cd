"""The guard of each batch: reads lakeFS and the lease, and decides whether the batch is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.mark.refs import read_heads, read_tags
from lakegc_assets.retention.retain_rules import NO_RETAIN, Retain
from lakegc_assets.retention.retained_commits import deciding
from lakegc_assets.retention.rules import Rules
from lakegc_assets.run.clocks import Moment

#: Seconds after the delta mark in which deletes may be sent.
DELTA_LIFETIME: Final = 600.0
#: Seconds after HEADs and rules were read in which the request of a batch ends.
CHECK_LIFETIME: Final = 60.0
#: Seconds of CHECK_LIFETIME for the reads; the rest is for the request, including a renewal of
#: credentials and a new connection.
CHECK_TIME: Final = 15.0

Verdict = Literal["send", "extend", "look again", "stale", "lost"]


class Fingerprint(NamedTuple):
    """Digests of the HEADs, rules and tags that a delta mark has read.

    Attributes:
        heads: digest of all branch HEADs.
        rules: digest of the retention rules and, if they protect, the tags.
    """

    heads: str
    rules: str


def seen_now(
    client: LakeFSClient, repository: str, *, protect_tags: bool, retain: Retain = NO_RETAIN
) -> tuple[Mapping[str, str], Fingerprint]:
    """Read the current HEAD of each branch, and the fingerprint that includes them."""
    heads = read_heads(client, repository)
    rules = client.gc_rules(repository)
    tags = read_tags(client, repository) if protect_tags or retain.reads_tags else {}
    if not protect_tags:
        tags = deciding(retain, tags)
    return heads, fingerprint_of(heads, None if rules is None else Rules.parse(rules), tags)


def fingerprint_of(
    heads: Mapping[str, str], rules: Rules | None, tags: Mapping[str, str]
) -> Fingerprint:
    """Return the fingerprint of HEADs, rules and protecting tags."""
    return Fingerprint(
        _digest(sorted(heads.items())),
        _digest([rules.to_json() if rules else None, sorted(tags.items())]),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Look:
    """The reads of a task before a batch.

    Attributes:
        seen: fingerprint of HEADs, rules and tags.
        now: time just before the lease was read.
        lost: reason why the lease does not allow deletes any more; empty while it does.
        held: True if an alarm holds all sweeps.
        took: duration in seconds.
    """

    seen: Fingerprint
    heads: Mapping[str, str]
    now: Moment
    lost: str
    held: bool
    took: float


def judge(look: Look, delta: Fingerprint, taken: Moment) -> tuple[Verdict, str]:
    """Decide whether a batch may be sent after a look, with the reason."""
    if lost := look.lost or ("an alarm holds all sweeps" if look.held else ""):
        return "lost", lost
    if outdated := _outdated(look, delta, taken):
        return "stale", outdated
    if look.seen.heads != delta.heads:
        return "extend", "HEADs have changed"
    if look.took >= CHECK_TIME:
        return "look again", "lakeFS and the store take too long to answer"
    return "send", ""


def _outdated(look: Look, delta: Fingerprint, taken: Moment) -> str:
    """Return the reason why a delta mark is outdated; empty if it is not."""
    if taken.age(look.now) >= DELTA_LIFETIME - CHECK_LIFETIME:
        return "the delta mark is too old"
    if taken.stood_still(look.now):
        return "the machine stood still since the delta mark"
    return "rules or tags have changed" if look.seen.rules != delta.rules else ""
