"""The commented file that ``dg scaffold defs lakegc_assets.GarbageCollection`` writes."""

from __future__ import annotations

from typing import Any, Final

import dagster as dg

_FILE: Final = """\
type: {type}
attributes:
  # Names of variables, never secrets. What is left out comes from where lakectl takes it.
  lakefs:
    endpoint: https://lakefs.example.com
    # access_key_id_variable: LAKEFS_KEY
    # secret_access_key_variable: LAKEFS_SECRET

  # What all runs share; else LAKEGC_ARTIFACT_ROOT, or .lakegc/artifacts below the working folder.
  # stores:
  #   artifact_root: s3://my-bucket/lakegc
  #   backup_url: s3://backups/lakegc

  # Which repositories, by names or patterns.
  include: ["*"]
  # exclude: ["scratch-*"]

  # When a wave is due, as five cron fields.
  cron: "0 2 * * 0"
  # time_zone: Europe/Berlin

  # What follows a mark that nobody asked for: never a sweep; one when a person has approved it
  # (approved); or one at once where the limits of `auto` hold (auto).
  sweep: approved
  # auto: {{share: 0.2, required: backup or undo}}

  # Schedules and sensors are off until they are turned on in Dagster's interface, or here.
  running: false

  # What is different for some repositories; later entries win.
  # repositories:
  #   - include: ["analytics-*"]
  #     cron: "0 3 * * *"
  #     sweep: auto

  # Receivers of notices about runs that failed, marks that wait, stale repositories and lost waves.
  # notices:
  #   url_variable: LAKEGC_HOOK
  #   dagster_url: https://dagster.example.com
"""


class CollectionScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml`` with the fields that people change first, and what they mean."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file, or add to the one that is named; Python is written as Dagster does."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request)
            return
        text = _FILE.format(type=request.type_name)
        if request.append:
            with request.target_path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
            return
        (request.target_path / "defs.yaml").write_text(text, encoding="utf-8")
