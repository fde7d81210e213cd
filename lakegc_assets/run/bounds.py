"""Bounds of numeric settings, as annotations of their fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Bounds:
    """The limits of a number, as an annotation of its field.

    Dagster reads a component's file in two steps: each value as text, maybe with ``{{ }}`` in it,
    and again with its templates resolved. Pydantic's own bounds raise a ``TypeError`` for text and
    for null. These bounds ignore both, so the type of the field decides.
    """

    least: float
    #: The upper limit; None for any finite number.
    most: float | None = None
    #: True if a value must exceed ``least``.
    above: bool = False
    unit: str = ""

    def __str__(self) -> str:
        """Return the text for errors and docs: from 0 to 40, more than 0 MB/s, 1 or more."""
        if self.above:
            most = "" if self.most is None else f", up to {self.most:,}"
            text = f"more than {self.least:,}{most}"
        elif self.most is None:
            text = f"{self.least:,} or more"
        else:
            text = f"from {self.least:,} to {self.most:,}"
        return f"{text} {self.unit}".rstrip()

    def check(self, value: object) -> object:
        """Return the value.

        Raises:
            ValueError: it is a number beyond the limits, or not finite.
        """
        if isinstance(value, int | float) and not self._holds(value):
            raise ValueError(f"{value} is not {self}")
        return value

    def _holds(self, value: float) -> bool:
        most = math.inf if self.most is None else self.most
        least = value > self.least if self.above else value >= self.least
        return least and value <= most and math.isfinite(value)

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401 - as pydantic has it
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Return the pydantic schema of a field with this annotation."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))
