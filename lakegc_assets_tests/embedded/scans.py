"""Runs of prepare_uncommited for the tests, with something done between any two pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from lakegc_assets.embedded.gc import prepare_uncommitted
from lakegc_assets.embedded.lake import Lake
from lakegc_assets_tests.embedded.api import Repo

Pages = list[dict[str, str]]


def pages(repo: Repo) -> Pages:
    """All pages of one run, over HTTP."""
    return _all(
        lambda token: repo.call(
            "POST",
            "/gc/prepare_uncommited",
            201,
            json={"continuation_token": token} if token else {},
        )
    )


def direct_pages(
    lake: Lake, repository: str, before_page: Callable[[int], object] = lambda _: None
) -> Pages:
    """All pages of one run, without HTTP; ``before_page`` is called with the number of each."""

    def call(token: str) -> dict[str, str]:
        before_page(len(found))
        return prepare_uncommitted(lake, repository, token)

    found: Pages = []
    return _all(call, found)


def files(objects_dir: Path, found: Pages) -> list[Path]:
    """The files that the pages name."""
    folders = {page["gc_uncommitted_location"] for page in found} - {""}
    return [
        file
        for folder in sorted(folders)
        for file in sorted((objects_dir / folder.removeprefix("local://")).iterdir())
    ]


def rows(objects_dir: Path, found: Pages) -> dict[str, int]:
    """Address to creation date, of all files that the pages name."""
    read: dict[str, int] = {}
    for file in files(objects_dir, found):
        table = pq.read_table(io.BytesIO(file.read_bytes()))
        assert table.column_names == ["physical_address", "creation_date"]
        read.update(dict(zip(*table.to_pydict().values(), strict=True)))
    return read


def _all(call: Callable[[str], dict[str, str]], found: Pages | None = None) -> Pages:
    found = [] if found is None else found
    found.append(call(""))
    while token := found[-1].get("continuation_token"):
        found.append(call(token))
    return found
