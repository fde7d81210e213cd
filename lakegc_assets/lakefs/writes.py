"""Calls that change a repository: for rules, the demo and the tests, never for a collection.

None of them is sent again if the server may have seen it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakegc_assets.lakefs.client import LakeFSClient
from lakegc_assets.lakefs.errors import EndpointNotFoundError
from lakegc_assets.lakefs.models import Commit, MergeResult, ObjectStats, Repository
from lakegc_assets.lakefs.transport import parse


class LakeFSWriter(LakeFSClient):
    """A client that can also change repositories."""

    def create_repository(
        self, name: str, storage_namespace: str, default_branch: str = "main", **more: bool
    ) -> Repository:
        """Create a repository in a storage namespace (a URL) without one; ``read_only=True``."""
        body = {"name": name, "storage_namespace": storage_namespace, **more}
        answer = self.call("POST", "repositories", json={**body, "default_branch": default_branch})
        return parse(answer, Repository)

    def create_branch(self, repository: str, branch: str, source: str, **more: bool) -> None:
        """Make a branch at a ref; ``hidden=True``."""
        body = {"name": branch, "source": source, **more}
        self.call("POST", *_branches(repository), json=body)

    def delete_branch(self, repository: str, branch: str) -> None:
        """Delete a branch and what is staged on it."""
        self.call("DELETE", *_branches(repository), branch)

    def reset_branch(self, repository: str, branch: str) -> None:
        """Drop everything that is staged on a branch."""
        self.call("PUT", *_branches(repository), branch, json={"type": "reset"})

    def create_tag(self, repository: str, tag: str, ref: str) -> None:
        """Make a tag at a ref."""
        self.call("POST", "repositories", repository, "tags", json={"id": tag, "ref": ref})

    def upload_object(
        self,
        repository: str,
        branch: str,
        path: str,
        content: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectStats:
        """Stage an object on a branch."""
        named = {f"X-Lakefs-Meta-{name}": value for name, value in (metadata or {}).items()}
        headers = {"Content-Type": "application/octet-stream", **named}
        segments, params = (*_branches(repository), branch, "objects"), {"path": path}
        answer = self.call("POST", *segments, params=params, data=content, headers=headers)
        return parse(answer, ObjectStats)

    def delete_object(self, repository: str, branch: str, path: str) -> None:
        """Stage the deletion of an object on a branch."""
        self.call("DELETE", *_branches(repository), branch, "objects", params={"path": path})

    def commit_branch(
        self,
        repository: str,
        branch: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        **more: int,
    ) -> Commit:
        """Commit what is staged on a branch; ``date`` in epoch seconds, ``allow_empty=True``."""
        body = {"message": message, "metadata": dict(metadata or {}), **more}
        path = (*_branches(repository), branch, "commits")
        return parse(self.call("POST", *path, json=body), Commit)

    def merge(
        self, repository: str, source: str, destination: str, message: str = "", **more: bool
    ) -> str:
        """Merge a ref into a branch; return the id of the commit. ``squash_merge=True``."""
        path = ("repositories", repository, "refs", source, "merge", destination)
        answer = self.call("POST", *path, json={"message": message, **more})
        return parse(answer, MergeResult).reference

    def revert(self, repository: str, branch: str, ref: str, *, parent_number: int = 0) -> None:
        """Commit the opposite of a commit; of a merge, go back to ``parent_number`` (from 1)."""
        body = {"ref": ref, "parent_number": parent_number}
        self.call("POST", *_branches(repository), branch, "revert", json=body)

    def set_gc_rules(
        self,
        repository: str,
        default_retention_days: int,
        branches: Mapping[str, int] | None = None,
    ) -> None:
        """Replace the retention rules: days by default, and days for single branches."""
        rules = [{"branch_id": name, "retention_days": n} for name, n in (branches or {}).items()]
        body = {"default_retention_days": default_retention_days, "branches": rules}
        path = ("repositories", repository)
        try:
            self.call("PUT", *path, "settings", "gc_rules", json=body)
        except EndpointNotFoundError:
            # Older servers have the same call at another path.
            self.call("POST", *path, "gc", "rules", json=body)

    def delete_gc_rules(self, repository: str) -> None:
        """Remove the retention rules, so that every commit stays active."""
        self.call("DELETE", "repositories", repository, "settings", "gc_rules")


def _branches(repository: str) -> tuple[str, ...]:
    return "repositories", repository, "branches"
