"""``backup``: copies of what the mark names, before anything of it is deleted.

Reads: the published mark, and the objects that it names.
Writes: below ``backup_url``, one copy of each object, verified; what became of each (copied,
changed, missing, failed); and a manifest, last. Nothing where ``backup_url`` is not set.
Guarantees: a finished backup is never changed; a killed one goes on where it was; a sweep with
``backup_url`` deletes only what is verified in the backup of its own mark.
"""

from collections.abc import Iterator
from hashlib import sha256

import dagster as dg

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import of_backup
from lakegc_assets.defs.stages import stage
from lakegc_assets.recovery.backups import OUTCOMES
from lakegc_assets.sweep.leased_backup import back_up


@stage(columns=OUTCOMES, reads=("gc_report",), skippable=True)
def backup(execution: Execution) -> Iterator[dg.MaterializeResult[None]]:
    """Copies what the mark names to ``backup_url``, verifies each copy, and records it."""
    with execution.run_context() as ctx:
        record = back_up(ctx)
        url = ctx.settings.backup_url
        if record is None:
            execution.context.log.info("nothing is backed up: backup_url is not set")
            return
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(sha256(record.to_bytes()).hexdigest()),
        metadata=of_backup(record, url),
    )
