"""Read the dashboard, and the columns that its queries may name: those of the models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.qualify import qualify

from tests.bundle.project import PROJECT
from tidelake.config import load_environment, load_pipeline
from tidelake.config.locations import pipeline_names
from tidelake.config.standard_tables import BOOKS_COLUMNS as BOOKS

FILE = PROJECT / "resources" / "tidelake.lvdash.json"


@dataclass(frozen=True)
class Dashboard:
    """A dashboard: queries by name, and widgets that show them."""

    queries: Mapping[str, str]
    widgets: tuple[Mapping[str, Any], ...]


def read_dashboard(file: Path = FILE) -> Dashboard:
    """Read a dashboard's file."""
    document = json.loads(file.read_text(encoding="utf-8"))
    return Dashboard(
        {one["name"]: "".join(one["queryLines"]) for one in document["datasets"]},
        tuple(item["widget"] for page in document["pages"] for item in page["layout"]),
    )


def known_columns() -> dict[str, dict[str, dict[str, str]]]:
    """Give the columns of tables, by schema and table; gold's of every pipeline there is."""
    local = load_environment("local")
    gold = {
        table.name: dict.fromkeys(table.columns, "string")
        for name in pipeline_names()
        for table in load_pipeline(name, local).gold
    }
    return {"ops": {"books": dict(BOOKS)}, "gold": gold}


def columns_of(query: str) -> list[str]:
    """Parse a query, hold its tables and columns against the known ones, give its own columns.

    Raises:
        sqlglot.errors.OptimizeError: It names a column or table that there is not.
    """
    parsed = sqlglot.parse_one(query, dialect="databricks")
    known = known_columns()
    for table in parsed.find_all(exp.Table):
        if table.db and table.name not in known.get(table.db, {}):
            raise sqlglot.errors.OptimizeError(f"no table {table.db}.{table.name}")
    qualified = qualify(parsed, schema=known, dialect="databricks", validate_qualify_columns=True)
    return list(qualified.named_selects)
