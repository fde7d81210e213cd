"""A lakeFS with local storage says where its files are on its own machine.

Recorded from lakeFS 1.84: with ``blockstore.local.path: /srv/lake`` the object ``data/x`` of the
namespace ``local://repo`` has the physical address ``local:///srv/lake/repo/data/x``, and so have
what it prepares for garbage collection; with ``path: lake`` it is ``local://lake/repo/data/x``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lakegc_assets.embedded.lake.catalog import Repository
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets_tests.defs.running import mark_outside
from lakegc_assets_tests.sessions import Session
from lakegc_assets_tests.site import Site


@pytest.mark.parametrize("name", ["absolute", "relative", "objects"])
def test_a_repository_is_collected(
    site: Site, spark: Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server says: a name of its own folders may be the repository's, too."""
    root = site.server.objects_dir.absolute()
    started_in = Path("lakefs", root.name) if name == "relative" else root

    def address(repository: Repository, relative: str) -> str:
        return f"local://{started_in / repository.place.authority}/{relative}"

    monkeypatch.setattr(Repository, "address", address)
    found = site.tell(name)
    shown = site.client.stat(name, "main", "a").physical_address
    assert shown == f"local://{started_in}/{name}/{found.live}"
    ctx = mark_outside(site, name, "m1", spark)
    sweep(ctx)

    def there() -> set[str]:
        return {one for one in vars(found).values() if (site.namespace(name) / one).exists()}

    assert there() == {found.live, found.staged, found.young, found.spared}
    restore(ctx, Choice(everything=True))
    assert there() == set(vars(found).values())
