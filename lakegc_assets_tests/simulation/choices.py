"""The choices of one interleaving: drawn by a seed, or taken from a list, and always recorded.

0 is the dull choice everywhere: go on with who is next, let nothing fail. So a list that ends, or
whose numbers are set to 0, is a schedule with less in it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


class Choices:
    """Where a run's choices come from.

    Args:
        seed: of random ones; None for none: what the script does not say is 0.
        script: the first choices, as an earlier run recorded them.
    """

    #: Whether they are those of an exploration.
    planned = False

    def __init__(self, seed: int | str | None = None, script: Sequence[int] = ()) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._script, self._left = script, len(script)
        self._drawn = None if self._random is None else self._random.random
        self.made: list[int] = []

    def pick(self, options: int, odds: float = 1.0) -> int:
        """A number below ``options``; at random something else than 0 so often."""
        at = len(self.made)
        if at < len(self._script):
            value = self._script[at] % options
        elif self._random is None or (odds < 1 and self._random.random() >= odds):
            value = 0
        else:
            value = self._random.randrange(options) if odds >= 1 else self._other(options)
        self.made.append(value)
        return value

    def among(self, weights: Sequence[int]) -> int:
        """The place of one of some weights: each at random as often as it says."""
        at = len(self.made)
        value = self._script[at] % len(weights) if at < self._left else 0
        if at >= self._left and self._random is not None:
            value = self._random.choices(range(len(weights)), weights)[0]
        self.made.append(value)
        return value

    def _other(self, options: int) -> int:
        assert self._random is not None
        return self._random.randrange(1, options) if options > 1 else 0

    def step(self, _what: str, switch: float, fault: float) -> int:
        """What comes before a call: 0 nothing, odd numbers a switch, even ones a fault."""
        value = 0
        if len(self.made) < self._left:
            value = self._script[len(self.made)]
        elif self._drawn is not None and (drawn := self._drawn()) < switch + fault:
            value = (1 if drawn < switch else 2) + 2 * self._below_64()
        self.made.append(value)
        return value

    def _below_64(self) -> int:
        """As ``randrange(64)``, which takes three times as long, draws it."""
        assert self._random is not None
        drawn = 64
        while drawn >= 64:
            drawn = self._random.getrandbits(7)
        return drawn
