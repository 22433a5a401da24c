"""The expectations that Tidelake takes, and what each takes: the names are Great Expectations'.

Left out on purpose: what Great Expectations does not do on Spark (the ``like`` patterns), what it
does with Python per row (JSON and date parsing), what depends on an order that a table does not
have (increasing, decreasing), and the quantiles, whose result it cannot store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "bound",
    "column",
    "columns",
    "condition",
    "flag",
    "names",
    "ignore_pair",
    "ignore_record",
    "match_on",
    "moment",
    "number",
    "pairs",
    "parser",
    "regex",
    "regexes",
    "share",
    "type",
    "types",
    "values",
    "whole",
]


@dataclass(frozen=True)
class Signature:
    """The arguments of one expectation.

    Attributes:
        required: Arguments that must be given, each with its kind.
        optional: The others.
        needs_bound: Whether one of ``min_value`` and ``max_value`` must be given.
    """

    required: dict[str, Kind]
    optional: dict[str, Kind] = field(default_factory=dict)
    needs_bound: bool = False

    @property
    def arguments(self) -> dict[str, Kind]:
        """All arguments, the required ones first."""
        return {**self.required, **self.optional}


_WHERE: dict[str, Kind] = {"row_condition": "condition", "condition_parser": "parser"}
_ROW: dict[str, Kind] = {"mostly": "share", **_WHERE}
_COLUMN: dict[str, Kind] = {"column": "column"}
_PAIR: dict[str, Kind] = {"column_A": "column", "column_B": "column"}
_PAIR_OPTIONS: dict[str, Kind] = {"ignore_row_if": "ignore_pair", **_ROW}
_RECORD: dict[str, Kind] = {"column_list": "columns"}
_RECORD_OPTIONS: dict[str, Kind] = {"ignore_row_if": "ignore_record", **_ROW}


def _between(kind: Kind) -> dict[str, Kind]:
    return {"min_value": kind, "max_value": kind, "strict_min": "flag", "strict_max": "flag"}


def _column(**required: Kind) -> Signature:
    return Signature({**_COLUMN, **required}, _ROW)


def _aggregate(kind: Kind) -> Signature:
    return Signature(_COLUMN, {**_between(kind), **_WHERE}, needs_bound=True)


# What can be said of one row by itself: judged while silver is written, and by the gate.
ROW_EXPECTATIONS: dict[str, Signature] = {
    "expect_column_values_to_not_be_null": _column(),
    "expect_column_values_to_be_null": _column(),
    "expect_column_values_to_be_in_set": _column(value_set="values"),
    "expect_column_values_to_not_be_in_set": _column(value_set="values"),
    "expect_column_values_to_be_between": Signature(
        _COLUMN, {**_between("bound"), **_ROW}, needs_bound=True
    ),
    "expect_column_values_to_match_regex": _column(regex="regex"),
    "expect_column_values_to_not_match_regex": _column(regex="regex"),
    "expect_column_values_to_match_regex_list": Signature(
        {**_COLUMN, "regex_list": "regexes"}, {"match_on": "match_on", **_ROW}
    ),
    "expect_column_values_to_not_match_regex_list": _column(regex_list="regexes"),
    # Great Expectations looks at the column's type alone: a condition would change nothing.
    "expect_column_values_to_be_of_type": Signature({**_COLUMN, "type_": "type"}),
    "expect_column_values_to_be_in_type_list": Signature({**_COLUMN, "type_list": "types"}),
    "expect_column_value_lengths_to_be_between": Signature(
        _COLUMN, {**_between("whole"), **_ROW}, needs_bound=True
    ),
    "expect_column_value_lengths_to_equal": _column(value="whole"),
    "expect_column_pair_values_a_to_be_greater_than_b": Signature(
        _PAIR, {"or_equal": "flag", **_PAIR_OPTIONS}
    ),
    "expect_column_pair_values_to_be_equal": Signature(_PAIR, _PAIR_OPTIONS),
    "expect_column_pair_values_to_be_in_set": Signature(
        {**_PAIR, "value_pairs_set": "pairs"}, _PAIR_OPTIONS
    ),
    "expect_select_column_values_to_be_unique_within_record": Signature(_RECORD, _RECORD_OPTIONS),
    "expect_multicolumn_sum_to_equal": Signature(
        {**_RECORD, "sum_total": "number"}, _RECORD_OPTIONS
    ),
    "expect_multicolumn_values_to_be_equal": Signature(_RECORD, _RECORD_OPTIONS),
}

# What only a whole table can answer: judged by the gate.
TABLE_EXPECTATIONS: dict[str, Signature] = {
    "expect_table_row_count_to_be_between": Signature(
        {}, {**_between("whole"), **_WHERE}, needs_bound=True
    ),
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
    "expect_column_values_to_be_unique": Signature(_COLUMN, _ROW),
    "expect_compound_columns_to_be_unique": Signature(_RECORD, _RECORD_OPTIONS),
    "expect_column_unique_value_count_to_be_between": _aggregate("whole"),
    "expect_column_proportion_of_unique_values_to_be_between": _aggregate("share"),
    "expect_column_proportion_of_non_null_values_to_be_between": _aggregate("share"),
    "expect_column_min_to_be_between": _aggregate("moment"),
    "expect_column_max_to_be_between": _aggregate("moment"),
    "expect_column_mean_to_be_between": _aggregate("number"),
    "expect_column_median_to_be_between": _aggregate("number"),
    "expect_column_sum_to_be_between": _aggregate("number"),
    "expect_column_stdev_to_be_between": _aggregate("number"),
    "expect_column_distinct_values_to_be_in_set": Signature(
        {**_COLUMN, "value_set": "values"}, _WHERE
    ),
    "expect_column_distinct_values_to_contain_set": Signature(
        {**_COLUMN, "value_set": "values"}, _WHERE
    ),
    "expect_column_distinct_values_to_equal_set": Signature(
        {**_COLUMN, "value_set": "values"}, _WHERE
    ),
    "expect_column_most_common_value_to_be_in_set": Signature(
        {**_COLUMN, "value_set": "values"}, {"ties_okay": "flag", **_WHERE}
    ),
}

SIGNATURES: dict[str, Signature] = {**ROW_EXPECTATIONS, **TABLE_EXPECTATIONS}
