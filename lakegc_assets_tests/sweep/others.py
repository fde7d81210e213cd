"""Another repository of the server, which names objects of the one that is collected."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import md5

from lakegc_assets.embedded.lake import catalog
from lakegc_assets.embedded.objects import objects
from lakegc_assets.graveler.entry import AddressType, Entry
from lakegc_assets.graveler.ranges import write_metarange, write_range
from lakegc_assets.run.context import RunContext
from lakegc_assets_tests.lake import REPOSITORY, STAGES, SmallLake
from lakegc_assets_tests.lake import mark as mark_all
from lakegc_assets_tests.sessions import Session

OTHER = "other"


def make_other(lake: SmallLake, name: str = OTHER) -> None:
    lake.client.create_repository(name, f"local://{name}")


def forget(lake: SmallLake, name: str) -> None:
    with lake.server.lake.state.write() as db:
        catalog.delete_repository(db, name)


def name_it(
    lake: SmallLake, address: str, path: str = "x", branch: str = "main", of: str = OTHER
) -> None:
    """Let another repository stage an object of this one."""
    objects.stage_entry(lake.server.lake, of, branch, path, entry_of(address))


def entry_of(address: str) -> Entry:
    """An object of this repository as another one names it."""
    return Entry(
        address=address if "://" in address else f"local://{REPOSITORY}/{address}",
        size=1,
        # Else a second one at the same path would be no change to lakeFS.
        e_tag=md5(address.encode(), usedforsecurity=False).hexdigest(),
        address_type=AddressType.FULL,
        content_type="text/plain",
    )


def commit(lake: SmallLake, branch: str = "main", of: str = OTHER) -> str:
    return lake.client.commit_branch(of, branch, "a commit", allow_empty=True).id


def commit_it(lake: SmallLake, address: str) -> None:
    """Make another repository, which names an object of this one in a commit."""
    make_other(lake)
    name_it(lake, address)
    commit(lake)


def begin_import(lake: SmallLake, address: str, of: str = OTHER) -> None:
    """Write the range and the metarange of an import, as lakeFS does long before it commits."""
    info, data = write_range([("imported", entry_of(address))])
    folder = lake.server.objects_dir / of / "_lakefs"
    folder.mkdir(parents=True, exist_ok=True)
    for table_id, content in (info.id, data), write_metarange([info]):
        (folder / table_id).write_bytes(content)


def once_asked(lake: SmallLake, end: str, act: Callable[[], object]) -> list[str]:
    """Act before the first request is answered whose path ends so.

    Returns:
        That path, once it came.
    """
    seen: list[str] = []

    def see(_method: str, path: str) -> None:
        if not seen and path.endswith(end):
            # Seen from now on, so that the act's own calls pass.
            seen.append(path)
            act()

    lake.on_request = see
    return seen


def mark(
    lake: SmallLake,
    spark: Session,
    run: str = "again",
    *,
    publish: bool = False,
    **settings: object,
) -> RunContext:
    ctx = lake.context(spark, run, **settings)
    return mark_all(ctx, STAGES if publish else STAGES[:5])
