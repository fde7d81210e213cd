"""Deletes on GCS: up to 100 in one call, or signed ones, which are refused after a deadline.

Format: https://cloud.google.com/storage/docs/batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from lakegc_assets.storage.bulk import Answer, answer_of_one
from lakegc_assets.storage.gcs.service import GcsService, failure_of_part
from lakegc_assets.storage.http import HttpFailure, Request, Sign
from lakegc_assets.storage.keys import path_problem, url_problem
from lakegc_assets.storage.parts import joined, split

KEYS_PER_CALL: Final = 100


@dataclass(frozen=True)
class GcsDeletes:
    """The calls of ``Bulk`` on GCS.

    Attributes:
        service: that answers.
        bucket: of the keys.
        prefix: that keys are relative to.
        target: the URL of an object, with a query.
        require_bucket: raises HttpFailure where the bucket is not known to exist.
        sign: signs for a deadline, one request for each key; None for none.
        etags: that the objects must still have; None for any.
    """

    service: GcsService
    bucket: str
    prefix: str
    target: Callable[[str, Mapping[str, str] | None], str]
    require_bucket: Callable[[], None]
    sign: Sign | None
    etags: Mapping[str, str] | None

    def problem(self, key: str) -> str | None:
        """Why a key cannot be sent, or None."""
        if self.etags is not None and not is_generation(self.etags[key]):
            return f"it cannot have the etag {self.etags[key]!r}: generations are numbers"
        if not key:
            return "it is empty"
        problem = url_problem(self.prefix + key)
        return path_problem(self.prefix + key) if self.sign and not problem else problem

    def send(self, keys: Sequence[str], etags: Mapping[str, str] | None) -> Mapping[str, Answer]:
        """Delete up to 100 keys in one call. Raises HttpFailure where it failed as a whole."""
        queries = [None if etags is None else {"ifGenerationMatch": etags[key]} for key in keys]
        urls = [self.target(key, query) for key, query in zip(keys, queries, strict=True)]
        answers: Mapping[str, Answer]
        if len(keys) == 1:
            answers = {keys[0]: answer_of_one(lambda: self._delete_one(urls[0]))}
        else:
            requests = [Request("DELETE", "/" + url.split("/", 3)[3]) for url in urls]
            content_type, body = joined(requests)
            answer = self.service.client.send(
                "POST",
                f"{self.service.url}/batch/storage/v1",
                headers={"Content-Type": content_type},
                body=body,
            )
            answers = split(answer, keys, failure_of_part)
        if any(isinstance(one, HttpFailure) and one.code == "notFound" for one in answers.values()):
            self.require_bucket()
        return answers

    def send_until(
        self, keys: Sequence[str], etags: Mapping[str, str] | None
    ) -> Mapping[str, Answer]:
        """Delete one object, unless it is too late. Raises HttpFailure."""
        (key,) = keys
        url = f"{self.service.url}/{quote(f'{self.bucket}/{self.prefix}{key}', safe='/~')}"
        more = {
            "headers": {} if etags is None else {"x-goog-if-generation-match": etags[key]},
            "sign": self.sign,
        }
        return {key: answer_of_one(lambda: self._delete_one(url, **more))}

    def _delete_one(self, url: str, **more: Any) -> None:  # noqa: ANN401 - send's
        answer = self.service.client.send("DELETE", url, **more)
        # GCS has nothing to say of a delete; what an emulator says is the JSON of nothing.
        if answer.content.strip() not in {b"", b"null"}:
            raise HttpFailure("NoAnswer", f"a delete was answered with {answer.content[:80]!r}")


def is_generation(etag: str) -> bool:
    """True if a condition can name it: GCS may ignore other texts, and takes 0 for no object."""
    return etag.isascii() and etag.isdecimal() and etag != "0"
