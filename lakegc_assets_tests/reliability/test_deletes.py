"""Deleting tasks while the store fails: every record is true, and what is not marked stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.errors import LakegcError
from lakegc_assets.storage import files
from lakegc_assets.storage.errors import (
    ObjectNotFoundError,
    StorageError,
    StoreUnavailableError,
)
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.probes import probe_conditions
from lakegc_assets.sweep import deletion
from lakegc_assets.sweep.hold import HOLD, read_hold, write_hold
from lakegc_assets.sweep.lease import LeaseLostError
from lakegc_assets.sweep.lease_record import LEASE, PROBES, read_lease
from lakegc_assets_tests.http_server import Answer, Asked, Silence
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.reliability.places import Place, clock_off, cut, unanswered
from lakegc_assets_tests.reliability.proxy import Ask, leave_alone
from lakegc_assets_tests.reliability.recorder import AZURE, LOCAL, S3, shows
from lakegc_assets_tests.reliability.trial import KEPT, Trial, records

BOTH = (S3, AZURE)
HOUR = timedelta(hours=1)
EXACT = "sent again in a later batch; exact, each key with one outcome"
STOPS = "the keys are recorded as failed and the sweep stops; run again, it ends exact"

pytestmark = pytest.mark.stores


@pytest.fixture
def trial(bare: SmallLake, place: Place) -> Trial:
    return Trial(bare, place)


@pytest.fixture
def s3_trial(bare: SmallLake, s3_place: Place) -> Trial:
    return Trial(bare, s3_place)


@shows("SlowDown, 503", "deletes, a storm", BOTH, f"the rate of all tasks is halved; {EXACT}")
def test_a_storm_during_deletes(trial: Trial) -> None:
    assert trial.goes_on(lambda _ask: trial.place.says.busy, 4) == {"deleted": 25}
    assert list(trial.bare.folder.glob("attempt/swept_set/tasks/*/0001/slow-*"))


@shows("SlowDown, 503", "deletes, always", BOTH, STOPS)
def test_a_storm_that_does_not_end(trial: Trial) -> None:
    trial.stops(lambda _ask: trial.place.says.busy, "SlowDown", "ServerBusy")


@shows("Timeout", "deletes, once", BOTH, f"the rate is halved; {EXACT}")
def test_deletes_that_are_not_answered_in_time(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "REQUEST_TIMEOUT", 5.0)
    assert trial.goes_on(lambda _ask: Silence.WAIT, 1) == {"deleted": 25}


@shows("Connection reset", "deletes, before they are carried out, always", BOTH, STOPS)
def test_resets_without_end(trial: Trial) -> None:
    trial.stops(lambda _ask: Silence.RESET, "ConnectionFailed")


@shows(
    "Connection reset", "deletes, after they are carried out", BOTH,
    f"{EXACT}: what was deleted before is not there any more, so it is already_missing",
)  # fmt: skip
def test_deletes_whose_answer_is_lost(trial: Trial) -> None:
    assert trial.goes_on(unanswered, 2) == {"deleted": 5, "already_missing": 20}


@shows(
    "Connection reset", "conditional deletes, after they are carried out", [S3],
    f"{EXACT}; what was written again meanwhile is spared",
)  # fmt: skip
def test_conditional_deletes_whose_answer_is_lost(s3_trial: Trial) -> None:
    place = s3_trial.place
    rewritten = s3_trial.marked[1].address

    def write_again(ask: Ask) -> Silence:
        lost = unanswered(ask)
        open_store(place.url, place.direct).put(rewritten, b"written again")
        return lost

    with s3_trial.sweeping() as sweep:
        place.meddle(place.says.deletes, write_again, times=3)
        totals = sweep.round(s3_trial.marked, "single")
        assert totals == {"deleted": 21, "already_missing": 3, "spared": 1}
        assert sweep.outcomes("spared").keys() == {rewritten}
        assert s3_trial.there() == KEPT | {rewritten}


@shows("Answer cut in the middle", "deletes", BOTH, EXACT)
def test_cut_answers_to_deletes(trial: Trial) -> None:
    trial.goes_on(cut, 2)


@shows("Error inside a 200", "deletes, a few times", BOTH, EXACT)
def test_errors_in_answers_to_deletes(trial: Trial) -> None:
    assert trial.goes_on(lambda _ask: trial.place.says.error, 3) == {"deleted": 25}


@shows("Error inside a 200", "deletes, always", BOTH, STOPS)
def test_errors_in_all_answers_to_deletes(trial: Trial) -> None:
    trial.stops(lambda _ask: trial.place.says.error, "InternalError", "NoAnswer", "500")


@shows("Partial bulk results", "deletes: every second key is not named", BOTH, EXACT)
def test_keys_that_the_answer_does_not_name(trial: Trial) -> None:
    named: list[int] = []

    def fault(ask: Ask) -> Answer:
        answer = ask()
        lacking = trial.place.says.some_unnamed(answer)
        named.append(len(answer.body) - len(lacking.body))
        return lacking

    trial.goes_on(fault, 3)
    assert len(named) == 3
    assert min(named) > 0


@shows(
    "Eventual disappearance: listed, but gone", "deletes", BOTH,
    "already_missing, by the look before the batch; exact",
)  # fmt: skip
def test_objects_that_are_gone_already(trial: Trial) -> None:
    gone = [marked.address for marked in trial.marked[3:9]]
    open_store(trial.place.url, trial.place.direct).delete_many(gone)
    totals = trial.goes_on(lambda ask: ask(), 0)
    assert totals == {"deleted": 19, "already_missing": 6}


def after_first_batch(trial: Trial, hours: float) -> None:
    """Let the store's clock jump once the first request has deleted something."""
    jumped = clock_off(hours * HOUR)
    deletes: list[Asked] = []

    def meddle(asked: Asked, ask: Ask) -> Answer | Silence:
        if trial.place.says.deletes(asked):
            deletes.append(asked)
        return jumped(asked, ask) if deletes else ask()

    trial.place.proxy.meddle = meddle


@shows(
    "Clock an hour ahead", "a sweep in the middle", BOTH,
    "no further batch is sent: the lease has run out by the store's clock, and cannot be renewed",
)  # fmt: skip
def test_a_clock_that_jumps_ahead(trial: Trial) -> None:
    with trial.sweeping() as sweep:
        after_first_batch(trial, 1)
        assert sweep.round(trial.marked, "none") == {"deleted": 10, "lost": 1}
        trial.check_records(sweep)
        assert len(trial.there()) == 17
        with pytest.raises(LeaseLostError, match="expired"):
            sweep.lease.begin_round(2)
    assert len(trial.there()) == 17


@shows(
    "Clock an hour behind", "a sweep in the middle", BOTH,
    "the round goes on by the machine's own clock, exact; the next delta mark refuses the clock",
)  # fmt: skip
def test_a_clock_that_jumps_back(trial: Trial) -> None:
    with trial.sweeping() as sweep:
        after_first_batch(trial, -1)
        assert sweep.round(trial.marked, "none") == {"deleted": 25}
        trial.check_finished(sweep)


@shows(
    "Connection reset", "the write of the lease, after it is carried out", BOTH,
    "the lease is read, and found to be ours",
)  # fmt: skip
def test_a_lease_whose_write_is_not_answered(trial: Trial) -> None:
    def writes_lease(asked: Asked) -> bool:
        return asked.method == "PUT" and asked.path.endswith(LEASE)

    trial.place.meddle(writes_lease, unanswered, times=1)
    with trial.sweeping() as sweep:
        assert read_lease(trial.place.store).token == sweep.lease.token
        trial.place.meddle(writes_lease, unanswered, times=1)
        assert sweep.round(trial.marked, "none") == {"deleted": 25}
        trial.check_finished(sweep)


def reads(name: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.method == "GET" and asked.path.endswith(name)


@shows(
    "Error inside a 200", "the lease, read before a batch", BOTH,
    "StoreUnavailableError: it is no answer, and nothing is sent",
)  # fmt: skip
def test_an_error_in_place_of_the_lease(trial: Trial) -> None:
    with trial.sweeping() as sweep:
        trial.place.meddle(reads(LEASE), lambda _ask: trial.place.says.error)
        with pytest.raises(StoreUnavailableError, match="NoAnswer"):
            sweep.round(trial.marked, "none")
        assert len(trial.there()) == 27
        trial.finish(sweep)


@shows(
    "Eventual consistency: an older answer", "the lease, read before a batch", BOTH,
    "it is that of an older round, so the task stops, and nothing is sent",
)  # fmt: skip
def test_an_older_lease(trial: Trial) -> None:
    """The writes of the lease are answered as they should, and reads of it are not."""
    with trial.sweeping() as sweep:
        older: list[Answer] = []

        def stale(ask: Ask) -> Answer:
            older.append(older[0] if older else ask())
            return older[-1]

        trial.place.meddle(reads(LEASE), stale)
        assert not read_lease(trial.place.store).round
        assert sweep.round(trial.marked, "none") == {"lost": 1}
        assert len(older) > 1
        assert len(trial.there()) == 27
        trial.finish(sweep)


@shows(
    "404 that is not the store's", "the hold after an alarm", BOTH,
    "StorageError: a missing hold is believed by the store's own code only, and no sweep starts",
)  # fmt: skip
def test_a_hold_that_a_proxy_hides(place: Place) -> None:
    write_hold(open_store(place.url, place.direct), {"alarm": "something is gone"})
    place.meddle(reads(HOLD), lambda _ask: Answer(404, b"<html>no such page</html>"))
    with pytest.raises(StorageError, match="404") as raised:
        read_hold(place.store)
    assert not isinstance(raised.value, ObjectNotFoundError)
    place.proxy.meddle = leave_alone
    assert read_hold(place.store) is not None


@shows(
    "Full disk", "the ledger", [f"{LOCAL} and {each}" for each in BOTH],
    "StorageError, and the sweep stops after the batch that it could not record; run again, the "
    "store is asked about these keys once more, and it ends exact",
)  # fmt: skip
def test_a_full_disk_under_the_ledger(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, write = [0], os.fsync

    def full(descriptor: int) -> None:
        if "swept_set/ledger" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            synced[0] += 1
            # A record is synced as a file, and then with its directory.
            if synced[0] > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(descriptor)

    with trial.sweeping() as sweep:
        with monkeypatch.context() as patch:
            patch.setattr(files, "fsync", full)
            with pytest.raises(StorageError, match="No space left"):
                sweep.round(trial.marked, "none")
        assert len(records(sweep)) == 10
        assert len(trial.there()) == 7
        trial.check_records(sweep)
        trial.finish(sweep)


@shows(
    "Full disk", "the notes of a task", [f"{LOCAL} and {each}" for each in BOTH],
    "StorageError before anything is deleted",
)  # fmt: skip
def test_a_full_disk_under_the_notes(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with trial.sweeping() as sweep:
        with monkeypatch.context() as patch:
            patch.setattr(files, "fsync", full)
            with pytest.raises(LakegcError, match="No space left"):
                sweep.round(trial.marked, "none")
        assert len(trial.there()) == 27
        trial.finish(sweep)


@shows(
    "Connection reset", "the probe of conditional deletes, after it is carried out", BOTH,
    "the store is not taken for better than it is",
)  # fmt: skip
def test_a_probe_whose_answer_is_lost(place: Place) -> None:
    place.meddle(place.says.deletes, unanswered, times=1)
    found = probe_conditions(place.store, PROBES)
    assert found in ({"none", "single"} if place.name == S3 else {"none", "single", "bulk"})
    assert place.truth() == {}


@shows(
    "SlowDown, 503", "the probe of conditional deletes, always", BOTH,
    "StorageError before anything is deleted",
)  # fmt: skip
def test_a_probe_in_a_storm(place: Place) -> None:
    place.meddle(place.says.deletes, lambda _ask: place.says.busy)
    with pytest.raises(StorageError, match="not known whether"):
        probe_conditions(place.store, PROBES)
