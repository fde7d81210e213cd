"""Which objects a store is asked to give back, where a backup has copies of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lakegc_assets.recovery.bringing_back import Copies, bring_back
from lakegc_assets.storage.base import Lost, Recovery, UndeleteOutcome
from lakegc_assets.storage.local import LocalStore


class Asked(LocalStore):
    """Notes what it is asked to give back, which it never can."""

    kind = "nothing"

    def recovery(self) -> Recovery:
        return Recovery(self.kind, None, "as the test says")  # type: ignore[arg-type] # one of its words

    def undelete_many(self, objects: Sequence[Lost]) -> Sequence[UndeleteOutcome]:
        self.asked = [one.key for one in objects]
        return [UndeleteOutcome(one.key, "not_kept") for one in objects]


@pytest.mark.parametrize(
    ("kind", "asked"), [("nothing", ["b"]), ("versions", ["a", "b"]), ("unknown", ["a", "b"])]
)
def test_one_that_keeps_nothing_is_asked_only_for_what_has_no_copy(
    tmp_path: Path, kind: str, asked: list[str]
) -> None:
    (tmp_path / "lake").mkdir()
    store = Asked(tmp_path / "lake", "file:///lake")
    store.kind = kind
    backup = LocalStore(tmp_path / "backup", "file:///backup")
    etag = backup.put("a", b"what was marked")
    lost = [Lost(key=key, size=15, etag=etag) for key in ("a", "b")]
    found = bring_back(store, lost, Copies(backup, {"a": etag}))
    assert [(one.key, one.outcome) for one in found] == [("a", "restored"), ("b", "not_kept")]
    assert store.get("a") == b"what was marked"
    assert store.asked == asked
