"""Changes in the middle of a sweep, and its expected outcomes, in one place for all tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakegc_assets_tests.lake import REPOSITORY, RUN, Marked, SmallLake


def swept(lake: SmallLake, run: str = RUN) -> dict[str, tuple[str, str | None]]:
    """The one outcome of each object of a sweep that ended, and its detail."""
    rows = lake.root.attempt(REPOSITORY, run).read("swept_set").to_pylist()
    assert len({row["address"] for row in rows}) == len(rows)
    return {row["address"]: (row["outcome"], row["detail"]) for row in rows}


def spared(lake: SmallLake, run: str = RUN) -> dict[str, str | None]:
    """What a sweep spared, and why."""
    return {a: detail for a, (outcome, detail) in swept(lake, run).items() if outcome == "spared"}


def check_swept(lake: SmallLake, marked: Marked, kept: Mapping[str, str]) -> None:
    """One outcome for each candidate; what is spared, with these reasons, and all else remain."""
    found = swept(lake)
    assert found.keys() == marked.candidates
    assert spared(lake) == kept
    others = {outcome for address, (outcome, _) in found.items() if address not in kept}
    assert others <= {"deleted", "already_missing"}
    assert lake.keys() == marked.live | kept.keys()


def after_first_delete(
    lake: SmallLake, marked: Marked, change: Callable[[set[str]], None]
) -> list[str]:
    """Change something once the first batch is gone, before the next is allowed.

    Args:
        lake: where.
        marked: its candidates.
        change: gets the candidates that are still there.

    Returns:
        The request that came next, once there was one.
    """
    seen: list[str] = []

    def look(method: str, path: str) -> None:
        left = lake.keys() & marked.candidates
        if not seen and len(left) < len(marked.candidates):
            seen.append(f"{method} {path}")
            # Seen from now on, so that the changes' own calls pass.
            change(left)

    lake.on_request = look
    return seen


def revive_after_first_delete(lake: SmallLake, marked: Marked) -> list[str]:
    """Commit something that was deleted, as soon as it was; its address, once that has happened."""
    revived: list[str] = []

    def commit(left: set[str]) -> None:
        revived.append(min(marked.candidates - left))
        lake.stage("busy", "too/late", revived[0])
        lake.commit("busy")

    after_first_delete(lake, marked, commit)
    return revived
