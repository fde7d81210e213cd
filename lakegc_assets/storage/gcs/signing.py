"""Requests to Google Cloud Storage whose signature ends at a deadline, made by a service account.

Only the XML API takes them.

Format: https://cloud.google.com/storage/docs/authentication/canonical-requests
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from google.oauth2.service_account import Credentials

from lakegc_assets.storage.deadlines import Deadline
from lakegc_assets.storage.http import Request, Sign

_ALGORITHM: Final = "GOOG4-RSA-SHA256"


def ending(credentials: Credentials, deadline: Deadline) -> Sign:
    """What signs a request, without a query, so that the service refuses it after a deadline."""

    def sign(request: Request) -> None:
        begin, length = deadline.window()
        url = urlsplit(request.url)
        headers = {name.lower(): value for name, value in request.headers.items()}
        headers["host"] = url.netloc
        names = ";".join(sorted(headers))
        scope = f"{begin:%Y%m%d}/auto/storage/goog4_request"
        written = f"{begin:%Y%m%dT%H%M%SZ}"
        # In the order of their names, which is signed.
        query = urlencode(
            {
                "X-Goog-Algorithm": _ALGORITHM,
                "X-Goog-Credential": f"{credentials.service_account_email}/{scope}",
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
        request.url += f"?{query}&X-Goog-Signature={credentials.sign_bytes(text.encode()).hex()}"

    return sign
