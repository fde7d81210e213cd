"""One sweep at a time, by a lease in the namespace: who has it, may take it, or has lost it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.errors import ConfigurationError, IntegrityError, RefusedError
from lakegc_assets.storage.errors import StorageError, StoreUnavailableError
from lakegc_assets.sweep import lease as module
from lakegc_assets.sweep.batch_guard import CHECK_LIFETIME
from lakegc_assets.sweep.lease import Lease, LeaseLostError, repository_lease
from lakegc_assets.sweep.lease_record import LEASE, PROBES, LeaseRecord, lost, read_lease
from lakegc_assets_tests.clocks import StubClocks
from lakegc_assets_tests.kills import Killed
from lakegc_assets_tests.sweep.clocked import START, ClockedStore

DURATION = timedelta(minutes=3)
_WHOLE = (
    b'{"token": "t", "owner": {}, "expires": "2026-01-01T00:00:00+00:00", "renewed": 0, '
    b'"released": true, "round": 0}'
)
HOUR = timedelta(hours=1)
ME = {"host": "here", "pid": "1"}
OTHER = {"host": "elsewhere", "user": "ann", "pid": "2", "command": "lakegc sweep"}


@pytest.fixture
def store(tmp_path: Path) -> ClockedStore:
    return ClockedStore(tmp_path / "namespace")


@contextmanager
def leased(store: ClockedStore, owner: dict[str, str] | None = None) -> Iterator[Lease]:
    """A lease by somebody who does not wait: time passes only if a test lets it."""
    with repository_lease(
        store, owner or ME, duration=DURATION, clocks=StubClocks(store.advance)
    ) as lease:
        yield lease


def die(store: ClockedStore, owner: dict[str, str]) -> LeaseRecord:
    """Take the lease, and end as a process does that is killed: nothing is given back."""

    def kill(name: str) -> None:
        if name.startswith("put") and store.key == LEASE:
            raise Killed

    store.after = kill
    with pytest.raises(Killed), leased(store, owner):
        raise AssertionError
    store.after = lambda _name: None
    return read_lease(store)


def test_it_names_its_owner_and_ends_with_its_block(store: ClockedStore) -> None:
    with leased(store) as lease:
        record = read_lease(store)
        since = {"since": "2026-01-01 00:00:00 UTC"}
        assert (record.token, record.owner, record.round) == (lease.token, ME | since, 0)
        assert (record.expires, record.released) == (START + DURATION, False)
    assert read_lease(store).released
    with leased(store, OTHER) as lease:
        assert read_lease(store).owner["host"] == "elsewhere"
        assert read_lease(store).token == lease.token != record.token


def test_it_is_given_back_after_an_error(store: ClockedStore) -> None:
    with pytest.raises(KeyError), leased(store):
        raise KeyError
    assert read_lease(store).released


def refused(
    store: ClockedStore, owner: dict[str, str], wait: timedelta = timedelta(0)
) -> RefusedError:
    """The refusal of who waits for an owner that renews its lease meanwhile."""
    with leased(store, owner) as lease:

        def wait_while_it_is_renewed(seconds: float) -> None:
            store.advance(seconds)
            lease.begin_round(lease.round)

        clocks = StubClocks(wait_while_it_is_renewed)
        with (
            pytest.raises(RefusedError) as raised,
            repository_lease(store, ME, duration=DURATION, wait=wait, clocks=clocks),
        ):
            raise AssertionError
    return raised.value


def test_an_owner_who_lives_is_named(store: ClockedStore) -> None:
    assert (
        ": a sweep by ann on elsewhere (process 2, lakegc sweep) since 2026-01-01 00:00:00 UTC. "
        "This process has waited 5 s for it"
    ) in str(refused(store, OTHER))
    assert store.time - START == timedelta(seconds=5)


def test_who_waits_says_once_for_whom_since_when_and_how_long_at_most(
    store: ClockedStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lakegc"):
        error = refused(store, OTHER | {"run": "r1"}, timedelta(seconds=40))
    assert "has waited 40 s for it" in str(error)
    assert "lease_wait_seconds" in str(error)
    said = [record.getMessage() for record in caplog.records if record.name == "lakegc"]
    waiting = f"waiting for the lease of {store.url}"
    who = "ann on elsewhere (process 2, lakegc sweep) since 2026-01-01 00:00:00 UTC"
    assert said == [
        f"{waiting}, 0 s of 180 s at most: a sweep of run 'r1' by {who}",
        f"{waiting}, 30 s of 40 s",
    ]
    watching = [r.getMessage() for r in caplog.records if r.name == "lakegc.progress"]
    assert watching == said


def test_an_owner_who_lives_is_waited_for_as_long_as_is_asked(store: ClockedStore) -> None:
    waited: list[float] = []

    with leased(store, OTHER) as lease:

        def wait(seconds: float) -> None:
            waited.append(seconds)
            store.advance(seconds)
            if len(waited) < 20:
                lease.begin_round(lease.round)
            elif len(waited) == 20:
                lease.release()

        with repository_lease(store, ME, duration=DURATION, wait=HOUR, clocks=StubClocks(wait)):
            assert read_lease(store).owner["host"] == "here"
    assert len(waited) == 20


def test_a_store_whose_clock_is_set_back_makes_nobody_wait_for_longer(store: ClockedStore) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        store.advance(seconds if len(waited) > 1 else -4000.0)

    with (
        repository_lease(store, OTHER, duration=timedelta(days=1)),
        pytest.raises(RefusedError, match="has waited 600 s for it"),
        repository_lease(store, ME, duration=DURATION, clocks=StubClocks(wait)),
    ):
        raise AssertionError
    assert sum(waited) == 600


def test_who_died_is_waited_for_until_the_lease_ends_and_no_shorter(store: ClockedStore) -> None:
    record = die(store, OTHER)
    assert (record.owner["host"], record.released) == ("elsewhere", False)
    with leased(store):
        assert read_lease(store).owner["host"] == "here"
    assert timedelta(0) <= store.time - record.expires < timedelta(seconds=5)


def test_a_lease_that_does_not_end_in_sight_is_refused(store: ClockedStore) -> None:
    with (
        repository_lease(store, OTHER, duration=timedelta(days=1)),
        pytest.raises(RefusedError, match="ann on elsewhere"),
        leased(store),
    ):
        raise AssertionError
    assert store.time - START == timedelta(minutes=10)


def race(store: ClockedStore) -> list[str]:
    """Let five who wait for nobody want the lease at once; the ids of those who get it."""
    together, decided = threading.Barrier(5), threading.Barrier(5)
    holding: list[str] = []

    def refuse(_seconds: float) -> None:
        raise RefusedError

    def take(number: int) -> None:
        owner = ME | {"pid": str(number)}
        together.wait()
        with (
            suppress(RefusedError),
            repository_lease(store, owner, duration=DURATION, clocks=StubClocks(refuse)),
        ):
            holding.append(str(number))
            decided.wait()
            return
        decided.wait()

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(take, range(5)))
    return holding


@pytest.mark.parametrize("ended", [False, True])
def test_of_many_one_takes_it(store: ClockedStore, *, ended: bool) -> None:
    if ended:
        store.time = die(store, OTHER).expires
    assert race(store) == [read_lease(store).owner["pid"]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        _WHOLE.replace(b'"t"', b'""'),
        _WHOLE.replace(b"+00:00", b""),
        _WHOLE.replace(b"true", b'"no"'),
        _WHOLE.replace(b"0}", b'"0"}'),
        b"\xff\xfe",
    ],
)
def test_a_damaged_lease_stops_everybody(store: ClockedStore, content: bytes) -> None:
    store.put(LEASE, content)
    store.time += 1000 * HOUR
    with pytest.raises(IntegrityError, match=r"lease\.json is damaged"), leased(store):
        raise AssertionError
    with pytest.raises(IntegrityError):
        lost(store, "t", 0, store.time)
    assert store.get(LEASE) == content


@given(
    st.builds(
        LeaseRecord,
        st.text(min_size=1),
        st.dictionaries(st.text(), st.text(), max_size=3),
        st.datetimes(timezones=st.just(START.tzinfo)),
        st.integers(0),
        st.integers(0),
        st.booleans(),
    )
)
def test_what_is_written_is_read(record: LeaseRecord) -> None:
    assert LeaseRecord.from_bytes(record.to_bytes(), "") == record


@pytest.mark.parametrize("call", ["put_if_absent", "put_if_match"])
@pytest.mark.parametrize("by", ["ignoring", "refusing"])
def test_a_store_that_honours_no_conditions_keeps_no_lease(
    store: ClockedStore, monkeypatch: pytest.MonkeyPatch, call: str, by: str
) -> None:
    """It would let two have it, so nothing is written to the lease."""
    store.put(LEASE, b"somebody's")

    def put(key: str, data: bytes, *etag: str) -> str:
        # If-None-Match is older than If-Match, and servers that refuse it refuse the first probe.
        if by == "refusing" and (etag or store.exists(key)):
            raise StorageError("NotImplemented (A header implies what is not implemented)")
        return store.put(key, data)

    monkeypatch.setattr(store, call, put)
    with pytest.raises(ConfigurationError, match="ignores or refuses the condition of conditional"):
        leased(store).__enter__()
    assert store.get(LEASE) == b"somebody's"
    assert not list(store.infos(PROBES))


def test_a_store_whose_probe_another_sweep_removes_keeps_leases(
    store: ClockedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That sweep has the lease, and removes all probes: killed ones may have left them."""
    write, removed = store.put_if_absent, list[str]()

    def write_and_lose(key: str, data: bytes) -> str:
        etag = write(key, data)
        if key.startswith(PROBES) and not removed:
            removed.append(key)
            store.delete_many([key])
        return etag

    monkeypatch.setattr(store, "put_if_absent", write_and_lose)
    with leased(store):
        assert removed
    assert list(store.infos(PROBES)) == []


@pytest.mark.parametrize("call", ["head", "get", "server_time", "put_if_absent"])
def test_a_store_that_does_not_answer_stops_everybody(store: ClockedStore, call: str) -> None:
    def fail(name: str) -> None:
        if name == call:
            raise StoreUnavailableError("no answer")

    if call == "get":
        die(store, OTHER)
    store.before = fail
    with pytest.raises(StoreUnavailableError), leased(store):
        raise AssertionError


def test_a_lease_that_was_written_without_an_answer_is_held(store: ClockedStore) -> None:
    def lose_the_answer(name: str) -> None:
        if store.key != LEASE:
            return
        store.after = lambda _name: None
        raise StoreUnavailableError(f"no answer to {name}")

    def fail_to_write(name: str) -> None:
        if name == "put_if_match":
            raise StoreUnavailableError("nothing was written")

    store.after = lose_the_answer
    with leased(store) as lease:
        assert read_lease(store).token == lease.token
        store.after = lose_the_answer
        lease.begin_round(1)
        assert read_lease(store).round == 1
        store.before = fail_to_write
        with pytest.raises(StoreUnavailableError):
            lease.begin_round(2)
        store.before = lambda _name: None
        lease.begin_round(2)
        lease.require()
        assert lost(store, lease.token, 2, store.time) == ""
    assert read_lease(store).released


def test_a_process_that_is_killed_at_any_call_leaves_nothing_or_what_ends(tmp_path: Path) -> None:
    """Each call of the store while the lease is taken, renewed and given back."""

    def live(store: ClockedStore) -> None:
        with leased(store, OTHER) as lease:
            lease.begin_round(1)
            lease.begin_round(lease.round)

    calls: list[str] = []
    counted = ClockedStore(tmp_path / "counted")
    counted.before = counted.after = calls.append
    live(counted)
    # Before and after each: the lease is written four times; three writes are tries.
    assert calls.count("put_if_absent") == 2 + 3
    assert calls.count("put_if_match") == 6 + 1
    for number in range(1, len(calls) + 1):
        store = ClockedStore(tmp_path / str(number))
        seen: list[str] = []

        def kill(name: str, seen: list[str] = seen, number: int = number) -> None:
            seen.append(name)
            if len(seen) >= number:
                raise Killed

        store.before = store.after = kill
        with pytest.raises(Killed):
            live(store)
        store.before = store.after = lambda _name: None
        with leased(store):
            assert read_lease(store).owner["host"] == "here"
        assert store.time - START <= DURATION + timedelta(seconds=5)


def test_it_is_renewed_while_its_owner_lives(store: ClockedStore) -> None:
    beats = threading.Semaphore(0)
    with repository_lease(store, ME, duration=timedelta(seconds=0.06)) as lease:
        store.after = lambda _name: beats.release()
        for _ in range(3):
            assert beats.acquire(timeout=120)
        lease.require()
    record = read_lease(store)
    assert record.renewed > 3
    assert record.released


def _run_out(store: ClockedStore, _lease: Lease) -> None:
    store.time += DURATION


def _be_taken(store: ClockedStore, _lease: Lease) -> None:
    store.time += DURATION
    die(store, OTHER)


def _be_removed(store: ClockedStore, _lease: Lease) -> None:
    store.delete_many([LEASE])


def _be_damaged(store: ClockedStore, _lease: Lease) -> None:
    store.put(LEASE, b"?")


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (_run_out, "it expired at 2026-01-01T00:03:00"),
        (_be_taken, "it expired"),
        (_be_removed, "is gone"),
        (_be_damaged, "is damaged"),
    ],
)
def test_a_lost_lease_is_not_renewed(
    store: ClockedStore, lose: Callable[[ClockedStore, Lease], None], words: str
) -> None:
    """A process that wakes up after hours does not get back what it had, taken or not."""
    with leased(store) as lease:
        lose(store, lease)
        before = store.get(LEASE) if store.exists(LEASE) else b""
        for _ in range(2):
            with pytest.raises(LeaseLostError, match=words):
                lease.begin_round(1)
        with pytest.raises(LeaseLostError):
            lease.require()
        assert (store.get(LEASE) if store.exists(LEASE) else b"") == before
    assert (store.get(LEASE) if store.exists(LEASE) else b"") == before


def test_a_lease_that_was_taken_in_spite_of_us_is_lost(store: ClockedStore) -> None:
    """Somebody overwrote it who should not have."""
    with leased(store) as lease:
        store.put(LEASE, LeaseRecord("t", OTHER, store.time + DURATION).to_bytes())
        with pytest.raises(
            LeaseLostError, match="another process has the lease: a sweep by ann on elsewhere"
        ):
            lease.begin_round(1)
    assert read_lease(store).owner == OTHER


def test_a_lease_that_was_given_back_in_spite_of_us_is_lost(store: ClockedStore) -> None:
    with leased(store) as lease:
        store.put(LEASE, replace(read_lease(store), released=True).to_bytes())
        with pytest.raises(
            LeaseLostError, match=r"it was released, .* a sweep by somebody on here"
        ):
            lease.begin_round(1)
    assert read_lease(store).round == 0


def test_what_a_task_asks(store: ClockedStore) -> None:
    with leased(store) as lease:
        lease.begin_round(7)
        assert lost(store, lease.token, 7, store.time) == ""
        assert lost(store, lease.token, 7, store.time + timedelta(seconds=120)) == ""
        assert "expired" in lost(store, lease.token, 7, store.time + timedelta(seconds=121))
        assert "expired" in lost(store, lease.token, 7, store.time + HOUR)
        assert "another process" in lost(store, "other", 7, store.time)
        assert "round 7" in lost(store, lease.token, 6, store.time)
    assert "it was released" in lost(store, lease.token, 7, store.time)
    store.delete_many([LEASE])
    assert "is gone" in lost(store, lease.token, 7, store.time)


def test_a_task_that_cannot_ask_stops(store: ClockedStore) -> None:
    with leased(store) as lease:

        def fail(_name: str) -> None:
            raise StorageError("not now")

        store.before = fail
        with pytest.raises(StorageError):
            lost(store, lease.token, 0, START)
        store.before = lambda _name: None


# An owner who has ended, as this machine knows


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of ``OTHER`` has ended, and this machine can tell."""
    monkeypatch.setattr(module, "is_gone", lambda owner: owner["host"] == "elsewhere")


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("doing", [None, "restore"])
def test_what_a_process_left_that_has_ended_is_taken_over_at_once(
    store: ClockedStore, doing: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was deleted yet: a sweep deletes in a round only, and a restore never."""
    record = die(store, OTHER | ({"doing": doing} if doing else {}))
    with caplog.at_level(logging.INFO, "lakegc"), leased(store) as lease:
        assert store.time == START
        assert "another process" in lost(store, record.token, 0, store.time)
        assert lost(store, lease.token, 0, store.time) == ""
    (said,) = [r.getMessage() for r in caplog.records if r.name == "lakegc"]
    assert said.startswith(f"the lease of {store.url} is taken over, since its owner has ended: a ")
    assert "by ann on elsewhere (process 2, lakegc sweep) since 2026-01-01" in said


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("doing", ["backup", "prune"])
def test_whose_tasks_do_not_ask_for_the_lease_is_waited_for_though_he_has_ended(
    store: ClockedStore, doing: str
) -> None:
    """A task of a backup on another machine goes on copying, whoever has the lease."""
    record = die(store, OTHER | {"doing": doing})
    with leased(store):
        assert store.time >= record.expires


def die_in_a_round(store: ClockedStore) -> LeaseRecord:
    """A sweep is killed in its first round: what it sent may be on its way."""
    die(store, OTHER)
    record = replace(read_lease(store), round=1)
    store.put(LEASE, record.to_bytes())
    return record


@pytest.mark.usefixtures("gone")
def test_who_takes_over_from_a_sweep_goes_on_when_its_last_requests_have_ended(
    store: ClockedStore,
) -> None:
    """A task that lives elsewhere may have asked for the lease right before it was taken over."""
    record = die_in_a_round(store)
    fenced: list[str] = []

    def wait(seconds: float) -> None:
        # Tasks of the dead sweep begin no other batch, and its successor's none yet.
        fenced.append(lost(store, record.token, 1, store.time))
        assert read_lease(store).round == -1
        store.advance(seconds)

    with repository_lease(store, ME, duration=DURATION, clocks=StubClocks(wait)) as lease:
        assert store.time - START == timedelta(seconds=CHECK_LIFETIME)
        assert lost(store, lease.token, 0, store.time) == ""
        lease.begin_round(1)
    (why,) = fenced
    assert "another process" in why
    assert read_lease(store).released


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("death", [Killed, KeyboardInterrupt])
def test_who_dies_while_it_waits_for_them_lets_the_next_one_wait_as_well(
    store: ClockedStore, monkeypatch: pytest.MonkeyPatch, death: type[BaseException]
) -> None:
    die_in_a_round(store)

    def end(_seconds: float) -> None:
        raise death

    with (
        pytest.raises(death),
        repository_lease(store, ME, duration=DURATION, clocks=StubClocks(end)),
    ):
        raise AssertionError
    assert not read_lease(store).released
    monkeypatch.setattr(module, "is_gone", lambda _owner: True)
    with leased(store, OTHER):
        assert store.time - START == timedelta(seconds=CHECK_LIFETIME)


@pytest.mark.usefixtures("gone")
def test_of_many_who_see_that_the_owner_has_ended_one_takes_it(store: ClockedStore) -> None:
    die(store, OTHER)
    assert race(store) == [read_lease(store).owner["pid"]]


@pytest.mark.usefixtures("gone")
def test_an_owner_who_lives_although_it_looked_otherwise_has_lost_the_lease(
    store: ClockedStore,
) -> None:
    """A copy of a running machine has its names, and other processes."""
    with leased(store, OTHER) as living:
        living.begin_round(1)
        with leased(store) as lease:
            assert store.time - START >= timedelta(seconds=CHECK_LIFETIME)
            with pytest.raises(
                LeaseLostError, match="another process has the lease: a sweep by somebody on here"
            ):
                living.begin_round(2)
            assert read_lease(store).token == lease.token


def test_an_abandoned_lease_is_not_given_back(store: ClockedStore) -> None:
    with leased(store) as lease:
        lease.abandon()
    assert not read_lease(store).released
