"""Assets and one-step jobs, as templates that get keys and resources from a component."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc
from typing import Any, Final, TypeVar

import dagster as dg
import pyarrow as pa

from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.metadata import table_schema
from lakegc_assets.defs.names import RUN_ASSETS, Names
from lakegc_assets.run.command_line import printing
from lakegc_assets.run.manifest import SCHEMA_VERSION

Results = Iterator[dg.MaterializeResult[None]]
Result = dg.MaterializeResult[None] | Results

#: Changes with the form of manifests: a manifest of another version is refused and made again.
CODE_VERSION: Final = str(SCHEMA_VERSION)
#: Tag in which Dagster records the data version of a materialization.
DATA_VERSION_TAG: Final = "dagster/data_version"


@dataclass(frozen=True)
class Stage:
    """One asset.

    Attributes:
        function: makes the asset. Its name is the plain name of the asset; its docstring is the
            contract.
        columns: of the rows that it writes or shows; None if it shows several tables.
        after: plain names of assets that come before it although it does not read them. Their
            order is a part of the safety argument.
        reads: plain names of the assets that it reads; ``gc_report`` stands for the whole mark,
            since it has the last manifest of it.
        resources: plain keys of the resources that it needs.
        kinds: technologies, as Dagster shows them.
        config: the configuration that a run may have for it.
        skippable: True if it may end without a materialization.
    """

    function: Callable[[Execution], Result]
    columns: pa.Schema | None = None
    after: Sequence[str] = ()
    reads: Sequence[str] = ()
    resources: Sequence[str] = RESOURCES
    kinds: Sequence[str] = ("pyspark", "lakefs")
    config: type[dg.Config] | None = None
    skippable: bool = False

    @property
    def name(self) -> str:
        """Its plain name."""
        return self.function.__name__

    @property
    def metadata(self) -> dict[str, dg.TableSchema]:
        """The column schema, under Dagster's name for it."""
        columns = self.columns
        return {} if columns is None else {"dagster/column_schema": table_schema(columns)}

    def spec(self, names: Names) -> dg.AssetSpec:
        """Its spec without dependencies, since a translation may still change their keys."""
        return dg.AssetSpec(
            names.key(self.name),
            description=contract(self.function.__doc__),
            metadata=self.metadata,
            group_name=names.of("gc"),
            code_version=CODE_VERSION,
            kinds=set(self.kinds),
            skippable=self.skippable,
            partitions_def=names.repository_run if self.name in RUN_ASSETS else None,
        )

    def connected(self, spec: dg.AssetSpec, names: Names) -> dg.AssetSpec:
        """Its spec with dependencies."""
        before = map(names.key, (*self.after, *self.reads))
        return spec.replace_attributes(deps=list(before))

    def make(self, execution: Execution) -> Results:
        """Make the asset, and yield its materialization; nothing if there was nothing to make."""
        yield from _each(self.function(execution))


def _each(result: Result) -> Results:
    yield from [result] if isinstance(result, dg.MaterializeResult) else result


def stage(**options: Any) -> Callable[[Callable[[Execution], Result]], Stage]:  # noqa: ANN401 - of Stage
    """Make a ``Stage`` from a function, with these attributes."""
    return partial(Stage, **options)


def step(
    stages: Sequence[Stage],
    specs: Mapping[str, dg.AssetSpec],
    names: Names,
    execute: Callable[[Stage, Execution], Result],
) -> dg.AssetsDefinition:
    """Assets of a component that one step makes in order; the step has the name of the last one.

    Dagster skips all steps after a step without a materialization. Within a step it does not, so an
    asset that made nothing needs no materialization. A run can configure only a stage that is alone
    in its step. ``execute`` makes a stage, for example with ``Stage.make``.
    """
    last = stages[-1]

    @dg.multi_asset(
        name=names.of(last.name),
        specs=[one.connected(specs[one.name], names) for one in stages],
        can_subset=len(stages) > 1,
        required_resource_keys=names.all_of(*{key for one in stages for key in one.resources}),
        config_schema=last.config.to_fields_dict() if last.config else None,
    )
    def made(context: dg.AssetExecutionContext) -> Results:
        # Messages print the commands of the component.
        with printing(names.source):
            for one in stages:
                if names.key(one.name) in context.selected_asset_keys:
                    found = execute(one, Execution(context, names))
                    yield from materialized(one, context, names, _each(found))

    return made


def materialized(
    one: Stage,
    context: dg.AssetExecutionContext,
    names: Names,
    results: Iterable[dg.MaterializeResult[None]],
) -> Results:
    """Materializations with the key and the columns of their asset.

    If the last materialization has the same version, nothing was made: an observation is recorded.
    """
    key = names.key(one.name)
    for result in results:
        metadata = {**one.metadata, **(result.metadata or {})}
        if one.skippable and _is_recorded(context, key, result.data_version):
            partition = str(context.partition_key)
            context.log_event(dg.AssetObservation(key, partition=partition, metadata=metadata))
            continue
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=metadata,
            check_results=result.check_results,
            data_version=result.data_version,
            tags=result.tags,
        )


def _is_recorded(
    context: dg.AssetExecutionContext, key: dg.AssetKey, version: dg.DataVersion | None
) -> bool:
    """True if the last materialization of this partition has this data version."""
    chosen = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[str(context.partition_key)])
    records = context.instance.fetch_materializations(chosen, limit=1).records
    last = records[0].asset_materialization if records else None
    tags = (last.tags if last is not None else None) or {}
    return version is not None and tags.get(DATA_VERSION_TAG) == version.value


_PARTS: Final = re.compile(r"^(?=(?:Reads|Writes|Guarantees): )", re.MULTILINE)


def contract(doc: str | None) -> str:
    """The contract of an asset in Markdown: its description, and what it reads and writes.

    The docstring has one line of description, an empty line, and paragraphs that begin with
    ``Reads:``, ``Writes:`` and ``Guarantees:``.
    """
    head, _, rest = cleandoc(doc or "").replace("``", "`").partition("\n\n")
    paragraphs = [" ".join(part.split()) for part in _PARTS.split(rest) if part.strip()]
    parts = (
        f"**{name}:** {said}" for name, _, said in (part.partition(": ") for part in paragraphs)
    )
    return "\n\n".join((head, *parts))


_C = TypeVar("_C", bound=dg.Config)


def one_step_job(
    names: Names,
    name: str,
    description: str,
    step: tuple[str, str],
    work: Callable[[Execution, _C], Mapping[str, Any]],
    config_class: type[_C],
    *needs: str,
    **options: Any,  # noqa: ANN401 - as Dagster takes them
) -> dg.JobDefinition:
    """A job of one step, in this process; its messages print the commands of the component.

    ``step``: plain name and description of the step. ``work``: makes the metadata of its output
    from the configuration. ``needs``: plain keys of resources.
    """

    @dg.op(
        name=names.of(step[0]),
        description=step[1],
        required_resource_keys=names.all_of(*needs),
        config_schema=config_class.to_fields_dict(),
    )
    @printing(names.source)
    def only_step(context: dg.OpExecutionContext) -> None:
        found = work(Execution(context, names), config_class(**context.op_config))
        context.add_output_metadata(found)

    @dg.job(
        name=names.of(name),
        description=description,
        executor_def=dg.in_process_executor,
        **options,
    )
    def made() -> None:
        only_step()

    return made
