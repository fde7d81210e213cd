"""Copies of objects within a repository."""

from __future__ import annotations

from dataclasses import replace

from lakegc_assets.embedded import objects
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.objects import Found
from lakegc_assets.graveler.entry import AddressType


def copy(
    lake: Lake, repository: str, branch: str, path: str, *, source_ref: str, source_path: str
) -> Found:
    """Copy an object's data to a new address, and stage it at a path."""
    source = objects.get_entry(lake, repository, source_ref, source_path)
    moment = lake.now()
    address = lake.slices.new_address(repository, moment)
    lake.stores.write(source.repository, address, objects.content(lake, source), moment)
    entry = replace(
        source.entry,
        address=address,
        address_type=AddressType.RELATIVE,
        last_modified=objects.timestamp(moment),
    )
    return objects.stage_entry(lake, repository, branch, path, entry)
