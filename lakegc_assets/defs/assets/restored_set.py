"""``restored_set``: what became of each object of a mark that was to come back.

Reads: the published mark; what the sweep recorded; and the backup, where ``backup_url`` is set.
Writes: first a pin in the namespace; then address, size (bytes), outcome (restored, already_there,
not_kept), source (store, backup), error_code, detail, at (UTC), below a folder for each restore.
Guarantees: nothing that is there is overwritten; one restore or sweep at a time; what was restored
is left alone by marks until its pin ends; a killed restore goes on where it was.
"""

import dagster as dg
from pydantic import Field

from lakegc_assets.defs.execution import Execution
from lakegc_assets.defs.metadata import materialization, of_restore
from lakegc_assets.defs.stages import stage
from lakegc_assets.recovery.restore.restored_set import restore
from lakegc_assets.recovery.restore.selection import Choice
from lakegc_assets.recovery.restore_record import RESTORED


class RestoreConfig(dg.Config):
    """The objects to restore: all of the mark, some addresses, or those that a branch shows."""

    everything: bool = Field(default=False, description="all that the mark names")
    addresses: list[str] = Field(default=[], description="objects, by their addresses")
    branch: str | None = Field(default=None, description="branch, tag or commit: what it shows")
    path: str | None = Field(default=None, description="only what is at this path of it")
    prefix: str | None = Field(default=None, description="only what is below this prefix of it")

    def choice(self) -> Choice:
        """As the core takes it.

        Raises:
            RefusedError: it contradicts itself.
        """
        return Choice(self.everything, tuple(self.addresses), self.branch, self.path, self.prefix)


# A backup is read, too, but it is no dependency: where none was made, Dagster would skip this step.
@stage(
    columns=RESTORED,
    reads=("swept_set",),
    config=RestoreConfig,
)
def restored_set(execution: Execution) -> dg.MaterializeResult[None]:
    """Brings back what was swept, pins it, and reads a sample through lakeFS."""
    asked = RestoreConfig(**execution.op_config)
    # What was swept comes back, also where nothing more is to be collected.
    with execution.run_context(excluded=True) as ctx:
        manifest = restore(ctx, asked.choice())
    return materialization(ctx.root, manifest, of_restore(manifest))
