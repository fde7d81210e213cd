"""The REST API of one Azure storage account: URLs, versions, errors, shared connections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import requests

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.azure.auth import (
    VERSION,
    Delegation,
    Signer,
    read_delegation,
    signature,
    signer,
    wanted,
)
from lakegc_assets.storage.bulk import Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import usual_code
from lakegc_assets.storage.http import HttpClient, HttpFailure, Part, Request, Sign
from lakegc_assets.storage.process_cache import once_per_process

#: The first one whose listings can start at a name.
VERSION_OF_START_FROM: Final = "2026-02-06"

_ACCEPTED: Final = 202
_MESSAGE: Final = re.compile(r"<Message>([^<]*)")
_LATE: Final = re.compile(r"Signature not valid in the specified time frame[^<]*")
_CODE: Final = re.compile(r"<Code>([^<]*)")


@dataclass
class AzureService:
    """One account, whose URL has no slash at its end, and what its answers have shown.

    Attributes:
        starts_from_names: False once it has refused to start a listing at a name.
        hierarchical: True if it has a hierarchical namespace; None until it was asked.
    """

    client: HttpClient
    signer: Signer
    account: str
    url: str
    starts_from_names: bool = True
    hierarchical: bool | None = None
    _delegation: Delegation | None = None

    def target(self, container: str, blob: str = "", query: Mapping[str, str] | None = None) -> str:
        """The percent-encoded URL of a container or blob."""
        url = f"{self.url}/{quote(container)}"
        if blob:
            url += f"/{quote(blob)}"
        return f"{url}?{urlencode(query, quote_via=quote)}" if query else url

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        **more: Any,  # noqa: ANN401 - HttpClient.send's
    ) -> requests.Response:
        """Send a request in the usual version. See ``HttpClient.send``."""
        headers = {"x-ms-version": VERSION, **(headers or {})}
        return self.client.send(method, url, headers, body, **more)

    def signs_deadlines(self) -> bool:
        """True if there is a key that can sign until a deadline; a SAS token has its own end."""
        return self.signer.key is not None or self.signer.delegated

    def deleting(self, container: str, blob: str, deadline: Deadline) -> Sign:
        """The signer of the delete of a blob, which the service refuses after a deadline.

        Raises:
            ConfigurationError: there is no key that could do so.
        """
        if not self.signs_deadlines():
            raise ConfigurationError(
                "a SAS token cannot be given an earlier end: use an account key, or an identity"
            )

        def sign(request: Request) -> None:
            # What takes long here is over before the window is known.
            key, fields = self.signer.key, None
            if key is None:
                key, fields, _ = self._delegated()
            begin, length = deadline.window()
            ends = begin + timedelta(seconds=length)
            query = signature(key, f"/blob/{self.account}/{container}/{blob}", ends, fields)
            request.url += f"{'&' if '?' in request.url else '?'}{query}"

        return sign

    def _delegated(self) -> Delegation:
        now = datetime.now(timezone.utc)
        found = self._delegation
        if found is None or now >= found.renewed:
            url = f"{self.url}/?restype=service&comp=userdelegationkey"
            found = read_delegation(self.send("POST", url, body=wanted(now)).content, now)
            self._delegation = found
        return found

    def path(self, url: str) -> str:
        """Path and query of a URL of this service."""
        parts = urlsplit(url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path


@once_per_process("AZURE_")
def open_service(config: StoreConfig, account: str) -> AzureService:
    """The service of an account; the same one as long as the Azure variables stay the same.

    Raises:
        ConfigurationError: the credentials, or the URL of the account, cannot be used.
    """
    url = (config.azure.account_url or f"https://{account}.blob.core.windows.net").rstrip("/")
    host = urlsplit(url).hostname or ""
    if host.endswith(".core.windows.net") and host.partition(".")[0] != account:
        raise ConfigurationError(
            f"the namespace is in the account {account!r}, and account_url is {url}"
        )
    sign = signer(config.azure, account)
    return AzureService(HttpClient(config, sign, failure_of), sign, account, url)


def failure_of(answer: requests.Response) -> HttpFailure:
    """The failure in an answer. A 404 without Azure's own code does not prove a blob missing."""
    text = answer.content.decode(errors="replace")
    return _failure(answer.status_code, answer.headers.get("x-ms-error-code"), text)


def failure_of_part(part: Part) -> HttpFailure | None:
    """The failure in the answer to one request of a batch; None if it was carried out."""
    if part.status == _ACCEPTED:
        return None
    return _failure(part.status, part.headers.get("x-ms-error-code"), part.body)


def _failure(status: int, code: str | None, text: str) -> HttpFailure:
    if code is None:
        found = _CODE.search(text)
        code = found[1] if found else ""
    named, late = _MESSAGE.search(text), _LATE.search(text)
    message = named[1].partition("\n")[0] if named else text[:200] or f"HTTP {status}"
    if late:
        message = f"{message} {late[0]}"
    return HttpFailure(usual_code(code, str(status)), message.strip(), status)
