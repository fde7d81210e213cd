"""Google Cloud Storage as an object store, over its JSON API.

An object's generation is its etag here: it changes with each write, and GCS takes it as a condition
for puts and deletes alike.

Format: https://cloud.google.com/storage/docs/json_api/v1
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import requests

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.bucket_store import path_problem
from lakegc_assets.storage.bulk import Answer, Bulk, Deadline, answer_of_one
from lakegc_assets.storage.errors import ObjectNotFoundError
from lakegc_assets.storage.gcs.objects import GcsObject, copy, is_generation
from lakegc_assets.storage.gcs.service import read_page
from lakegc_assets.storage.gcs.versions import GcsVersions
from lakegc_assets.storage.http import HttpFailure, Request, Sign, explaining
from lakegc_assets.storage.pages import Page, follow, relative
from lakegc_assets.storage.values import Copied, CopyRequest, KeyRange

# What a bound may hold, and an object's name may not: the listing is asked for less than the bound.
_LAST: Final = "\U0010ffff"
_ODD: Final = re.compile(rf"[\x00-\x1f{_LAST}]")
_FIELDS: Final = "name,size,updated,generation"


class GcsStore(GcsVersions):
    """The objects of a bucket below a prefix."""

    keys_per_delete = 100
    names_missing_buckets = False
    # A listing begins at a bound that GCS can take, which is not always the one that is wanted.
    starts_after = False

    def reached_by(self) -> tuple[Any, ...]:
        return GcsStore, self.config.gcs

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: only with the key of a service account."""
        return self.service.key is not None

    def _date(self, where: str) -> str | None:
        query = {"maxResults": "1", "fields": "nextPageToken"}
        return self._list_page(query, where).headers.get("Date")

    def _copied(self, source: GcsObject, target: GcsObject, asked: CopyRequest) -> Copied:
        return copy(source, target, asked)

    def _deletes(
        self, deadline: Deadline | None, etags: Mapping[str, str] | None, *, singly: bool
    ) -> Bulk:
        """With a deadline there is one request for each key: batches cannot be signed for one."""
        sign = None if deadline is None else self.service.until(deadline)

        def problem(key: str) -> str | None:
            if etags is not None and not is_generation(etags[key]):
                return f"it cannot have the etag {etags[key]!r}: generations are numbers"
            found = self._problem(key)
            return path_problem(self.prefix + key) if sign and not found else found

        many = 1 if singly or sign else self.keys_per_delete
        send = self._delete if sign is None else partial(self._delete_until, sign)
        return Bulk(
            self._url, many, problem, send, lambda key: self.object_at(key).fetch_state().etag,
            deadline=deadline,
        )  # fmt: skip

    def _delete(self, keys: Sequence[str], etags: Mapping[str, str] | None) -> Mapping[str, Answer]:
        """Delete up to 100 keys in one call. Raises HttpFailure where it failed as a whole.

        Format: https://cloud.google.com/storage/docs/batch
        """
        conditions = [{} if etags is None else {"ifGenerationMatch": etags[key]} for key in keys]
        named = zip(keys, conditions, strict=True)
        urls = [self.object_at(key).url(**condition) for key, condition in named]
        answers: Mapping[str, Answer]
        if len(keys) == 1:
            answers = {keys[0]: answer_of_one(lambda: self._delete_one(urls[0]))}
        else:
            deletes = {k: Request("DELETE", url) for k, url in zip(keys, urls, strict=True)}
            answers = self.service.delete_batch(f"{self.service.url}/batch/storage/v1", deletes)
        if any(isinstance(one, HttpFailure) and one.code == "notFound" for one in answers.values()):
            self._require_bucket_exists()
        return answers

    def _delete_until(
        self, sign: Sign, keys: Sequence[str], etags: Mapping[str, str] | None
    ) -> Mapping[str, Answer]:
        """Delete one object, unless it is too late. Raises HttpFailure."""
        (key,) = keys
        headers = {} if etags is None else {"x-goog-if-generation-match": etags[key]}
        url = self._xml_url(self.prefix + key)
        return {key: answer_of_one(lambda: self._delete_one(url, headers=headers, sign=sign))}

    def _delete_one(self, url: str, **more: Any) -> None:  # noqa: ANN401 - send's
        answer = self.service.send("DELETE", url, **more)
        # GCS has nothing to say of a delete; what an emulator says is the JSON of nothing.
        if answer.content.strip() not in {b"", b"null"}:
            raise HttpFailure("NoAnswer", f"a delete was answered with {answer.content[:80]!r}")

    def _list_page(self, query: Mapping[str, str], where: str) -> requests.Response:
        try:
            with explaining(where):
                return self.service.send("GET", f"{self._bucket_url}/o?{urlencode(query)}")
        except ObjectNotFoundError as error:
            raise ConfigurationError(
                f"{where}: the bucket does not exist: check its name and the endpoint ({error})"
            ) from error

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        where = self._listing(wanted.prefix)
        prefix = self.prefix + wanted.prefix
        query = {
            "prefix": prefix,
            "maxResults": str(self.config.page_size),
            "fields": f"kind,nextPageToken,prefixes,items({_FIELDS})",
            **({"delimiter": "/"} if one_level else {}),
        }
        if wanted.start_after:
            query["startOffset"] = self.prefix + _ODD.split(wanted.start_after, maxsplit=1)[0]
        if wanted.end_before:
            # A space sorts after every control character; what is too much is left out later.
            plain, *odd = _ODD.split(wanted.end_before, maxsplit=1)
            if not odd or not wanted.end_before.startswith(plain + _LAST):
                query["endOffset"] = self.prefix + plain + (" " if odd else "")

        def ask(token: str | None) -> Page:
            if token is not None:
                query["pageToken"] = token
            return read_page(self._list_page(query, where).content, where)

        for page in follow(ask, prefix, where, one_level=one_level):
            yield relative(page, self.prefix)
