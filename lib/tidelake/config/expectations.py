"""Suites of expectations, in Great Expectations' words: the models and their loading."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from tidelake.config.document import read_document
from tidelake.config.expectation_checks import suite_findings
from tidelake.config.model import Model
from tidelake.config.names import TableName
from tidelake.config.signatures import ROW_EXPECTATIONS, TABLE_EXPECTATIONS
from tidelake.config.source import Text
from tidelake.config.violations import findings_of

__all__ = ["ROW_EXPECTATIONS", "TABLE_EXPECTATIONS", "Expectation", "Suite", "load_suite"]

_COLUMN_KEYS = ("column", "column_A", "column_B", "column_list")


def _severity(value: object) -> object:
    if value == "info":
        raise ValueError("info is not supported, nothing would follow from it; write warning")
    return value


Severity = Annotated[Literal["critical", "warning"], BeforeValidator(_severity)]


class Expectation(Model):
    """Something expected of each row, or of a table as a whole.

    Attributes:
        type: What is expected, in Great Expectations' words.
        kwargs: Of what, and how.
        severity: ``critical`` quarantines a row, ``warning`` counts it.
        meta: Yours.
    """

    type: Text
    kwargs: dict[str, Any] = Field(default_factory=dict)
    severity: Severity = "critical"
    meta: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_row_level(self) -> bool:
        """Tell whether one row can be judged by itself."""
        return self.type in ROW_EXPECTATIONS

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it speaks of; none where it speaks of a table."""
        named: list[str] = []
        for key in _COLUMN_KEYS:
            value = self.kwargs.get(key, ())
            named.extend([value] if isinstance(value, str) else value)
        return tuple(named)

    @property
    def text(self) -> str:
        """The reason that a failing row is given; the same for the same expectation.

        A condition's parser is left out: there is only one.
        """
        shown = {
            key: value
            for key, value in sorted(self.kwargs.items())
            if key not in {*_COLUMN_KEYS, "condition_parser"}
        }
        arguments = ", ".join(
            f"{key}={json.dumps(value, ensure_ascii=False, sort_keys=True)}"
            for key, value in shown.items()
        )
        columns = f"{', '.join(self.columns)}: " if self.columns else ""
        return f"{columns}{self.type}({arguments})"


def _at_least_one(value: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    # A minimal length would count a broken expectation as none, and say so beside its own finding.
    if not value:
        raise ValueError("needs at least one")
    return value


Expectations = Annotated[tuple[Expectation, ...], AfterValidator(_at_least_one)]


class Suite(Model):
    """Expectations over silver's columns and, by the name of the table, over gold's.

    Attributes:
        name: Yours.
        expectations: Of silver.
        gold: Of gold, by table; judged by the gate alone.
    """

    name: Text
    expectations: Expectations
    gold: dict[TableName, Expectations] = Field(default_factory=dict)

    @property
    def row_level(self) -> tuple[Expectation, ...]:
        """Those of silver that decide over single rows, in the file's order."""
        return tuple(each for each in self.expectations if each.is_row_level)


def load_suite(
    path: Path,
    *,
    columns: Collection[str] | None,
    gold: Mapping[str, Collection[str]] | None,
) -> Suite:
    """Read a suite and check it against what is known of the tables.

    Args:
        path: The file.
        columns: Silver's columns; None when they cannot be known, and then names are not checked.
        gold: The columns of each gold table by its name; None when they cannot be known.

    Returns:
        The suite.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: The file breaks the model; all violations at once.
    """
    document = read_document(path)
    findings = list(document.findings)
    raw = document.content
    suite = None
    try:
        suite = Suite.model_validate(raw)
    except ValidationError as error:
        findings += findings_of(error, Suite, raw)
    findings += suite_findings(raw, columns, gold)
    if findings or suite is None:
        raise document.error(findings)
    return suite
