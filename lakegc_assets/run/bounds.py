"""Bounds of numbers, which their fields name, and what refuses them says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Bounds:
    """The limits of a number, as an annotation of its field.

    Dagster reads a component's file in two steps: each value as it is written, which may be text
    with ``{{ }}`` in it, and again as it is filled in. Bounds of pydantic's own raise a
    ``TypeError`` for text and for null; these leave both to the type of the field.
    """

    least: float
    #: None for any that is finite.
    most: float | None = None
    #: A value is more than ``least``.
    above: bool = False
    unit: str = ""

    def __str__(self) -> str:
        """As errors and the documentation have them: from 0 to 40, more than 0 MB/s, 1 or more."""
        if self.above:
            most = "" if self.most is None else f", up to {self.most:,}"
            said = f"more than {self.least:,}{most}"
        elif self.most is None:
            said = f"{self.least:,} or more"
        else:
            said = f"from {self.least:,} to {self.most:,}"
        return f"{said} {self.unit}".rstrip()

    def check(self, value: object) -> object:
        """The value.

        Raises:
            ValueError: it is a number beyond the limits, or none that is finite.
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
        """The pydantic schema of a field with this annotation."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))
