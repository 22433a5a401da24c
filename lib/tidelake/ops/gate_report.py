"""The gate's verdict, and what Great Expectations found put into a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tidelake.config.expectations import Expectation
from tidelake.foreign import kind_of_text

_SHORT = 120


@dataclass(frozen=True)
class GateResult:
    """What came of one expectation.

    Attributes:
        table: Logical name, such as ``silver.clickstream``.
        type: The expectation's type.
        text: The expectation with its columns and arguments.
        severity: ``critical`` or ``warning``.
        passed: Whether the table is as expected.
        observed: What was found, in a few words; or why it could not be judged.
        unexpected: Number of rows that are not as expected; None where rows are not counted.
    """

    table: str
    type: str
    text: str
    severity: str
    passed: bool
    observed: str
    unexpected: int | None


@dataclass(frozen=True)
class GateReport:
    """The verdict over the tables of a pipeline.

    Attributes:
        results: One for each expectation, in the order of the suite, silver's first.
        docs: The page to start reading from.
    """

    results: tuple[GateResult, ...]
    docs: Path

    @property
    def passed(self) -> bool:
        """Tell whether no critical expectation failed."""
        return all(result.passed or result.severity == "warning" for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """Give the report in types that JSON has."""
        return {
            "passed": self.passed,
            "docs": str(self.docs),
            "results": [asdict(result) for result in self.results],
        }


def exception_text(result: Any) -> str | None:
    """Give the first line of what Great Expectations raised on an expectation, if it did."""
    info = result.exception_info or {}
    parts = [info] if "raised_exception" in info else list(info.values())
    messages = [part["exception_message"] for part in parts if part["raised_exception"]]
    if not messages:
        return None
    return kind_of_text(next((str(message) for message in messages if message), "")) or "raised"


def observed_text(
    result: Mapping[str, Any], expectation: Expectation, types: Mapping[str, str]
) -> str:
    """Put what was found into a few words; instants in UTC.

    Args:
        result: Great Expectations' result, in its format BASIC.
        expectation: What was expected.
        types: Name of each column to its type, as Spark's simple string.
    """
    count = result.get("unexpected_count")
    if count is not None:
        unlike = [
            value for value in result.get("partial_unexpected_list") or () if value is not None
        ]
        examples = ", ".join(str(value) for value in unlike)
        total = result.get("element_count")
        text = f"{count} unlike" if total is None else f"{count} of {total} rows"
        return _cut(f"{text}: {examples}" if count and examples else text)
    value = result.get("observed_value")
    of_instants = any(types.get(name) == "timestamp" for name in expectation.columns)
    if isinstance(value, datetime) and value.tzinfo is None and of_instants:
        value = value.astimezone(UTC)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return _cut("nothing" if value is None else str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
