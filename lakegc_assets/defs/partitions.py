"""The partitions of every asset: repository x run, both added as they come."""

from __future__ import annotations

import re

import dagster as dg

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.artifacts import validate_run_id

#: Looser than lakeFS, but nothing that Dagster would drop or that would leave the artifact root.
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

REPOSITORY = dg.DynamicPartitionsDefinition(name="repository")
RUN = dg.DynamicPartitionsDefinition(name="run")
REPOSITORY_RUN = dg.MultiPartitionsDefinition({"repository": REPOSITORY, "run": RUN})


def partition_key(repository: str, run: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository.

    Raises:
        ConfigurationError: a key holds what Dagster or an object store would not take.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise ConfigurationError(
            f"{repository!r} cannot be the name of a repository: use letters, digits and '-'",
        )
    return dg.MultiPartitionKey({"repository": repository, "run": validate_run_id(run)})


def add_partition(instance: dg.DagsterInstance, repository: str, run: str) -> dg.MultiPartitionKey:
    """Make a repository and a run known to Dagster, and give the key of their partition.

    Raises:
        ConfigurationError: as ``partition_key``.
    """
    key = partition_key(repository, run)
    instance.add_dynamic_partitions("repository", [repository])
    instance.add_dynamic_partitions("run", [run])
    return key
