"""Makes resources that keep their values where a run configures some of them.

Where a run's configuration names one field of a resource, Dagster gives all others the defaults of
the class, not the values that the resource was made with: a longer ``min_age_hours`` would be
forgotten by whoever sets ``protect_tags`` in the launchpad.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import dagster as dg
from pydantic import create_model

_R = TypeVar("_R", bound="dg.ConfigurableResource[Any]")


def keeping(resource: type[_R], **values: Any) -> _R:  # noqa: ANN401 - fields have many types
    """A resource whose values are the defaults of its fields, too.

    Args:
        resource: its class.
        values: of its fields.

    Raises:
        pydantic.ValidationError: a value is wrong.
    """
    # Resources within it are no part of a run's configuration.
    plain = {k: v for k, v in values.items() if not isinstance(v, dg.ConfigurableResource)}
    fields: dict[str, Any] = {}
    for name, value in plain.items():
        field = copy.copy(resource.model_fields[name])
        field.default, field.default_factory = value, None
        fields[name] = (field.annotation, field)
    made: type[_R] = create_model(
        resource.__name__, __base__=resource, __module__=resource.__module__, **fields
    )
    return made(**values)
