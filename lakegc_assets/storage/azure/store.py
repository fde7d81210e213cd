"""Azure Blob Storage and ADLS Gen2 as an object store, over its REST API.

A key is refused if Azure would read it as another key, or if its XML cannot carry it. Listings are
in byte order: a flat account compares names as 16-bit characters (see ``pages.in_byte_order``). An
account with a hierarchical namespace is listed directory by directory, and each directory is held
in memory. A directory without objects is not listed.

A name at which a listing starts is "a fully qualified path within the container":
https://learn.microsoft.com/dotnet/api/azure.storage.blobs.models.getblobsbyhierarchyoptions.startfrom
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import requests

from lakegc_assets.storage.azure.blobs import Blob
from lakegc_assets.storage.azure.service import VERSION_OF_START_FROM, objects_in, read_page
from lakegc_assets.storage.azure.versions import AzureVersions
from lakegc_assets.storage.bucket_store import Sizes, path_problem
from lakegc_assets.storage.bulk import Answer, Bulk, Deadline, answer_of_one
from lakegc_assets.storage.http import HttpFailure, Request, Sign, etag_in, explaining
from lakegc_assets.storage.pages import (
    Page,
    all_sorted,
    check_order,
    follow,
    in_byte_order,
    read_level,
    read_range,
    relative,
    shared_prefix,
    without_cut_prefixes,
)
from lakegc_assets.storage.values import LISTING_SCHEMA, Copied, CopyRequest, KeyRange, Prefixes

_BAD_REQUEST: Final = 400
_PAGE: Final = 5000
_USUAL_PAGE: Final = 1000
_THREADS: Final = 16
#: Names in a page that is only to show whether there is an object.
_FEW: Final = "10"
# Characters that Azure reads as others, or does not allow, or XML 1.0 cannot carry.
_NOT_ALLOWED: Final = re.compile(r"[\\\x00-\x08\x0b-\x1f\ufffe\uffff]")
# Dots that Azure drops: it would read the key as another one.
_DROPPED: Final = re.compile(r"\.(/|\Z)")
# Characters that accounts may order differently: the name at which a listing starts ends before.
_UNCERTAIN: Final = re.compile(r"[^0-9A-Za-z_/]")


class AzureStore(AzureVersions):
    """The blobs of a container below a prefix."""

    keys_per_delete = 256
    sizes = Sizes(whole=256 * 2**20)

    def reached_by(self) -> tuple[Any, ...]:
        return AzureStore, self._host, self.config.azure

    def list(
        self, prefix: str = "", start_after: str | None = None, end_before: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore``. Memory grows with the largest directory, if these are real ones."""
        wanted = KeyRange(prefix, start_after, end_before)
        if self._is_hierarchical():
            shared = shared_prefix(wanted)
            batches = self._walk(shared[: shared.rfind("/") + 1], wanted)
        else:
            batches = in_byte_order(page.objects for page in self._pages(wanted))
        yield from read_range(batches, wanted, self._listing(prefix))

    def list_prefixes(self, prefix: str = "", max_objects: int | None = None) -> Prefixes:
        pages = self._pages(KeyRange(prefix), one_level=True)
        # No document says how an account sorts real directories and the blobs next to them.
        if not self._is_hierarchical():
            return read_level(pages, self._listing(prefix), max_objects, in_byte_order)
        found = read_level(pages, self._listing(prefix), max_objects, all_sorted)
        # A real directory stays when its last object is deleted.
        with explaining(self._listing(prefix)), ThreadPoolExecutor(_THREADS) as pool:
            holding = list(pool.map(self._has_objects, found.prefixes))
        return found._replace(prefixes=list(compress(found.prefixes, holding)))

    def _has_objects(self, directory: str) -> bool:
        """True if a directory, or one below it, has an object. Raises HttpFailure."""
        pages = self.service.pages(
            self._container, f"{self.prefix}{directory}", ["metadata"], _has_files, maxresults=_FEW
        )
        return any(pages)

    def delete_deadlines(self) -> bool:
        """See ``ObjectStore``: not with a SAS token."""
        return self.service.signs_deadlines()

    def _date(self, where: str) -> str | None:
        query = {"restype": "container", "comp": "list", "maxresults": "1"}
        # Some credentials may list no more than this.
        if self.prefix:
            query["prefix"] = self.prefix
        with explaining(where):
            return self.service.send("GET", self._target(query)).headers.get("Date")

    def _problem(self, key: str) -> str | None:
        problem = path_problem(self.prefix + key) if key else "it is empty"
        if problem is None and _NOT_ALLOWED.search(key):
            problem = "it has a backslash, which Azure reads as a slash, or a control character"
        if problem is None and _DROPPED.search(key):
            problem = "it has a dot at the end of a path component, which Azure drops"
        return problem

    def _copied(self, source: Blob, target: Blob, asked: CopyRequest) -> Copied:
        return target.copy(source, asked, self.sizes)

    def _deletes(
        self, deadline: Deadline | None, etags: Mapping[str, str] | None, *, singly: bool
    ) -> Bulk:
        del etags
        many, send = 1 if singly else self.keys_per_delete, partial(self._delete, deadline)
        return Bulk(self._url, many, self._problem, send, self._etag_at, deadline=deadline)

    def _etag_at(self, key: str) -> str:
        return etag_in(self.service.send("HEAD", self.object_at(key).url()).headers.get("ETag"))

    def _delete(
        self, deadline: Deadline | None, keys: Sequence[str], etags: Mapping[str, str] | None
    ) -> Mapping[str, Answer]:
        """Delete up to 256 keys in one call. Raises HttpFailure: the call failed as a whole."""
        conditions = [{} if etags is None else {"If-Match": f'"{etags[key]}"'} for key in keys]
        if len(keys) == 1:
            sign = self._signer(keys[0], deadline)
            return {keys[0]: answer_of_one(lambda: self._delete_one(keys[0], conditions[0], sign))}
        deletes = {}
        for key, condition in zip(keys, conditions, strict=True):
            # Azure refuses a part with a version of its own: the version of the batch applies.
            deletes[key] = Request("DELETE", self.object_at(key).url(), {**condition})
            self.service.sign(deletes[key], self._signer(key, deadline))
        url = self._target({"restype": "container", "comp": "batch"})
        return self.service.delete_batch(url, deletes)

    def _signer(self, key: str, deadline: Deadline | None) -> Sign | None:
        if deadline is None:
            return None
        return self.service.deleting(self._container, self.prefix + key, deadline)

    def _delete_one(self, key: str, condition: Mapping[str, str], sign: Sign | None) -> None:
        url = self.object_at(key).url()
        status = self.service.send("DELETE", url, condition, sign=sign).status_code
        if status not in self.service.deleted:
            raise HttpFailure("NoAnswer", f"a delete was answered with {status}", status)

    def _is_hierarchical(self) -> bool:
        """True if the account has a hierarchical namespace, as the first blob here shows.

        The service also reports this of an account, but not to credentials of an identity.
        """
        service = self.service
        if service.hierarchical is None:
            with explaining(f"{self._url}: asking what kind of account it is"):
                pages = service.pages(
                    self._container, self.prefix, ["metadata"], _have_types, maxresults="1"
                )
                # For an empty container the answer is unknown, and not needed.
                service.hierarchical = next((found for found in pages if found is not None), None)
        return bool(service.hierarchical)

    def _walk(self, directory: str, wanted: KeyRange) -> Iterator[pa.RecordBatch]:
        """The objects of a directory and of those below it, in byte order."""
        level = list(self._pages(KeyRange(directory), one_level=True))
        children = sorted(name for page in level for name in page.prefixes)
        check_order(pa.array(children, pa.string()), "", self._listing(directory))
        objects = pa.Table.from_batches([p.objects for p in level], LISTING_SCHEMA).sort_by("key")
        keys = objects["key"]
        done = 0
        for child in children:
            upto = pc.sum(pc.less(keys, child)).as_py() or 0
            yield from _whole(objects.slice(done, upto - done))
            done = upto
            if wanted.may_hold_below(child):
                yield from self._walk(child, wanted)
        yield from _whole(objects.slice(done))

    def _pages(self, wanted: KeyRange, *, one_level: bool = False) -> Iterator[Page]:
        where = self._listing(wanted.prefix)
        prefix = self.prefix + shared_prefix(wanted)
        size = self.config.page_size
        query = {
            "restype": "container",
            "comp": "list",
            "include": "metadata",
            "maxresults": str(_PAGE if size == _USUAL_PAGE else size),
            **({"prefix": prefix} if prefix else {}),
            **({"delimiter": "/"} if one_level else {}),
        }
        start = self.prefix + _UNCERTAIN.split(wanted.start_after or "", maxsplit=1)[0]
        helps = not one_level and start.startswith(prefix) and len(start) > len(prefix)

        def ask(token: str | None) -> Page:
            if token is not None:
                query["marker"] = token
            with explaining(where):
                answer = self._page(query, start if helps else None)
            return read_page(answer.content, where)

        for page in without_cut_prefixes(follow(ask, prefix, where, one_level=one_level)):
            yield relative(page, self.prefix)

    def _page(self, query: Mapping[str, str], start: str | None) -> requests.Response:
        """Read one page, from a name on if the service can start there."""
        if start is not None and self._can_start(query):
            answer = self._page_from(query, start)
            if answer is not None:
                return answer
        return self.service.send("GET", self._target(query))

    def _can_start(self, query: Mapping[str, str]) -> bool:
        """True if a listing can start at a name below its prefix; tried once, at two blobs.

        A service that read the name relative to the prefix would skip blobs. Such a service begins
        at the wrong blob for the first name if the prefix comes after it, else for the second one.
        """
        service = self.service
        if "prefix" not in query:
            return service.starts_from_names is not False
        if service.starts_from_names is None:
            two = {**query, "maxresults": "2"}
            two.pop("marker", None)
            names = self._names(service.send("GET", self._target(two)))
            if len(names) > 1:
                service.starts_from_names = all(self._starts_at(name, two) for name in names)
        return bool(service.starts_from_names)

    def _starts_at(self, name: str, query: Mapping[str, str]) -> bool:
        answer = self._page_from(query, name)
        return answer is not None and self._names(answer)[:1] == [name]

    def _names(self, answer: requests.Response) -> Sequence[str]:
        """The names of the objects of a page."""
        names: Sequence[str] = read_page(answer.content, self._url).objects["key"].to_pylist()
        return names

    def _page_from(self, query: Mapping[str, str], start: str) -> requests.Response | None:
        """Read a page from a name on; None if the service does not know how."""
        url = self._target({**query, "startFrom": start})
        try:
            return self.service.send("GET", url, {"x-ms-version": VERSION_OF_START_FROM})
        except HttpFailure as failure:
            if failure.status != _BAD_REQUEST:
                raise
        self.service.starts_from_names = False
        return None


def _have_types(blobs: ET.Element) -> bool | None:
    """True if blobs are listed as directories or files, False if not; None without any blob."""
    types = [blob.findtext("Properties/ResourceType") for blob in blobs.iter("Blob")]
    return any(types) if types else None


def _has_files(blobs: ET.Element) -> bool:
    """True if a page of a listing has an object. Raises ValueError: the page is damaged."""
    return next(objects_in(blobs), None) is not None


def _whole(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from (batch for batch in table.combine_chunks().to_batches() if batch.num_rows)
