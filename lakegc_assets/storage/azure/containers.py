"""Listings of a container: flat ones, and those that go through real directories.

A flat one compares names as 16-bit characters (see ``pages.in_byte_order``); an account with a
hierarchical namespace is listed one directory after the other, each held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import requests

from lakegc_assets.storage.azure.listing import read_page
from lakegc_assets.storage.azure.service import VERSION_OF_START_FROM, AzureService, open_service
from lakegc_assets.storage.codes import error_class, explained
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StoreThrottledError, StoreUnavailableError
from lakegc_assets.storage.http import HttpFailure, explaining
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
from lakegc_assets.storage.values import LISTING_SCHEMA, KeyRange, Prefixes

_PAGE: Final = 5000
_USUAL_PAGE: Final = 1000
_BAD_REQUEST: Final = 400
# Where accounts may disagree on the order of names: nothing from here on is used to skip keys.
_UNCERTAIN: Final = re.compile(r"[^0-9A-Za-z_/]")


@dataclass(frozen=True)
class AzureContainer:
    """A container below a prefix, as it can be listed.

    Attributes:
        config: says how to reach the account.
        account: that holds it.
        container: its name.
        prefix: of all blobs that are looked at; keys are relative to it.
        url: of the store, for messages.
    """

    config: StoreConfig
    account: str
    container: str
    prefix: str
    url: str

    def list(self, wanted: KeyRange) -> Iterator[pa.RecordBatch]:
        """See ``ObjectStore.list``. Memory grows with the largest directory, if these are real."""
        if self._is_hierarchical():
            shared = shared_prefix(wanted)
            batches = self._walk(shared[: shared.rfind("/") + 1], wanted)
        else:
            batches = in_byte_order(page.objects for page in self._pages(wanted))
        yield from read_range(batches, wanted, self._where(wanted.prefix))

    def list_prefixes(self, prefix: str, max_objects: int | None) -> Prefixes:
        """See ``ObjectStore.list_prefixes``."""
        pages = self._pages(KeyRange(prefix), one_level=True)
        # Nobody says how an account sorts real directories and what is beside them.
        in_order = all_sorted if self._is_hierarchical() else in_byte_order
        return read_level(pages, self._where(prefix), max_objects, in_order)

    @property
    def _service(self) -> AzureService:
        return open_service(self.config, self.account)

    def _where(self, prefix: str) -> str:
        return f"{self.url}: listing {prefix!r}"

    def _is_hierarchical(self) -> bool:
        """True if the account has a hierarchical namespace.

        Where the credentials may not ask for that, the listing is flat, and its order is checked.
        """
        service = self._service
        if service.hierarchical is None:
            query = {"restype": "account", "comp": "properties"}
            try:
                answer = service.send("GET", service.target(self.container, query=query))
                found = answer.headers.get("x-ms-is-hns-enabled", "")
            except HttpFailure as failure:
                if error_class(failure.code) in {StoreThrottledError, StoreUnavailableError}:
                    where = f"{self.url}: asking what kind of account it is"
                    raise explained(failure.code, failure.message, where) from failure
                found = ""
            service.hierarchical = found.lower() == "true"
        return service.hierarchical

    def _walk(self, directory: str, wanted: KeyRange) -> Iterator[pa.RecordBatch]:
        """The objects of a directory and of those below it, in byte order."""
        level = list(self._pages(KeyRange(directory), one_level=True))
        children = sorted(name for page in level for name in page.prefixes)
        check_order(pa.array(children, pa.string()), "", self._where(directory))
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
        """The pages of a listing, with keys relative to the store."""
        where = self._where(wanted.prefix)
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
        start = self.prefix + _certain(wanted.start_after or "")
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
        """One page, from a name on where the service can start there."""
        service = self._service
        if start is not None and service.starts_from_names:
            url = service.target(self.container, query={**query, "startFrom": start})
            try:
                return service.send("GET", url, {"x-ms-version": VERSION_OF_START_FROM})
            except HttpFailure as failure:
                if failure.status != _BAD_REQUEST:
                    raise
                service.starts_from_names = False
        return service.send("GET", service.target(self.container, query=query))


def _certain(bound: str) -> str:
    """The start of a bound that sorts alike in every kind of account."""
    return _UNCERTAIN.split(bound, maxsplit=1)[0]


def _whole(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from (batch for batch in table.combine_chunks().to_batches() if batch.num_rows)
