"""Addresses for clients that write to the store themselves: handed out, and linked once."""

from __future__ import annotations

import secrets
from dataclasses import replace

from lakegc_assets.embedded import catalog, errors, objects
from lakegc_assets.embedded.lake import Lake
from lakegc_assets.embedded.objects import Found
from lakegc_assets.graveler.entry import Entry
from lakegc_assets.storage.errors import ObjectNotFoundError


def new_link_address(lake: Lake, repository: str, branch: str, path: str) -> str:
    """An address that an object may be written to and then linked from, once, for a while."""
    with lake.state.write() as db:
        repo = catalog.writable_repository(db, repository)
        catalog.branch(db, repo, branch)
        token = secrets.token_urlsafe(32)
        address = f"{lake.slices.new_address(repo.id, lake.now())},{token}"
        db.execute("DELETE FROM link_addresses WHERE expires <= ?", (lake.now(),))
        expires = lake.now() + lake.settings.grace_period
        db.execute(
            "INSERT INTO link_addresses VALUES (?, ?, ?, ?, ?)",
            (repo.id, branch, path, address, expires),
        )
    return repo.address(address)


def link(lake: Lake, repository: str, branch: str, path: str, entry: Entry) -> Found:
    """Stage what was written to an address from ``new_link_address``; 400 when it is not one."""
    with lake.state.read() as db:
        repo = catalog.repository(db, repository)
    relative = entry.address.removeprefix(repo.address(""))
    if relative == entry.address:
        raise errors.bad_request("bad address token (expired or invalid)")
    try:
        size = lake.stores.open(repo.namespace).head(relative).size
    except ObjectNotFoundError:
        raise errors.bad_request(f"no object was written to {entry.address}") from None
    if size != entry.size:
        raise errors.bad_request(f"the object at {entry.address} has {size} bytes")
    linked = replace(entry, address=relative, last_modified=objects.timestamp(lake.now()))
    return objects.stage_entry(lake, repository, branch, path, linked, link_address=relative)
