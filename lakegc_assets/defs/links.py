"""Links to a repository in lakeFS's own interface."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import dagster as dg

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets.lakefs.credentials import API_PATH

#: What the links of a repository are called, and where they lead to.
_PAGES = {"objects in lakeFS": "objects", "rules in lakeFS": "settings/retention"}


def pages(config: LakeFSConfig, repository: str) -> dict[str, str]:
    """URLs of the objects and of the retention rules of a repository, by their names.

    Empty where it is not known where the server is.
    """
    try:
        server = config.access().endpoint.removesuffix(API_PATH)
    except ConfigurationError:
        return {}
    name = quote(repository, safe="")
    return {what: f"{server}/repositories/{name}/{page}" for what, page in _PAGES.items()}


def links(config: LakeFSConfig, repository: str) -> dict[str, Any]:
    """The same as metadata."""
    return {what: dg.MetadataValue.url(url) for what, url in pages(config, repository).items()}
