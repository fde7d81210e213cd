"""Inventory reports: lists of all objects of a bucket that the store's service writes.

This module finds the report to read, by the kind of store of a namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakegc_assets.errors import RefusedError
from lakegc_assets.graveler.namespace import StorageNamespace
from lakegc_assets.storage.base import ObjectStore
from lakegc_assets.storage.inventory.azure import AzureInventory
from lakegc_assets.storage.inventory.gcs import GcsInventory
from lakegc_assets.storage.inventory.report import Report, ReportFile, ReportForm
from lakegc_assets.storage.inventory.s3 import S3Inventory

#: The service whose reports cover the namespaces of a scheme. No service writes reports about local
#: files; a program that does so writes them in S3's form.
_FORMS: Final[dict[str, ReportForm]] = {
    "s3": S3Inventory(), "azure": AzureInventory(), "gs": GcsInventory(), "local": S3Inventory()
}  # fmt: skip


@dataclass(frozen=True)
class Inventory:
    """The report to read about the bucket of a namespace, and its place. Picklable."""

    namespace: StorageNamespace
    place: str
    report: Report

    def rows(
        self, place: ObjectStore, file: ReportFile
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """The rows of one file of the report at ``place``. See ``ReportForm.rows``."""
        prefix = self.namespace.key("") if self.namespace.prefix else ""
        return _form(self.namespace).rows(place, self.report, file, prefix)


def newest_inventory(
    namespace: StorageNamespace, url: str, open_store: Callable[[str], ObjectStore]
) -> Inventory:
    """The newest complete report at a place, or the report that the place names.

    Raises RefusedError: no report can be used; and IntegrityError: its manifest is damaged.
    """
    form = _form(namespace)
    place, only = form.split(url.rstrip("/"))
    # Azure's authority is ``ACCOUNT.DOMAIN/CONTAINER``: the container is the source.
    report = form.newest(open_store(place), namespace.authority.rpartition("/")[2], only)
    return Inventory(namespace, place, report)


def _form(namespace: StorageNamespace) -> ReportForm:
    if namespace.scheme not in _FORMS:
        raise RefusedError(
            f"{namespace.url()}: inventory reports of this kind of store cannot be read; list the "
            "store (listing: store)"
        )
    return _FORMS[namespace.scheme]
