"""Suites of Great Expectations (GX): signatures, models, checks and loading.

Not supported are expectations that GX lacks on Spark (``like`` patterns), that run Python per row
(parsing of JSON and dates), that depend on the order of rows (increasing, decreasing), and
quantiles, whose result GX cannot store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tidelake.config.arguments import argument_findings, as_bound, is_parameter
from tidelake.config.document import Finding, KeyPath, mappings_in, read_document
from tidelake.config.model import Model, Text, suggestion, unknown
from tidelake.names import SILVER_RESERVED, TableName


@dataclass(frozen=True)
class Signature:
    """The arguments of an expectation, name to kind of value.

    ``needs_bound`` requires at least one of ``min_value`` and ``max_value``.
    """

    required: dict[str, str]
    optional: dict[str, str] = field(default_factory=dict)
    needs_bound: bool = False

    @property
    def arguments(self) -> dict[str, str]:
        """All arguments, the required ones first."""
        return {**self.required, **self.optional}


_WHERE = {"row_condition": "condition", "condition_parser": "parser"}
_ROW = {"mostly": "share", **_WHERE}
_COLUMN = {"column": "column"}
_SET = {**_COLUMN, "value_set": "values"}


def _column(**required: str) -> Signature:
    return Signature({**_COLUMN, **required}, _ROW)


def _pair(**optional: str) -> Signature:
    required = {"column_A": "column", "column_B": "column"}
    return Signature(required, {**optional, "ignore_row_if": "ignore_pair", **_ROW})


def _record(**required: str) -> Signature:
    required = {"column_list": "columns", **required}
    return Signature(required, {"ignore_row_if": "ignore_record", **_ROW})


def _range(kind: str, options: dict[str, str] = _WHERE, of: dict[str, str] = _COLUMN) -> Signature:
    bounds = {"min_value": kind, "max_value": kind, "strict_min": "flag", "strict_max": "flag"}
    return Signature(of, {**bounds, **options}, needs_bound=True)


# Expectations on single rows: evaluated while silver is written, and by the gate.
ROW_EXPECTATIONS: dict[str, Signature] = {
    "expect_column_values_to_not_be_null": _column(),
    "expect_column_values_to_be_null": _column(),
    "expect_column_values_to_be_in_set": _column(value_set="values"),
    "expect_column_values_to_not_be_in_set": _column(value_set="values"),
    "expect_column_values_to_be_between": _range("bound", _ROW),
    "expect_column_values_to_match_regex": _column(regex="regex"),
    "expect_column_values_to_not_match_regex": _column(regex="regex"),
    "expect_column_values_to_match_regex_list": Signature(
        {**_COLUMN, "regex_list": "regexes"}, {"match_on": "match_on", **_ROW}
    ),
    "expect_column_values_to_not_match_regex_list": _column(regex_list="regexes"),
    # These check only the column's type, so they take no condition.
    "expect_column_values_to_be_of_type": Signature({**_COLUMN, "type_": "type"}),
    "expect_column_values_to_be_in_type_list": Signature({**_COLUMN, "type_list": "types"}),
    "expect_column_value_lengths_to_be_between": _range("whole", _ROW),
    "expect_column_value_lengths_to_equal": _column(value="whole"),
    "expect_column_pair_values_a_to_be_greater_than_b": _pair(or_equal="flag"),
    "expect_column_pair_values_to_be_equal": _pair(),
    "expect_column_pair_values_to_be_in_set": Signature(
        {**_pair().required, "value_pairs_set": "pairs"}, _pair().optional
    ),
    "expect_select_column_values_to_be_unique_within_record": _record(),
    "expect_multicolumn_sum_to_equal": _record(sum_total="number"),
    "expect_multicolumn_values_to_be_equal": _record(),
}

# Expectations on a whole table: evaluated by the gate.
TABLE_EXPECTATIONS: dict[str, Signature] = {
    "expect_table_row_count_to_be_between": _range("whole", of={}),
    "expect_table_row_count_to_equal": Signature({"value": "whole"}, _WHERE),
    "expect_table_column_count_to_be_between": Signature(
        {}, {"min_value": "whole", "max_value": "whole"}, needs_bound=True
    ),
    "expect_table_column_count_to_equal": Signature({"value": "whole"}),
    "expect_table_columns_to_match_ordered_list": Signature({"column_list": "names"}),
    "expect_table_columns_to_match_set": Signature(
        {"column_set": "names"}, {"exact_match": "flag"}
    ),
    "expect_column_to_exist": Signature(_COLUMN, {"column_index": "whole"}),
    "expect_column_values_to_be_unique": _column(),
    "expect_compound_columns_to_be_unique": _record(),
    "expect_column_unique_value_count_to_be_between": _range("whole"),
    "expect_column_proportion_of_unique_values_to_be_between": _range("share"),
    "expect_column_proportion_of_non_null_values_to_be_between": _range("share"),
    "expect_column_min_to_be_between": _range("moment"),
    "expect_column_max_to_be_between": _range("moment"),
    "expect_column_mean_to_be_between": _range("number"),
    "expect_column_median_to_be_between": _range("number"),
    "expect_column_sum_to_be_between": _range("number"),
    "expect_column_stdev_to_be_between": _range("number"),
    "expect_column_distinct_values_to_be_in_set": Signature(_SET, _WHERE),
    "expect_column_distinct_values_to_contain_set": Signature(_SET, _WHERE),
    "expect_column_distinct_values_to_equal_set": Signature(_SET, _WHERE),
    "expect_column_most_common_value_to_be_in_set": Signature(
        _SET, {"ties_okay": "flag", **_WHERE}
    ),
}

SIGNATURES: dict[str, Signature] = {**ROW_EXPECTATIONS, **TABLE_EXPECTATIONS}


def _suite_findings(
    raw: Mapping[str, Any],
    columns: Collection[str] | None,
    gold: Mapping[str, Collection[str]] | None,
    of_others: Callable[[], Collection[str]],
) -> Iterator[Finding]:
    yield from _list_findings(raw.get("expectations"), ("expectations",), columns, of_rows=True)
    tables = raw.get("gold")
    for name, items in (tables if isinstance(tables, dict) else {}).items():
        if gold is not None and name not in gold and name not in of_others():
            yield Finding(("gold", name), unknown("gold table", name, gold))
        of_table = gold.get(name) if gold is not None else None
        yield from _list_findings(items, ("gold", name), of_table, of_rows=False)


def _list_findings(
    items: Any, path: KeyPath, columns: Collection[str] | None, *, of_rows: bool
) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for place, item in mappings_in(items, path):
        known = columns
        if of_rows and columns is not None and item.get("type") in ROW_EXPECTATIONS:
            # The others are computed after rows are judged.
            known = [name for name in columns if name not in SILVER_RESERVED[2:]]
        yield from _expectation_findings(item, place, known, of_rows=of_rows)
        # Great Expectations silently drops one of two equal expectations.
        same = json.dumps([item.get("type"), item.get("kwargs")], sort_keys=True, default=repr)
        if same in first:
            yield Finding(place, f"is equal to expectation number {first[same]} of this list")
        first.setdefault(same, int(place[-1]) + 1)


def _expectation_findings(
    raw: Mapping[str, Any], path: KeyPath, columns: Collection[str] | None, *, of_rows: bool
) -> Iterator[Finding]:
    kind = raw.get("type")
    if not isinstance(kind, str):
        return
    signature = SIGNATURES.get(kind)
    if signature is None:
        known = f"{suggestion(kind, SIGNATURES)} (supported: {', '.join(SIGNATURES)})"
        yield Finding((*path, "type"), f"'{kind}' is not supported{known}")
        return
    kwargs = raw.get("kwargs", {})
    if not isinstance(kwargs, dict):
        return
    place, arguments = (*path, "kwargs"), signature.arguments
    for name in signature.required:
        if name not in kwargs:
            yield Finding((*place, name), "required argument is missing")
    for name, value in kwargs.items():
        if name in arguments:
            yield from argument_findings(arguments[name], value, (*place, name), columns)
        else:
            known = f"{suggestion(name, arguments)} (known: {', '.join(arguments)})"
            yield Finding((*place, name), f"unknown argument{known}")
    if signature.needs_bound and "min_value" not in kwargs and "max_value" not in kwargs:
        yield Finding(place, "needs min_value or max_value")
    yield from _order_findings(kwargs, place)
    if "row_condition" in kwargs and "condition_parser" not in kwargs:
        message = "required with row_condition: write spark, for SQL"
        yield Finding((*place, "condition_parser"), message)
    elif "condition_parser" in kwargs and "row_condition" not in kwargs:
        yield Finding((*place, "condition_parser"), "is allowed with row_condition only")
    decides = kind in ROW_EXPECTATIONS and raw.get("severity", "critical") == "critical"
    share = kwargs.get("mostly", 1)
    if of_rows and decides and isinstance(share, int | float) and share < 1:
        yield Finding(
            (*place, "mostly"),
            "below 1 has no meaning for a single row, which either passes or fails; "
            "write severity: warning",
        )


def _order_findings(kwargs: Mapping[str, Any], place: KeyPath) -> Iterator[Finding]:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if low is None or high is None or is_parameter(low) or is_parameter(high):
        return
    try:
        least, most = as_bound(low), as_bound(high)
    except ValueError:
        return
    if type(least) is not type(most):
        yield Finding((*place, "min_value"), "must have the same type as max_value")
    elif least > most:  # type: ignore[operator]
        yield Finding((*place, "min_value"), f"{low} is greater than max_value, {high}")


_COLUMN_KEYS = ("column", "column_A", "column_B", "column_list")
# The type of a pipeline file's own rule, with the arguments ``name`` and ``sql``; not in suites.
SQL_RULE = "sql_rule"


def _severity(value: object) -> object:
    if value == "info":
        raise ValueError("info is not supported because it would have no effect; write warning")
    return value


Severity = Annotated[Literal["critical", "warning"], BeforeValidator(_severity)]


class Expectation(Model):
    """An expectation on each row, or on a table as a whole.

    Attributes:
        type: The expectation's name in Great Expectations.
        kwargs: The arguments, such as the column.
        severity: ``critical`` quarantines a row, ``warning`` counts it.
        meta: Any values of your own; not evaluated.
    """

    type: Text
    kwargs: dict[str, Any] = Field(default_factory=dict)
    severity: Severity = "critical"
    meta: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_row_level(self) -> bool:
        """Whether the expectation is evaluated row by row."""
        return self.type in ROW_EXPECTATIONS

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the arguments; empty for an expectation on the table as a whole."""
        named: list[str] = []
        for key in _COLUMN_KEYS:
            value = self.kwargs.get(key, ())
            named.extend([value] if isinstance(value, str) else value)
        return tuple(named)

    @property
    def text(self) -> str:
        """The reason stored in quarantine, without the condition's parser."""
        if self.type == SQL_RULE:
            return f"{self.kwargs['name']}: {' '.join(self.kwargs['sql'].split())}"
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


class InlineRule(Model):
    """A rule in the pipeline file: a condition that rows must not break.

    Attributes:
        sql: The condition, SQL over silver's columns; true and null are met, as in CHECK.
        severity: ``critical`` quarantines a row, ``warning`` counts it.
    """

    sql: Text
    severity: Severity = "critical"

    def named(self, name: str) -> Expectation:
        """Return the rule as an expectation."""
        kwargs = {"name": name, "sql": self.sql}
        return Expectation(type=SQL_RULE, kwargs=kwargs, severity=self.severity)


# The SQL alone, or a mapping with the severity.
RuleBody = Annotated[
    InlineRule, BeforeValidator(lambda value: {"sql": value} if isinstance(value, str) else value)
]


def _at_least_one(value: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    # pydantic's min_length does not count invalid items, and would report a second finding.
    if not value:
        raise ValueError("needs at least one")
    return value


Expectations = Annotated[tuple[Expectation, ...], AfterValidator(_at_least_one)]


class Suite(Model):
    """Expectations on silver and, by table, on gold.

    Attributes:
        name: A name of your choice.
        expectations: Expectations on silver.
        gold: Expectations on gold, by table; evaluated by the gate only.
    """

    name: Text
    expectations: Expectations
    gold: dict[TableName, Expectations] = Field(default_factory=dict)

    @property
    def row_level(self) -> tuple[Expectation, ...]:
        """The expectations on single rows of silver, in the file's order."""
        return tuple(item for item in self.expectations if item.is_row_level)


def load_suite(
    path: Path,
    *,
    columns: Collection[str] | None,
    gold: Mapping[str, Collection[str]] | None,
    of_others: Callable[[], Collection[str]] = tuple,
) -> Suite:
    """Load and validate a suite, which several pipelines may share.

    Args:
        path: The file.
        columns: Silver's columns; None skips the check of names.
        gold: The columns of each gold table by name; None skips the check of names.
        of_others: Called for the gold tables of other pipelines; expectations on these are valid,
            and left out.

    Raises:
        UsageError: The file cannot be read.
        ConfigError: The file is invalid; lists all violations.
    """
    document = read_document(path)
    suite = document.validated(Suite, document.content)
    document.findings += _suite_findings(document.content, columns, gold, cache(of_others))
    if document.findings or suite is None:
        raise document.error(document.findings)
    if gold is None:
        return suite
    own = {name: items for name, items in suite.gold.items() if name in gold}
    return suite.model_copy(update={"gold": own})
