"""The REST API of one Azure storage account: URLs, versions, errors, shared connections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import requests

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.azure.auth import signer
from lakegc_assets.storage.azure.listing import soft_delete_days
from lakegc_assets.storage.codes import usual_code
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.http import HttpClient, HttpFailure
from lakegc_assets.storage.parts import Part
from lakegc_assets.storage.shared import once_per_process

#: Of the service, in every request: old enough for private clouds and emulators.
VERSION: Final = "2021-12-02"
#: The first one whose listings can start at a name.
VERSION_OF_START_FROM: Final = "2026-02-06"

_ACCEPTED: Final = 202
_MESSAGE: Final = re.compile(r"<Message>([^<]*)")
_CODE: Final = re.compile(r"<Code>([^<]*)")


@dataclass
class AzureService:
    """One account, and what is known of it.

    Attributes:
        client: signs and sends.
        url: of the blob service, without a slash at its end.
        starts_from_names: whether its listings can start at a name, until it says no.
        hierarchical: whether its directories are real ones; None until somebody asked.
    """

    client: HttpClient
    url: str
    starts_from_names: bool = True
    hierarchical: bool | None = None

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
        *,
        repeatable: bool = True,
    ) -> requests.Response:
        """Send a request in the usual version. See ``HttpClient.send``."""
        headers = {"x-ms-version": VERSION, **(headers or {})}
        return self.client.send(method, url, headers, body, repeatable=repeatable)

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
    client = HttpClient(config, signer(config.azure, account), failure_of)
    return AzureService(client, url)


def failure_of(answer: requests.Response) -> HttpFailure:
    """What an answer of the service says. Without Azure's own code a 404 means nothing."""
    text = answer.content.decode(errors="replace")
    return _failure(answer.status_code, answer.headers.get("x-ms-error-code"), text)


def failure_of_part(part: Part) -> HttpFailure | None:
    """What the answer to one request of a batch says; None that it was carried out."""
    if part.status == _ACCEPTED:
        return None
    return _failure(part.status, part.headers.get("x-ms-error-code"), part.body)


def _failure(status: int, code: str | None, text: str) -> HttpFailure:
    if code is None:
        found = _CODE.search(text)
        code = found[1] if found else ""
    message = _MESSAGE.search(text)
    told = message[1].partition("\n")[0] if message else text[:200] or f"HTTP {status}"
    return HttpFailure(usual_code(code, str(status)), told.strip(), status)


def kept_after_deletion(service: AzureService, container: str) -> str | None:
    """What keeps deleted blobs for a while, or that it could not be found out; None for nothing."""
    try:
        answer = service.send("GET", f"{service.url}/?restype=service&comp=properties")
        days = soft_delete_days(answer.content)
        query = {"restype": "container", "comp": "list", "include": "versions", "maxresults": "1"}
        versions = not days and service.send("GET", service.target(container, query=query)).content
    except (HttpFailure, ValueError) as error:
        code = error.code if isinstance(error, HttpFailure) else error
        return (
            f"whether the account keeps deleted blobs could not be found out ({code}): look at its "
            "data protection settings"
        )
    if days:
        return f"soft delete is on: deleted blobs stay for {days} days, and are paid for until then"
    if versions and b"<VersionId>" in versions:
        return (
            "versioning is on: deleted blobs stay as versions, and are paid for until a lifecycle "
            "rule removes them"
        )
    return None
