"""Pages of lists, as tests plant them and read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lakegc_assets.lakefs.client import LakeFSClient

from ..replay import Answer, Request


def read_pages_of(amount: int, client: LakeFSClient, monkeypatch: pytest.MonkeyPatch) -> None:
    page = client.first_page
    monkeypatch.setattr(client, "first_page", lambda listing: page(replace(listing, amount=amount)))


def in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    left = list(answers)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


def results(*changes: object, **paging: object) -> Answer:
    told = {"has_more": False, "next_offset": "", "results": len(changes), **paging}
    return Answer(200, {"pagination": told, "results": list(changes)})
