"""Assets of the graph before they belong to a component, which gives them keys and resources."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from lakegc_assets.defs.contracts import contract
from lakegc_assets.defs.execution import RESOURCES, Execution
from lakegc_assets.defs.names import RUN_ASSETS, Names
from lakegc_assets.run.command_line import printing

Result = dg.MaterializeResult[None] | Iterator[dg.MaterializeResult[None]]


@dataclass(frozen=True)
class Stage:
    """One asset.

    Attributes:
        name: its plain name.
        description: what it reads, writes and guarantees, as Markdown.
        function: that makes it.
        deps: plain names of the assets before it; their order is a part of the safety argument.
        resources: plain keys of those that it needs.
        kinds: of technologies, as Dagster shows them.
        config: what a run may configure of it.
        skippable: whether it may end without a materialization.
    """

    name: str
    description: str
    function: Callable[[Execution], Result]
    deps: Sequence[str]
    resources: Sequence[str]
    kinds: frozenset[str]
    config: type[dg.Config] | None
    skippable: bool

    def spec(self, names: Names) -> dg.AssetSpec:
        """Its spec, without what it comes after."""
        return dg.AssetSpec(
            names.key(self.name),
            description=self.description,
            group_name=names.of("gc"),
            kinds=set(self.kinds),
            skippable=self.skippable,
            partitions_def=names.repository_run if self.name in RUN_ASSETS else None,
        )

    def definition(
        self, spec: dg.AssetSpec, names: Names, execute: Callable[["Stage", Execution], Result]
    ) -> dg.AssetsDefinition:
        """The asset of a component.

        Args:
            spec: of it.
            names: of the component, with the keys of all assets.
            execute: makes it, by its ``function`` say.
        """
        deps = [names.key(dep) for dep in self.deps]

        @dg.multi_asset(
            name=names.of(self.name),
            specs=[spec.replace_attributes(deps=deps)],
            required_resource_keys=names.resources(*self.resources),
            config_schema=self.config.to_fields_dict() if self.config else None,
        )
        def made(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
            yield from _results(self, Execution(context, names), execute)

        return made


def in_one_step(
    stages: Sequence[Stage],
    specs: Mapping[str, dg.AssetSpec],
    names: Names,
    execute: Callable[[Stage, Execution], Result],
) -> dg.AssetsDefinition:
    """Assets of a component that are made one after the other, in the step of the last one.

    Dagster skips the steps behind one that ended without a materialization; within a step it does
    not, so that an asset which made nothing need not say that it did.

    Args:
        stages: in their order; none of them is configured by a run.
        specs: of all assets, by their plain names.
        names: of the component, with the keys of all assets.
        execute: makes one of them.
    """

    @dg.multi_asset(
        name=names.of(stages[-1].name),
        specs=[
            specs[one.name].replace_attributes(deps=[names.key(dep) for dep in one.deps])
            for one in stages
        ],
        can_subset=True,
        required_resource_keys=names.resources(*{key for one in stages for key in one.resources}),
    )
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        for one in stages:
            key = names.key(one.name)
            if key not in context.selected_asset_keys:
                continue
            for result in _results(one, Execution(context, names), execute):
                yield dg.MaterializeResult(asset_key=key, metadata=result.metadata)

    return made


def _results(
    one: Stage, execution: Execution, execute: Callable[[Stage, Execution], Result]
) -> Iterator[dg.MaterializeResult[None]]:
    """What an asset was made into, while messages print the commands of its component."""
    with printing(execution.names.source):
        found = execute(one, execution)
        yield from [found] if isinstance(found, dg.MaterializeResult) else found


def stage(
    *,
    deps: Sequence[str] = (),
    resources: Sequence[str] = RESOURCES,
    kinds: Sequence[str] = ("pyspark", "lakefs"),
    config: type[dg.Config] | None = None,
    skippable: bool = False,
) -> Callable[[Callable[[Execution], Result]], Stage]:
    """Make an asset of a function, whose name it has; see ``Stage``.

    The head of the function's module is the contract that describes it.
    """

    def made(function: Callable[[Execution], Result]) -> Stage:
        return Stage(
            name=function.__name__,
            description=contract(sys.modules[function.__module__].__doc__),
            function=function,
            deps=deps,
            resources=resources,
            kinds=frozenset(kinds),
            config=config,
            skippable=skippable,
        )

    return made
