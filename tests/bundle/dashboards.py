"""Read the dashboard, and the columns that its queries may name: those of the ledger's table."""

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


def columns_of(query: str) -> list[str]:
    """Parse a query, hold its tables and columns against the ledger's, give its own columns.

    Raises:
        sqlglot.errors.OptimizeError: It names a column that there is not, or another table: those
            of pipelines are not the same in each target.
    """
    parsed = sqlglot.parse_one(query, dialect="databricks")
    known = {"ops": {"books": dict(BOOKS)}}
    for table in parsed.find_all(exp.Table):
        if table.db and table.name not in known.get(table.db, {}):
            raise sqlglot.errors.OptimizeError(f"no table {table.db}.{table.name}")
    qualified = qualify(parsed, schema=known, dialect="databricks", validate_qualify_columns=True)
    return list(qualified.named_selects)
