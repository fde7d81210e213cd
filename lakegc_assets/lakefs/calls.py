"""The base of all calls: single values and paged lists, validated before they are returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter, itemgetter, lt
from typing import Any, Generic, TypeVar

from lakegc_assets.lakefs.errors import UnexpectedAnswerError
from lakegc_assets.lakefs.models import Model, Page
from lakegc_assets.lakefs.transport import Transport, parse, path_of

LARGEST_PAGE = 1000
_GROWTH = 8

M = TypeVar("M", bound=Model)
T = TypeVar("T")


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A list that the server gives in pages of a model, by the segments of its path.

    Attributes:
        key: the field by which the list is sorted; None for logs, which have no such field.
        params: beyond those of paging.
        amount: items in a page.
        growing: whether each page is larger than the one before it, for who often needs the first
            items only.
    """

    model: type[Page[T]]
    path: tuple[str, ...]
    key: str | None
    params: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    amount: int = LARGEST_PAGE
    growing: bool = False


class Calls(Transport):
    """A connection to a server, and what its answers are."""

    def _get(self, model: type[M], *path: str, params: Mapping[str, str] | None = None) -> M:
        return parse(self.call("GET", *path, params=params), model)

    def _list(self, listing: Listing[T]) -> Iterator[T]:
        """Every item of a list, read in pages as needed; see ``_pages``."""
        for page in self._pages(listing):
            yield from page.results

    def _pages(self, listing: Listing[T]) -> Iterator[Page[T]]:
        """The pages of a list, one after the other.

        Raises:
            UnexpectedAnswerError: see ``_page``; or an offset comes again.
        """
        seen = {listing.after}
        while True:
            page = self._page(listing)
            yield page
            if not page.pagination.has_more:
                return
            after, amount = page.pagination.next_offset, listing.amount
            if listing.growing:
                amount = min(_GROWTH * amount, LARGEST_PAGE)
            if after in seen:
                raise UnexpectedAnswerError(
                    f"paging {path_of(*listing.path)} does not advance: offset {after!r} came again"
                )
            seen.add(after)
            listing = replace(listing, after=after, amount=amount)

    def _page(self, listing: Listing[T]) -> Page[T]:
        """The first page of a list.

        Raises:
            UnexpectedAnswerError: another number of items than announced, items out of order, or
                more is announced with nothing to go on from.
        """
        after, path = listing.after, path_of(*listing.path)
        asked: dict[str, str | int] = {**listing.params, "amount": listing.amount}
        if after:
            asked["after"] = after
        page = parse(self.call("GET", *listing.path, params=asked), listing.model)
        paging = page.pagination
        where = f"{path} after {after!r}"
        if paging.results != len(page.results):
            raise UnexpectedAnswerError(
                f"{where}: {paging.results} items were announced, {len(page.results)} came"
            )
        if paging.has_more and not page.results:
            raise UnexpectedAnswerError(f"{where}: more is announced, but nothing came")
        if listing.key is not None:
            # The order of code points, as Python compares, is that of UTF-8 bytes, as lakeFS sorts.
            named: Callable[[Any], str] = attrgetter(listing.key)
            if page.results and isinstance(page.results[0], dict):
                named = itemgetter(listing.key)
            keys = list(map(named, page.results))
            seen = [after, *keys] if after else keys
            if not all(map(lt, seen, seen[1:])):
                low, high = next(pair for pair in pairwise(seen) if pair[0] >= pair[1])
                raise UnexpectedAnswerError(f"{where}: {high!r} came after {low!r}")
            if paging.has_more and paging.next_offset < keys[-1]:
                raise UnexpectedAnswerError(
                    f"{where}: the next offset {paging.next_offset!r} lies before {keys[-1]!r}"
                )
        return page
