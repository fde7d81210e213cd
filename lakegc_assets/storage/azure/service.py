"""The REST API of one Azure storage account: URLs, versions, errors, pages of listings.

Directories are no objects: on accounts with a hierarchical namespace they have a resource type, on
others Hadoop marks them by an empty blob with the metadata ``hdi_isfolder``.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import pyarrow as pa

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.graveler.namespace import AZURE_DOMAINS, azure_service_url
from lakegc_assets.storage.azure.auth import (
    VERSION,
    Delegation,
    Signer,
    read_delegation,
    signature,
    signers,
    wanted,
)
from lakegc_assets.storage.bulk import Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import usual_code
from lakegc_assets.storage.http import (
    HttpClient,
    HttpFailure,
    Request,
    Sign,
    each_page,
    once_per_process,
)
from lakegc_assets.storage.pages import Page, damaged_page, objects_of

#: The first service version whose listings can start at a name.
VERSION_OF_START_FROM: Final = "2026-02-06"

_Read = TypeVar("_Read")

_BAD_REQUEST: Final = 400
_MESSAGE: Final = re.compile(r"<Message>([^<]*)")
_LATE: Final = re.compile(r"Signature not valid in the specified time frame[^<]*")
_CODE: Final = re.compile(r"<Code>([^<]*)")


class AzureService(HttpClient):
    """One account, whose URL has no slash at its end, and the properties that its answers showed.

    ``starts_from_names`` is None until a listing shows whether it can start at a name.
    ``hierarchical`` is None until a blob shows whether the account has a hierarchical namespace,
    and ``versioned`` None until a write shows whether versioning is on now.
    """

    deleted = (202,)

    def __init__(
        self, config: StoreConfig, present: Callable[[], Signer], account: str, url: str
    ) -> None:
        """Args: timeouts, the function that gives the signer, name and URL of the account."""
        super().__init__(config, self._sign_now, {"x-ms-version": VERSION})
        self._present = present
        self.account = account
        self.url = url
        self.starts_from_names: bool | None = None
        self.hierarchical: bool | None = None
        self.versioned: bool | None = None
        self._delegation: Delegation | None = None

    @property
    def signer(self) -> Signer:
        """The signer by the current credentials."""
        return self._present()

    def _sign_now(self, request: Request) -> None:
        self.signer(request)

    def target(self, container: str, blob: str = "", query: Mapping[str, str] | None = None) -> str:
        """The percent-encoded URL of a container or blob."""
        url = f"{self.url}/{quote(container)}"
        if blob:
            url += f"/{quote(blob)}"
        return f"{url}?{urlencode(query, quote_via=quote)}" if query else url

    def signs_deadlines(self) -> bool:
        """True if a key can sign deadlines; a SAS token has its own end."""
        return self.signer.key is not None or self.signer.delegated

    def deleting(self, container: str, blob: str, deadline: Deadline) -> Sign:
        """The signer of the delete of a blob until a deadline. Raises ConfigurationError."""
        if not self.signs_deadlines():
            raise ConfigurationError(
                "a SAS token cannot be given an earlier end: use an account key, or an identity"
            )

        def sign(request: Request) -> None:
            # The slow request for a key comes first: the window of the signature starts after it.
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

    def pages(
        self,
        container: str,
        prefix: str,
        include: Sequence[str],
        read: Callable[[ET.Element], _Read],
        **more: str,
    ) -> Iterator[_Read]:
        """The pages, by ``read``, of a listing of more than current blobs, such as versions.

        ``read`` raises ValueError for a damaged page. ``include`` gives the values to try, the
        largest first, as the account may not know it; ``more`` is added to the query. Raises
        HttpFailure: a request was refused, or a page is damaged.
        """
        which = iter(include)
        query = {"restype": "container", "comp": "list", "include": next(which), **more}
        if prefix:
            query["prefix"] = prefix

        def ask(marker: str | None) -> tuple[_Read, str | None]:
            if marker:
                query["marker"] = marker
            try:
                answer = self.send("GET", self.target(container, query=query))
            except HttpFailure as failure:
                # Accounts with real directories have no versions, and refuse the value as an error.
                if failure.status != _BAD_REQUEST or query["include"] == include[-1]:
                    raise
                query["include"] = next(which)
                return ask(marker)
            try:
                blobs, following = _listing_in(answer.content)
                return read(blobs), following
            except (ET.ParseError, ValueError) as error:
                what = query["include"]
                raise HttpFailure(
                    "NoAnswer", f"a damaged list of blobs ({what}): {error}"
                ) from error

        return each_page(ask, "blobs")

    def failure(self, status: int, headers: Mapping[str, str] | Message, text: str) -> HttpFailure:
        """See ``HttpClient``. A 404 without Azure's own code does not prove a blob missing."""
        code = headers.get("x-ms-error-code")
        if code is None:
            found = _CODE.search(text)
            code = found[1] if found else ""
        named, late = _MESSAGE.search(text), _LATE.search(text)
        message = named[1].partition("\n")[0] if named else text[:200] or f"HTTP {status}"
        if late:
            message = f"{message} {late[0]}"
        return HttpFailure(usual_code(code, str(status)), message.strip(), status)


@once_per_process("AZURE_")
def open_service(config: StoreConfig, host: str) -> AzureService:
    """The service of an account, shared while the Azure variables do not change.

    ``host``: ``ACCOUNT.DOMAIN``, the start of a namespace's authority. Raises ConfigurationError.
    """
    account, _, domain = host.partition(".")
    url = (config.azure.account_url or azure_service_url(host)).rstrip("/")
    given = urlsplit(url).hostname or ""
    if given.endswith(tuple(f".{one}" for one in AZURE_DOMAINS)) and not (
        given.partition(".")[0] == account and given.endswith(f".{domain}")
    ):
        raise ConfigurationError(
            f"the namespace is in the account {account!r} of {domain}, and account_url is {url}: "
            "set it to the URL of that account, or remove it"
        )
    return AzureService(config, signers(config.azure, account), account, url)


def read_page(body: bytes, where: str) -> Page:
    """Read a page of a listing. Raises StorageError: it is no page, or contradicts itself."""
    try:
        blobs, marker = _listing_in(body)
        rows = list(objects_in(blobs))
        keys, times, etags, sizes = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
        written = pa.array([_time(time or "") for time in times], pa.timestamp("us", "UTC"))
        prefixes = [name_of(item) for item in blobs.iter("BlobPrefix")]
        return Page(objects_of(keys, sizes, written, etags), prefixes, marker)
    except (ET.ParseError, ValueError, TypeError, pa.ArrowInvalid) as error:
        raise damaged_page(where, error) from error


def _listing_in(body: bytes) -> tuple[ET.Element, str | None]:
    """The blobs of a listing, and the marker of its next page.

    Raises ValueError and ParseError: it is no listing, or is damaged.
    """
    root = ET.fromstring(body)  # noqa: S314 - expat refuses what would grow without bounds
    blobs, marker = root.find("Blobs"), root.find("NextMarker")
    if root.tag != "EnumerationResults" or blobs is None:
        raise ValueError("it is not a listing")
    if marker is None:
        raise ValueError("it has no NextMarker, so it may be cut")
    if b"\r" in body:
        for name in root.iter("Name"):
            if name.get("Encoded") != "true" and "\n" in (name.text or ""):
                raise ValueError(f"XML may have changed the line ends in {name.text!r}")
    return blobs, marker.text or None


def objects_in(blobs: ET.Element) -> Iterator[Sequence[str | None]]:
    """Name, time, etag and size of each blob that is no directory."""
    for blob in blobs.iter("Blob"):
        properties = blob.find("Properties")
        if properties is None:
            raise ValueError("a blob has no properties")
        if not is_directory(blob, properties):
            texts = map(properties.findtext, ("Last-Modified", "Etag", "Content-Length"))
            yield (name_of(blob), *texts)


def name_of(item: ET.Element) -> str:
    """The name of a blob or a prefix. Raises ValueError."""
    name = item.find("Name")
    if name is None or not name.text:
        raise ValueError("a name is missing")
    return unquote(name.text, errors="strict") if name.get("Encoded") == "true" else name.text


def is_directory(blob: ET.Element, properties: ET.Element) -> bool:
    """True if a listed blob is a directory, and so no object."""
    if (properties.findtext("ResourceType") or "").lower() == "directory":
        return True
    metadata = blob.find("Metadata")
    return metadata is not None and any(
        item.tag.lower() == "hdi_isfolder" and (item.text or "").lower() == "true"
        for item in metadata
    )


@lru_cache(maxsize=4096)
def _time(text: str) -> object:
    return parsedate_to_datetime(text)


def soft_delete_days(body: bytes) -> int | None:
    """The retention days of deleted blobs, by the properties of a service. Raises ValueError."""
    try:
        root = ET.fromstring(body)  # noqa: S314 - as above
    except ET.ParseError as error:
        raise ValueError("the answer is damaged") from error
    policy = root.find("DeleteRetentionPolicy")
    if root.tag != "StorageServiceProperties":
        raise ValueError("the answer holds no properties")
    if policy is None or (policy.findtext("Enabled") or "").lower() != "true":
        return None
    return int(policy.findtext("Days") or 0)
