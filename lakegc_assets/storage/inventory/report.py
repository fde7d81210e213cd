"""An inventory report of any service: its start, its files, and its manifest as typed fields."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from lakegc_assets.errors import IntegrityError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.errors import ObjectNotFoundError

#: How the files of a report are written.
Encoding = Literal["csv", "parquet", "orc"]
ENCODINGS: Final[Mapping[str, Encoding]] = {"csv": "csv", "parquet": "parquet", "orc": "orc"}


@dataclass(frozen=True)
class ReportFile:
    """One file of a report, by its key relative to the place of the reports.

    Size and MD5 (in hex) are None where the manifest does not say.
    """

    key: str
    size: int | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Report:
    """A report that is complete, by its manifest. Picklable.

    Attributes:
        url: of its manifest, for messages.
        started: when the service began to look at the bucket, UTC: what was written later may be
            missing.
        source: name of the bucket or container that it is about.
        encoding: of its files.
        columns: names of the columns of files that have no header, in their order.
        files: all of them.
        rows: in all files together; None where the manifest does not say.
        delimiter: between the values of a CSV file.
    """

    url: str
    started: datetime
    source: str
    encoding: Encoding
    columns: Sequence[str]
    files: Sequence[ReportFile]
    rows: int | None = None
    delimiter: str = ","


class Document:
    """A manifest, whose fields are read with their types.

    Args:
        url: of the manifest, for messages.
        content: a JSON object.

    Raises:
        IntegrityError: it is none.
    """

    def __init__(self, url: str, content: bytes | Mapping[str, Any]) -> None:
        self.url = url
        try:
            values = json.loads(content) if isinstance(content, bytes) else content
        except ValueError as error:
            raise damaged(url, f"it is no JSON ({error})") from error
        if not isinstance(values, Mapping):
            raise damaged(url, "it is no JSON object")
        self._values = values

    def text(self, name: str) -> str:
        """A field that is a text. Raises IntegrityError."""
        value = self._values.get(name)
        if not isinstance(value, str) or not value:
            raise damaged(self.url, f"it has no text {name!r}")
        return value

    def number(self, name: str) -> int:
        """A field that is a whole number that is not negative. Raises IntegrityError."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise damaged(self.url, f"it has no number {name!r}")
        return value

    def flag(self, name: str) -> bool:
        """A field that is true, or false where it is missing. Raises IntegrityError."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise damaged(self.url, f"{name!r} is neither true nor false")
        return value

    def time(self, name: str) -> datetime:
        """A field that is a time with its zone, in ISO 8601. Raises IntegrityError."""
        text = self.text(name)
        try:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            raise damaged(self.url, f"{name!r} is {text!r}, which is no time")
        return found

    def texts(self, name: str) -> list[str]:
        """A field that is a list of texts. Raises IntegrityError."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise damaged(self.url, f"it has no list of texts {name!r}")
        return value

    def documents(self, name: str) -> list[Document]:
        """A field that is a list of objects. Raises IntegrityError."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise damaged(self.url, f"it has no list {name!r}")
        return [Document(self.url, one) for one in value]

    def document(self, name: str) -> Document:
        """A field that is an object. Raises IntegrityError."""
        return Document(self.url, self._values.get(name, ()))

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None


def damaged(url: str, problem: str) -> IntegrityError:
    """The error for a report that cannot be relied on."""
    return IntegrityError(
        f"the inventory report {url} is damaged: {problem}. Nothing of it is used: wait for the "
        "next one, name an older one (inventory_place), or list the store (listing: store)"
    )


def read_manifest(place: ObjectStore, key: str, checksum_key: str) -> Document | None:
    """A manifest whose MD5 is what the file beside it says; None where one of the two is missing.

    Args:
        place: of the reports.
        key: of the manifest.
        checksum_key: of the file with its MD5, in hex. The service writes it last.

    Raises:
        IntegrityError: the manifest is not what was written.
    """
    try:
        wanted = place.get(checksum_key)
        content = place.get(key)
    except ObjectNotFoundError:
        return None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    url = f"{place.url}/{key}"
    if wanted.decode("ascii", "replace").strip().lower() != found:
        raise damaged(url, f"its MD5 is {found}, and {checksum_key} says {wanted[:64]!r}")
    return Document(url, content)


def key_below(place: ObjectStore, key: str, url: str) -> str:
    """A key that the manifest at ``url`` names, relative to the place of the reports.

    Raises:
        IntegrityError: it lies elsewhere.
    """
    at = StorageNamespace.parse(place.url)
    folders = at.prefix.split("/") if at.prefix else []
    if not folders:
        return key
    # A folder of this machine has more folders around it than the bucket that it stands for.
    first = [0] if at.scheme in {"s3", "azure", "gs"} else range(len(folders))
    for begin in first:
        prefix = "/".join(folders[begin:]) + "/"
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    raise damaged(url, f"it names {key!r}, which does not lie at {place.url}")
