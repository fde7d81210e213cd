"""What tests of schedules and sensors share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.defs import notices
from lakegc_assets.defs.component import GarbageCollection
from lakegc_assets_tests.defs.daemon import Daemon
from lakegc_assets_tests.defs.running import own_instance
from lakegc_assets_tests.defs.week import OVERRIDES, remove
from lakegc_assets_tests.site import Site


@pytest.fixture(scope="module")
def definitions(site: Site) -> dg.Definitions:  # noqa: ARG001 - its environment
    """Those of a component with policies of its own for some repositories."""
    return GarbageCollection(exclude=["scratch-*"], repositories=OVERRIDES).definitions()


@pytest.fixture
def daemon(site: Site, definitions: dg.Definitions) -> Iterator[Daemon]:
    """A daemon that has started nothing, and a server without repositories."""
    for repository in site.client.repositories():
        remove(site, repository.id)
    with own_instance() as instance:
        yield Daemon(definitions, instance)


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The notices that would have been posted."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(notices, "post", lambda _url, made, _form: found.append(made))
    return found
