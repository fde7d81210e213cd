"""How an interleaving ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakegc_assets_tests.simulation.world import World


@dataclass(frozen=True)
class Result:
    """How an interleaving ended.

    Attributes:
        choices: that were made.
        world: as it was at its end.
        failure: what promise was broken; None if none was.
    """

    choices: Sequence[int]
    world: World
    failure: str | None
