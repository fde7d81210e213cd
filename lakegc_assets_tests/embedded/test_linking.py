"""Addresses that clients write to themselves: linked once, in time, and only where they belong."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from lakegc_assets.embedded import EmbeddedLakeFS
from lakegc_assets.embedded.faults import Fault
from lakegc_assets.embedded.objects import linking
from lakegc_assets.embedded.refs import staging
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.embedded.api import TIMEOUT, Api, Repo
from lakegc_assets_tests.embedded.conftest import Clock
from lakegc_assets_tests.embedded.test_clients import lakefs

DAY = 24 * 3600
CONTENT = b"linked"


class Linker:
    """A client that writes to local files itself."""

    def __init__(self, server: EmbeddedLakeFS, repo: Repo) -> None:
        self.server = server
        self.repo = repo

    def ask(self, path: str = "a", branch: str = "main") -> str:
        found = self.repo.call("GET", f"/branches/{branch}/staging/backing", params={"path": path})
        assert found["presigned_url"] is None
        return str(found["physical_address"])

    def write(self, address: str) -> str:
        target = self.server.objects_dir / address.removeprefix("local://")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(CONTENT)
        return address

    def link(
        self, address: str, status: int = 200, path: str = "a", branch: str = "main", **body: Any
    ) -> Any:
        staging = {"physical_address": address}
        fields = {"staging": staging, "checksum": "0c1d", "size_bytes": len(CONTENT), **body}
        where: dict[str, Any] = {"params": {"path": path}, "json": fields}
        return self.repo.call("PUT", f"/branches/{branch}/staging/backing", status, **where)

    def refused(self, address: str, **options: Any) -> str:
        return str(self.link(address, 400, **options)["message"])

    def remembered(self) -> int:
        with self.server.lake.state.read() as db:
            return int(db.execute("SELECT count(*) FROM link_tokens").fetchone()[0])


@pytest.fixture
def linker(server: EmbeddedLakeFS, repo: Repo) -> Linker:
    return Linker(server, repo)


def test_an_address_is_linked_once(linker: Linker, clock: Clock) -> None:
    address = linker.write(linker.ask())
    clock.now += DAY - 1
    answer = linker.link(address, user_metadata={"k": "v"}, content_type="text/csv")
    assert answer == linker.repo.stat("a")
    assert answer == {
        "checksum": "0c1d",
        "content_type": "text/csv",
        "metadata": {"k": "v"},
        "mtime": int(clock.now),
        "path": "a",
        "path_type": "object",
        "physical_address": address,
        "size_bytes": len(CONTENT),
    }
    assert linker.repo.read("a") == CONTENT
    assert "it has been used" in linker.refused(address)
    linker.repo.remove("a")
    assert "it has been used" in linker.refused(address)
    clock.now += DAY
    assert "it expired at 2026-11-22T04:40:36Z" in linker.refused(address)


def test_an_expired_token_says_so_for_ever(linker: Linker, clock: Clock) -> None:
    address = linker.write(linker.ask())
    clock.now += DAY
    assert "it expired at" in linker.refused(address)
    linker.ask("another")
    clock.now += 1000 * DAY
    assert "it expired at" in linker.refused(address)
    assert linker.repo.staged() == {}


def test_a_token_is_good_for_its_repository_branch_and_path_only(linker: Linker, api: Api) -> None:
    other = Linker(linker.server, api.repository("other"))
    linker.repo.branch("dev")
    address = linker.write(linker.ask("dir/ü |%2F\n"))
    assert "another path" in linker.refused(address, path="dir/ü |%2f\n")
    assert "another path" in linker.refused(address, path="dir/ü |%2F")
    assert "another branch" in linker.refused(address, path="dir/ü |%2F\n", branch="dev")
    assert "another repository" in other.refused(address, path="dir/ü |%2F\n")
    linker.link(address, path="dir/ü |%2F\n")
    assert "another repository" in other.refused(address, path="dir/ü |%2F\n")
    assert linker.repo.list() == ["dir/ü |%2F\n"]


def test_a_new_branch_of_the_same_name_is_another_one(linker: Linker) -> None:
    linker.repo.branch("dev")
    address = linker.write(linker.ask(branch="dev"))
    linker.repo.call("DELETE", "/branches/dev", 204)
    assert linker.link(address, 404, branch="dev") == {"message": "branch not found"}
    linker.repo.branch("dev")
    assert "another branch" in linker.refused(address, branch="dev")


def test_what_was_never_given_out_is_refused(linker: Linker) -> None:
    address = linker.write(linker.ask())
    uploaded = linker.repo.put("u", CONTENT)["physical_address"]
    plain, _, token = address.rpartition(",")
    raw = bytearray(base64.urlsafe_b64decode(token + "="))
    raw[0] ^= 1
    later = base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("=")
    second_plain, _, second_token = linker.ask("b").rpartition(",")
    invented = [
        "local://repo/data/x/invented",
        uploaded,
        plain,
        f"{plain},",
        f"{plain},{later}",
        f"{plain},{second_token}",
        f"{second_plain},{token}",
        f"{plain},{token}=",
        f"{plain},{token[:-1]}",
        f"{plain},{token[:-1]}ü",
        f"{plain},\n{token}",
        address.replace("local://repo", "local://repo/"),
        address.replace("local:", "LOCAL:"),
        f"{address}/",
        "s3://elsewhere/x,y",
        ",",
        "",
    ]
    for one in invented:
        assert "never given out" in linker.refused(one), one
    assert linker.repo.staged() == {"u": "added"}
    linker.link(address)


def test_the_object_must_be_there_with_its_size(linker: Linker) -> None:
    address = linker.ask()
    assert "nothing was written to" in linker.refused(address)
    linker.write(address)
    assert "size_bytes is 7, but" in linker.refused(address, size_bytes=7)
    assert "size_bytes is -1, but" in linker.refused(address, size_bytes=-1)
    assert linker.refused(address, checksum='" "') == "checksum is required"
    assert '"checksum" is missing' in linker.repo.call(
        "PUT",
        "/branches/main/staging/backing",
        400,
        params={"path": "a"},
        json={"staging": {"physical_address": address}, "size_bytes": 6},
    )["message"].replace('\\"', '"')
    linker.link(address, checksum='"0c1d"')
    assert linker.repo.stat("a")["checksum"] == "0c1d"


def test_addresses_are_given_out_for_branches_that_can_be_written(linker: Linker, api: Api) -> None:
    where = {"params": {"path": "a"}}
    linker.repo.call("GET", "/branches/none/staging/backing", 404, **where)
    linker.repo.call("GET", "/branches/main/staging/backing", 400, params={"path": ""})
    linker.repo.call("GET", "/branches/main/staging/backing", 400)
    address = linker.write(linker.ask())
    linker.link(address, 404, branch="none")
    linker.link(address, 400, path="")
    body = {"name": "frozen", "storage_namespace": "local://frozen", "read_only": True}
    api.call("POST", "/repositories", 201, json=body)
    frozen = Repo(api, "frozen")
    frozen.call("GET", "/branches/main/staging/backing", 403, **where)
    assert linker.remembered() == 1


def test_used_and_expired_tokens_are_removed(linker: Linker, clock: Clock, api: Api) -> None:
    addresses = [linker.write(linker.ask(str(number))) for number in range(5)]
    for number in range(3):
        linker.link(addresses[number], path=str(number))
    assert linker.remembered() == 2
    clock.now += DAY
    late = linker.write(linker.ask("late"))
    assert linker.remembered() == 1
    clock.now += DAY - 1
    newest = linker.write(linker.ask("newest"))
    clock.now += 1
    assert "expired" in linker.refused(late, path="late")
    linker.link(newest, path="newest")
    assert linker.remembered() == 0
    linker.ask("last")
    api.call("DELETE", linker.repo.path, 204)
    assert linker.remembered() == 0


def test_a_link_only_where_nothing_is_keeps_its_token_when_something_is(linker: Linker) -> None:
    linker.repo.put("a", b"first")
    address = linker.write(linker.ask())
    where: dict[str, Any] = {
        "params": {"path": "a"},
        "json": {
            "staging": {"physical_address": address},
            "checksum": "c",
            "size_bytes": len(CONTENT),
        },
        "headers": {"If-None-Match": "*"},
    }
    linker.repo.call("PUT", "/branches/main/staging/backing", 412, **where)
    linker.repo.remove("a")
    linker.repo.call("PUT", "/branches/main/staging/backing", 200, **where)
    assert linker.repo.read("a") == CONTENT


def test_a_link_that_dies_keeps_its_token_and_stages_nothing(
    linker: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = linker.write(linker.ask())

    def stage_and_die(*arguments: Any) -> None:
        original(*arguments)
        raise RuntimeError("died")

    original = staging.stage
    with monkeypatch.context() as patch:
        patch.setattr(staging, "stage", stage_and_die)
        linker.link(address, 500)
    assert linker.repo.staged() == {}
    linker.link(address)
    assert linker.repo.staged() == {"a": "added"}


_DIES = """
import os, sys
from pathlib import Path
from lakegc_assets.embedded.objects import linking
from lakegc_assets.embedded.refs import staging
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.lake.settings import ServerSettings
from lakegc_assets.graveler.entry import Entry

data, address, moment = sys.argv[1:]
stage = staging.stage

def stage_and_die(*arguments):
    stage(*arguments)
    if moment == "before the commit":
        os.kill(os.getpid(), 9)

staging.stage = stage_and_die
lake = Lake(ServerSettings(Path(data)))
linking.link(lake, "repo", "main", "a", Entry(address, size=6, e_tag="c"))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_kill_9_leaves_a_good_token_or_a_linked_object(tmp_path: Path, moment: str) -> None:
    with EmbeddedLakeFS(tmp_path) as server, Api.of(server) as api:
        linker = Linker(server, api.repository())
        address = linker.write(linker.ask())
        command = [sys.executable, "-c", _DIES, str(tmp_path), address, moment]
        assert subprocess.run(command, check=False, timeout=300).returncode == -signal.SIGKILL
        if moment == "before the commit":
            assert linker.repo.staged() == {}
            linker.link(address)
        assert linker.repo.read("a") == CONTENT
        assert "it has been used" in linker.refused(address)


def test_a_token_that_expires_while_the_object_is_looked_at_is_refused(
    linker: Linker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = linker.write(linker.ask())
    clock.now += DAY - 1
    original = linking.check_object

    def slow(*arguments: Any) -> None:
        original(*arguments)
        clock.now += 1

    monkeypatch.setattr(linking, "check_object", slow)
    assert "expired" in linker.refused(address)
    assert linker.repo.staged() == {}


def test_of_links_at_the_same_time_exactly_one_wins(
    linker: Linker, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of them, through two servers on one state, all of which have seen the token good."""
    address = linker.write(linker.ask())
    together = threading.Barrier(8)
    original = linking.check_object

    def wait(*arguments: Any) -> None:
        original(*arguments)
        together.wait(TIMEOUT)

    monkeypatch.setattr(linking, "check_object", wait)
    answers: list[tuple[int, str]] = []

    def work(server: EmbeddedLakeFS) -> None:
        with Api.of(server) as api:
            body = {"staging": {"physical_address": address}, "checksum": "c", "size_bytes": 6}
            path = "/repositories/repo/branches/main/staging/backing"
            found = api.send("PUT", path, params={"path": "a"}, json=body)
            answers.append((found.status_code, found.json().get("message", "")))

    secret = linker.server.secret_key
    with EmbeddedLakeFS(tmp_path, clock=clock, secret_key=secret) as second:
        servers = [linker.server, second] * 4
        threads = [threading.Thread(target=work, args=(server,)) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    answers.sort()
    assert answers[0] == (200, "")
    assert {(status, "it has been used" in message) for status, message in answers[1:]} == {
        (400, True)
    }
    assert linker.remembered() == 0


def test_a_server_with_stateless_tokens_links_again_until_they_expire(
    tmp_path: Path, clock: Clock
) -> None:
    faults = frozenset({Fault.STATELESS_LINK_TOKENS})
    with EmbeddedLakeFS(tmp_path, clock=clock, faults=faults) as server, Api.of(server) as api:
        linker = Linker(server, api.repository())
        address = linker.write(linker.ask())
        for path in ("a", "a", "b"):
            linker.link(address, path=path)
        assert "never given out" in linker.refused(f"{address}x")
        clock.now += DAY
        assert "expired" in linker.refused(address)


def test_a_server_without_presigned_urls_gives_out_no_address_for_one(linker: Linker) -> None:
    where: dict[str, Any] = {"params": {"path": "a", "presign": "true"}}
    message = {"message": "local adapter: operation not supported"}
    assert linker.repo.call("GET", "/branches/main/staging/backing", 400, **where) == message
    assert linker.remembered() == 0
    linker.repo.put("a", b"1")
    assert linker.repo.call("GET", "/refs/main/objects", 400, **where) == message
    assert linker.repo.call("GET", "/refs/main/objects/stat", 400, **where) == message
    storage = linker.repo.api.call("GET", "/config")["storage_config"]
    assert storage["pre_sign_support"] is False


@pytest.fixture
def on_s3(s3_server: str, s3_bucket: str, tmp_path: Path) -> Iterator[EmbeddedLakeFS]:
    config = StoreConfig(endpoint_url=s3_server)
    with EmbeddedLakeFS(tmp_path, f"s3://{s3_bucket}/lake", store_config=config) as server:
        yield server


@pytest.fixture
def s3_repo(on_s3: EmbeddedLakeFS, s3_bucket: str) -> Iterator[Repo]:
    with Api.of(on_s3) as api:
        yield api.repository(namespace=f"s3://{s3_bucket}/lake/odd name+%41")


def put(url: str, data: bytes) -> requests.Response:
    """Upload with plain HTTP and no credentials."""
    return requests.put(url, data=data, timeout=TIMEOUT)


def test_a_presigned_upload_is_linked(on_s3: EmbeddedLakeFS, s3_repo: Repo) -> None:
    assert s3_repo.api.call("GET", "/config")["storage_config"]["pre_sign_support"] is True
    where = {"path": "a ü", "presign": "true"}
    before = int(on_s3.lake.now())
    found = s3_repo.call("GET", "/branches/main/staging/backing", params=where)
    for part in ("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Expires=900", "X-Amz-Signature="):
        assert part in found["presigned_url"]
    assert before <= found["presigned_url_expiry"] - 900 <= on_s3.lake.now()
    uploaded = put(found["presigned_url"], CONTENT)
    assert uploaded.status_code == 200
    linker = Linker(on_s3, s3_repo)
    address = found["physical_address"]
    assert "checksum is 00, but" in linker.refused(address, path="a ü", checksum="00")
    assert "has 6" in linker.refused(address, path="a ü", size_bytes=5)
    linker.link(address, path="a ü", checksum=uploaded.headers["ETag"])
    assert s3_repo.read("a ü") == CONTENT
    assert s3_repo.stat("a ü")["checksum"] == uploaded.headers["ETag"].strip('"')
    again = put(found["presigned_url"], CONTENT)
    assert "used" in linker.refused(address, path="a ü", checksum=again.headers["ETag"])


def test_a_presigned_read_is_served_by_the_store(on_s3: EmbeddedLakeFS, s3_repo: Repo) -> None:
    address = s3_repo.put("a", CONTENT)["physical_address"]
    s3_repo.commit()
    objects = f"{s3_repo.path}/refs/main/objects"
    where = {"path": "a", "presign": "true"}
    found = s3_repo.api.send("GET", objects, params=where, allow_redirects=False)
    assert (found.status_code, found.content) == (302, b"")
    stat = s3_repo.call("GET", "/refs/main/objects/stat", params=where)
    listed = s3_repo.call("GET", "/refs/main/objects/ls", params=where)["results"][0]
    for url in (found.headers["Location"], stat["physical_address"], listed["physical_address"]):
        assert requests.get(url, timeout=TIMEOUT).content == CONTENT
    assert stat["physical_address_expiry"] >= on_s3.lake.now()
    store = open_store(address.rpartition("/")[0], on_s3.store_config)
    store.delete_many([address.rpartition("/")[2]])
    assert s3_repo.call("GET", "/refs/main/objects", 410, params=where) == {"message": "No data"}


def test_the_list_of_active_commits_can_be_read_without_credentials(s3_repo: Repo) -> None:
    s3_repo.rules(7)
    told = s3_repo.call("POST", "/gc/prepare_commits", 201)
    found = requests.get(told["gc_commits_presigned_url"], timeout=TIMEOUT)
    assert found.status_code == 200
    assert found.text.startswith("commit_id,expired,metarange_id\n" + s3_repo.head())


def test_lakefs_own_client_uploads_and_reads_by_presigned_urls(
    on_s3: EmbeddedLakeFS, s3_repo: Repo
) -> None:
    client = lakefs.client.Client(
        host=on_s3.endpoint, username=on_s3.access_key, password=on_s3.secret_key
    )
    branch = lakefs.Repository(s3_repo.name, client=client).branch("main")
    stored = branch.object("a/1").upload(data=CONTENT, pre_sign=True)
    with stored.reader(mode="rb", pre_sign=True) as reader:
        assert reader.read() == CONTENT
    assert "," in s3_repo.stat("a/1")["physical_address"].rpartition("/")[2]
    client.sdk_client.objects_api.api_client.rest_client.pool_manager.clear()
