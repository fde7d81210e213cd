"""Repositories of a week of virtual time: made at a time, removed, and their policies."""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone

import requests

from lakegc_assets.defs.policy import Override
from lakegc_assets_tests.site import Site

SUNDAY = datetime(2026, 3, 1, 2, tzinfo=timezone.utc)
_DAY_S = 86_400
OVERRIDES = [
    Override(include=["daily*", "fresh*"], cron="0 2 * * *", sweep="auto"),
    Override(include=["daily*"], min_age_hours=48, tags={"team": "data"}),
]


def wave(day: int) -> str:
    return f"202603{1 + day:02}T020000Z"


def make(site: Site, repository: str, at: datetime) -> None:
    site.calendar.days_ago = (time.time() - at.timestamp()) / _DAY_S
    site.client.create_repository(repository, f"local://{repository}-{uuid.uuid4().hex}")


def remove(site: Site, repository: str) -> None:
    done = requests.delete(
        f"{site.server.endpoint}/api/v1/repositories/{repository}",
        auth=(site.server.access_key, site.server.secret_key),
        timeout=60,
    )
    assert done.ok, done.text
