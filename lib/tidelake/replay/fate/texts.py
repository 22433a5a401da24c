"""Write values into DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Iterable


def text(value: str) -> str:
    """Write a text."""
    return "'" + value.replace("'", "''") + "'"


def listed(values: Iterable[str]) -> str:
    """Write texts between the brackets of ``IN``; none of them is nothing's equal."""
    return ", ".join(text(value) for value in values) or "NULL"
