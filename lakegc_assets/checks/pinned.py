"""The invariant that nothing is deleted which was restored and is to stay, on a path of its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.checks.candidates import EXAMPLES
from lakegc_assets.checks.case import Case, CheckResult
from lakegc_assets.wording import counted

_NAME: Final = "none_pinned"
_PINS: Final = "_lakefs/retention/gc/lakegc/pins/"


def none_pinned(case: Case) -> CheckResult:
    """No candidate is pinned: what was restored stays until its pin ends."""
    found = case.among(list(_pinned(case)))
    facts = {"count": len(found)}
    if not len(found):
        return CheckResult(_NAME, True, blocking=True, summary="no candidate is pinned")
    summary = (
        f"{counted(len(found), 'candidate is', 'candidates are')} pinned, for example "
        f"{found.slice(0, EXAMPLES).to_pylist()}. "
        "If they were restored while the mark was made, mark again. Else please report it"
    )
    return CheckResult(_NAME, passed=False, blocking=True, summary=summary, facts=facts)


def _pinned(case: Case) -> Iterator[str]:
    """What is pinned now, by the store's clock; a pin that cannot be read is an error."""
    store = case.connections.store()
    now = store.server_time()
    for page in store.list(_PINS):
        for key in page["key"].to_pylist():
            content = pa.BufferReader(store.get(key))
            with pq.ParquetFile(content, page_checksum_verification=True) as file:
                until = datetime.fromisoformat(file.schema_arrow.metadata[b"until"].decode())
                if until > now:
                    yield from file.read(["address"])["address"].to_pylist()
