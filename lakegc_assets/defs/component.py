"""``lakegc_assets.GarbageCollection``: the whole graph as a component, configured by one file."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import dagster as dg
import pydantic

# Dagster's own components have their ``translation`` from it, and it has no public name.
from dagster.components.utils.translation import TranslationFnResolver
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from lakegc_assets.defs.assets import MARK, STAGES, SWEEP
from lakegc_assets.defs.checks import attribution_check, candidate_checks
from lakegc_assets.defs.collection import Collection
from lakegc_assets.defs.connections import LakeFSResource, ObjectStoreResource
from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.fields import Name, Patterns, with_plain_errors
from lakegc_assets.defs.jobs import jobs
from lakegc_assets.defs.metrics import MetricsSection, metrics_sensor
from lakegc_assets.defs.names import Names
from lakegc_assets.defs.notices import failure_sensor
from lakegc_assets.defs.pending_marks import waiting_sensor
from lakegc_assets.defs.policy import (
    CollectorSection,
    NoticeSection,
    Override,
    Places,
    Policies,
    Policy,
    ServerSection,
    StoresSection,
)
from lakegc_assets.defs.prune import prune_schedule
from lakegc_assets.defs.resources import CollectorResource, configurable
from lakegc_assets.defs.rule_changes import rules_sensor
from lakegc_assets.defs.run_on import RunOnSection, remote_assets
from lakegc_assets.defs.scaffolding import CollectionScaffolder
from lakegc_assets.defs.schedules import schedules, waves_sensor
from lakegc_assets.defs.sensors import (
    approvals_sensor,
    repositories_sensor,
    resume_sensor,
)
from lakegc_assets.defs.stages import Result, Stage, step
from lakegc_assets.defs.staleness import (
    REPOSITORIES,
    repositories_spec,
    staleness_check,
    staleness_sensor,
)
from lakegc_assets.engine.spark_session import session_settings
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.run.artifacts import located
from lakegc_assets.run.command_line import Source, given_settings
from lakegc_assets.run.settings import RepositorySettings, SharedSettings
from lakegc_assets.storage.config import StoreConfig

Translation = Annotated[
    Callable[[dg.AssetSpec, str], dg.AssetSpec],
    TranslationFnResolver[str](lambda asset: {"asset": asset}),
]
#: Fields that a remote mark or sweep does not need; some of them may hold secrets.
_NOT_REMOTE: Final = {"notices", "metrics", "translation", "run_on", "owners", "tags", "running"}
#: Attributes of assets that stay: the order of the graph is part of the safety argument.
_FIXED: Final = ("deps", "partitions_def", "skippable", "automation_condition")
#: A variable in a file, without a default.
_VARIABLE: Final = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")


@dg.scaffold_with(CollectionScaffolder)
class GarbageCollection(dg.Component, Policy):
    """Garbage collection for the repositories of a lakeFS server.

    Marks the objects that no retention rule, no branch and no staged write needs any more, with the
    reason for each. Sweeps them as far as the policy of each repository allows it.
    """

    name: Name | None = Field(
        default=None,
        description="prefix of the names of all definitions of the component, needed if a Dagster "
        "has several components or if your own definitions have such names: letters, digits and _",
    )
    translation: Translation | None = Field(
        default=None,
        description="changes to the assets: key, key_prefix, group_name, owners, tags, kinds, "
        "description, metadata",
    )
    lakefs: ServerSection = Field(
        default_factory=ServerSection, description="the lakeFS server and its credentials"
    )
    stores: StoresSection = Field(
        default_factory=StoresSection, description="the object stores, and the place of artifacts"
    )
    collector: CollectorSection = Field(
        default_factory=CollectorSection,
        description="settings of every run: engine, tasks, rates, waits",
    )
    include: Patterns = Field(
        default_factory=lambda: ["*"], description="names or patterns of repositories to collect"
    )
    exclude: Patterns = Field(
        default_factory=list,
        description="names or patterns of included repositories that are not collected",
    )
    running: bool = Field(
        default=False,
        description="true: schedules and sensors run from the start; else turn each on in "
        "Dagster's interface, except gc_repositories, gc_waiting, gc_waves and gc_metrics, which "
        "are on",
    )
    repositories: list[Override] = Field(
        default_factory=list,
        description="settings of some repositories that differ; later entries win",
    )
    notices: NoticeSection = Field(
        default_factory=NoticeSection,
        description="receivers of notices about failed runs, waiting marks, stale repositories and "
        "lost waves",
    )
    metrics: MetricsSection | None = Field(
        default=None, description="the file of metrics for Prometheus; null: no file is written"
    )
    run_on: RunOnSection | None = Field(
        default=None,
        description="a Pipes client of your project, which starts the process of a mark or a "
        "sweep elsewhere; null: marks and sweeps run where Dagster runs",
    )

    _place: Path | None = pydantic.PrivateAttr(default=None)

    @classmethod
    def load(
        cls, attributes: pydantic.BaseModel | None, context: dg.ComponentLoadContext
    ) -> GarbageCollection:
        """The component of a file, with the path of that file."""
        made = super().load(attributes, context)
        made.place = context.path
        return made

    @property
    def place(self) -> Path | None:
        """The component's file, or its folder; None if it has neither."""
        return self._place

    @place.setter
    def place(self, place: Path) -> None:
        self._place = place

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """The description for `dg list components` and the docs."""
        return dg.ComponentTypeSpec(
            description="Garbage collection for the repositories of a lakeFS server.",
            tags=["lakefs", "pyspark"],
            produces=["asset", "asset_check", "job", "resource", "schedule", "sensor"],
        )

    @classmethod
    def get_model_cls(cls) -> type[pydantic.BaseModel]:
        """The model of the file; the errors of its schema name the wrong value."""

        class Model(cls.model()):  # type: ignore[misc] # made by Dagster
            __doc__ = cls.__doc__

            @classmethod
            def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - as pydantic takes them
                return with_plain_errors(super().model_json_schema(*args, **options))

        Model.__name__ = f"{cls.__name__}Model"
        return Model

    @classmethod
    def resolve_from_model(
        cls, context: dg.ResolutionContext, model: pydantic.BaseModel
    ) -> GarbageCollection:
        """Read the file. Errors of rendered values are also reported with their line."""
        _require_variables(context, model)
        try:
            made: GarbageCollection = super().resolve_from_model(context, model)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            raise _wrong(context, model, field, first["msg"]) from None
        if unset := made.notices.unset():
            said = f"it names a variable that is not set: {', '.join(unset)}. Set it"
            raise _wrong(context, model, "notices", said)
        return made

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions that Dagster sees.

        Raises:
            ConfigurationError: another component of the project has the same name.
        """
        self._require_own_name(context.component_tree)
        return self.definitions()

    def _require_own_name(self, tree: dg.ComponentTree) -> None:
        others: list[GarbageCollection] = []
        # The tree of a test belongs to no project.
        with suppress(ImportError):
            others = tree.get_all_components(GarbageCollection)
        alike = [one for one in others if one.name == self.name]
        if len(alike) > 1:
            places = ", ".join(str(one.place) for one in alike)
            called = f"are called {self.name!r}" if self.name else "have no `name`"
            raise ConfigurationError(
                f"{len(alike)} components of this project {called} ({places}): give each of them a "
                "`name` of its own (docs/automation.md, Several in one Dagster)"
            )

    def definitions(self) -> dg.Definitions:
        """The definitions that Dagster sees, in every process that loads them."""
        policies = self.policies()
        # Dagster warns about beta features where they are defined, except in a defs folder.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            warnings.simplefilter("ignore", dg.PreviewWarning)
            specs = self._specs()
            names = self._names(specs)
            defined, collection = jobs(policies, names), self.collection(names)
            return dg.Definitions.merge(
                dg.Definitions(
                    assets=[
                        *self._collection(specs, names),
                        *(
                            step([one], specs, names, self.execute)
                            for one in STAGES
                            if one not in (*MARK, *SWEEP)
                        ),
                        specs[REPOSITORIES],
                    ],
                    asset_checks=[staleness_check(collection)],
                    schedules=[*schedules(collection), prune_schedule(collection)],
                    sensors=[
                        repositories_sensor(collection),
                        rules_sensor(collection),
                        approvals_sensor(collection),
                        resume_sensor(list(defined.jobs or ()), collection),
                        staleness_sensor(collection),
                        waiting_sensor(collection),
                        waves_sensor(collection),
                        failure_sensor(collection),
                        *([metrics_sensor(collection, self.metrics)] if self.metrics else []),
                    ],
                    resources=self._resources(policies, names),
                ),
                defined,
            )

    def _collection(
        self, specs: Mapping[str, dg.AssetSpec], names: Names
    ) -> list[dg.AssetsDefinition]:
        """The assets of a mark and a sweep with their checks, as local steps or as remote ones.

        Raises:
            ConfigurationError: a subclass overrides ``execute``, which no remote process calls.
        """
        checks = [candidate_checks(names), attribution_check(names)]
        if self.run_on is None:
            steps = [*([one] for one in MARK), SWEEP]
            return [*(step(one, specs, names, self.execute) for one in steps), *checks]
        if type(self).execute is not GarbageCollection.execute:
            raise ConfigurationError(
                f"run_on: {type(self).__name__} overrides execute, and the process in which marks "
                "and sweeps run would not call it: take out run_on or the override"
            )
        rest = (specs, names, self.run_on, self.remote_fields)
        return [
            remote_assets("remote_mark", MARK, checks, *rest),
            remote_assets("remote_sweep", SWEEP, [], *rest),
        ]

    def remote_fields(self) -> dict[str, Any]:
        """The fields, without secrets, from which a remote process makes this component again.

        They include the places (URLs, paths) that Dagster's machine takes from its environment, so
        that both machines use the same places.
        """
        # The process makes a GarbageCollection, also of a subclass with other defaults.
        own = {
            name: getattr(self, name)
            for name, field in GarbageCollection.model_fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        }
        whole = self.model_copy(update=own)
        fields = whole.model_dump(mode="json", exclude_unset=True, exclude=_NOT_REMOTE)
        policies = self.policies()
        collector, stores = self._collector(policies), _stores(self.stores)
        settings = collector.settings()
        ways = dict(collector.elsewhere())
        backup = next(iter(ways.values()), None)
        fields["stores"] = {
            **fields.get("stores", {}),
            "artifact_root": collector.root(stores).url,
            "backup_url": settings.backup_url,
            "backup_endpoint_url": backup and backup.endpoint_url,
            "backup_region": backup and backup.region,
            "backup_profile": backup and backup.profile,
            "namespace_roots": list(collector.roots()),
            "local_root": stores.local_root,
        }
        fields["lakefs"] = {**fields.get("lakefs", {}), "endpoint": _endpoint(self.lakefs)}
        for policy in (fields, *fields.get("repositories", ())):
            if policy.get("inventory_place"):
                policy["inventory_place"] = located(policy["inventory_place"])
        return fields

    def names(self) -> Names:
        """The names of its definitions."""
        return self._names(self._specs())

    def get_asset_spec(self, spec: dg.AssetSpec, asset: str) -> dg.AssetSpec:
        """The spec of an asset. A subclass may change it, as ``translation`` does."""
        return self.translation(spec, asset) if self.translation else spec

    def execute(self, stage: Stage, execution: Execution) -> Result:
        """Make an asset in a run. A subclass may do something before or after.

        Args:
            stage: the asset, with its plain name.
            execution: holds Dagster's ``context`` and the resources of the component.

        Returns:
            Its materialization, or an iterator over it, which is empty if nothing was made.
        """
        return stage.make(execution)

    def _specs(self) -> dict[str, dg.AssetSpec]:
        """The specs of all assets, by their plain names.

        Raises:
            ConfigurationError: two assets have the same key; or the translation or a subclass
                changes what the safety of a run depends on.
        """
        names = Names(self.name or "")
        plain = {stage.name: stage.spec(names) for stage in STAGES}
        plain[REPOSITORIES] = repositories_spec(names)
        found: dict[str, dg.AssetSpec] = {}
        assets: dict[dg.AssetKey, str] = {}
        for asset, spec in plain.items():
            given = spec.merge_attributes(owners=self.owners, tags=self.tags)
            found[asset] = changed = self.get_asset_spec(given, asset)
            wrong = [name for name in _FIXED if getattr(changed, name) != getattr(given, name)]
            if wrong:
                raise ConfigurationError(
                    f"translation: {', '.join(wrong)} of {asset} cannot be changed, nor by "
                    "get_asset_spec of a subclass: take that out"
                )
            other = assets.setdefault(changed.key, asset)
            if other != asset:
                raise ConfigurationError(
                    f"translation: {other} and {asset} have the same key, "
                    f"{changed.key.to_user_string()}: write {{{{ asset }}}} into it"
                )
        return found

    def _names(self, specs: Mapping[str, dg.AssetSpec]) -> Names:
        keys = {asset: spec.key for asset, spec in specs.items()}
        return Names(self.name or "", keys, self._source())

    def _source(self) -> Source:
        """The source that a ``lakegc`` command needs to act for this component."""
        name = self.name or ""
        if self.place is None:
            return Source(name=name)
        at = f"{self.place}#{name}" if name else str(self.place)
        return Source(at, self.usual_settings, name=name)

    def usual_settings(self, repository: str) -> dict[str, Any]:
        """The settings of a run on a repository, if the run itself configures none."""
        found = self._collector(self.policies()).of_repository(repository, {})
        return given_settings(found.settings(), StoreConfig(elsewhere=found.elsewhere()))

    def policies(self) -> Policies:
        """The policies of all repositories."""
        for_all = Policy(**{name: getattr(self, name) for name in Policy.model_fields})
        return Policies(
            include=self.include,
            exclude=self.exclude,
            running=self.running,
            for_all=for_all,
            overrides=self.repositories,
        )

    def collection(self, names: Names | None = None) -> Collection:
        """The objects that its schedules and sensors share."""
        policies = self.policies()
        return Collection(
            policies,
            names or self.names(),
            self.notices,
            lambda: _lakefs(self.lakefs, _looked_up).config(),
            lambda: self._collector(policies).root(_stores(self.stores)),
        )

    def _collector(self, policies: Policies) -> CollectorResource:
        return CollectorResource(
            name=self.name or "",
            backup_url=self.stores.backup_url,
            policies=policies.dump(),
            **{name: getattr(self.stores, name) for name in Places.model_fields},
            **{name: getattr(self, name) for name in RepositorySettings.model_fields},
            **{name: getattr(self.collector, name) for name in SharedSettings.model_fields},
        )

    def connections(self) -> tuple[LakeFSResource, ObjectStoreResource, CollectorResource]:
        """The resources outside of a run; variables are looked up now.

        Raises:
            ConfigurationError: a variable is not set.
        """
        collector = self._collector(self.policies())
        return _lakefs(self.lakefs, _looked_up), _stores(self.stores), collector

    def _resources(self, policies: Policies, names: Names) -> dict[str, Any]:
        made = {
            "lakefs": _lakefs(self.lakefs, dg.EnvVar),
            "stores": _stores(self.stores),
            "pyspark": LazyPySparkResource(spark_config=session_settings()),
            "collector": self._collector(policies),
        }
        return {names.of(name): configurable(one) for name, one in made.items()}


def _require_variables(context: dg.ResolutionContext, model: pydantic.BaseModel) -> None:
    """Refuse a file with variables that are not set: Dagster would fill in ``None``.

    Then runs would make no backups, or use another place for artifacts, without any message.
    """
    for field in type(model).model_fields:
        written = _VARIABLE.findall(str(getattr(model, field)))
        if unset := sorted({one for one in written if one not in os.environ}):
            said = (
                f"it names a variable that is not set: {', '.join(unset)}. Set it; or write "
                f"{{{{ env('{unset[0]}', None) }}}} if it may be missing"
            )
            raise _wrong(context, model, field, said)


def _wrong(
    context: dg.ResolutionContext, model: pydantic.BaseModel, field: str, said: str
) -> Exception:
    """The error of a field, with the line of the field."""
    at = context.at_path(field)
    made: Exception = at.build_resolve_fn_exc([f"{field}: {said}"], field_name=field, model=model)
    return made


def _lakefs(section: ServerSection, variable: Callable[[str], str]) -> LakeFSResource:
    """The resource of the server; ``variable`` makes a secret of the name of its variable."""

    def secret(name: str | None) -> str | None:
        return variable(name) if name else None

    return LakeFSResource(
        access_key_id=secret(section.access_key_id_variable),
        secret_access_key=secret(section.secret_access_key_variable),
        **section.model_dump(include={*LakeFSResource.model_fields}),
    )


def _looked_up(variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise ConfigurationError(
            f"the variable {variable!r} is not set, which `lakefs` of the component names: set it"
        )
    return value


def _endpoint(section: ServerSection) -> str | None:
    """The server's URL on Dagster's machine; None if only the remote machine knows it."""
    if section.endpoint:
        return section.endpoint
    with suppress(ConfigurationError):
        return LakeFSConfig(credentials_file=section.credentials_file).settled().endpoint
    return None


def _stores(section: StoresSection) -> ObjectStoreResource:
    shared = section.model_dump(include={*ObjectStoreResource.model_fields})
    shared["local_root"] = section.local_root or os.environ.get("LAKEGC_LOCAL_ROOT")
    return ObjectStoreResource(
        s3=S3Resource(
            endpoint_url=section.s3_endpoint_url,
            region_name=section.s3_region,
            profile_name=section.s3_profile,
        ),
        addressing=section.s3_addressing,
        **shared,
    )
