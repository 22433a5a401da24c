"""Gold recomputed in DuckDB, from the very files of silver that gold has consumed.

Nothing of the pipeline's code is used: the definition comes as plain YAML, the position from the
note of gold's commit, and silver's files from the JSON of its log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
from duckdb_extensions import import_extension

Row = tuple[Any, ...]

_MICROS = timedelta(microseconds=1)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_MEASURES = {
    "count": "count({0})",
    "count_if": "count(*) FILTER ({0})",
    "sum": "sum({0})",
    "min": "min({0})",
    "max": "max({0})",
    "avg": "avg({0})",
    "first": "first({0} ORDER BY event_time, event_id)",
    "last": "last({0} ORDER BY event_time, event_id)",
    "approx_count_distinct": "count(DISTINCT {0})",
}


def consumed(gold: Path) -> dict[str, tuple[int, int]]:
    """Read from a gold table's newest note how far it has come in each input."""
    for file in sorted((gold / "_delta_log").glob("*.json"), reverse=True):
        for line in file.read_text().splitlines():
            text = json.loads(line).get("commitInfo", {}).get("userMetadata")
            note = json.loads(text).get("tidelake", {}) if text else {}
            if "batch" in note and json.loads(line)["commitInfo"]["operation"] != "OPTIMIZE":
                return {key: (at[0], at[1]) for key, at in note.get("until", {}).items()}
    raise AssertionError(f"{gold} has no note")


def files_until(table: Path, position: tuple[int, int]) -> list[str]:
    """List the files of a table that only grew, up to a position."""
    version, index = position
    found: list[str] = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        adds = [a["add"]["path"] for a in actions if a.get("add", {}).get("dataChange")]
        if int(file.stem) < version:
            found += adds
        elif int(file.stem) == version:
            found += adds[: index + 1]
    return [str(table / unquote(path)) for path in found]


class Recomputation:
    """Silver as gold has consumed it, asked for each table anew."""

    def __init__(self, root: Path, pipeline: str, inputs: Mapping[str, tuple[int, int]]) -> None:
        """Open the inputs."""
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        for key, position in inputs.items():
            name = pipeline if key == "silver" else key.removeprefix("silver.")
            files = files_until(root / "silver" / name, position)
            self._connection.execute(
                f"CREATE TABLE {name} AS SELECT * REPLACE "
                "(CAST(event_time AS TIMESTAMPTZ) AS event_time) "
                "FROM read_parquet($1, union_by_name = true)"
                if files
                else f"CREATE TABLE {name} AS {_nothing(root / 'silver' / name)}",
                [files] if files else [],
            )

    def take(self, pipeline: str, sql: str, given: Any) -> None:
        """Make the events of a query over a table of Arrow, named ``given``, a pipeline's."""
        self._connection.register("given", given)
        self._connection.execute(f"CREATE TABLE {pipeline} AS {sql}")

    def rows(self, pipeline: str, columns: list[str]) -> list[Row]:
        """Give columns of the events."""
        return self._ask(f"SELECT {', '.join(columns)} FROM {pipeline}")

    def aggregate(self, pipeline: str, table: Mapping[str, Any]) -> list[Row]:
        """Give bounds, keys, measures and derived columns of each row of a gold table."""
        window, keys = table["window"], table.get("keys", [])
        events = f"SELECT * FROM {pipeline} WHERE {table.get('where', 'true')}"
        grouping = [f'"{key}"' for key in keys]
        kind = window["kind"]
        if kind in ("tumbling", "hopping"):
            events, bounds = _windows(events, window), ["window_start", "window_end"]
            grouping = [*bounds, *grouping]
        elif kind == "session":
            events = _sessions(events, _micros(window["gap"]), grouping)
            bounds = ["min(event_time)", "max(event_time)"]
        else:
            bounds = []
        measures = [
            f'{_MEASURES[aggregate].format(sql)} AS "{name}"'
            for name, body in table["measures"].items()
            for aggregate, sql in body.items()
        ]
        shown = [*bounds, *[f'"{key}"' for key in keys], *measures]
        inside = [*grouping, *(["_session"] if kind == "session" else [])]
        rows = f"SELECT {', '.join(shown)} FROM ({events}) GROUP BY {', '.join(inside)}"
        derived = "".join(f", {sql}" for sql in table.get("derive", {}).values())
        return self._ask(f"SELECT *{derived} FROM ({rows})")

    def join(self, pipeline: str, table: Mapping[str, Any]) -> list[Row]:
        """Give the columns of both sides of each row of a join."""
        left, right, keys = table["left"], table["right"], table["on"]
        same = " AND ".join(f'l."{key}" = r."{key}"' for key in keys)
        brought = [f"{sql} AS {name}" for name, sql in right["columns"].items()]
        given = [f"{sql} AS {name}" for name, sql in left["columns"].items()]
        lookup = (
            f"SELECT * FROM (SELECT *, {', '.join(brought)} FROM {right['pipeline']} "
            f"WHERE {right.get('where', 'true')}) r WHERE {same} "
            f"AND epoch_us(r.event_time) - epoch_us(l.event_time) "
            f"BETWEEN 0 AND {_micros(table['within'])} "
            "ORDER BY r.event_time, r.event_id LIMIT 1"
        )
        columns = [*(f"l.{name}" for name in left["columns"])]
        columns += [f"m.{name}" for name in right["columns"]]
        how = "LEFT" if table.get("type", "left") == "left" else "INNER"
        return self._ask(
            f"SELECT {', '.join(columns)} FROM (SELECT *, {', '.join(given)} FROM {pipeline} "
            f"WHERE {left.get('where', 'true')}) l {how} JOIN LATERAL ({lookup}) m ON true"
        )

    def _ask(self, sql: str) -> list[Row]:
        return self._connection.execute(sql).fetchall()


def stored(table: Path, columns: list[str]) -> list[Row]:
    """Read columns of a Delta table."""
    with duckdb.connect() as connection:
        import_extension("delta", con=connection)
        connection.execute("SET TimeZone = 'UTC'")
        names = ", ".join(f'"{name}"' for name in columns)
        return connection.execute(f"SELECT {names} FROM delta_scan('{table}')").fetchall()


def columns_of(table: Mapping[str, Any]) -> list[str]:
    """Name what :class:`Recomputation` gives of a gold table, in its order."""
    if "left" in table:
        return [*table["left"]["columns"], *table["right"]["columns"]]
    kind = table["window"]["kind"]
    bounds = {"session": ["session_start", "session_end"], "global": []}
    first = bounds.get(kind, ["window_start", "window_end"])
    return [*first, *table.get("keys", []), *table["measures"], *table.get("derive", {})]


def _nothing(table: Path) -> str:
    file = next(table.glob("*.parquet"))
    return f"SELECT * FROM read_parquet('{file}') WHERE false"


def _micros(duration: str) -> int:
    number, unit = duration.split()
    return int(number) * _UNITS[unit.rstrip("s")] * 1_000_000


def _windows(events: str, window: Mapping[str, Any]) -> str:
    size = _micros(window["size"])
    slide = _micros(window.get("slide", window["size"]))
    offset = _micros(window.get("offset", "0 seconds"))
    last = f"({slide} * ((epoch_us(event_time) - {offset}) // {slide}) + {offset})"
    starts = f"unnest(generate_series({last}, epoch_us(event_time) - {size} + 1, -{slide}))"
    return (
        f"SELECT *, make_timestamptz(_at) AS window_start, "
        f"make_timestamptz(_at + {size}) AS window_end FROM (SELECT *, {starts} AS _at "
        f"FROM ({events}))"
    )


def _sessions(events: str, gap: int, keys: list[str]) -> str:
    by = f"PARTITION BY {', '.join(keys)} ORDER BY event_time, record_id"
    starts = (
        f"SELECT *, CASE WHEN epoch_us(event_time) - lag(epoch_us(event_time)) OVER ({by}) "
        f"<= {gap} THEN 0 ELSE 1 END AS _starts FROM ({events})"
    )
    return (
        f"SELECT *, sum(_starts) OVER ({by} ROWS UNBOUNDED PRECEDING) AS _session FROM ({starts})"
    )
