"""Who was suspended while files go, one by one, asks again whether they may."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import unlink
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.errors import RefusedError
from lakegc_assets.storage import bulk, local
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.http import seconds
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.removal import remove_listed
from lakegc_assets.storage.trash import remove_trash
from lakegc_assets_tests.storage.conftest import listed

_FOLDER = "_lakefs/retention/gc/lakegc/trash/20260101T000000Z-1h-x/"


def _in_trash(store: ObjectStore, require: Callable[[], None]) -> None:
    remove_trash(store, _FOLDER, lambda keys: pa.repeat(pa.scalar(False), len(keys)), require)


@pytest.mark.parametrize(
    ("prefix", "remove"),
    [
        ("copies/", lambda store, require: remove_listed(store, "copies/", require=require)),
        (_FOLDER, _in_trash),
    ],
)
@pytest.mark.parametrize("held", [False, True])
def test_who_was_suspended_asks_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
    remove: Callable[[ObjectStore, Callable[[], None]], None],
    *,
    held: bool,
) -> None:
    store = open_store(str(tmp_path))
    keys = [f"{prefix}{name}" for name in "abc"]
    for key in keys:
        store.put(key, b"1")
    left: list[list[str]] = []

    def require() -> None:
        left.append(listed(store))
        if len(left) > 1 and not held:
            raise RefusedError("the lease was lost")

    def unlink_and_sleep(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        monkeypatch.setattr(bulk, "seconds", partial(float, seconds() + 3600))
        monkeypatch.setattr(local, "unlink", unlink)

    monkeypatch.setattr(local, "unlink", unlink_and_sleep)
    if not held:
        with pytest.raises(RefusedError, match="the lease was lost"):
            remove(store, require)
        assert listed(store) == keys[1:]
        return
    remove(store, require)
    assert left == [keys, keys[1:]]
    assert listed(store) == []
