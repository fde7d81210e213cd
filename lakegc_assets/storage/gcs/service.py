"""The JSON API of Google Cloud Storage: credentials, connections, and answers or refusals."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from email.message import Message
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import google.auth.transport.requests
import pyarrow as pa
import pyarrow.compute as pc
from google.auth import default as default_credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.oauth2.service_account import Credentials

from lakegc_assets.errors import ConfigurationError
from lakegc_assets.storage.bulk import Deadline
from lakegc_assets.storage.config import StoreConfig
from lakegc_assets.storage.errors import StorageError, error_class, usual_code
from lakegc_assets.storage.http import (
    HttpClient,
    HttpFailure,
    Request,
    Sign,
    once_per_process,
)
from lakegc_assets.storage.pages import Page, damaged_page, objects_of
from lakegc_assets.storage.values import ObjectInfo, infos_in

_ENDPOINT: Final = "https://storage.googleapis.com"
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
# The code in an error of the XML API.
_CODE_IN_XML: Final = re.compile(r"<Error><Code>([^<]*)")
_TOLD_IN_XML: Final = re.compile(r"<(?:Message|Details)>([^<]*)")
_ALGORITHM: Final = "GOOG4-RSA-SHA256"


class GcsService(HttpClient):
    """An endpoint. ``key`` is that of a service account, which can sign deadlines, or None."""

    deleted = (200, 204)

    def __init__(self, config: StoreConfig, sign: Sign, url: str, key: Credentials | None) -> None:
        super().__init__(config, sign)
        self.url = url
        self.key = key

    def failure(self, status: int, headers: Mapping[str, str] | Message, text: str) -> HttpFailure:
        """See ``HttpClient``. A 404 without the service's JSON does not tell what is missing."""
        del headers
        code, message = "", text[:200] or f"HTTP {status}"
        if named := _CODE_IN_XML.search(text):
            details = " ".join(_TOLD_IN_XML.findall(text))
            code = usual_code(named[1], str(status), details)
            return HttpFailure(code, details or message, status)
        try:
            error: Any = json.loads(text)["error"]
            message = error.get("message") or message
            code = str((error.get("errors") or [{}])[0].get("reason") or "")
            if error_class(code) is StorageError:
                code = {404: "notFound", 412: "conditionNotMet"}.get(status, code)
        except (ValueError, LookupError, TypeError, AttributeError):
            # A 404 that is not the store's own does not prove that an object is missing.
            pass
        return HttpFailure(usual_code(code, str(status), message), message, status)

    def until(self, deadline: Deadline) -> Sign:
        """The signer of XML API requests without a query, by a deadline. Raises ConfigurationError.

        ``generate_signed_url`` of google-cloud-storage counts the end of a signature from the clock
        of this machine, and cannot sign for a time in the past, which a probe of a store needs.

        Format: https://cloud.google.com/storage/docs/authentication/canonical-requests
        """
        key = self.key
        if key is None:
            raise ConfigurationError(
                "only the key of a service account can sign for a deadline on Google Cloud Storage"
            )

        def sign(request: Request) -> None:
            begin, length = deadline.window()
            url = urlsplit(request.url)
            headers = {name.lower(): value for name, value in request.headers.items()}
            headers["host"] = url.netloc
            names = ";".join(sorted(headers))
            scope = f"{begin:%Y%m%d}/auto/storage/goog4_request"
            written = f"{begin:%Y%m%dT%H%M%SZ}"
            # The signature covers the parameters in the order of their names.
            query = urlencode(
                {
                    "X-Goog-Algorithm": _ALGORITHM,
                    "X-Goog-Credential": f"{key.service_account_email}/{scope}",
                    "X-Goog-Date": written,
                    "X-Goog-Expires": str(length),
                    "X-Goog-SignedHeaders": names,
                },
                quote_via=quote,
                safe="",
            )
            lines = [request.method, url.path, query]
            lines += [f"{name}:{value}" for name, value in sorted(headers.items())]
            lines += ["", names, "UNSIGNED-PAYLOAD"]
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            text = f"{_ALGORITHM}\n{written}\n{scope}\n{digest}"
            request.url += f"?{query}&X-Goog-Signature={key.sign_bytes(text.encode()).hex()}"

        return sign


@once_per_process("GOOGLE_", "GCLOUD_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST")
def open_service(config: StoreConfig) -> GcsService:
    """The service, shared while Google's variables do not change. Raises ConfigurationError."""
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    url = (config.gcs.endpoint or emulator or _ENDPOINT).rstrip("/")
    anonymous = url.startswith("http://") or (emulator is not None and config.gcs.endpoint is None)
    if anonymous:
        # Emulators ask for no credentials, and credentials are never sent without TLS.
        return GcsService(config, lambda _request: None, url, None)
    credentials = credentials_of(config.gcs.credentials_file)
    key = credentials if isinstance(credentials, Credentials) else None
    return GcsService(config, signer_of(credentials), url, key)


def credentials_of(file: str | None) -> Any:  # noqa: ANN401 - google-auth's, untyped
    """The credentials in a file, or the application default ones. Raises ConfigurationError."""
    try:
        if file is None:
            return default_credentials(scopes=[_SCOPE])[0]
        return Credentials.from_service_account_file(  # type: ignore[no-untyped-call]
            file, scopes=[_SCOPE]
        )
    except (DefaultCredentialsError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"no credentials for Google Cloud Storage: {error}. Set credentials_file, or make "
            "application default credentials (`gcloud auth application-default login`)"
        ) from error


def signer_of(credentials: Any) -> Sign:  # noqa: ANN401 - as above
    """Return a signer by credentials, which are renewed in time."""
    renewal = google.auth.transport.requests.Request()

    def sign(request: Request) -> None:
        try:
            # The call requests a new token when the last one is about to expire.
            credentials.before_request(renewal, request.method, request.url, request.headers)
        except GoogleAuthError as error:
            code = "ConnectionFailed" if _is_away(error) else "authError"
            raise HttpFailure(code, f"no token came: {error}") from error

    return sign


def _is_away(error: GoogleAuthError) -> bool:
    """True if the source of tokens gave no answer.

    Credentials of a machine wrap the failure of its metadata server, which has the answer as its
    second argument if there was one.
    """
    cause = error if isinstance(error, TransportError) else error.__cause__
    silent = isinstance(cause, TransportError) and len(cause.args) == 1
    return silent or bool(error.retryable)


def read_page(body: bytes, where: str) -> Page:
    """Read a page of a listing. Raises StorageError: it is no page, or contradicts itself."""
    try:
        page: Any = json.loads(body)
        token = next_page_token(page)
        prefixes = pa.array(page.get("prefixes", []), pa.string()).to_pylist()
        return Page(_objects(page.get("items", [])), prefixes, token)
    except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowInvalid) as error:
        raise damaged_page(where, error) from error


def next_page_token(page: Any) -> str | None:  # noqa: ANN401 - any JSON
    """The token of the next page of a listing. Raises ValueError and others: it is no page."""
    # An empty listing has no field but its kind; without it the answer is another server's.
    if page["kind"] != "storage#objects":
        raise ValueError(f"its kind is {page['kind']!r}")
    token = page.get("nextPageToken")
    if token is not None and not (token and isinstance(token, str)):
        raise ValueError(f"its token for the next page is {token!r}")
    return token


def read_object(body: bytes, where: str) -> tuple[ObjectInfo, Mapping[str, Any]]:
    """One object with its full key, and all metadata in an answer. Raises StorageError."""
    try:
        found = json.loads(body)
        (info,) = infos_in(_objects([found]))
    except (ValueError, LookupError, TypeError, pa.ArrowInvalid) as error:
        raise StorageError(
            f"{where}: the store's answer is damaged ({error!r}): check the endpoint and the "
            "proxies"
        ) from error
    return info, found


def _objects(items: list[Any]) -> pa.RecordBatch:
    columns = [[item[name] for item in items] for name in ("name", "size", "updated", "generation")]
    names, sizes, times, generations = columns
    written = pc.cast(pa.array(times, pa.string()), pa.timestamp("us", "UTC"))
    return objects_of(names, sizes, written, generations)
