"""Deletes on S3: many keys in XML, or a single one in a URL.

Conditions: ``If-Match`` of DeleteObject, and ``ETag`` of a key in DeleteObjects. AWS honours both,
and asks for ``s3:GetObject`` besides ``s3:DeleteObject``; other servers honour one, both or none.

Format: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-deletes.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakegc_assets.storage.bulk import Answer, Deadline, answer_of_one
from lakegc_assets.storage.errors import usual_code
from lakegc_assets.storage.http import HttpFailure, etag_in
from lakegc_assets.storage.keys import key_problem, path_problem
from lakegc_assets.storage.s3.client import ending, failing

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

KEYS_PER_CALL: Final = 1000
_NO_CONTENT: Final = 204
# What XML 1.0 cannot carry, or parsers change: such keys can be sent in a URL only.
_NOT_IN_XML: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True)
class S3Deletes:
    """The calls of ``Bulk`` on S3; a repeated delete does no harm.

    Attributes:
        client: its retries are the retries of the calls.
        bucket: of the keys.
        prefix: that keys are relative to.
        singly: one DeleteObject for each key.
        deadline: after which the store is to refuse them.
        versions: ids of those that are deleted, by key; by default the latest are.
    """

    client: S3Client
    bucket: str
    prefix: str
    singly: bool
    deadline: Deadline | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def problem(self, key: str) -> str | None:
        """Why a key cannot be sent, or None."""
        if not key:
            return "it is empty"
        full_key = self.prefix + key
        return path_problem(full_key) if self.alone(key) else key_problem(full_key)

    def alone(self, key: str) -> bool:
        """True if a key is sent in a URL."""
        return self.singly or _NOT_IN_XML.search(self.prefix + key) is not None

    def send(self, keys: Sequence[str], etags: Mapping[str, str] | None) -> Mapping[str, Answer]:
        """Send one call. Raises HttpFailure where it failed as a whole."""
        if self.alone(keys[0]):
            (key,) = keys
            return {key: answer_of_one(lambda: self._send_one(key, etags))}
        objects: list[Any] = [{"Key": self.prefix + key, **self._version(key)} for key in keys]
        if etags is not None:
            for identifier, key in zip(objects, keys, strict=True):
                identifier["ETag"] = f'"{etags[key]}"'
        with _renewing(), ending(self.deadline):
            answer = self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})
        answers = _answers_in(answer)
        strangers = answers.keys() - {entry["Key"] for entry in objects}
        if strangers:
            raise HttpFailure(
                "NoAnswer",
                f"the answer names {min(map(str, strangers))!r}, which was not asked for",
            )
        return {key: answers[self.prefix + key] for key in keys if self.prefix + key in answers}

    def _version(self, key: str) -> dict[str, Any]:
        return {"VersionId": self.versions[key]} if key in self.versions else {}

    def look(self, key: str) -> str:
        """The etag that an object has. Raises HttpFailure."""
        if problem := path_problem(self.prefix + key):
            raise HttpFailure("PreconditionFailed", f"what is there cannot be asked for: {problem}")
        with failing():
            answer = self.client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        return etag_in(answer.get("ETag"))

    def _send_one(self, key: str, etags: Mapping[str, str] | None) -> str | None:
        condition: dict[str, Any] = {} if etags is None else {"IfMatch": f'"{etags[key]}"'}
        with _renewing(), ending(self.deadline):
            answer = self.client.delete_object(
                Bucket=self.bucket, Key=self.prefix + key, **condition, **self._version(key)
            )
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        if status != _NO_CONTENT:
            raise HttpFailure("NoAnswer", f"a delete was answered with {status}", status)
        return answer.get("VersionId") if answer.get("DeleteMarker") else None


def _answers_in(answer: Any) -> Mapping[str | None, Answer]:  # noqa: ANN401 - boto3's answer
    """The answer for each key that an answer names; a contradiction is a failure."""
    answers: dict[str | None, Answer] = {}
    for entry in answer.get("Deleted", ()):
        marker = entry.get("DeleteMarkerVersionId") if entry.get("DeleteMarker") else None
        answers[entry.get("Key")] = marker
    for entry in answer.get("Errors", ()):
        key, message = entry.get("Key"), entry.get("Message")
        code = usual_code(entry.get("Code") or "NoCode", "", message)
        if key in answers:
            code = "NoAnswer"
        answers[key] = HttpFailure(code, message or "it names this key twice")
    return answers


@contextmanager
def _renewing() -> Iterator[None]:
    try:
        with failing():
            yield
    except RuntimeError as error:
        # That is how botocore says that credentials were renewed, and are expired still.
        raise HttpFailure("ExpiredToken", error) from error
