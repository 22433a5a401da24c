"""Write down what a verification saw, so that a later one can tell whether it still holds.

A certificate has no row of any table in it: counts, sums of hashes, versions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import tidelake
from tidelake.config import Pipeline
from tidelake.delta.access import load
from tidelake.delta.notes import erasure_of, hash_of
from tidelake.errors import UsageError
from tidelake.instants import from_json
from tidelake.ops.books import history
from tidelake.replay.verify import Verification
from tidelake.replay.verify.bronze import SHAPE as BRONZE
from tidelake.replay.verify.contents import Difference, Told, sums_of
from tidelake.replay.verify.silver import EVENTS
from tidelake.runtime.hop import Run

_FORMAT = 1


def certify(verification: Verification, pipeline: Pipeline) -> dict[str, Any]:
    """Give a verification's certificate."""
    now = datetime.now(UTC)
    return {
        "format": _FORMAT,
        "pipeline": verification.pipeline,
        "equal": verification.equal,
        "made_at": now.isoformat(),
        "since": verification.since.isoformat() if verification.since else None,
        "tidelake": tidelake.__version__,
        "code": _code(),
        "definition": hash_of(pipeline),
        "tables": {
            one.table.name: {
                "version": one.version,
                "equal": one.comparison.equal,
                "rows": one.comparison.rows,
                "differing": one.comparison.differing,
                "columns": list(one.comparison.columns),
                "groups": {
                    group: [count, str(total)]
                    for group, (count, total) in sorted(one.comparison.sums.items())
                },
            }
            for one in verification.tables
        },
    }


def read_certificate(path: Path, pipeline: str) -> dict[str, Any]:
    """Read an earlier certificate.

    Raises:
        UsageError: It is none, or of another pipeline.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a certificate: {error}") from error
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        raise UsageError(f"{path} is no certificate of this version's. Give another name.")
    if told["pipeline"] != pipeline:
        raise UsageError(f"{path} is a certificate of {told['pipeline']}, not of {pipeline}.")
    return told


def changed_since(run: Run, earlier: Mapping[str, Any]) -> dict[str, list[Difference]]:
    """Name the groups of rows that a certificate saw and that are not the same any more.

    Bronze and silver only grow, so that what they held then must still be there. Other tables
    change with each batch, and silver is another one after a rebuild: those are judged by their
    recomputation alone.

    Args:
        run: What the command works with.
        earlier: From :func:`read_certificate`.

    Returns:
        By table.

    Raises:
        UsageError: Rows that it saw were erased since, so that they cannot be told from lost ones.
    """
    name, made_at = run.pipeline.name, from_json(earlier["made_at"])
    bronze, silver = run.lake.bronze(name), run.lake.silver(name)
    told = earlier["tables"]
    version = told[bronze.name]["version"]
    if any(erasure_of(commit) for commit in history(run.lake, bronze) if commit.version > version):
        raise UsageError(
            f"the certificate was made at {earlier['made_at']}, and rows of {name} were erased "
            "since. Write a new one: give another file."
        )
    kept = {bronze: (F.col("ingested_at") <= F.lit(made_at), BRONZE)}
    closing = [commit for commit in history(run.lake, silver) if commit.batch >= 0]
    seen = [commit for commit in closing if commit.version <= told[silver.name]["version"]]
    if seen:
        # A rebuilt table has no commit from before.
        kept[silver] = F.col("_batch") <= seen[0].batch, EVENTS
    since = from_json(earlier["since"])
    if since is not None:
        arrived = F.col("ingested_at") >= F.lit(since)
        kept = {table: (then & arrived, shape) for table, (then, shape) in kept.items()}
    found = {}
    for table, (then, shape) in kept.items():
        rows = load(run.spark, table).where(then)
        sums = sums_of(rows.select(*told[table.name]["columns"]), shape)
        found[table.name] = _changed(told[table.name]["groups"], sums)
    return found


def _changed(told: Mapping[str, Sequence[Any]], found: Told) -> list[Difference]:
    then = {group: (int(count), int(total)) for group, (count, total) in told.items()}
    off = [group for group in sorted(then | dict(found)) if then.get(group) != found.get(group)]
    return [
        Difference(
            "changed since",
            {"group": group},
            {"rows": (then.get(group, (0, 0))[0], found.get(group, (0, 0))[0])},
        )
        for group in off
    ]


@cache
def _code() -> str:
    """Give a hash of the code that judged."""
    home = Path(tidelake.__file__).parent
    files = sorted(home.rglob("*.py"))
    content = b"".join(str(f.relative_to(home)).encode() + f.read_bytes() for f in files)
    return hashlib.sha256(content).hexdigest()
