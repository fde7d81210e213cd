"""One repository on a running server, for tests that drive it by lakeFS's own clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.conformance.recorder import REST, conforms
from lakegc_assets_tests.lazily import Lazy

sdk, lakefs = Lazy("lakefs_sdk"), Lazy("lakefs")


def sdk_client(server: EmbeddedLakeFS, **other: str) -> Any:
    """A client of ``lakefs-sdk``; close it with ``close_client``."""
    keys = {"username": server.access_key, "password": server.secret_key, **other}
    configuration = sdk.Configuration(host=f"{server.endpoint}/api/v1", **keys)
    return Lazy("lakefs_sdk.client").LakeFSClient(configuration)


def close_client(client: Any) -> None:
    client.objects_api.api_client.rest_client.pool_manager.clear()


@dataclass(frozen=True)
class World:
    """A server with an empty repository, and a client.

    Attributes:
        server: it runs.
        client: of ``lakefs-sdk``.
        repo: the repository's name.
    """

    server: EmbeddedLakeFS
    client: Any
    repo: str

    @property
    def namespace(self) -> str:
        return f"local://{self.repo}"

    @property
    def store(self) -> ObjectStore:
        """The repository's objects."""
        return open_store(self.namespace, self.server.store_config)

    def put(self, path: str, data: bytes = b"content", branch: str = "main") -> Any:
        return self.client.objects_api.upload_object(self.repo, branch, path, content=data)

    def remove(self, path: str, branch: str = "main") -> None:
        self.client.objects_api.delete_object(self.repo, branch, path)

    def commit(self, message: str = "a commit", branch: str = "main", **fields: Any) -> Any:
        creation = sdk.CommitCreation(message=message, **fields)
        return self.client.commits_api.commit(self.repo, branch, creation)

    def branch(self, name: str, source: str = "main", **fields: Any) -> str:
        creation = sdk.BranchCreation(name=name, source=source, **fields)
        return str(self.client.branches_api.create_branch(self.repo, creation))

    def head(self, branch: str = "main") -> str:
        return str(self.client.branches_api.get_branch(self.repo, branch).commit_id)

    def read(self, path: str, ref: str = "main") -> bytes:
        return bytes(self.client.objects_api.get_object(self.repo, ref, path))

    def paths(self, ref: str = "main") -> list[str]:
        found = self.client.objects_api.list_objects(self.repo, ref).results
        return [item.path for item in found]

    def log(self, ref: str = "main") -> list[str]:
        found = self.client.refs_api.log_commits(self.repo, ref).results
        return [commit.message for commit in found]

    def staged(self, branch: str = "main") -> dict[str, str]:
        found = self.client.branches_api.diff_branch(self.repo, branch).results
        return {change.path: change.type for change in found}

    def relative(self, physical_address: str) -> str:
        assert physical_address.startswith(f"{self.namespace}/")
        return physical_address.removeprefix(f"{self.namespace}/")


def operation(name: str, checked: str, differs: str = "") -> pytest.MarkDecorator:
    """The row of one operation of ``lakefs-sdk``, by the name of its method."""
    return conforms(REST, name, client="lakefs-sdk", checked=checked, differs=differs)


@contextmanager
def refused(status: int, message: str | None = None) -> Iterator[None]:
    """The call inside is answered with this status and, if one is given, this message."""
    with pytest.raises(sdk.exceptions.ApiException) as caught:
        yield
    assert caught.value.status == status, caught.value
    assert message in {None, json.loads(caught.value.body or "{}").get("message")}, caught.value
