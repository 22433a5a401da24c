"""Compile the row-level expectations of a suite into columns that tell the failing rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidelake.columns import VALUE, try_eval
from tidelake.config.expectations import Expectation
from tidelake.errors import UsageError
from tidelake.silver.fitting import misfits
from tidelake.silver.predicates import PREDICATES, ignored


@dataclass(frozen=True)
class Rule:
    """An expectation over single rows.

    Attributes:
        text: The reason that a failing row is given.
        severity: ``critical`` or ``warning``.
        fails: True for a failing row and false for any other, never null; over plain names.
    """

    text: str
    severity: str
    fails: Column


def compile_rules(
    expectations: Sequence[Expectation], types: Mapping[str, str]
) -> tuple[Rule, ...]:
    """Make a rule of each expectation; it fails the rows that Great Expectations would.

    Args:
        expectations: Row-level ones, checked by the loader.
        types: Name of each column to its type, as Spark's simple string.

    Returns:
        The rules, in the same order. None of them raises on a row, whatever it holds.

    Raises:
        UsageError: Expectations do not fit the types of their columns; all that do not.
    """
    problems = [
        f"  - {expectation.text}: {problem}"
        for expectation in expectations
        for problem in misfits(expectation, types)
    ]
    if problems:
        raise UsageError("expectations do not fit the columns:\n" + "\n".join(problems))
    return tuple(
        Rule(expectation.text, expectation.severity, _fails(expectation, types))
        for expectation in expectations
    )


def _fails(expectation: Expectation, types: Mapping[str, str]) -> Column:
    kwargs = expectation.kwargs
    fails = PREDICATES[expectation.type](kwargs, types)
    if len(expectation.columns) > 1:
        fails = ~ignored(expectation.columns, kwargs.get("ignore_row_if")) & fails
    fails = F.coalesce(fails, F.lit(False))
    condition = kwargs.get("row_condition")
    if condition is None:
        return fails
    # Where the condition itself cannot be computed, nothing vouches for the row.
    tried = try_eval(condition)
    concerned = F.coalesce(tried.getField(VALUE), F.lit(False))
    return F.when(tried.isNull(), F.lit(True)).otherwise(concerned & fails)
