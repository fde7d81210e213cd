"""A server that fails in the way a test says, once for each request."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lakegc_assets.lakefs.config import LakeFSConfig
from lakegc_assets_tests.http_server import Answer, Asked, Silence, serving


def answer(
    status: int, body: object = None, headers: dict[str, str] | None = None, *, cut: int = 0
) -> Answer:
    """A complete answer; or, with ``cut``, one whose last bytes never come."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
    return Answer(status, raw, [*fields.items()], cut=len(raw) - cut if cut else None)


class FaultServer(ExitStack):
    """Behaves in turn as it is told; after the last, as the last.

    Args:
        behaviours: in place of answers, or answers.
        port: 0 for a free one.
        pause_s: seconds before each.

    Attributes:
        asked: the requests that came, in their order.
        endpoint: URL, while it runs.
    """

    def __init__(self, *behaviours: Answer | Silence, port: int = 0, pause_s: float = 0.0) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self._behaviours = list(behaviours)
        self._port, self._pause_s = port, pause_s
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> FaultServer:  # noqa: PYI034 # never subclassed
        self.endpoint = self.enter_context(serving(self._respond, self._port))
        return self

    def config(self, directory: Path, **settings: Any) -> LakeFSConfig:
        path = directory / "lakectl.yaml"
        path.write_text("credentials:\n  access_key_id: key\n  secret_access_key: hush-hush\n")
        fast = {"first_backoff_s": 0.01, **settings}
        return LakeFSConfig(endpoint=self.endpoint, credentials_file=str(path), **fast)

    def _respond(self, asked: Asked) -> Answer | Silence:
        with self._one_at_a_time:
            self.asked.append(asked)
            few = len(self._behaviours) == 1
            behaviour = self._behaviours[0] if few else self._behaviours.pop(0)
        time.sleep(self._pause_s)
        return behaviour
