"""What the replay server derives is what the real server said, wherever both are known."""

from __future__ import annotations

import pytest
import requests

from .replay import ACCESS_KEY, SECRET_KEY, Answer, ReplayServer, Request, recording

REPOSITORIES = ["small", "retention", "orderhz", "identical", "norules", "emptyrepo", "paged"]


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_derived_answers_are_those_that_were_recorded(repository: str) -> None:
    server = ReplayServer(repository)
    with server:
        derived = 0
        for (method, path, params), recorded in server.recording.exact.items():
            told = recorded.status == 200 and "/objects/stat" not in path
            if path.startswith("/repositories") and told:
                found = server.derived(Request(method, path, dict(params), {}, b""))
                if found.body != {"message": "invalid API endpoint"}:
                    assert found == recorded, (path, params)
                    derived += 1
        assert derived > 10


@pytest.mark.parametrize("repository", ["retention", "identical"])
def test_stat_of_main_agrees_with_its_listing(repository: str) -> None:
    record = recording(repository)
    listed = {found["path"]: found for found in record.body("ls.main")["results"]}
    compared = 0
    for (ref, path), answer in record.stats.items():
        if ref == "main" and answer.status == 200:
            assert answer.body["physical_address"] == listed[path]["physical_address"]
            compared += 1
    assert compared > 5


def test_what_was_not_recorded_is_refused() -> None:
    with ReplayServer("retention") as server:
        get = requests.Session()
        get.auth = (ACCESS_KEY, SECRET_KEY)
        base = f"{server.endpoint}/api/v1/repositories"
        commit = server.recording.refs["main"]
        answer = get.get(f"{base}/retention/refs/{commit}/objects/stat", params={"path": "a/02"})
        assert (answer.status_code, "recorded" in answer.text) == (400, True)
        assert get.get(f"{base}/small/branches").status_code == 400
        assert get.get(f"{base}/no-such-repo/branches").status_code == 404
        assert get.put(f"{base}/retention/settings/gc_rules").status_code == 404
        get.auth = (ACCESS_KEY, "wrong")
        assert get.get(f"{base}/retention").json() == {"message": "error authenticating request"}
        get.close()


def test_overrides_may_leave_a_request_to_the_recording() -> None:
    with ReplayServer("small") as server:
        seen: list[str] = []

        def look(request: Request) -> Answer | None:
            seen.append(request.path)
            return Answer(418, "teapot") if len(seen) == 1 else None

        server.overrides["GET", "/healthcheck"] = look
        url = f"{server.endpoint}/api/v1/healthcheck"
        assert [requests.get(url, timeout=60).status_code for _ in range(2)] == [418, 204]
        assert [request.path for request in server.asked("GET", "/health.*")] == seen
