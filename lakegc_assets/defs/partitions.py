"""Partition keys: a run on a repository."""

from __future__ import annotations

import re

import dagster as dg

from lakegc_assets.defs.names import PLAIN, REPOSITORY, RUN, Names
from lakegc_assets.errors import ConfigurationError
from lakegc_assets.run.artifacts import validate_run_id

#: Looser than lakeFS, but nothing that Dagster would drop or that would leave the artifact root.
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def partition_key(repository: str, run: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository.

    Raises:
        ConfigurationError: a key holds what Dagster or an object store would not take.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise ConfigurationError(
            f"{repository!r} cannot be the name of a repository: use letters, digits and '-'",
        )
    return dg.MultiPartitionKey({REPOSITORY: repository, RUN: validate_run_id(run)})


def multi_key(key: str) -> dg.MultiPartitionKey:
    """The key of a run on a repository, of its text: ``gc_approve`` has no other.

    Raises:
        ConfigurationError: as ``partition_key``.
    """
    if isinstance(key, dg.MultiPartitionKey):
        return key
    repository, _, run = key.partition("|")
    return partition_key(repository, run)


def add_partition(
    instance: dg.DagsterInstance, repository: str, run: str, names: Names = PLAIN
) -> dg.MultiPartitionKey:
    """Make a repository and a run known to Dagster, and give the key of their partition.

    Raises:
        ConfigurationError: as ``partition_key``.
    """
    key = partition_key(repository, run)
    instance.add_dynamic_partitions(names.of(REPOSITORY), [repository])
    instance.add_dynamic_partitions(names.of(RUN), [run])
    return key
