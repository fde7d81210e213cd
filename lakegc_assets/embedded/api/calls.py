"""Requests and responses of the REST handlers, with lakeFS's validation and messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from starlette.background import BackgroundTask
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response

from lakegc_assets.embedded import errors, tasks
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.paging import Paging

MAX_PER_PAGE = 1000
_DEFAULT_AMOUNT = 100
_INT64_END = 1 << 63
_WRONG_SCHEMA = "request body has an error: doesn't match schema #/components/schemas/"


class Upload(NamedTuple):
    """The file of a multipart form: its content and its content type in the form."""

    data: bytes
    content_type: str


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        lake: the server's parts.
        names: the variable parts of the path.
        query: the parameters of the query.
        headers: of the request.
        body: unchanged; empty for a form.
        upload: the form's ``content``, or None.
    """

    lake: Lake
    names: Mapping[str, str]
    query: QueryParams
    headers: Headers
    body: bytes = b""
    upload: Upload | None = None

    @property
    def repository(self) -> str:
        """The repository's name, from the path."""
        return self.names["repository"]

    @property
    def branch(self) -> str:
        """The branch's name, from the path."""
        return self.names["branch"]

    def required(self, name: str) -> str:
        """A parameter of the query; 400 if it is missing."""
        if name not in self.query:
            raise errors.bad_request(
                f'parameter "{name}" in query has an error: value is required but missing'
            )
        return self.query[name]

    def flag(self, name: str) -> bool:
        """Return whether a parameter is ``true``."""
        return self.query.get(name, "false").lower() == "true"

    def only_if_absent(self) -> bool:
        """Return whether ``If-None-Match`` requires a path without object; 400 unless ``*``."""
        value = self.headers.get("if-none-match")
        if value not in {None, "*"}:
            raise errors.bad_request('Unsupported value for If-None-Match - Only "*" is supported')
        return value == "*"

    def paging(self) -> Paging:
        """``prefix``, ``after``, ``amount`` and ``delimiter``; 400 for an amount out of bounds."""
        return Paging(
            prefix=self.query.get("prefix", ""),
            after=self.query.get("after", ""),
            amount=self._amount(),
            delimiter=self.query.get("delimiter", ""),
        )

    def json(self, schema: str, *, optional: bool = False) -> Body:
        """The body as an object of one of lakeFS's schemas; 400 for any other body."""
        if optional and not self.body:
            return Body(schema, {})
        fields = self._parsed()
        if not isinstance(fields, dict):
            raise errors.bad_request(_WRONG_SCHEMA + schema)
        return Body(schema, fields)

    def json_array(self, schema: str) -> list[Body]:
        """The body as an array of objects of a schema; 400 for any other body."""
        found = self._parsed()
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise errors.bad_request(_WRONG_SCHEMA + schema)
        return [Body(schema, item) for item in found]

    def _parsed(self) -> object:
        try:
            found = json.loads(self.body)
            # JSON can escape half of a surrogate pair, which SQLite text cannot hold.
            json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None
        return found

    def _amount(self) -> int:
        text = self.query.get("amount", str(_DEFAULT_AMOUNT))
        try:
            amount = int(text)
        except ValueError:
            raise errors.bad_request(
                f'parameter "amount" in query has an error: value {text}: an invalid integer'
            ) from None
        if amount > MAX_PER_PAGE:
            raise errors.bad_request(
                f'parameter "amount" in query has an error: number must be at most {MAX_PER_PAGE}'
            )
        return amount if amount > 0 else MAX_PER_PAGE


@dataclass(frozen=True)
class Body:
    """A JSON object; each method expects a type, and raises a 400 for another type."""

    schema: str
    fields: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        return str(self._get(name, str, "string", default))

    def number(self, name: str, default: int | None = None) -> int:
        """An integer of 64 bits."""
        found = int(self._get(name, int, "integer", default))
        if not -_INT64_END <= found < _INT64_END:
            raise errors.bad_body(self.schema, name, "number must be an int64")
        return found

    def flag(self, name: str) -> bool:
        """A boolean; false when it is missing."""
        return bool(self._get(name, bool, "boolean", False))

    def strings(self, name: str) -> dict[str, str]:
        """An object of strings; empty when it is missing."""
        found: dict[str, str] = self._get(name, dict, "object", {})
        if not all(isinstance(value, str) for value in found.values()):
            raise errors.bad_body(self.schema, name, "value must be a string")
        return found

    def items(self, name: str) -> list[Any]:
        """An array."""
        found: list[Any] = self._get(name, list, "array", None)
        return found

    def texts(self, name: str) -> list[str]:
        """An array of strings."""
        found = self.items(name)
        for number, item in enumerate(found):
            if not isinstance(item, str):
                raise errors.bad_body(self.schema, f"{name}/{number}", "value must be a string")
        return found

    def body(self, name: str, schema: str, default: Mapping[str, Any] | None = None) -> Body:
        """An object of another schema."""
        return Body(schema, self._get(name, dict, "object", default))

    def bodies(self, name: str, schema: str) -> list[Body]:
        """An array of objects of another schema."""
        found = self.items(name)
        if not all(isinstance(item, dict) for item in found):
            raise errors.bad_body(self.schema, name, "value must be an object")
        return [Body(schema, item) for item in found]

    def _get(self, name: str, kind: type, kind_name: str, default: object) -> Any:  # noqa: ANN401 - JSON
        if name not in self.fields:
            if default is None:
                raise errors.bad_body(self.schema, name, f'property "{name}" is missing')
            return default
        value = self.fields[name]
        if value is None:
            raise errors.bad_body(self.schema, name, "Value is not nullable")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise errors.bad_body(self.schema, name, f"value must be {_article(kind_name)}")
        return value


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


Handler = Callable[[Call], Response]


@dataclass(frozen=True)
class Endpoint:
    """A method and a path below ``/api/v1``, and their handler.

    ``newer``: lakeFS 0.100 does not have it.
    """

    method: str
    path: str
    handler: Handler
    open_to_all: bool = False
    newer: bool = False


def answer(content: object, status: int = 200, **headers: str) -> Response:
    """A JSON answer, with Go's newline at its end."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"
    return Response(
        text.encode("utf-8", "surrogatepass"),
        status,
        headers={k.replace("_", "-"): v for k, v in headers.items()},
        media_type="application/json",
    )


def done() -> Response:
    """An answer without content."""
    return Response(status_code=204)


def allowed(call: Call) -> Response:
    """Answer that the only user may change a repository; 404 if it does not exist."""
    call.lake.repository(call.repository)
    return done()


def in_background(call: Call, prefix: str, work: Callable[[Lake, str], object]) -> Response:
    """Record a task for a repository that runs after the answer; the answer is the task's id."""
    task = tasks.start(call.lake, call.repository, prefix)
    found = answer({"id": task}, 202)
    done = partial(work, call.lake, call.repository)
    found.background = BackgroundTask(tasks.run, call.lake, task, done)
    return found


def page_answer(results: Sequence[Mapping[str, object]], *, has_more: bool, key: str) -> Response:
    """A page of results; the next one starts after the last result's ``key``."""
    return answer(
        {
            "pagination": {
                "has_more": has_more,
                "max_per_page": MAX_PER_PAGE,
                "next_offset": results[-1][key] if has_more else "",
                "results": len(results),
            },
            "results": list(results),
        }
    )


def one_page(found: Iterable[Mapping[str, object]], amount: int, *, key: str) -> Response:
    """The first ``amount`` results of a query that asked for one more."""
    results = list(found)
    return page_answer(results[:amount], has_more=len(results) > amount, key=key)
