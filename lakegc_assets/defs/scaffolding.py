"""The commented file that ``dg scaffold defs lakegc_assets.GarbageCollection`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import dagster as dg

#: The text after the line with the type.
_TEMPLATE: Final = Path(__file__).with_name("scaffold.yaml")


class CollectionScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml`` with the fields that people change first, and their meaning."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file, or append to the named one; Dagster itself writes the Python form."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request)
            return
        text = f"type: {request.type_name}\n{_TEMPLATE.read_text(encoding='utf-8')}"
        if request.append:
            with request.target_path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
            return
        (request.target_path / "defs.yaml").write_text(text, encoding="utf-8")
