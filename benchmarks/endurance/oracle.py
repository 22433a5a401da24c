"""What the tables must hold, from what was sent: DuckDB reads the sender's file and the tables.

Nothing of the pipeline's code is used: the fate of a record is the one that it was made for, gold
comes from the oracle of the tests, and the tables are read by DuckDB's own extension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
from duckdb_extensions import import_extension
from tests.oracles.gold import Recomputation, columns_of, stored

# The stage of quarantine for the kinds that end there.
_STAGES = {
    "parse": "parse",
    "contract": "contract",
    "expectation": "expectation",
    "future": "future_event_time",
    "conflict": "conflicting_duplicate",
}
_COLUMNS = ("event_id", "user_id", "event_time", "action", "product_id", "value", "campaign")
_EVENTS = (
    "SELECT payload->>'event_id' AS event_id, payload->>'user_id' AS user_id, "
    "CAST(payload->>'event_time' AS TIMESTAMPTZ) AS event_time, "
    "lower(payload->>'action') AS action, payload->>'product_id' AS product_id, "
    "CAST(payload->>'value' AS DECIMAL(18,2)) AS value, payload->>'campaign' AS campaign "
    "FROM {} WHERE kind IN ('fresh', 'out of order') OR (kind = 'too late' AND number < {})"
)


def judge(
    root: Path, sent: Path, name: str, golds: list[Mapping[str, Any]], promoted: int
) -> dict[str, Any]:
    """Compare every table with what was sent.

    Args:
        root: The tables.
        sent: The sender's file.
        name: The pipeline.
        golds: Its gold tables, as in its file.
        promoted: The number of the first record that was sent after the promotion of the backfill,
            in which no row is late.

    Returns:
        Counts of ``sent`` and ``expected`` fates; ``lost`` and ``doubled`` rows, and ``different``
        ones, by table. A table that is right has zeros.
    """
    with duckdb.connect() as db:
        import_extension("delta", con=db)
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"CREATE VIEW sent AS SELECT * FROM read_parquet('{sent}')")
        for table in ("bronze", "silver", "late", "quarantine"):
            place = (
                f"silver/{name}__{table}" if table in ("late", "quarantine") else f"{table}/{name}"
            )
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM delta_scan('{root / place}')")
        db.execute(f"CREATE TABLE expected AS {_EVENTS.format('sent', promoted)}")
        kinds = dict(db.execute("SELECT kind, count(*) FROM sent GROUP BY 1").fetchall())
        tables = {
            "bronze": _multisets(
                db, "SELECT hash(payload) FROM sent", "SELECT hash(decode(payload)) FROM bronze"
            ),
            "silver": _multisets(db, "SELECT event_id FROM expected", "SELECT event_id FROM silver")
            | {"different": _different(db)},
            "late": _multisets(
                db,
                "SELECT payload->>'event_id' FROM sent "
                f"WHERE kind = 'too late' AND number >= {promoted}",
                "SELECT event_id FROM late",
            ),
            "quarantine": _multisets(
                db,
                f"SELECT {_staged()} FROM sent WHERE kind IN {tuple(_STAGES)}",
                "SELECT stage FROM quarantine",
            ),
        }
        accepted_late = db.execute(
            f"SELECT count(*) FROM sent WHERE kind = 'too late' AND number < {promoted}"
        ).fetchall()[0][0]
    tables |= _gold(root, sent, name, golds, promoted)
    return {
        "sent": kinds,
        "expected": _ledger(kinds, accepted_late),
        "tables": tables,
        "lost": sum(one["lost"] for one in tables.values()),
        "doubled": sum(one["doubled"] for one in tables.values()),
        "different": sum(one.get("different", 0) for one in tables.values()),
    }


def _ledger(kinds: Mapping[str, int], accepted_late: int) -> dict[str, Any]:
    """Give the terms that the ledger must show."""
    count = Counter(kinds)
    return {
        "source": sum(count.values()),
        "bronze": sum(count.values()),
        "silver": count["fresh"] + count["out of order"] + accepted_late,
        "duplicates": count["copy"] + count["old copy"],
        "late": count["too late"] - accepted_late,
        "filtered": count["filtered"],
        "quarantined": sum(count[kind] for kind in _STAGES),
        "quarantined_by_stage": {
            stage: count[kind] for kind, stage in _STAGES.items() if count[kind]
        },
    }


def _staged() -> str:
    cases = " ".join(f"WHEN '{kind}' THEN '{stage}'" for kind, stage in _STAGES.items())
    return f"CASE kind {cases} END"


def _multisets(db: duckdb.DuckDBPyConnection, wanted: str, found: str) -> dict[str, int]:
    """Count the values that are missing, and those that are there too often."""
    lost, doubled = db.execute(
        "SELECT coalesce(sum(greatest(w - f, 0)), 0), coalesce(sum(greatest(f - w, 0)), 0) FROM ("
        "SELECT v, sum(w) AS w, sum(f) AS f FROM "
        f"(SELECT v, 1 AS w, 0 AS f FROM ({wanted}) AS t(v) "
        f"UNION ALL SELECT v, 0, 1 FROM ({found}) AS t(v)) GROUP BY v)"
    ).fetchall()[0]
    return {"lost": int(lost), "doubled": int(doubled)}


def _different(db: duckdb.DuckDBPyConnection) -> int:
    """Count the rows of silver whose values are not those that were sent."""
    values = " OR ".join(f"s.{one} IS DISTINCT FROM e.{one}" for one in _COLUMNS)
    sql = f"SELECT count(*) FROM silver s JOIN expected e USING (event_id) WHERE {values}"
    return int(db.execute(sql).fetchall()[0][0])


def _gold(
    root: Path, sent: Path, name: str, golds: list[Mapping[str, Any]], promoted: int
) -> dict[str, dict[str, int]]:
    """Recompute each gold table, and count missing and surplus rows; a wrong row is both."""
    recomputation = Recomputation(root, name, {})
    recomputation.take(name, _EVENTS.format("given", promoted), ds.dataset(sent))
    found = {}
    for table in golds:
        wanted = Counter(recomputation.aggregate(name, table))
        there = Counter(stored(root / "gold" / str(table["name"]), columns_of(table)))
        lost, doubled = (wanted - there).total(), (there - wanted).total()
        found[f"gold.{table['name']}"] = {"lost": lost, "doubled": doubled}
    return found
