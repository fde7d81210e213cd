"""A plain HTTP client for the tests: it shows every answer as it came."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import requests

from lakegc_assets.embedded import EmbeddedLakeFS

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT = 120


class Api:
    """Calls one server; paths are below ``/api/v1``."""

    def __init__(self, endpoint: str, access_key: str, secret_key: str) -> None:
        self.base = f"{endpoint}/api/v1"
        self.session = requests.Session()
        self.keys = access_key, secret_key
        self.session.auth = self.keys

    @classmethod
    def of(cls, server: EmbeddedLakeFS) -> Api:
        return cls(server.endpoint, server.access_key, server.secret_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.session.close()

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.session.request(method, self.base + path, timeout=TIMEOUT, **options)

    def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        """The JSON that is answered, or None; fails for any other status."""
        response = self.send(method, path, **options)
        assert response.status_code == status, (method, path, response.status_code, response.text)
        is_json = response.headers.get("Content-Type") == "application/json"
        return response.json() if is_json else None

    def repository(self, name: str = "repo", namespace: str | None = None) -> Repo:
        self.call(
            "POST",
            "/repositories",
            201,
            json={"name": name, "storage_namespace": namespace or f"local://{name}"},
        )
        return Repo(self, name)


class Repo:
    """Calls about one repository, in the words of the tests."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.path = f"/repositories/{name}"

    def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        return self.api.call(method, self.path + path, status, **options)

    def put(self, path: str, data: bytes | str, branch: str = "main", **options: Any) -> Any:
        return self.call(
            "POST",
            f"/branches/{branch}/objects",
            201,
            params={"path": path},
            data=data,
            **options,
        )

    def remove(self, path: str, branch: str = "main") -> None:
        self.call("DELETE", f"/branches/{branch}/objects", 204, params={"path": path})

    def branch(self, name: str, source: str = "main", **options: Any) -> None:
        body = {"name": name, "source": source, **options}
        self.call("POST", "/branches", 201, json=body)

    def commit(self, message: str = "a commit", branch: str = "main", **options: Any) -> Any:
        body = {"message": message, **options}
        return self.call("POST", f"/branches/{branch}/commits", 201, json=body)

    def head(self, branch: str = "main") -> str:
        return str(self.call("GET", f"/branches/{branch}")["commit_id"])

    def log(self, ref: str = "main", **params: Any) -> list[str]:
        found = self.call("GET", f"/refs/{ref}/commits", params=params)["results"]
        return [commit["message"] for commit in found]

    def stat(self, path: str, ref: str = "main", status: int = 200) -> Any:
        return self.call("GET", f"/refs/{ref}/objects/stat", status, params={"path": path})

    def read(self, path: str, ref: str = "main") -> bytes | int:
        """The content, or the status when it is not 200."""
        response = self.api.send("GET", f"{self.path}/refs/{ref}/objects", params={"path": path})
        return (
            response.content if response.status_code == requests.codes.ok else response.status_code
        )

    def list(self, ref: str = "main", **params: Any) -> list[str]:
        found = self.call("GET", f"/refs/{ref}/objects/ls", params=params)["results"]
        return [item["path"] for item in found]

    def staged(self, branch: str = "main") -> dict[str, str]:
        found = self.call("GET", f"/branches/{branch}/diff", params={"amount": 1000})["results"]
        return {item["path"]: item["type"] for item in found}

    def rules(self, days: int, **branches: int) -> None:
        listed = [{"branch_id": name, "retention_days": d} for name, d in branches.items()]
        body = {"default_retention_days": days, "branches": listed}
        self.call("POST", "/gc/rules", 204, json=body)
