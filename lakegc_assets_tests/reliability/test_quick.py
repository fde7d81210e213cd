"""The worst of the faults once more without real servers, in the normal suite."""

from __future__ import annotations

import pytest
import requests

from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.http import HttpClient, HttpFailure
from lakegc_assets_tests.http_server import Answer, Silence
from lakegc_assets_tests.lake import SmallLake
from lakegc_assets_tests.reliability.places import Fault, Place, cut, unanswered
from lakegc_assets_tests.reliability.proxy import Ask
from lakegc_assets_tests.reliability.trial import Trial


@pytest.fixture
def trial(bare: SmallLake, moto_place: Place) -> Trial:
    return Trial(bare, moto_place)


def test_every_kind_of_failing_delete(trial: Trial) -> None:
    says = trial.place.says
    faults: list[Fault] = [lambda _ask: says.busy, cut, unanswered, lambda _ask: says.error]

    def fault(ask: Ask) -> Answer | Silence:
        return faults.pop()(ask) if faults else says.some_unnamed(ask())

    totals = trial.goes_on(fault, 6)
    # What was deleted without an answer that says so is found to be gone.
    assert totals.keys() == {"deleted", "already_missing"}
    assert sum(totals.values()) == 25


def test_a_store_that_never_answers_whole(trial: Trial) -> None:
    """It does what it is asked, and what is gone is seen by the next look."""
    assert trial.goes_on(cut, 99) == {"already_missing": 25}


def test_a_store_that_never_does_what_it_is_asked(trial: Trial) -> None:
    trial.stops(lambda _ask: Silence.RESET, "ConnectionFailed")


@pytest.fixture
def cutting(moto_place: Place) -> Place:
    moto_place.proxy.meddle = lambda _asked, ask: cut(ask)
    return moto_place


@pytest.mark.parametrize("enforced", [True, False])
def test_an_answer_shorter_than_it_says(cutting: Place, *, enforced: bool) -> None:
    """urllib3 1 did not compare the length of an answer with what it says."""

    class Client(HttpClient):
        def failure(self, status: int, headers: object, text: str) -> HttpFailure:  # noqa: ARG002
            return HttpFailure(str(status), text, status)

    def compare(answer: requests.Response, **_: object) -> None:
        answer.raw.enforce_content_length = enforced

    client = Client(StoreConfig(max_attempts=1), lambda _request: None)
    client.session.hooks["response"].append(compare)
    with pytest.raises(HttpFailure) as raised:
        client.send("GET", f"{cutting.proxy.endpoint}/")
    assert raised.value.code == "ConnectionFailed"
