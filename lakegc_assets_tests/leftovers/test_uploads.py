"""Which uploads are left over, and that a place that cannot be listed is named."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from lakegc_assets.leftovers.server import Server
from lakegc_assets.leftovers.uploads import leftover_uploads
from lakegc_assets.storage.errors import AccessDeniedError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import MultipartUpload

_DAY = timedelta(days=1)


def test_an_upload_is_as_old_as_its_last_part(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uploads(store: LocalStore, begun_before: datetime) -> Sequence[MultipartUpload]:
        if store.url == "local://team":
            raise AccessDeniedError("not allowed to list uploads of local://team")
        old = begun_before - _DAY
        return [
            MultipartUpload("late", "1", old, begun_before + _DAY, 5),
            MultipartUpload("b", "2", old, old, 6),
            MultipartUpload("a", "3", old - _DAY, old, 7),
        ]

    monkeypatch.setattr(LocalStore, "multipart_uploads", uploads)
    (found,), problems = leftover_uploads(server)
    assert (found.where, [one.key for one in found.uploads], found.size) == ("repo", ["a", "b"], 13)
    assert [(one.where, "not allowed" in one.what) for one in problems] == [("local://team", True)]
