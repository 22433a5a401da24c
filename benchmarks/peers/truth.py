"""The expected tables, computed by DuckDB from the landed files, and the comparison with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension

_SCHEMA = (
    "{event_id: 'VARCHAR', user_id: 'VARCHAR', event_time: 'VARCHAR', action: 'VARCHAR', "
    "product_id: 'VARCHAR', value: 'DECIMAL(18,2)'}"
)
_SILVER = "event_id, user_id, epoch_us({time}) AS event_time, action, product_id, value"
_GOLD = "epoch_us({time}) AS window_start, user_id, events::BIGINT AS events, total"


@dataclass(frozen=True)
class Tables:
    """Paths of a side's two tables: a Delta table's folder, or a pattern of Parquet files."""

    silver: str
    gold: str

    @classmethod
    def of(cls, side: str, out: Path) -> Tables:
        """Return the paths that a side's program writes."""
        if side == "tidelake":
            return cls(str(out / "silver" / "clicks"), str(out / "gold" / "user_minutes"))
        files = "/part-*" if side == "flink" else ""
        return cls(f"{out}/silver{files}", f"{out}/gold{files}")


def check(files: Sequence[Path], sides: dict[str, Tables], *, history: str = "") -> str:
    """Compare each side's tables with those computed from the landed files.

    Args:
        files: All landed files.
        sides: The tables of each side, by name.
        history: A condition that selects silver's rows of the history, which are in no file.

    Returns:
        A description of the comparison.

    Raises:
        AssertionError: A table differs.
    """
    with _truth(files) as connection:
        counts = connection.execute(
            "SELECT (SELECT count(*) FROM silver), (SELECT count(*) FROM gold)"
        ).fetchone()
        assert counts is not None
        for name, tables in sides.items():
            without = f"WHERE NOT ({history})" if history else ""
            for table, columns, time, where in (
                ("silver", _SILVER, "event_time", without),
                ("gold", _GOLD, "window_start", ""),
            ):
                place = getattr(tables, table)
                reader = "read_parquet" if "*" in place else "delta_scan"
                held = f"SELECT {columns.format(time=time)} FROM {reader}('{place}') {where}"
                wrong = connection.execute(
                    f"SELECT (SELECT count(*) FROM (FROM {table} EXCEPT ALL ({held}))), "
                    f"(SELECT count(*) FROM (({held}) EXCEPT ALL FROM {table}))"
                ).fetchone()
                assert wrong == (0, 0), f"{name}.{table}: (missing, extra) rows are {wrong}"
    return (
        f"silver ({counts[0]:,} rows) and gold ({counts[1]:,} rows) of {', '.join(sides)} equal "
        "what DuckDB computes from the landed files"
    )


@contextmanager
def _truth(files: Sequence[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    try:
        import_extension("delta", con=connection)
        connection.execute("SET TimeZone = 'UTC'")
        listed = ", ".join(f"'{file}'" for file in files)
        connection.execute(
            f"""CREATE TABLE silver AS
            SELECT event_id, user_id, epoch_us(event_time::TIMESTAMPTZ) AS event_time,
                lower(action) AS action, product_id, value
            FROM read_json([{listed}], format = 'newline_delimited', columns = {_SCHEMA})
            QUALIFY row_number() OVER (PARTITION BY event_id) = 1"""
        )
        connection.execute(
            """CREATE TABLE gold AS
            SELECT event_time // 60000000 * 60000000 AS window_start, user_id,
                count(*) AS events, sum(value) AS total
            FROM silver GROUP BY ALL"""
        )
        yield connection
    finally:
        connection.close()
