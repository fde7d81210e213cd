"""Writers of all kinds on a repository of a real lakeFS, and readers of all that has to be there.

Commits have the date of now, but on branches of their own, which have old ones: what these held
expires, and what all others held does not. So every branch and every commit of now can be read at
any time; what cannot is lost.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import boto3
import requests
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from typing_extensions import Self

from lakegc_assets_tests.real_lakefs.server import ACCESS_KEY, SECRET_KEY

_DAY_S: Final = 86_400
_PATHS: Final = ("a", "b/c", "d e", "ü", "x|y", "t/part=1", "_SUCCESS")
_PART: Final = 5 << 20
#: Of a commit with metadata lakeFS changes these when it is cherry-picked.
_COMMITTED: Final = {"message": "a commit", "metadata": {"by": "a writer"}}
_TIMEOUT_S: Final = 60
_MOST_BRANCHES: Final = 8


class RefusedError(Exception):
    """lakeFS refuses a request; its status comes first."""


@dataclass
class Lake:
    """A repository of a server, by its REST API and its S3 gateway. Threads may share it."""

    endpoint: str
    repository: str
    _own: threading.local = field(default_factory=threading.local)

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Send a request below the repository: the answer's JSON. Raises RefusedError."""
        url = f"{self.endpoint}/api/v1/repositories/{self.repository}{path}"
        answer = self._session().request(method, url, timeout=_TIMEOUT_S, **more)
        if answer.status_code >= HTTPStatus.BAD_REQUEST:
            raise RefusedError(answer.status_code, f"{method} {path}", answer.text[:200])
        return answer.json() if "json" in answer.headers.get("content-type", "") else None

    def set_rules(self, rules: Mapping[str, Any]) -> None:
        """Replace the retention rules."""
        try:
            self.call("PUT", "/settings/gc_rules", json=rules)
        except RefusedError:
            # Older servers have the call at another path.
            self.call("POST", "/gc/rules", json=rules)

    def read(self, ref: str, path: str) -> int:
        """The status of reading an object."""
        url = f"{self.endpoint}/api/v1/repositories/{self.repository}/refs/{ref}/objects"
        session = self._session()
        return session.get(url, params={"path": path}, timeout=_TIMEOUT_S).status_code

    def listed(self, ref: str) -> Iterator[Mapping[str, Any]]:
        """All objects of a branch, with what is staged, or of a commit."""
        after: str = ""
        while True:
            query = {"after": after, "amount": 1000}
            page = self.call("GET", f"/refs/{ref}/objects/ls", params=query)
            yield from page["results"]
            if not page["pagination"]["has_more"]:
                return
            after = page["pagination"]["next_offset"]

    @property
    def gateway(self) -> BaseClient:
        """The S3 gateway, in which the repository is a bucket and each branch a folder."""
        if not hasattr(self._own, "gateway"):
            self._own.gateway = boto3.session.Session().client(
                "s3", endpoint_url=self.endpoint, region_name="us-east-1",
                aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
                config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
            )  # fmt: skip
        found: BaseClient = self._own.gateway
        return found

    def _session(self) -> requests.Session:
        if not hasattr(self._own, "session"):
            self._own.session = requests.Session()
            self._own.session.auth = (ACCESS_KEY, SECRET_KEY)
        found: requests.Session = self._own.session
        return found


class Writers:
    """Threads that do whatever clients do, by chance, until they are stopped.

    Attributes:
        done: how often each operation was carried out.
        refused: how often each was not, by name and status: what they ask for may not be there.
    """

    def __init__(self, lake: Lake, threads: int, *, signs: bool) -> None:
        """Args: the repository, how many write, and whether its server signs URLs."""
        self._lake, self._threads = lake, threads
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._branches = {"main"}
        self._old: dict[str, float] = {}
        self._recent: set[str] = set()
        self._first = lake.call("GET", "/branches/main")["commit_id"]
        self._weights = {
            self._upload: 30, self._put: 20, self._copy: 6, self._copy_by_gateway: 6,
            self._upload_parts: 1, self._delete: 6, self._delete_by_gateway: 3, self._commit: 14,
            self._merge: 4, self._branch: 3, self._delete_branch: 2, self._tag: 1, self._revert: 1,
            self._cherry_pick: 1, self._reset: 2, self._reset_hard: 1,
            **({self._link: 12} if signs else {}),
        }  # fmt: skip
        self.done: Counter[str] = Counter()
        self.refused: Counter[tuple[str, object]] = Counter()

    def __enter__(self) -> Self:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(self._threads)
        self._futures = [self._pool.submit(self._write, n) for n in range(self._threads)]
        return self

    def __exit__(self, *error: object) -> None:
        """Stop them; an error of theirs, which none should have, is raised."""
        self._stopped.set()
        self._pool.shutdown()
        for one in self._futures:
            one.result()

    def lost(self) -> list[tuple[str, str, str]]:
        """Ref, path and address of what is listed and cannot be read; each object is read once."""
        with self._lock:
            refs = sorted(self._branches) + sorted(self._recent)
        with ThreadPoolExecutor(self._threads) as pool:
            listed = {
                entry["physical_address"]: (ref, entry["path"])
                for ref, entries in zip(refs, pool.map(self._listed, refs), strict=True)
                for entry in entries
            }
            gone = pool.map(self._is_gone, listed.values())
            return [
                (*at, address) for (address, at), no in zip(listed.items(), gone, strict=True) if no
            ]

    def _listed(self, ref: str) -> list[Mapping[str, Any]]:
        try:
            return list(self._lake.listed(ref))
        except RefusedError:
            # The branch has been deleted.
            return []

    def _is_gone(self, at: tuple[str, str]) -> bool:
        # What is overwritten or deleted meanwhile is another object, or none, the second time.
        return all(self._lake.read(*at) == HTTPStatus.GONE for _ in range(2))

    def _write(self, number: int) -> None:
        chance = random.Random(number)
        operations, weights = list(self._weights), list(self._weights.values())
        while not self._stopped.wait(chance.random() / 10):
            (operation,) = chance.choices(operations, weights)
            name = operation.__name__.strip("_")
            try:
                operation(chance)
            except RefusedError as error:
                self.refused[name, error.args[0]] += 1
            except (ClientError, BotoCoreError, requests.ConnectionError) as error:
                # It may be started again meanwhile.
                self.refused[name, type(error).__name__] += 1
            else:
                self.done[name] += 1

    # What they write, and where

    def _any(self, chance: random.Random) -> str:
        with self._lock:
            return chance.choice(sorted(self._branches))

    def _of_now(self, chance: random.Random) -> str:
        with self._lock:
            return chance.choice(sorted(self._branches - self._old.keys()))

    def _commits(self) -> list[str]:
        with self._lock:
            return sorted(self._recent)

    def _remember(self, commit_id: str) -> None:
        with self._lock:
            self._recent.add(commit_id)

    def _head(self, branch: str) -> str:
        found: str = self._lake.call("GET", f"/branches/{branch}")["commit_id"]
        return found

    # Operations

    def _upload(self, chance: random.Random) -> None:
        self._lake.call(
            "POST", f"/branches/{self._any(chance)}/objects", params={"path": _path(chance)},
            files={"content": _content(chance)},
        )  # fmt: skip

    def _put(self, chance: random.Random) -> None:
        self._gateway("put_object", chance, Body=_content(chance))

    def _delete_by_gateway(self, chance: random.Random) -> None:
        self._gateway("delete_object", chance)

    def _copy_by_gateway(self, chance: random.Random) -> None:
        source = {
            "Bucket": self._lake.repository, "Key": f"{self._any(chance)}/{_path(chance)}"
        }  # fmt: skip
        self._gateway("copy_object", chance, CopySource=source)

    def _upload_parts(self, chance: random.Random) -> None:
        at = {
            "Bucket": self._lake.repository, "Key": f"{self._any(chance)}/{_path(chance)}"
        }  # fmt: skip
        gateway: Any = self._lake.gateway
        at["UploadId"] = gateway.create_multipart_upload(**at)["UploadId"]
        parts = []
        for number, data in enumerate((os.urandom(_PART), b"the end"), 1):
            etag = gateway.upload_part(**at, PartNumber=number, Body=data)["ETag"]
            parts.append({"PartNumber": number, "ETag": etag})
        gateway.complete_multipart_upload(**at, MultipartUpload={"Parts": parts})

    def _gateway(self, call: str, chance: random.Random, **more: Any) -> None:
        key = f"{self._any(chance)}/{_path(chance)}"
        getattr(self._lake.gateway, call)(Bucket=self._lake.repository, Key=key, **more)

    def _copy(self, chance: random.Random) -> None:
        source = {"src_path": _path(chance), "src_ref": self._any(chance)}
        to = {"dest_path": _path(chance)}
        branch = self._any(chance)
        self._lake.call("POST", f"/branches/{branch}/objects/copy", params=to, json=source)

    def _link(self, chance: random.Random) -> None:
        data, at = _content(chance), {"path": _path(chance)}
        backing = f"/branches/{self._any(chance)}/staging/backing"
        place = self._lake.call("GET", backing, params={**at, "presign": "true"})
        requests.put(place["presigned_url"], data=data, timeout=_TIMEOUT_S).raise_for_status()
        staging = {
            "staging": place, "checksum": hashlib.md5(data, usedforsecurity=False).hexdigest(),
            "size_bytes": len(data),
        }  # fmt: skip
        # Some are never linked; real lakeFS links an address as often as it is asked to.
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
            self._lake.call("PUT", backing, params=at, json=staging)

    def _delete(self, chance: random.Random) -> None:
        at = {"path": _path(chance)}
        self._lake.call("DELETE", f"/branches/{self._any(chance)}/objects", params=at)

    def _commit(self, chance: random.Random) -> None:
        branch, date = self._any(chance), {}
        with self._lock:
            if branch in self._old:
                later = self._old[branch] + chance.uniform(0, 20 * _DAY_S)
                self._old[branch] = min(later, time.time() - 3 * _DAY_S)
                date = {"date": int(self._old[branch])}
        made = self._lake.call("POST", f"/branches/{branch}/commits", json={**_COMMITTED, **date})
        if not date:
            self._remember(made["id"])

    def _merge(self, chance: random.Random) -> None:
        how = {"strategy": chance.choice(("source-wins", "dest-wins"))}
        to = f"/refs/{self._any(chance)}/merge/{self._of_now(chance)}"
        self._remember(self._lake.call("POST", to, json=how)["reference"])

    def _branch(self, chance: random.Random) -> None:
        name, kind = f"b{chance.getrandbits(40)}", chance.random()
        with self._lock:
            if len(self._branches) > _MOST_BRANCHES:
                return
        source = self._first if kind < 1 / 4 else self._of_now(chance)
        if kind > 3 / 4:
            source = chance.choice(self._commits() or [source])
        asked = {"name": name, "source": source, "hidden": chance.random() < 1 / 5}
        self._lake.call("POST", "/branches", json=asked)
        with self._lock:
            self._branches.add(name)
            if source == self._first:
                self._old[name] = time.time() - 200 * _DAY_S
        self._delete_if_lost(name)

    def _delete_if_lost(self, branch: str) -> None:
        # Of the id of a commit that was just cherry-picked lakeFS makes one that never was.
        try:
            self._lake.call("GET", f"/commits/{self._head(branch)}")
        except RefusedError:
            with self._lock:
                self._branches.discard(branch)
            self._lake.call("DELETE", f"/branches/{branch}")

    def _delete_branch(self, chance: random.Random) -> None:
        with self._lock:
            name = chance.choice(sorted(self._branches))
            if name == "main":
                return
            self._branches.discard(name)
        self._lake.call("DELETE", f"/branches/{name}")

    def _tag(self, chance: random.Random) -> None:
        tag = {"id": f"t{chance.getrandbits(40)}", "ref": self._any(chance)}
        self._lake.call("POST", "/tags", json=tag)

    def _revert(self, chance: random.Random) -> None:
        branch = self._of_now(chance)
        what = {"ref": self._head(branch), "parent_number": 1}
        self._lake.call("POST", f"/branches/{branch}/revert", json=what)

    def _cherry_pick(self, chance: random.Random) -> None:
        what = {"ref": self._head(self._any(chance)), "parent_number": 1}
        to = f"/branches/{self._of_now(chance)}/cherry-pick"
        self._remember(self._lake.call("POST", to, json=what)["id"])

    def _reset(self, chance: random.Random) -> None:
        kind = chance.choice(("object", "common_prefix", "reset"))
        what = {"type": kind, "path": "" if kind == "reset" else _path(chance)}
        self._lake.call("PUT", f"/branches/{self._any(chance)}", json=what)

    def _reset_hard(self, chance: random.Random) -> None:
        branch, commits = self._of_now(chance), self._commits()
        if branch != "main" and commits:
            to = {"ref": chance.choice(commits), "force": "true"}
            self._lake.call("PUT", f"/branches/{branch}/hard_reset", params=to)
            self._delete_if_lost(branch)


def _path(chance: random.Random) -> str:
    return f"{chance.choice(_PATHS)}/{chance.randrange(40)}"


def _content(chance: random.Random) -> bytes:
    """Some contents are alike, some are empty: what is uploaded may equal what a branch has."""
    kind = chance.random()
    if kind < 1 / 5:
        return b"" if kind < 1 / 20 else b"the same content"
    return os.urandom(8) * chance.choice((1, 1, 1, 50))
