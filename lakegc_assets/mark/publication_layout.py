"""Folders of the namespace to which a mark is written, as lakeFS's collectors expect them.

Its own is that of the unified collector. The two before that had one folder each, and the commands
that people keep, rclone's above all, name them: so lists in text are there for every mark that
could be looked for there. Lists in Parquet are what those collectors sweep from, so a mark of both
kinds has none there: it can be swept at one place only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lakegc_assets.errors import RefusedError
from lakegc_assets.run.settings import Mode, Publish
from lakegc_assets.storage.base import ObjectStore

_GC: Final = "_lakefs/retention/gc/"
#: Keys of files as they are named here; Spark's have a UUID in their names.
OURS: Final = re.compile(r"(?:.*/)?(?:part-\d{5,}\.(?:snappy\.parquet|txt)|summary\.json)")


def mark_folder(run: str) -> str:
    """The folder of a mark, relative to the namespace, with a slash at its end."""
    return f"{_GC}unified/{run}/"


def reports_folder(run: str) -> str:
    """The folder of a mark in the form of the standalone collector."""
    return f"{_GC}reports/{run}/"


@dataclass(frozen=True)
class Forms:
    """Further forms of a mark, besides the Parquet lists and the summary of its own folder.

    Attributes:
        texts: folders of its lists in text.
        copies: folders that get copies of its Parquet lists.
        summaries: keys that get copies of its summary.
        csv: key of its list in CSV, if it has one.
    """

    texts: tuple[str, ...]
    copies: tuple[str, ...]
    summaries: tuple[str, ...]
    csv: str | None = None


def forms(run: str, mode: Mode, publish: Publish) -> Forms:
    """The forms of a mark.

    Args:
        run: id of the mark.
        mode: what its candidates were looked for among.
        publish: for which collectors.
    """
    committed, uncommitted = mode != "uncommitted", mode != "committed"
    older = f"{_GC}uncommitted/{run}/"
    texts = [f"{mark_folder(run)}deleted.text/"]
    if committed:
        texts.append(f"{_GC}addresses.text/mark_id={run}/")
    if uncommitted:
        texts.append(f"{older}deleted.text/")
    copies = {
        "unified": (),
        "committed": (f"{_GC}addresses/mark_id={run}/",),
        "uncommitted": (f"{older}deleted/",),
    }
    # Start and last read slice, as lakeFS's design of optimized runs wants them.
    summaries = (f"{older}summary.json",) if uncommitted else ()
    if publish == "unified":
        return Forms(tuple(texts), copies[mode], summaries)
    reports = reports_folder(run)
    summaries = (*summaries, f"{reports}summary.json")
    return Forms(tuple(texts), copies[mode], summaries, f"{reports}deleted.csv")


def left_behind(store: ObjectStore, run: str, publish: Publish) -> list[str]:
    """Keys that an attempt left of a mark whose id nobody else has used, in any mode.

    Args:
        store: of the repository.
        run: id of the mark.
        publish: for which collectors it is to be published.

    Returns:
        Keys, relative to the namespace.

    Raises:
        RefusedError: another collector wrote something under this id.
    """
    folders = (
        f"{_GC}addresses/mark_id={run}/",
        f"{_GC}addresses.text/mark_id={run}/",
        f"{_GC}uncommitted/{run}/",
        # Ours is written after the summary of a mark, and is never left behind.
        *([reports_folder(run)] if publish == "sgc" else []),
        mark_folder(run),
    )
    keys = [
        key
        for folder in folders
        for batch in store.list(folder)
        for key in batch["key"].to_pylist()
    ]
    for key in keys:
        if key.startswith(reports_folder(run)) or not OURS.fullmatch(key):
            raise RefusedError(
                f"mark id {run!r} is in use by another collector, which wrote {store.url}/{key}: "
                "mark under another id"
            )
    return keys
