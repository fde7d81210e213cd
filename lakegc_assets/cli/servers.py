"""The server of the definitions, as leftovers are looked for on it."""

from __future__ import annotations

from collections.abc import Sequence

from lakegc_assets.cli.queries import Site
from lakegc_assets.defs.partitions import partition_key
from lakegc_assets.engine.spark import configured_by, start_session
from lakegc_assets.leftovers.server import Server
from lakegc_assets.run.context import RunContext


def server_of(roots: Sequence[str]) -> Server:
    """The server.

    Args:
        roots: URLs below which it keeps namespaces; none for those that are set.
    """
    site = Site.defined()

    def context(repository: str) -> RunContext:
        partition_key(repository, "leftovers")
        return RunContext(
            repository=repository,
            run="leftovers",
            settings=site.settings,
            lakefs=site.lakefs,
            root=site.root,
            session=start_session,
            spark_configured_by=configured_by(),
        )

    return Server(site.root, context, site.lakefs.connect, tuple(roots) or site.namespace_roots)
