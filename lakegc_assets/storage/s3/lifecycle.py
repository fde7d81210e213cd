"""Lifecycle rules of a bucket: what they remove, and after how many days.

MinIO and the servers that follow it have two elements that S3 does not have. boto3's parser drops
them, so a handler here keeps the XML of an answer:

- ``DelMarkerExpiration``: the days after which a deleted object and all of its versions are
  removed.
- ``AllVersionsExpiration``: the days after which an object and all of its versions are removed;
  with ``DeleteMarker`` also a deleted object.

Format: https://docs.aws.amazon.com/AmazonS3/latest/API/API_LifecycleRule.html
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from lakegc_assets.storage.bucket_store import overlap
from lakegc_assets.storage.s3.listing import keep

#: Storage classes whose objects cannot be read; tiers of Intelligent-Tiering are in no list.
ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_DATA: Final = "data/"
_XML: Final = "LakegcRules"
_DELETED_END: Final = "DelMarkerExpiration"
_ALL_END: Final = "AllVersionsExpiration"
_OWN: Final = frozenset({_DELETED_END, _ALL_END})


#: Keeps the rules in an answer as XML.
keep_rules: Final = partial(keep, _XML, "{*}Rule")


def rules_in(answer: Any) -> Sequence[Any]:  # noqa: ANN401 - boto3's
    """The lifecycle rules in an answer, with MinIO's elements as mappings of texts."""
    own = [
        {_name(end): {_name(one): one.text for one in end} for end in rule if _name(end) in _OWN}
        for rule in answer.get(_XML, ())
    ]
    return [{**rule, **more} for rule, more in zip(answer.get("Rules", ()), own, strict=True)]


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def days_until_gone(rule: Any, prefix: str) -> float | None:  # noqa: ANN401 - as above
    """The days after which a rule may remove deleted objects below a prefix; None for never."""
    if not _concerns(rule, prefix):
        return None
    found = []
    ends = rule.get("NoncurrentVersionExpiration", {})
    # A rule that spares the newest old versions spares the object that was deleted last.
    if "NoncurrentDays" in ends and not ends.get("NewerNoncurrentVersions"):
        found.append(ends["NoncurrentDays"])
    if _DELETED_END in rule:
        found.append(rule[_DELETED_END].get("Days"))
    if rule.get(_ALL_END, {}).get("DeleteMarker") == "true":
        found.append(rule[_ALL_END].get("Days"))
    return min(map(_number, found), default=None)


def days_until_removed(rule: Any) -> float | None:  # noqa: ANN401 - as above
    """The days after which a rule removes objects that were not deleted; None for never."""
    ends, tags = rule.get("Expiration", {}), {"Tag", "Tags"} & _chosen(rule).keys()
    if tags or rule.get("Status") != "Enabled":
        return None
    found = [0] if "Date" in ends else [ends["Days"]] if "Days" in ends else []
    if _ALL_END in rule:
        found.append(rule[_ALL_END].get("Days"))
    return min(map(_number, found), default=None)


def _number(days: object) -> float:
    """Days as a number; 0 if they cannot be read."""
    try:
        return float(str(days))
    except ValueError:
        return 0.0


def archives(rules: Sequence[Any], prefix: str) -> list[str]:
    """A sentence on rules that move deleted objects to an archive, where they cannot be read."""
    days = [
        one.get("NoncurrentDays", 0)
        for rule in rules
        if _concerns(rule, prefix)
        for one in rule.get("NoncurrentVersionTransitions", ())
        if one.get("StorageClass") in ARCHIVES
    ]
    since = f"{min(days):g} days after they were deleted" if days else ""
    return [f"{since} a rule moves them into an archive, where they cannot be read"] * bool(days)


def ends_all(rule: Any, prefix: str) -> bool:  # noqa: ANN401 - as above
    """True if a rule removes all objects below a prefix, not only those of some tags or sizes."""
    return f"{prefix}{_DATA}".startswith(start_of(rule)) and not _chosen(rule).keys() - {"Prefix"}


def start_of(rule: Any) -> str:  # noqa: ANN401 - as above
    """The prefix of the keys that a rule concerns."""
    return str(_chosen(rule).get("Prefix") or rule.get("Prefix") or "")


def _concerns(rule: Any, prefix: str) -> bool:  # noqa: ANN401 - as above
    """True if a rule is in effect, and may concern an object below a prefix."""
    return rule.get("Status") == "Enabled" and overlap(start_of(rule), prefix)


def _chosen(rule: Any) -> Any:  # noqa: ANN401 - as above
    chosen = rule.get("Filter", {})
    return chosen.get("And", chosen)
