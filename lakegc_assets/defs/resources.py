"""The resource with the settings of a run, and resources whose single fields a run configures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import pydantic
from pydantic import Field

from lakegc_assets.defs.connections import ObjectStoreResource
from lakegc_assets.defs.failures import stopped
from lakegc_assets.defs.policy import Places, Policies, Policy
from lakegc_assets.errors import ConfigurationError, RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.run.artifacts import ArtifactRoot, located, place_of_artifacts
from lakegc_assets.run.settings import CollectorSettings, RepositorySettings, Settings
from lakegc_assets.storage.config import S3Access


class CollectorResource(CollectorSettings, Places, dg.ConfigurableResource):  # type: ignore[type-arg]
    """The settings of a run. The launchpad can change each of them for a single run."""

    name: str = Field(
        default="",
        description="name of the component: without `artifact_root`, its artifacts are in a "
        "folder of this name",
    )
    policies: dict[str, Any] = Field(
        default={}, description="settings of single repositories, from the component"
    )
    collect_excluded: bool = Field(
        default=False,
        description="collect a repository although `include` and `exclude` of the component leave "
        "it out",
    )

    def settings(self) -> Settings:
        """The same settings for the core; a ``ConfigurationError`` if one of them is wrong."""
        places = {
            "backup_url": self._of_backups("url"),
            "backup_log": self.backup_log,
            "inventory_place": self.inventory_place,
        }
        values = {name: getattr(self, name) for name in CollectorSettings.model_fields}
        return Settings(**values | {k: located(v) if v else None for k, v in places.items()})

    def all_policies(self) -> Policies:
        """The policies of all repositories."""
        return Policies(**self.policies)

    def policy(self, repository: str) -> Policy:
        """The policy of a repository."""
        return self.all_policies().of(repository)

    def of_repository(self, repository: str, given: Mapping[str, Any]) -> CollectorResource:
        """This resource with the settings of one repository.

        ``given``: settings of the run itself, which override every policy.
        """
        if not self.policies:
            return self
        own = Policies(**self.policies).changed(repository)
        chosen = RepositorySettings.model_fields.keys() - given.keys()
        return self.model_copy(update={k: v for k, v in own.items() if k in chosen})

    def require_included(self, repository: str) -> None:
        """Refuse a repository that is not collected, unless the run has ``collect_excluded``."""
        if self.collect_excluded or self.all_policies().collects(repository):
            return
        raise RefusedError(
            f"repository {repository!r} is excluded, so nothing was done: `include` and `exclude` "
            "of the component leave it out. To collect it all the same, set collect_excluded: true "
            "for this run (in the launchpad below resources, collector, config; of the command "
            "`--set collect_excluded=true`)"
        )

    def root(self, stores: ObjectStoreResource) -> ArtifactRoot:
        """The root of the artifacts."""
        url = place_of_artifacts(self.artifact_root, self.name)
        return ArtifactRoot(url, replace(stores.config(), elsewhere=self.elsewhere()))

    def roots(self) -> tuple[str, ...]:
        """URLs below which the server keeps namespaces."""
        shared = os.environ.get("LAKEGC_NAMESPACE_ROOTS", "").split(",")
        return tuple(self.namespace_roots or filter(None, map(str.strip, shared)))

    def _of_backups(self, name: str) -> str | None:
        """A field about backups, else its environment variable."""
        found: str | None = getattr(self, f"backup_{name}")
        return found or os.environ.get(f"LAKEGC_BACKUP_{name.upper()}") or None

    def elsewhere(self) -> tuple[tuple[str, S3Access], ...]:
        """The bucket of the backups, if it has an endpoint, region or profile of its own.

        Raises:
            ConfigurationError: it has one of these, and ``backup_url`` is not in an S3 bucket.
        """
        ways: dict[str, Any] = {
            name: self._of_backups(name) for name in ("endpoint_url", "region", "profile")
        }
        if not any(ways.values()):
            return ()
        url = self._of_backups("url")
        place = StorageNamespace.parse(located(url)) if url else None
        if place is None or place.scheme != "s3":
            given = " and ".join(f"backup_{name}" for name, value in ways.items() if value)
            raise ConfigurationError(
                f"{given} is set, and backup_url is {url or 'not set'}: set backup_url to a URL "
                f"like s3://bucket/backups, or take {given} out"
            )
        return ((place.authority, S3Access(**ways)),)


def configurable(resource: dg.ConfigurableResource[Any]) -> dg.ResourceDefinition:
    """A resource of which a run can configure single fields; all others keep their values.

    If a run sets one field of a ``ConfigurableResource``, Dagster sets all others to the defaults
    of the class. A person who sets ``protect_tags`` in the launchpad would lose a longer
    ``min_age_hours`` of the component. So the fields have no defaults here: the launchpad begins
    without them, and null counts as absent.
    """
    kind = type(resource)
    values = {name: getattr(resource, name) for name in kind.model_fields}

    @dg.resource(
        description=kind.__doc__,
        config_schema={
            name: _optional(one, values[name]) for name, one in kind.to_fields_dict().items()
        },
    )
    def configured(context: dg.InitResourceContext) -> Iterator[dg.ConfigurableResource[Any]]:
        given = {k: v for k, v in context.resource_config.items() if v is not None}
        try:
            chosen = kind(**values | given)
        except pydantic.ValidationError as error:
            # The page of the run shows this cause. It omits values, since these may be secrets.
            wrong = (
                f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
                for one in error.errors(include_url=False, include_input=False)
            )
            raise stopped(ConfigurationError("; ".join(wrong))) from None
        # Pass the instance of the run: without it Dagster makes one with databases in memory.
        with dg.build_resources(
            {"made": chosen}, context.instance, log_manager=context.log
        ) as built:
            yield built.made

    return configured


def _optional(field: dg.Field, value: object) -> dg.Field:
    """A field that a run may omit; Dagster looks up a variable in each run."""
    kind: Any = field.config_type
    default: dict[str, Any] = {}
    if isinstance(value, dg.EnvVar):
        default["default_value"] = {"env": value.env_var_name}
    return dg.Field(
        kind if isinstance(kind, dg.Noneable) else dg.Noneable(kind),
        is_required=False,
        description=field.description,
        **default,
    )
