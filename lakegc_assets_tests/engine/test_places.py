"""The package asks Spark for nothing that only a classic session in this process has."""

from __future__ import annotations

import re
from pathlib import Path

import lakegc_assets

#: ``sparkContext`` and what hangs on it, which Spark Connect lacks, and what is private.
_CLASSIC = re.compile(r"sparkContext|\.parallelize\(|\.rdd\b|_jvm\b|_jsc\b|_jdf\b|_gateway\b")


def test_nothing_needs_a_spark_context() -> None:
    package = Path(lakegc_assets.__file__).parent
    lines = (
        (path.relative_to(package), number, line)
        for path in sorted(package.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
    )
    assert [found for found in lines if _CLASSIC.search(found[2])] == []
