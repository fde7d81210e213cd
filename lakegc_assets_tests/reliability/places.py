"""A real store behind a proxy, and how that kind of store says what a fault makes it say."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime

from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.opening import open_store
from lakegc_assets.storage.values import ObjectInfo
from lakegc_assets_tests.http_server import Answer, Asked, Silence
from lakegc_assets_tests.reliability.proxy import Ask, Meddle, Proxy

#: An answer in place of the server's; gets what asks the server.
Fault = Callable[[Ask], Answer | Silence]
Which = Callable[[Asked], bool]

_PART = re.compile(rb"--batch[^\r\n]*\r\n.*?(?=--batch)", re.DOTALL)
_TOKEN = re.compile(rb"<NextContinuationToken>[^<]*</NextContinuationToken>")
_DELETED = re.compile(rb"<Deleted>.*?</Deleted>", re.DOTALL)


class S3Dialect:
    """How S3 speaks."""

    busy = Answer(503, b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>")
    error = Answer(
        200,
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b"<Error><Code>InternalError</Code><Message>too late for a status</Message></Error>",
    )
    gone = Answer(404, b"<Error><Code>NoSuchKey</Code><Message>not there</Message></Error>")

    @staticmethod
    def lists(asked: Asked) -> bool:
        """A page of a listing, but not the question for the time."""
        query = asked.query
        return query.get("list-type") == "2" and query.get("max-keys") != "1"

    @staticmethod
    def deletes(asked: Asked) -> bool:
        return asked.method == "DELETE" or (asked.method == "POST" and "delete" in asked.query)

    @staticmethod
    def ended(page: Answer) -> Answer:
        """The page, as if it were the last."""
        body = page.body.replace(b"<IsTruncated>true<", b"<IsTruncated>false<")
        return replace(page, body=_TOKEN.sub(b"", body))

    @staticmethod
    def some_unnamed(answer: Answer) -> Answer:
        """The answer to a bulk delete, without every second key."""
        numbers = iter(range(10_000))
        body = _DELETED.sub(lambda found: found[0] if next(numbers) % 2 else b"", answer.body)
        return replace(answer, body=body)


class AzureDialect:
    """How Azure Blob Storage speaks."""

    busy = Answer(
        503,
        b"<Error><Code>ServerBusy</Code><Message>busy</Message></Error>",
        [("x-ms-error-code", "ServerBusy")],
    )
    error = Answer(
        200, b"<Error><Code>InternalError</Code><Message>too late for a status</Message></Error>"
    )
    gone = Answer(404, b"", [("x-ms-error-code", "BlobNotFound")])

    @staticmethod
    def lists(asked: Asked) -> bool:
        query = asked.query
        return query.get("comp") == "list" and query.get("maxresults") != "1"

    @staticmethod
    def deletes(asked: Asked) -> bool:
        return asked.method == "DELETE" or asked.query.get("comp") == "batch"

    @staticmethod
    def ended(page: Answer) -> Answer:
        body = re.sub(rb"<NextMarker>[^<]*</NextMarker>", b"<NextMarker/>", page.body)
        return replace(page, body=body)

    @staticmethod
    def some_unnamed(answer: Answer) -> Answer:
        numbers = iter(range(10_000))
        body = _PART.sub(lambda found: found[0] if next(numbers) % 2 else b"", answer.body)
        return replace(answer, body=body)


Dialect = type[S3Dialect] | type[AzureDialect]


@dataclass(frozen=True)
class Place:
    """A store that is reached through a proxy.

    Attributes:
        name: of the kind of store, as the table has it.
        url: of the store.
        config: reaches it through the proxy.
        direct: reaches it without; what a test believes.
        proxy: the proxy.
        says: how the store speaks.
    """

    name: str
    url: str
    config: StoreConfig
    direct: StoreConfig
    proxy: Proxy
    says: Dialect

    @property
    def store(self) -> ObjectStore:
        """As the product sees it."""
        return open_store(self.url, self.config)

    def truth(self) -> dict[str, ObjectInfo]:
        """What is there."""
        batches = open_store(self.url, self.direct).list()
        return {row["key"]: ObjectInfo(**row) for batch in batches for row in batch.to_pylist()}

    def meddle(self, which: Which, fault: Fault, *, times: int | None = None) -> None:
        """Let some requests meet a fault: the first so many, or all of them."""
        left = [times]
        changing = threading.Lock()

        def meet(asked: Asked, ask: Ask) -> Answer | Silence:
            with changing:
                met = which(asked) and left[0] != 0
                if met and left[0] is not None:
                    left[0] -= 1
            return fault(ask) if met else ask()

        self.proxy.meddle = meet

    def listing_faults(self) -> Mapping[str, Fault]:
        """What may befall any request, by name."""
        return {
            "busy": lambda _ask: self.says.busy,
            "timeout": lambda _ask: Silence.WAIT,
            "reset": lambda _ask: Silence.RESET,
            "cut": cut,
            "error in a 200": lambda _ask: self.says.error,
        }


def cut(ask: Ask) -> Answer:
    """The server has done its work, and the connection breaks in the middle of its answer."""
    answer = ask()
    return replace(answer, cut=len(answer.body) // 2)


def unanswered(ask: Ask) -> Silence:
    """The server has done its work, and its answer is lost."""
    ask()
    return Silence.RESET


def clock_off(by: timedelta) -> Meddle:
    """The store's clock is off."""

    def meddle(_asked: Asked, ask: Ask) -> Answer:
        answer = ask()
        headers = [
            (name, format_datetime(parsedate_to_datetime(value) + by, usegmt=True))
            if name.lower() == "date"
            else (name, value)
            for name, value in answer.headers
        ]
        return replace(answer, headers=headers)

    return meddle
