"""The chain of manifests holds only if every link is whole, in order, and of one attempt."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakegc_assets.engine.datasets import Part, write_part
from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.mark.earlier_marks import is_whole, unread_marks
from lakegc_assets.run.artifacts import ArtifactRoot, AttemptArtifacts, located, validate_run_id
from lakegc_assets.run.command_line import Source, printing
from lakegc_assets.run.history import Earlier
from lakegc_assets.run.manifest import MARK_ASSETS, SCHEMA_VERSION, Manifest
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StoreUnavailableError
from lakegc_assets.storage.local import LocalStore
from lakegc_assets.storage.values import Prefixes

NAMESPACE = "s3://lab/small"
START = datetime(2026, 11, 21, 4, 41, tzinfo=timezone.utc)
LAST = "deletion_candidates"

Change = Callable[[Manifest], Manifest]


def root_at(folder: Path) -> ArtifactRoot:
    return ArtifactRoot(str(folder / "artifacts"), StoreConfig())


def write_rows(attempt: AttemptArtifacts, asset: str, rows: int = 2) -> Part:
    table = pa.table({"address": [f"data/{number}" for number in range(rows)]})
    return write_part(attempt.store(), f"{asset}/data/", table)


def write_chain(
    attempt: AttemptArtifacts, broken: str = "", change: Change = lambda manifest: manifest
) -> dict[str, Manifest]:
    """The artifacts of a mark; the manifest of one asset is another than it should be."""
    chain: dict[str, Manifest] = {}
    previous = ""
    for number, asset in enumerate(MARK_ASSETS):
        part = write_rows(attempt, asset)
        manifest = Manifest(
            asset=asset,
            repository=attempt.repository,
            run=attempt.run,
            attempt=attempt.attempt,
            namespace=NAMESPACE,
            cutoff=START - timedelta(hours=25),
            started=START + timedelta(seconds=2 * number),
            finished=START + timedelta(seconds=2 * number + 1),
            rows=2,
            digest="2-0",
            parts={"data": [part]},
            previous=previous,
            settings={"min_age_hours": 24.0},
            facts={"number": number},
        )
        manifest = change(manifest) if asset == broken else manifest
        attempt.store().put(f"{asset}/manifest.json", manifest.to_bytes())
        chain[asset] = manifest
        previous = manifest.sha256
    return chain


def test_a_chain_that_another_version_wrote_in_another_form_is_whole(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("repo", "m1")
    previous = ""
    for asset, manifest in write_chain(attempt).items():
        values = json.loads(replace(manifest, previous=previous).to_bytes())
        data = json.dumps(values, indent=1, sort_keys=True).encode()
        attempt.store().put(f"{asset}/manifest.json", data)
        previous = hashlib.sha256(data).hexdigest()
    assert list(attempt.chain(LAST, NAMESPACE)) == list(MARK_ASSETS[: MARK_ASSETS.index(LAST) + 1])
    attempt.store().put(
        f"{MARK_ASSETS[0]}/manifest.json", write_chain(attempt)[MARK_ASSETS[0]].to_bytes() + b" "
    )
    with pytest.raises(IntegrityError, match="does not follow the one before it"):
        attempt.chain(LAST, NAMESPACE)


def test_a_root_that_cannot_be_written_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"the artifacts cannot be written at .*/file/"):
        ArtifactRoot(str(tmp_path / "file/below"), StoreConfig()).new_attempt("repo", "m1")


def test_a_whole_chain_is_read_as_it_was_written(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    written = write_chain(attempt)
    read = attempt.chain("gc_report", NAMESPACE)
    assert list(read) == list(MARK_ASSETS)
    assert read == written
    assert list(attempt.chain("active_commits", NAMESPACE)) == list(MARK_ASSETS[:3])


@pytest.mark.parametrize("seconds", [0, 590, 610])
@pytest.mark.parametrize("behind", ["active_commits", "gc_report"])
def test_assets_of_machines_whose_clocks_may_differ_are_a_chain(
    seconds: int, behind: str, tmp_path: Path
) -> None:
    def on_another_machine(manifest: Manifest) -> Manifest:
        late = timedelta(seconds=seconds)
        return replace(
            manifest,
            started=manifest.started - late,
            finished=manifest.finished - late,
            settings={"clock_skew_seconds": 300},
        )

    attempt = root_at(tmp_path).new_attempt("small", "run1")
    write_chain(attempt, behind, on_another_machine)
    refused = pytest.raises(IntegrityError, match="does not follow the one before it")
    with refused if seconds > 600 else nullcontext():
        assert list(attempt.chain("gc_report", NAMESPACE)) == list(MARK_ASSETS)


CHANGES: dict[str, Change] = {
    "another attempt": lambda m: replace(m, attempt="20261121T044100Z-00000000"),
    "another run": lambda m: replace(m, run="run2"),
    "another repository": lambda m: replace(m, repository="retention"),
    "another asset": lambda m: replace(m, asset="gc_report"),
    "another namespace": lambda m: replace(m, namespace="s3://lab/retention"),
    "another cutoff": lambda m: replace(m, cutoff=m.cutoff + timedelta(microseconds=1)),
    "another manifest before it": lambda m: replace(m, previous="0" * 64),
    "none before it": lambda m: replace(m, previous=""),
    "begun before the one before it ended": lambda m: replace(
        m, started=m.started - timedelta(seconds=2)
    ),
    "finished before it began": lambda m: replace(m, finished=m.started - timedelta(seconds=1)),
    "a file more": lambda m: replace(
        m, parts={**m.parts, "more": [m.parts["data"][0]._replace(key="data/part-1.parquet")]}
    ),
    "a file fewer": lambda m: replace(m, parts={}),
    "a file of another size": lambda m: replace(
        m, parts={"data": [m.parts["data"][0]._replace(size=1)]}
    ),
    "other rows": lambda m: replace(m, rows=3),
    "another schema": lambda m: replace(m, schema_version=SCHEMA_VERSION + 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_broken_link_is_refused(name: str, tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    write_chain(attempt, "active_commits", CHANGES[name])
    assert list(attempt.chain("uncommitted_snapshot", NAMESPACE)) == list(MARK_ASSETS[:2])
    with pytest.raises(IntegrityError, match=r"[Mm]ark again|update lakegc"):
        attempt.chain(LAST, NAMESPACE)


def test_a_first_manifest_that_follows_another_is_refused(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    write_chain(attempt, "store_listing", lambda m: replace(m, previous="0" * 64))
    with pytest.raises(IntegrityError, match="does not follow the one before it"):
        attempt.chain("store_listing", NAMESPACE)


def test_a_manifest_that_was_made_again_breaks_the_chain(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    chain = write_chain(attempt)
    again = replace(chain["uncommitted_snapshot"], facts={"number": 7})
    attempt.store().put("uncommitted_snapshot/manifest.json", again.to_bytes())
    with pytest.raises(IntegrityError, match=r"active_commits .* does not follow"):
        attempt.chain(LAST, NAMESPACE)


def test_a_missing_manifest_means_that_the_asset_did_not_finish(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    write_chain(attempt)
    (Path(attempt.url) / "active_commits" / "manifest.json").unlink()
    with pytest.raises(IntegrityError, match="active_commits did not finish"):
        attempt.chain(LAST, NAMESPACE)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_data_files_that_are_not_those_of_the_manifest_are_refused(
    damage: str, tmp_path: Path
) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    chain = write_chain(attempt)
    path = Path(attempt.url) / chain["active_commits"].parts["data"][0].key
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="something removed or cut it"):
        attempt.chain(LAST, NAMESPACE)


def test_a_file_of_the_right_size_and_other_bytes_is_refused_when_it_is_read(
    tmp_path: Path,
) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    chain = write_chain(attempt)
    path = Path(attempt.url) / chain["active_commits"].parts["data"][0].key
    whole = path.read_bytes()
    for at in range(0, len(whole), 29):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(IntegrityError, match="something changed it"):
            attempt.read("active_commits")


def test_what_a_listing_lacks_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next mark would pass over what an earlier one knew."""
    attempt = root_at(tmp_path).new_attempt("repo", "m1")
    chain = write_chain(attempt)
    monkeypatch.setattr(LocalStore, "list", lambda *_, **__: iter(()))
    mark = Earlier(attempt, attempt.manifest("active_commits"))
    assert unread_marks([mark], mark.manifest.finished, is_whole) == [mark]
    (part,) = chain["active_commits"].parts["data"]
    attempt.store().delete_many([part.key])
    assert unread_marks([mark], mark.manifest.finished, is_whole) == []
    with pytest.raises(IntegrityError, match=r"should have \d+ bytes, and is gone: something"):
        attempt.manifest("active_commits")


def test_what_no_manifest_names_is_never_read(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    write_chain(attempt)
    write_rows(attempt, "active_commits", 7)
    assert attempt.chain(LAST, NAMESPACE)
    assert attempt.read("active_commits").num_rows == 2


def test_any_damage_to_a_manifest_is_reported_or_breaks_the_chain(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    chain = write_chain(attempt)
    path = Path(attempt.url) / "uncommitted_snapshot" / "manifest.json"
    sound = path.read_bytes()
    chance, reported = random.Random(7), 0
    for _ in range(300):
        at = chance.randrange(len(sound))
        bit = 1 << chance.randrange(8)
        path.write_bytes(sound[:at] + bytes([sound[at] ^ bit]) + sound[at + 1 :])
        try:
            read = attempt.chain("gc_report", NAMESPACE)
        except IntegrityError:
            reported += 1
        else:
            # A time may have another letter between day and hour, and so mean the same.
            assert read == chain
    assert reported > 290
    for length in range(0, len(sound), 17):
        path.write_bytes(sound[:length])
        with pytest.raises(IntegrityError, match="is damaged"):
            attempt.chain(LAST, NAMESPACE)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"schema_version": 5}', b'{"schema_version": 5, "cutoff": 3}']
)
def test_a_manifest_in_another_form_is_damaged(body: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"x/manifest\.json is damaged"):
        Manifest.from_bytes(body, "x/manifest.json")


def test_a_time_without_a_zone_is_damage(tmp_path: Path) -> None:
    chain = write_chain(root_at(tmp_path).new_attempt("small", "run1"))
    values = json.loads(chain["store_listing"].to_bytes())
    values["started"] = values["started"].removesuffix("+00:00")
    with pytest.raises(IntegrityError, match="started: it has no time zone"):
        Manifest.from_bytes(json.dumps(values).encode(), "x")


# Attempts and runs


def test_a_new_attempt_leaves_the_old_one_as_it_is(tmp_path: Path) -> None:
    root = root_at(tmp_path)
    first = root.new_attempt("small", "run1")
    write_rows(first, "store_listing")
    second = root.new_attempt("small", "run1")
    assert first.attempt != second.attempt
    assert root.attempt("small", "run1") == second
    assert not second.files("store_listing")
    assert first.files("store_listing")
    third = root.new_attempt("small", "run1")
    assert root.attempts("small", "run1") == [third, second, first]


def test_a_published_mark_is_frozen(tmp_path: Path) -> None:
    root = root_at(tmp_path)
    attempt = root.new_attempt("small", "run1")
    write_chain(attempt)
    with pytest.raises(RefusedError, match="'run1' of repository 'small' exists already"):
        root.new_attempt("small", "run1")
    assert root.attempt("small", "run1") == attempt


def test_an_asset_is_finished_once(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    manifest = write_chain(attempt)["store_listing"]
    another = replace(manifest, finished=manifest.finished + timedelta(microseconds=1))
    with pytest.raises(RefusedError, match="store_listing of 'run1' is finished"):
        attempt.finish(another)
    assert attempt.recorded("store_listing") == manifest


def test_a_manifest_whose_write_is_not_answered_finishes_its_asset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last request of a stage, which may have taken hours."""
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    manifest = replace(write_chain(attempt)["store_listing"], asset="active_commits", parts={})
    attempt.store().delete_many(["active_commits/manifest.json"])
    write = LocalStore.put_if_absent

    def lose_answer(store: LocalStore, key: str, data: bytes) -> str:
        write(store, key, data)
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(LocalStore, "put_if_absent", lose_answer)
    assert attempt.finish(manifest) == attempt.recorded("active_commits") == manifest


def test_what_tasks_wrote_elsewhere_finishes_nothing(tmp_path: Path) -> None:
    attempt = root_at(tmp_path).new_attempt("small", "run1")
    manifest = write_chain(root_at(tmp_path).new_attempt("small", "run2"))["store_listing"]
    with pytest.raises(IntegrityError, match="all executors must share the artifact root"):
        attempt.finish(manifest)
    assert not attempt.has("store_listing")


@pytest.mark.parametrize("run", ["../elsewhere", "../../elsewhere/run", ".", "", "a/b"])
def test_a_run_is_read_in_its_own_folder_only(run: str, tmp_path: Path) -> None:
    """A hold names the run of its alarm, and others may have written that."""
    root = root_at(tmp_path)
    root.new_attempt("small", "run1")
    root.open("small").put("attempt.json", b'{"attempt": "a"}')
    planted = (tmp_path / "artifacts/small" / run / "attempt.json").resolve()
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text('{"attempt": "a"}')
    with pytest.raises(RefusedError, match=f"there is no mark {run!r}"):
        root.attempt("small", run)


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="there is no mark 'run1' of repository 'small'"):
        root_at(tmp_path).attempt("small", "run1")
    # The command does what the run of a component would, as all that are printed.
    with (
        printing(Source(definitions="defs/collection")),
        pytest.raises(RefusedError, match="`lakegc --defs defs/collection repositories` lists"),
    ):
        root_at(tmp_path).attempt("small", "run1")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"attempt"',
        b"null",
        b'{"attempt": "a"}',
        b'{"attempt": ".", "earlier": []}',
        b'{"attempt": "a", "earlier": [".."]}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_attempt_is_reported(body: bytes, tmp_path: Path) -> None:
    root = root_at(tmp_path)
    root.new_attempt("small", "run1")
    root.open("small", "run1").put("attempt.json", body)
    for ask in (root.attempt, root.new_attempt):
        with pytest.raises(IntegrityError, match=r"attempt\.json is damaged"):
            ask("small", "run1")


def test_a_root_of_an_unknown_kind_is_not_taken_for_a_damaged_one() -> None:
    with pytest.raises(ConfigurationError, match="ftp"):
        ArtifactRoot("ftp://host/artifacts", StoreConfig()).attempt("small", "run1")


def test_runs_are_listed_without_what_else_is_kept_there(tmp_path: Path) -> None:
    root = root_at(tmp_path)
    assert root.runs("small") == []
    for run in ("b", "a"):
        root.new_attempt("small", run)
    root.open("small", "_cache").put("ranges/x", b"")
    assert root.runs("small") == ["a", "b"]
    assert root.runs("retention") == []


def test_lists_that_end_early_hide_no_run_and_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_at(tmp_path)
    for repository, run in (("large", "a"), ("small", "a"), ("small", "b")):
        root.new_attempt(repository, run)
    real = LocalStore.list_prefixes

    def cut(store: LocalStore, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        found = real(store, prefix, max_objects)
        return found._replace(prefixes=found.prefixes[:1])

    monkeypatch.setattr(LocalStore, "list_prefixes", cut)
    assert root.repositories() == ["large", "small"]
    assert root.runs("small") == ["a", "b"]


NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


@given(NAME)
def test_plain_names_are_ids_of_runs(run: str) -> None:
    assert validate_run_id(run) == run


@given(NAME, st.sampled_from("/|\\ \n\0%é:*?\u202e"), NAME)
@example("", "", "")
@example("", "", ".")
@example("", "", "..")
@example("", "", "-a")
@example("", "", "_cache")
@example("", "a", "\n")
@example("a" * 64, "a", "a" * 64)
def test_other_names_are_refused(start: str, odd: str, end: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the id of a run"):
        validate_run_id(start + odd + end)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (" s3://backups/lakegc", "is no place: write a URL like s3://bucket/folder, or a path"),
        ("s3:/backups/lakegc", "is no place"),
        ("s3:backups", "is no place"),
        ("file:/backups", "is no place"),
        ("https://a.blob.core.windows.net/b?sv=1&sig=word", "AZURE_STORAGE_SAS_TOKEN"),
    ],
)
def test_a_place_with_a_slip_is_no_folder_of_this_machine(place: str, said: str) -> None:
    """A backup would lie there, and end with a container."""
    with pytest.raises(ConfigurationError) as refused:
        located(place)
    assert said in str(refused.value)
    assert "sig=word" not in str(refused.value)


def test_a_place_is_a_url_as_it_is_or_a_path_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    places = {"s3://b/x": "s3://b/x", "here/a:b": f"{tmp_path}/here/a:b", "~/x": f"{tmp_path}/me/x"}
    assert {place: located(place) for place in places} == places
