"""Messages between Dagster and the process of a remote run, as JSON without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import dagster as dg

from lakegc_assets.errors import ConfigurationError, IntegrityError, LakegcError, RefusedError

#: Of the form of these messages, which must be the same on both sides.
VERSION: Final = 1
_KINDS: Final = {
    "refused": RefusedError,
    "configuration": ConfigurationError,
    "integrity": IntegrityError,
}
#: How Pipes calls the kinds of metadata that this project shows.
_TYPES: Final[Mapping[type, str]] = {
    dg.TextMetadataValue: "text",
    dg.UrlMetadataValue: "url",
    dg.JsonMetadataValue: "json",
    dg.MarkdownMetadataValue: "md",
    dg.FloatMetadataValue: "float",
    dg.IntMetadataValue: "int",
    dg.BoolMetadataValue: "bool",
    dg.NullMetadataValue: "null",
    dg.TimestampMetadataValue: "timestamp",
}


@dataclass(frozen=True)
class RemoteRun:
    """The assets that a process is to make, and the settings for it.

    Attributes:
        component: fields of the component, as its file has them.
        place: where that file is on Dagster's machine; empty where it has none.
        repository: lakeFS repository.
        run: id of the run.
        assets: the assets, by their plain names, with the keys that Dagster has for them.
        config: what the run configures of the settings.
        tags: those of the run that say who has asked for it.
        version: of this form.
    """

    component: Mapping[str, Any]
    place: str
    repository: str
    run: str
    assets: Mapping[str, str]
    config: Mapping[str, Any]
    tags: Mapping[str, str]
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """As the extras of Pipes."""
        return asdict(self)

    @classmethod
    def from_json(cls, extras: Mapping[str, Any]) -> RemoteRun:
        """Of the extras of Pipes.

        Raises:
            ConfigurationError: another version of this package has written them, or none has.
        """
        if extras.get("version") != VERSION:
            raise ConfigurationError(
                "what Dagster has sent is not of this version of lakegc_assets: install the same "
                "version where Dagster runs and where this process does"
            )
        return cls(**extras)


@dataclass(frozen=True)
class Report:
    """The last message of a process: the error that ended it, if any.

    Attributes:
        stopped: the error that ended it, as ``of_error`` returns it; None where nothing did.
        tags: that the run of Dagster gets.
        version: of this form.
    """

    stopped: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """As a custom message of Pipes."""
        return {"lakegc": asdict(self)}

    @classmethod
    def of_messages(cls, messages: list[Any]) -> Report | None:
        """The report among custom messages; None where there is none of this version."""
        sent = [one["lakegc"] for one in messages if isinstance(one, dict) and "lakegc" in one]
        ours = [one for one in sent if one.get("version") == VERSION]
        return cls(**ours[-1]) if ours else None


def of_error(error: LakegcError) -> dict[str, Any]:
    """An error as JSON values."""
    kind = next((name for name, one in _KINDS.items() if isinstance(error, one)), "failed")
    return {
        "kind": kind,
        "said": str(error),
        "figures": dict(error.figures),
        "transient": error.transient,
    }


def error_of(values: Mapping[str, Any]) -> LakegcError:
    """The error from which ``of_error`` made these values."""
    error: LakegcError = _KINDS.get(values["kind"], LakegcError)(values["said"])
    error.figures, error.transient = values["figures"], values["transient"]
    return error


def metadata_for_pipes(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    """Metadata as Pipes takes them; Dagster's side adds the columns of an asset itself.

    Raises:
        TypeError: a kind of metadata that this project does not show.
    """
    return {
        name: _for_pipes(value)
        for name, value in metadata.items()
        if not isinstance(value, dg.TableSchemaMetadataValue)
    }


def _for_pipes(value: dg.MetadataValue[Any]) -> dict[str, Any]:
    if isinstance(value, dg.TableMetadataValue):
        table = {
            "records": [dict(record.data) for record in value.records],
            "schema": [{"name": one.name, "type": one.type} for one in value.schema.columns],
        }
        return {"type": "table", "raw_value": table}
    if type(value) not in _TYPES:
        raise TypeError(f"Pipes has no kind of metadata for {type(value).__name__}")
    return {"type": _TYPES[type(value)], "raw_value": value.value}
