"""A run goes from a bucket as it does from a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from lakegc_assets.errors import IntegrityError, RefusedError
from lakegc_assets.prune.removal import PRUNING, end_removal, is_left, remove_run
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import DeleteOutcome


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactRoot:
    if request.param == "local":
        return ArtifactRoot(str(tmp_path), StoreConfig())
    endpoint, bucket = (request.getfixturevalue(name) for name in ("s3_server", "s3_bucket"))
    return ArtifactRoot(f"s3://{bucket}/artifacts", StoreConfig(endpoint_url=endpoint))


def keys(root: ArtifactRoot) -> set[str]:
    return {key for page in root.open("repo").list() for key in page["key"].to_pylist()}


def nothing() -> None:
    pass


def test_all_attempts_of_a_run_go_and_no_other_run(root: ArtifactRoot) -> None:
    for run in ("old", "old-2"):
        for _ in range(2):
            attempt = root.new_attempt("repo", run)
            attempt.store().put("store_listing/data/part-1.parquet", b"rows")
    others = {key for key in keys(root) if not key.startswith("old/")}
    seen: list[set[str]] = []
    present = root.attempt("repo", "old").attempt
    remove_run(root, "repo", "old", present, lambda: seen.append(keys(root) - others), nothing)
    assert seen == [{f"old/{PRUNING}"}]
    assert keys(root) == others


def test_a_run_stays_where_others_may_be_at_work_on_it_by_now(root: ArtifactRoot) -> None:
    attempt = root.new_attempt("repo", "old")
    attempt.store().put("store_listing/data/part-1.parquet", b"rows")
    before = keys(root)

    def lost() -> None:
        raise RefusedError("the lease was lost")

    with pytest.raises(RefusedError, match="the lease was lost"):
        remove_run(root, "repo", "old", attempt.attempt, nothing, lost)
    assert keys(root) - {f"old/{PRUNING}"} == before
    assert not is_left(root, "repo", "old")
    remove_run(root, "repo", "old", attempt.attempt, nothing, nothing)
    assert keys(root) == set()


def killed() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("forget", [nothing, killed])
def test_what_is_left_is_known_for_what_it_is(
    root: ArtifactRoot, forget: Callable[[], None]
) -> None:
    attempt = root.new_attempt("repo", "old")
    assert not is_left(root, "repo", "old")
    if forget is killed:
        with pytest.raises(KeyboardInterrupt):
            remove_run(root, "repo", "old", attempt.attempt, forget, nothing)
        assert is_left(root, "repo", "old")
        end_removal(root, "repo", "old", nothing)
    else:
        remove_run(root, "repo", "old", attempt.attempt, forget, nothing)
    assert not is_left(root, "repo", "old")
    assert keys(root) == set()


@pytest.mark.parametrize(
    "record", [b"{", b"{}", json.dumps({"attempts": ["../other"]}).encode(), b"[" * 100_000]
)
def test_a_damaged_record_removes_nothing(root: ArtifactRoot, record: bytes) -> None:
    root.open("repo", "old").put(PRUNING, record)
    root.open("repo", "other").put("attempt.json", b"{}")
    with pytest.raises(IntegrityError, match=r"remove .* by hand"):
        end_removal(root, "repo", "old", nothing)
    assert keys(root) == {f"old/{PRUNING}", "other/attempt.json"}


def _begun(tmp_path: Path) -> tuple[ArtifactRoot, AttemptArtifacts]:
    root = ArtifactRoot(str(tmp_path), StoreConfig())
    attempt = root.new_attempt("repo", "old")
    attempt.store().put("store_listing/manifest.json", b"{}")
    return root, attempt


def test_a_run_that_is_begun_again_in_the_last_moment_stays(tmp_path: Path) -> None:
    root, attempt = _begun(tmp_path)
    with pytest.raises(RefusedError, match="was begun again: it stays"):
        remove_run(
            root, "repo", "old", attempt.attempt, nothing, lambda: root.new_attempt("repo", "old")
        )
    assert root.attempt("repo", "old").attempt != attempt.attempt
    assert attempt.has("store_listing")


def test_a_run_stays_whose_attempt_the_store_does_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, attempt = _begun(tmp_path)

    delete: Callable[..., object] = LocalStore.delete_many

    def refuse(store: LocalStore, some: Iterable[str], *how: object, **more: object) -> object:
        if (asked := [*some]) == ["attempt.json"]:
            return [DeleteOutcome("attempt.json", "failed", "Code")]
        return delete(store, asked, *how, **more)

    monkeypatch.setattr(LocalStore, "delete_many", refuse)
    with pytest.raises(StorageError, match="1 object could not be removed"):
        remove_run(root, "repo", "old", attempt.attempt, nothing, nothing)
    assert root.attempt("repo", "old").has("store_listing")


def unwanted() -> None:
    pytest.fail("it is not gone")


def test_a_removal_that_sees_nothing_of_what_is_there_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, attempt = _begun(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "list", lambda *_, **__: iter(()))
        with pytest.raises(StorageError, match="shows nothing, but store_listing/manifest"):
            remove_run(root, "repo", "old", attempt.attempt, unwanted, nothing)
    assert is_left(root, "repo", "old")
    end_removal(root, "repo", "old", nothing)
    assert keys(root) == set()
