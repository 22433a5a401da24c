"""Rules on whether each hop would go on: its generation, its checkpoint, work left half done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from tidelake.config import FilesSource
from tidelake.delta.locks import is_put_back
from tidelake.delta.log import last_commit
from tidelake.delta.tables import Hop, Table
from tidelake.errors import GenerationError, RefusedError, SourceError
from tidelake.folders import Folder
from tidelake.ops.alerts.alert import Alert
from tidelake.ops.alerts.sight import Sight, lasting
from tidelake.runtime.checkpoints import CheckpointGuard, open_generation
from tidelake.runtime.landing import check_landing

# A run that commits just now lets table and checkpoint look apart.
_LOOKS, _LOOK_SECONDS = 3, 0.3
# Where the message of a refusal comes to what an alert has in its own place.
_REMEDY = ". Nothing was written"


def hop_refused(seen: Sight) -> Iterator[Alert]:
    """Tell which hops would refuse to go on, without starting them."""
    lake, name = seen.lake, seen.name
    if lake.erasure(name).exists():
        what = f"an erasure of {name} has begun and not ended"
        yield _refused(seen, what, "erase", options="--subject COLUMN=VALUE")
    if lake.swap(name).exists():
        what = f"a swap of {name}'s tables has begun and not ended"
        back = is_put_back(lake, name)
        yield _refused(seen, what, f"backfill {'rollback' if back else 'promote'}")
    for hop, tables in seen.closing().items():
        refusal = _refusal(seen, hop, tables)
        if isinstance(refusal, GenerationError):
            what = str(refusal).partition(_REMEDY)[0]
            yield _refused(seen, what, "repair", options=f"--hop {hop}", hop=hop)
        elif refusal is not None:
            yield _refused(seen, " ".join(str(refusal).split()), "check", hop=hop)


def checkpoint_failing(seen: Sight) -> Iterator[Alert]:
    """Tell where a batch is in the tables for minutes and its checkpoint does not close it."""
    limit = seen.limits.checkpoint_failing
    if limit is None:
        return
    for hop, tables in seen.closing().items():
        lasts = [last_commit(table) for table in tables]
        closed = [one for one in lasts if one is not None and one.batch >= 0]
        if len(closed) < len(tables):
            continue
        batch = min(one.batch for one in closed)
        held_since = max(one.written_at for one in closed)
        checkpoint = seen.lake.checkpoints(seen.name, hop) / closed[0].generation
        commits = checkpoint / "commits"
        # Of one that is gone, the hop's own refusal tells, with another remedy.
        if not checkpoint.exists() or _newest(commits) >= batch:
            continue
        waited = seen.now - held_since
        if waited > limit:
            yield seen.alert(
                "checkpoint_failing",
                "critical",
                f"batch {batch} is in the tables for {lasting(waited)} and its checkpoint does "
                "not say so: the run was killed then, or cannot write there",
                "run",
                hop=hop,
                since=held_since,
            )


def _refused(
    seen: Sight, what: str, command: str, *, options: str = "", hop: Hop | None = None
) -> Alert:
    return seen.alert("hop_refused", "critical", what, command, options=options, hop=hop)


def _refusal(seen: Sight, hop: Hop, tables: list[Table]) -> Exception | None:
    """Give what a hop would stop with; None where it would go on.

    A refusal counts where it stands through several looks: table and checkpoint are two places,
    and a run may be writing the one while the other is read.
    """
    found: Exception | None = None
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_SECONDS)
        try:
            _stand(seen, hop, tables)
        except (RefusedError, OSError, ValueError, KeyError) as error:
            found = error
        else:
            return None
    return found


def _stand(seen: Sight, hop: Hop, tables: list[Table]) -> None:
    """Hold table and checkpoint together, as a run does first.

    Raises:
        RefusedError: They do not fit, or what was read already has changed.
    """
    lake, name, source = seen.lake, seen.name, seen.pipeline.source
    folder = lake.checkpoints(name, hop)
    fence = open_generation(name, hop, tables, folder)
    standing = CheckpointGuard(fence, folder / fence.generation, tuple(tables), _inputs(seen, hop))
    standing.refuse_rewritten()
    standing.refuse_mismatch(standing.offset_mismatch)
    if hop == "bronze" and isinstance(source, FilesSource):
        try:
            check_landing(source.path, seen.taken.by_path())
        except SourceError:
            # Nothing lands, which is no refusal of what was taken.
            return


def _inputs(seen: Sight, hop: Hop) -> Mapping[str, Table]:
    from tidelake.runtime.gold_target import inputs_of  # noqa: PLC0415

    lake, name = seen.lake, seen.name
    if hop == "silver":
        return {"bronze": lake.bronze(name), "requeue": lake.requeue(name)}
    return inputs_of(lake, seen.pipeline) if hop == "gold" else {}


def _newest(folder: Folder) -> int:
    return max(
        (int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()), default=-1
    )
