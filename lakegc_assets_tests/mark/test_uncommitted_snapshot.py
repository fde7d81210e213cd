"""A snapshot of staged objects is believed only where every answer of the server adds up."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.checks.live_set import read_live_set
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.objects.objects import stage_entry
from lakegc_assets.engine.datasets import read_parts
from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.lakefs.errors import UnexpectedAnswerError
from lakegc_assets.mark.uncommitted_snapshot import (
    UncommittedFiles,
    prepare_uncommitted,
    read_staged,
)
from lakegc_assets.retention.commits import instant
from lakegc_assets.run.context import RunContext
from lakegc_assets.run.hashing import address_hashes, key_digest, signed
from lakegc_assets.run.scratch import Folder
from lakegc_assets_tests import recorded
from lakegc_assets_tests.lake import REPOSITORY, running
from lakegc_assets_tests.mark import foreign
from lakegc_assets_tests.replay import Answer, ReplayServer, Request
from lakegc_assets_tests.replay import paged as paged_items
from lakegc_assets_tests.sessions import Session

PREPARE = ("POST", r"/repositories/paged/gc/prepare_uncommited")
BRANCHES = ("GET", r"/repositories/paged/branches")
FOLDER = "_lakefs/retention/gc/uncommitted/ft6u2v9ksduf1in7i0cg/uncommitted/"


@dataclass
class Paged:
    """The recorded snapshot in eight pages, of which the last has no location."""

    server: ReplayServer
    ctx: RunContext
    tries: int = 0

    def prepare(self) -> UncommittedFiles:
        return prepare_uncommitted(self.ctx.connect())

    def change(self, change: Callable[[int, int, dict[str, Any]], Answer | None]) -> None:
        """Change pages: given the numbers of try (from 1) and page (from 0), and the body."""
        pages = 0

        def answer(request: Request) -> Answer | None:
            nonlocal pages
            pages = pages + 1 if (request.json or {}).get("continuation_token") else 0
            self.tries += pages == 0
            body = dict(self.server.derived(request).body)
            return change(self.tries, pages, body)

        self.server.overrides[PREPARE] = answer


@pytest.fixture
def paged(spark: Session, s3_server: str, tmp_path: Path) -> Iterator[Paged]:
    recorded.load("paged", "prepare_interval_9ms")
    with ReplayServer("paged", prepare="prepare_interval_9ms") as server:
        yield Paged(server, recorded.context(server, s3_server, tmp_path, spark))


def without_location(body: dict[str, Any]) -> Answer:
    return Answer(201, {**body, "gc_uncommitted_location": ""})


def test_the_last_page_of_the_recording_is_believed(paged: Paged) -> None:
    files = paged.prepare()
    assert (files.pages, files.empty_pages, files.tries) == (8, 1, 1)
    assert len(files.keys) == len(set(files.keys)) == 7
    assert all(key.startswith(FOLDER) for key in files.keys)
    # Branches that are not shown hold staged objects as well.
    asked = paged.server.asked(*BRANCHES)
    assert asked
    assert all(request.params.get("show_hidden") == "true" for request in asked)


@pytest.mark.parametrize(
    ("page", "suspects"), [(1, "b-01, b-02."), (3, "b-05, b-06."), (0, "b-00.")]
)
def test_a_page_without_location_needs_branches_without_changes(
    page: int, suspects: str, paged: Paged
) -> None:
    paged.change(lambda _, number, body: without_location(body) if number == page else None)
    message = f"is not complete after 3 tries: it lists nothing .*: {suspects} Run again"
    with pytest.raises(IntegrityError, match=message):
        paged.prepare()
    assert paged.tries == 3


def test_pages_without_any_location_need_all_branches_without_changes(paged: Paged) -> None:
    paged.change(lambda _, __, body: without_location(body))
    with pytest.raises(IntegrityError, match="b-00, b-01, b-02, b-03, b-04"):
        paged.prepare()


def test_a_later_try_may_be_sound_and_earlier_ones_count_as_well(paged: Paged) -> None:
    other = FOLDER.replace("ft6u2v9ksduf1in7i0cg", "an-earlier-run")
    planted = [recorded.plant("paged", f"{other}{number}") for number in range(7)]

    def first_is_wrong(run: int, page: int, body: dict[str, Any]) -> Answer | None:
        if run > 1:
            return None
        body["run_id"] = "an-earlier-run"
        location = "" if page == 3 else f"s3a://lab/paged/{other}"
        return Answer(201, {**body, "gc_uncommitted_location": location})

    paged.change(first_is_wrong)
    files = paged.prepare()
    assert (files.tries, files.pages, files.empty_pages) == (2, 8, 1)
    assert files.run_ids == ["an-earlier-run", "ft6u2v9ksduf1in7i0cg"]
    assert len(files.keys) == 14
    assert set(planted) < set(files.keys)


def diff_of(branch: str) -> str:
    """The path of a branch's diff, as a pattern."""
    return f"/repositories/paged/refs/{branch}%40/diff/{branch}%24"


def diff_of_main(kind: str) -> Callable[[Request], Answer]:
    entry = {"path": "a", "path_type": "object", "size_bytes": 1, "type": kind}
    return lambda request: paged_items([entry], "path", request.params)


@pytest.mark.parametrize("kind", ["added", "changed", "conflict"])
def test_a_change_behind_the_last_page_is_seen(kind: str, paged: Paged) -> None:
    paged.server.overrides["GET", diff_of("main")] = diff_of_main(kind)
    with pytest.raises(IntegrityError, match="for branches that have changes: main"):
        paged.prepare()


def test_a_removed_object_has_no_address(paged: Paged) -> None:
    paged.server.overrides["GET", diff_of("main")] = diff_of_main("removed")
    assert paged.prepare().tries == 1


@pytest.mark.parametrize(("path", "suspect"), [("~", "b-00"), ("", "")])
def test_a_page_without_location_may_end_in_the_middle_of_a_branch(
    path: str, suspect: str, paged: Paged
) -> None:
    """What the branch has staged before that end is no other page's."""
    token = base64.b64encode(json.dumps({"branch": "b-00", "path": path}).encode()).decode()

    def answer(request: Request) -> Answer:
        if (request.json or {}).get("continuation_token"):
            location = f"s3a://lab/paged/{FOLDER}"
            return Answer(201, {"run_id": "x", "gc_uncommitted_location": location})
        return without_location({"run_id": "x", "continuation_token": token})

    paged.server.overrides[PREPARE] = answer
    if not suspect:
        assert paged.prepare().empty_pages == 1
        return
    with pytest.raises(IntegrityError, match=f"for branches that have changes: {suspect}. Run"):
        paged.prepare()


def test_a_page_without_location_begins_with_what_its_token_names(paged: Paged) -> None:
    token = base64.b64encode(json.dumps({"branch": "main", "path": "a"}).encode()).decode()

    def answer(request: Request) -> Answer:
        if (request.json or {}).get("continuation_token"):
            return without_location({"run_id": "x"})
        location = f"s3a://lab/paged/{FOLDER}"
        body = {"run_id": "x", "gc_uncommitted_location": location, "continuation_token": token}
        return Answer(201, body)

    paged.server.overrides[PREPARE] = answer
    assert paged.prepare().empty_pages == 1
    paged.server.overrides["GET", diff_of("main")] = diff_of_main("added")
    with pytest.raises(IntegrityError, match="for branches that have changes: main"):
        paged.prepare()


@pytest.mark.parametrize(
    "token",
    [
        "bm8ganNvbg==",
        "?",
        base64.b64encode(b'{"run": 1}').decode(),
        base64.b64encode(b"[" * 100_000).decode(),
    ],
)
def test_a_token_that_tells_nothing_makes_a_page_cover_all(token: str, paged: Paged) -> None:
    def answer(request: Request) -> Answer:
        is_last = (request.json or {}).get("continuation_token")
        return without_location(
            {"run_id": "x"} | ({} if is_last else {"continuation_token": token})
        )

    paged.server.overrides[PREPARE] = answer
    with pytest.raises(IntegrityError, match="b-00, b-01"):
        paged.prepare()


def test_a_list_of_branches_that_ends_early_hides_nothing_behind_an_empty_page(
    paged: Paged,
) -> None:
    paged.change(lambda _, page, body: without_location(body) if page == 3 else None)

    def first_ones(request: Request) -> Answer | None:
        if request.params.get("after"):
            return None
        found = paged.server.recording.branches()[:5]
        pagination = {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": 5}
        return Answer(200, {"pagination": pagination, "results": found})

    paged.server.overrides[BRANCHES] = first_ones
    with pytest.raises(IntegrityError, match=r"it lists nothing .*: b-05, b-06. Run again"):
        paged.prepare()


def branches_with(server: ReplayServer, *more: str) -> Answer:
    found = [*server.recording.branches(), *({"id": n, "commit_id": "0" * 64} for n in more)]
    pagination = {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": 16}
    return Answer(200, {"pagination": pagination, "results": found})


def test_a_branch_that_vanished_in_the_middle_starts_the_snapshot_again(paged: Paged) -> None:
    told: list[Request] = []

    def once(request: Request) -> Answer | None:
        told.append(request)
        return branches_with(paged.server, "zz-gone") if len(told) == 1 else None

    paged.server.overrides[BRANCHES] = once
    files = paged.prepare()
    assert files.tries == 2
    assert len(files.run_ids) == 2


@pytest.mark.parametrize("position", [0, 4], ids=["there before", "made in the middle"])
def test_where_branches_vanish_all_the_time_the_last_try_stands(
    position: int, paged: Paged
) -> None:
    told: list[Request] = []

    def listed(request: Request) -> Answer | None:
        if request.params.get("after"):
            return None
        # Asked before, after each of eight pages, to look behind the last one, and at the end.
        told.append(request)
        with_one_more = (len(told) - 1) % 11 == position
        return branches_with(paged.server, "zz-gone") if with_one_more else None

    paged.server.overrides[BRANCHES] = listed
    assert paged.prepare().tries == 3
    assert len(told) == 33


def test_a_branch_that_vanished_explains_no_page_without_location(paged: Paged) -> None:
    paged.change(lambda _, page, body: without_location(body) if page == 3 else None)
    told: list[Request] = []

    def at_first(request: Request) -> Answer | None:
        told.append(request)
        return branches_with(paged.server, "zz-gone") if len(told) == 1 else None

    paged.server.overrides[BRANCHES] = at_first
    with pytest.raises(IntegrityError, match=r"it lists nothing .*: b-05, b-06. Run again"):
        paged.prepare()


def test_a_404_in_the_middle_starts_the_snapshot_again(paged: Paged) -> None:
    other = FOLDER.replace("ft6u2v9ksduf1in7i0cg", "a-lost-run")
    planted = [recorded.plant("paged", f"{other}{number}") for number in range(2)]

    def lost(run: int, page: int, body: dict[str, Any]) -> Answer | None:
        if run > 1:
            return None
        if page == 2:
            return Answer(404, {"message": "branch not found"})
        body["run_id"] = "a-lost-run"
        return Answer(201, {**body, "gc_uncommitted_location": f"s3://lab/paged/{other}"})

    paged.change(lost)
    files = paged.prepare()
    assert files.tries == 2
    assert files.run_ids == ["a-lost-run", "ft6u2v9ksduf1in7i0cg"]
    # What the pages before the error named is kept: too many addresses are safe.
    assert len(files.keys) == 9
    assert set(planted) < set(files.keys)


def test_a_404_in_every_try_stops_the_run(paged: Paged) -> None:
    paged.server.overrides[PREPARE] = (404, {"message": "branch not found"})
    with pytest.raises(IntegrityError, match=r"after 3 tries: the server answered 404 in the mid"):
        paged.prepare()


def test_a_404_because_of_a_head_that_does_not_exist_names_its_branch(paged: Paged) -> None:
    paged.server.overrides[PREPARE] = (404, {"message": "commit not found"})
    listed = branches_with(paged.server, "zz-lost").body["results"]
    paged.server.overrides[BRANCHES] = lambda asked: paged_items(listed, "id", asked.params)
    paged.server.overrides["GET", "/repositories/paged/refs/(0{64}|zz-lost)/commits"] = (
        404, {"message": "commit not found"},
    )  # fmt: skip
    with pytest.raises(IntegrityError, match=r"after 3 tries: .*'zz-lost' of 'paged' points to"):
        paged.prepare()


@pytest.mark.parametrize("message", ["branch not found", "invalid API endpoint"])
def test_a_diff_that_is_not_found_is_no_proof_that_nothing_is_staged(
    message: str, paged: Paged
) -> None:
    """The last page has no location, and covers ``main``, which exists."""
    diff = ("GET", diff_of("main"))
    told: list[Request] = []

    def once(request: Request) -> Answer | None:
        told.append(request)
        return Answer(404, {"message": message}) if len(told) == 1 else None

    paged.server.overrides[diff] = once
    assert paged.prepare().tries == 2
    paged.server.overrides[diff] = (404, {"message": message})
    with pytest.raises(IntegrityError, match=r"after 3 tries: the server answered 404 in the mid"):
        paged.prepare()


def test_a_branch_that_goes_between_the_list_and_its_diff_has_nothing_staged(paged: Paged) -> None:
    """The last page has no location, and covers all that come behind ``main``, too."""
    told: list[Request] = []

    def at_the_end(request: Request) -> Answer | None:
        if request.params.get("after"):
            return None
        told.append(request)
        # Asked before, after each of eight pages, and to look behind the last one.
        return branches_with(paged.server, "zz-gone") if len(told) == 10 else None

    paged.server.overrides[BRANCHES] = at_the_end
    assert paged.prepare().tries == 1
    assert paged.server.asked("GET", diff_of("zz-gone"))


def test_pages_of_two_runs_stop_the_run(paged: Paged) -> None:
    def mixed(_: int, page: int, body: dict[str, Any]) -> Answer | None:
        return Answer(201, {**body, "run_id": "another"}) if page == 4 else None

    paged.change(mixed)
    with pytest.raises(UnexpectedAnswerError, match="a page of run another came after"):
        paged.prepare()


def test_fewer_files_than_pages_stop_the_run(paged: Paged) -> None:
    recorded.remove("paged", next(key for key in recorded.keys("paged") if FOLDER in key))
    with pytest.raises(IntegrityError, match=r"on 7 pages that it wrote to .* there are 6 files"):
        paged.prepare()


def test_a_location_elsewhere_stops_the_run(paged: Paged) -> None:
    paged.change(
        lambda _, __, body: Answer(201, {**body, "gc_uncommitted_location": "s3://other/paged/x/"})
    )
    with pytest.raises(IntegrityError, match="s3://other/paged/x/, outside of s3://lab/paged"):
        paged.prepare()


# The files


def parquet(addresses: list[str | None], times: list[int | None]) -> bytes:
    sink = pa.BufferOutputStream()
    columns = {"physical_address": pa.array(addresses, pa.string()), "creation_date": times}
    pq.write_table(pa.table(columns), sink, compression="gzip")
    body: bytes = sink.getvalue().to_pybytes()
    return body


def read(paged: Paged, body: bytes) -> dict[tuple[str, bool], Any]:
    key = recorded.plant("paged", FOLDER + "planted", body)
    artifacts = paged.ctx.root.open("paged", "read")
    staged = read_staged(paged.ctx.connect(), artifacts, "here/", [key])
    rows = [row for table in read_parts(artifacts, staged.parts) for row in table.to_pylist()]
    addresses = pa.array([row["address"] for row in rows], pa.string())
    hashes = {h for t in read_parts(artifacts, staged.hashes) for h in t["hash"].to_pylist()}
    assert hashes == set(signed(address_hashes(addresses)).to_pylist())
    assert list(staged.unresolved) == [r["address"] for r in rows if not r["resolved"]]
    assert staged.digest == key_digest(addresses)
    return {(row["address"], row["resolved"]): row["created"] for row in rows}


def test_every_meaning_of_a_staged_address_is_kept(paged: Paged) -> None:
    addresses = ["data/plain", "s3a://lab/paged/data/a%20b", "mystery://x/y/last", "s3://o/p"]
    found = read(paged, parquet([*addresses], [1795236038, 0, 1, 2]))
    resolved = {address for address, known in found if known}
    assert resolved == {*addresses, "data/a b", "data/a%20b"}
    assert {address for address, known in found if not known} == {"last"}
    assert found["data/plain", True].timestamp() == 1795236038


@pytest.mark.parametrize("date", [1_795_236_038_000, -(10**13), 2**63 - 1, -(2**63), None])
def test_a_date_that_no_calendar_has_stops_nothing(paged: Paged, date: int | None) -> None:
    """Clients tell the date of what they stage, in milliseconds for one."""
    found = read(paged, parquet(["data/plain", "s3://elsewhere/x"], [date, date]))
    assert found.keys() == {("data/plain", True), ("s3://elsewhere/x", True)}
    assert set(found.values()) == {None if date is None else instant(date)}


def test_another_table_stops_the_run(paged: Paged) -> None:
    with pytest.raises(IntegrityError, match="is no list of staged objects as lakeFS writes"):
        read(paged, foreign.parquet(["data/1"]))


def _damaged(body: bytes) -> bytes:
    at = body.index(b"data/1")
    return body[: at - 4] + b"\xff" * 8 + body[at + 4 :]


def _another(body: bytes) -> bytes:
    return body.replace(b"\0data/2", b"\0data/3", 1)


def _of_three_rows(body: bytes) -> bytes:
    # The number in the footer, before its groups of rows, which Arrow does not compare it with.
    return body.replace(b"\x16\x04\x19", b"\x16\x06\x19", 1)


@dataclass(frozen=True)
class Form:
    """A list of another form: what is written otherwise, and what becomes of its bytes then."""

    changes: Mapping[str, pa.Array] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    damage: Callable[[bytes], bytes] = bytes


_PLAIN: Mapping[str, Any] = {"compression": "none", "use_dictionary": False}
_FORMS = {
    # What was cast would name nobody's address, and the object would be dead.
    "numbers": Form({"physical_address": pa.array([1, 2])}),
    "booleans": Form({"physical_address": pa.array([True, False])}),
    "two columns of a name": Form({"physical_address ": pa.array(["a", "b"])}),
    "a null": Form({"physical_address": pa.array(["data/1", None])}),
    "no text": Form({"physical_address": pa.array([b"data/\xff", b"a"]).view(pa.string())}),
    "dates of another kind": Form({"creation_date": pa.array([1.5, 2.5])}),
    "damage": Form({}, {"compression": "snappy", "use_dictionary": False}, _damaged),
    "damage of a page": Form({}, {**_PLAIN, "write_page_checksum": True}, _another),
    "fewer rows than it says": Form({}, _PLAIN, _of_three_rows),
}


@pytest.mark.parametrize("name", _FORMS)
def test_a_list_of_another_form_stops_the_run_with_its_name(
    paged: Paged, tmp_path: Path, name: str
) -> None:
    form = _FORMS[name]
    columns = {
        "physical_address": pa.array(["data/1", "data/2"]),
        "creation_date": pa.array([1, 2]),
    }
    columns |= form.changes
    sink = pa.BufferOutputStream()
    names = [column.strip() for column in columns]
    pq.write_table(pa.table([*columns.values()], names), sink, **form.options)
    body = form.damage(sink.getvalue().to_pybytes())
    with pytest.raises(IntegrityError, match="planted is no list of staged objects as lakeFS"):
        read(paged, body)
    if "creation_date" in form.changes:
        return  # the checks need none
    folder = Folder(paged.ctx.connect().connections, str(tmp_path), "checks/")
    with pytest.raises(IntegrityError, match="planted is no list of staged objects as lakeFS"):
        read_live_set(folder, "paged", [(f"{FOLDER}planted", set())])


def test_tokens_are_those_that_lakefs_gives(paged: Paged) -> None:
    answers = paged.server.recording.variant("prepare_interval_9ms")
    tokens = [c["body"].get("continuation_token") for c in answers if "uncommitted" in c["name"]]
    positions = [json.loads(base64.b64decode(token)) for token in tokens if token]
    assert [p["branch"] for p in positions] == sorted(p["branch"] for p in positions)


# Objects outside of the namespace


OUTSIDE = "local://elsewhere/data/outside"


@pytest.mark.parametrize(
    "other",
    ["", "local://repo/data/by-hand", "local://repo/data/by%2Dhand", "local://Repo/data/by-hand"],
    ids=["nothing else", "inside", "inside by another spelling", "unclear"],
)
def test_a_page_without_location_may_cover_what_lies_outside(
    tmp_path: Path, spark: Session, other: str
) -> None:
    """A repository that has staged nothing else is collected, too: lakeFS lists none of it."""
    # Its list has the first half, in which the other one is not.
    with running(tmp_path / "lake", faults=frozenset({Fault.SCAN_ENDS_EARLY})) as lake:
        lake.client.create_repository(REPOSITORY, f"local://{REPOSITORY}")
        stage = partial(stage_entry, lake.server.lake, REPOSITORY, "main")
        for path, address in (("a", OUTSIDE), ("z", other)):
            if address:
                stage(path, Entry(address=address, size=1, address_type=AddressType.FULL))
        ctx = lake.context(spark).connect()
        if other:
            with pytest.raises(IntegrityError, match="for branches that have changes: main"):
                prepare_uncommitted(ctx)
        else:
            files = prepare_uncommitted(ctx)
            assert (files.tries, files.pages, files.empty_pages, files.keys) == (1, 1, 1, [])
