"""Find why the next run of a hop would be refused, as that run does, without Spark or a lock.

This is the check of the rule ``hop_refused``; with :mod:`.alerts` the file would exceed 500 lines.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tidelake.config import FilesSource
from tidelake.delta.tables import Hop, Table
from tidelake.errors import RefusedError
from tidelake.ledger.history import offered_files, require_tables
from tidelake.runtime.checkpoints import (
    CheckpointGuard,
    open_generation,
    ordered_inputs,
    replaced_sides,
)
from tidelake.runtime.landed_files import refuse_changed

if TYPE_CHECKING:
    from tidelake.ops.alerts import AlertContext

# While a run commits, table and checkpoint disagree for a moment.
_ATTEMPTS, _PAUSE_SECONDS = 3, 0.3


def refusal_of(context: AlertContext, hop: Hop, tables: list[Table]) -> Exception | None:
    """Return the error that would stop the hop's next run; None if it would continue.

    An error counts only if several attempts all raise it: a run may be writing the table while
    the checkpoint is read.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            _refuse_mismatch(context, hop, tables)
            return None
        except (RefusedError, OSError, ValueError, KeyError) as error:
            found = error
    return found


def _refuse_mismatch(context: AlertContext, hop: Hop, tables: list[Table]) -> None:
    """Compare tables and checkpoint as a starting run does; a RefusedError if they disagree."""
    lake, name, source = context.lake, context.pipeline.name, context.pipeline.source
    if hop == "bronze":
        require_tables(lake, name)
    folder, inputs = lake.checkpoints(name, hop), lake.hop_inputs(context.pipeline, hop)
    fence = open_generation(name, hop, tables, folder)
    checkpoint = folder / fence.generation
    # The next run fills the others before it compares anything.
    filled = tuple(table for table in tables if table.name not in fence.unfilled)
    guard = CheckpointGuard(fence, checkpoint, filled, ordered_inputs(checkpoint, inputs))
    guard.refuse_rewritten()
    if hop == "silver":
        guard.refuse_mismatch(lambda one: replaced_sides(lake, name, one) if one else "")
        if context.pipeline.enrich:
            # Imported here: it loads PySpark.
            from tidelake.runtime.lookups import refuse_replaced  # noqa: PLC0415

            refuse_replaced(lake, context.pipeline)
    guard.refuse_mismatch(guard.offset_mismatch)
    if hop == "bronze" and isinstance(source, FilesSource):
        # The files of a folder that cannot be listed cannot be compared.
        refuse_changed(offered_files(context.pipeline) or {}, context.backlogs.taken_files())
