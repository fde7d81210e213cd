"""Makes resources that keep their values where a run configures some of them.

Where a run's configuration names one field of a resource, Dagster gives all others the defaults of
the class, not the values that the resource was made with: a longer ``min_age_hours`` would be
forgotten by whoever sets ``protect_tags`` in the launchpad. And its launchpad begins with every
field that has a default, which are forty here, in jobs that take none of them, too: each job says
in the configuration of its partitions what it begins with.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, Optional, TypeVar, get_args, get_origin

import dagster as dg
from pydantic import create_model, field_validator

_R = TypeVar("_R", bound="dg.ConfigurableResource[Any]")


def keeping(resource: _R) -> _R:
    """A resource whose values are the defaults of its fields, too.

    Args:
        resource: as it should be where a run's configuration does not say anything else.
    """
    kind = type(resource)
    fields: dict[str, Any] = {}
    quiet: dict[str, Any] = {}
    choices: dict[str, tuple[str, ...]] = {}
    # Resources that it needs are no part of a run's configuration.
    within: dict[str, Any] = {}
    for name, info in kind.model_fields.items():
        value = getattr(resource, name)
        if _is_resource(info.annotation):
            within[name] = value
            continue
        field = copy.copy(info)
        field.default, field.default_factory = value, None
        fields[name] = (info.annotation, field)
        # Dagster looks up variables that are defaults, not what stands for them.
        if not isinstance(value, dg.EnvVar):
            # None is a default that Dagster does not show; it stands for the value.
            quiet[name] = value
            field.default, field.validate_default = None, True
            # Dagster knows no words of which one may be absent.
            words = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
            fields[name] = (Optional[str if words else info.annotation], field)  # noqa: UP045 - computed
            choices[name] = words

    def filled(value: Any, info: Any) -> Any:  # noqa: ANN401 - of any field
        name = info.field_name
        if value is None:
            return quiet[name]
        if choices[name] and value not in choices[name]:
            raise ValueError(f"{value!r} is none of {', '.join(choices[name])}")
        return value

    validators = {"filled": field_validator(*quiet, mode="before")(filled)} if quiet else {}
    made: type[_R] = create_model(
        kind.__name__,
        __base__=kind,
        __module__=kind.__module__,
        __validators__=validators,
        **fields,
    )
    return made(**within)


def _is_resource(annotation: Any) -> bool:  # noqa: ANN401 - of any field
    """Whether a field holds another resource."""
    if isinstance(annotation, type) and issubclass(annotation, dg.ConfigurableResource):
        return True
    return any(_is_resource(part) for part in get_args(annotation))
