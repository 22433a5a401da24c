"""Write and check certificates: what a verification found equal, as counts and sums of hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tidelake
from tidelake.config import Pipeline
from tidelake.delta.access import load
from tidelake.delta.append import types_of
from tidelake.delta.commit_metadata import erasure_of, pipeline_hash
from tidelake.errors import UsageError
from tidelake.instants import from_json
from tidelake.ledger.history import history
from tidelake.names import logical_name
from tidelake.replay.compare import RowDifference, by_group, sums_of
from tidelake.replay.verify_silver import EVENTS, RECORDS
from tidelake.runtime.hop import Run
from tidelake.silver.search_bounds import with_id_hash

if TYPE_CHECKING:
    from tidelake.replay.verify import Verification

_FORMAT = 2


class CertifiedTable(msgspec.Struct):
    """A table in a certificate: its version, its columns' types, and its rows by group.

    ``id`` is Delta's, None if its log did not have it; ``groups`` has the count and the sum of the
    hashes.
    """

    id: str | None
    version: int
    columns: dict[str, str]
    groups: dict[str, tuple[int, str]]


class Certificate(msgspec.Struct):
    """What a later :func:`verify` reads of a certificate; instants are UTC."""

    pipeline: str
    made_at: datetime
    since: datetime | None
    tables: dict[str, CertifiedTable]


def certify(verification: Verification, pipeline: Pipeline) -> dict[str, Any]:
    """Return a certificate of equal tables: versions, counts and sums of hashes, no values.

    A later :func:`verify` checks that the tables still hold these rows.
    """
    home = Path(tidelake.__file__).parent
    files = sorted(home.rglob("*.py"))
    code = b"".join(str(f.relative_to(home)).encode() + f.read_bytes() for f in files)
    return {
        "format": _FORMAT,
        "pipeline": verification.pipeline,
        "equal": True,
        "made_at": datetime.now(UTC).isoformat(),
        "since": verification.since.isoformat() if verification.since else None,
        "tidelake": tidelake.__version__,
        "code": hashlib.sha256(code).hexdigest(),
        "definition": pipeline_hash(pipeline),
        "tables": {
            one.table.name: {
                "id": one.table.id,
                "version": one.version,
                "rows": one.comparison.rows,
                "columns": dict(one.comparison.columns),
                "groups": {
                    group: [count, str(total)]
                    for group, (count, total) in sorted(one.comparison.sums.items())
                },
            }
            for one in verification.tables
        },
    }


def read_certificate(path: Path, pipeline: str) -> Certificate:
    """Read an earlier certificate.

    Raises:
        UsageError: The file is not a certificate of this format and pipeline.
    """
    another = "Give another file with --certificate."
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
            raise UsageError(
                f"{path} is not a certificate of this Tidelake version; an earlier one computed "
                f"other sums. {another}"
            )
        certificate = msgspec.convert(stored, Certificate)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a certificate: {error}. {another}") from error
    if certificate.pipeline != pipeline:
        raise UsageError(
            f"{path} is a certificate of {certificate.pipeline}, not of {pipeline}. {another}"
        )
    for layer in ("bronze", "silver"):
        if (table := logical_name(layer, pipeline)) not in certificate.tables:
            raise UsageError(f"{path} is not a certificate: it lacks {table}. {another}")
    return certificate


def changed_since(run: Run, earlier: Certificate) -> dict[str, list[RowDifference]]:
    """List by table the groups of rows that have changed since a certificate was written.

    Bronze and silver only grow, so their rows must still exist; a column may have a wider type by
    now. Other tables change with each batch, and a rebuild replaces silver: those are only compared
    with their recomputation.

    Raises:
        UsageError: Rows were erased since then, which look the same as lost rows.
    """
    name, certified = run.pipeline.name, earlier.tables
    bronze, silver = run.lake.bronze(name), run.lake.silver(name)
    version = certified[bronze.name].version
    taken = history(run.lake, bronze)
    if any(erasure_of(commit) for commit in taken if commit.version > version):
        raise UsageError(
            f"the certificate was made at {earlier.made_at.isoformat()}, and rows of {name} were "
            "erased after that. Write a new certificate: give another file with --certificate."
        )
    # Later batches may have come before the certificate was complete.
    arrivals = (
        from_json(commit.note.get("ingested_at")) for commit in taken if commit.version <= version
    )
    until = max((arrived for arrived in arrivals if arrived), default=earlier.made_at)
    kept = {bronze: (F.col("ingested_at") <= F.lit(until), RECORDS)}
    closing = [commit for commit in history(run.lake, silver) if commit.batch >= 0]
    seen = [commit for commit in closing if commit.version <= certified[silver.name].version]
    ids = {certified[silver.name].id, silver.id} - {None}
    if seen and len(ids) < 2:
        # After a rebuild there is no such commit, or the table is another one.
        kept[silver] = F.col("_batch") <= seen[0].batch, EVENTS
    found = {}
    for table, (condition, shape) in kept.items():
        rows = load(run.spark, table).where(condition)
        if table == silver:
            rows = with_id_hash(rows)
        if earlier.since is not None:
            rows = rows.where(F.col("ingested_at") >= F.lit(earlier.since))
        after = by_group(sums_of(_as_certified(rows, certified[table.name].columns), shape))
        before = {
            group: (count, int(total))
            for group, (count, total) in certified[table.name].groups.items()
        }
        found[table.name] = [
            RowDifference("changed since", {"group": group}, {"rows": (then[0], now[0])})
            for group in sorted(before | after)
            if (then := before.get(group, (0, 0))) != (now := after.get(group, (0, 0)))
        ]
    return found


def _as_certified(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Select columns in the types that they had: a hash depends on the type."""
    types = types_of(rows.schema)
    selected = []
    for name, kind in columns.items():
        column = F.col(name) if name in types else F.lit(None)
        selected.append(column if types.get(name) == kind else column.try_cast(kind).alias(name))
    return rows.select(*selected)
