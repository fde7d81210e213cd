"""What tests of schedules and sensors share."""

from __future__ import annotations

from typing import Any

import pytest

from lakegc_assets.defs import notices


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The notices that would have been posted."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(notices, "post", lambda _url, made, _form: found.append(made))
    return found
