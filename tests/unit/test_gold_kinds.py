"""A batch of gold reads only the columns that its tables name."""

from __future__ import annotations

from typing import Any

import pytest

from tidelake.config import GoldTable
from tidelake.config.gold_definitions import Join
from tidelake.gold.joins import Joined
from tidelake.gold.kinds import columns_read
from tidelake.gold.windows import Windowed

COLUMNS = [
    "event_id",
    "event_time",
    "user_id",
    "Action",
    "product_id",
    "value",
    "is_late",
    "record_id",
    "ingested_at",
    "event_date",
]


def table(**changed: Any) -> Windowed:
    """Count by user and minute, with changes."""
    given = {
        "name": "counted",
        "window": {"kind": "tumbling", "size": "1 minute"},
        "keys": ["user_id"],
        "measures": {"events": {"count": "*"}},
    }
    return Windowed("gold.counted", "gold[0]", GoldTable.model_validate({**given, **changed}))


def test_keys_conditions_and_measures_are_read_whatever_their_case() -> None:
    kind = table(where="upper(action) = 'BUY'", measures={"total": {"sum": "Value * 2"}})
    assert columns_read([kind], COLUMNS) == [
        "event_id",
        "event_time",
        "user_id",
        "Action",
        "value",
        "record_id",
    ]


def test_what_no_table_names_is_not_read() -> None:
    assert columns_read([table()], COLUMNS) == ["event_id", "event_time", "user_id", "record_id"]


def test_all_tables_count_and_both_sides_of_a_join() -> None:
    join = Join.model_validate(
        {
            "name": "bought",
            "left": {"where": "action = 'click'", "columns": {"user": "user_id"}},
            "right": {"pipeline": "clicks", "columns": {"paid": "value"}},
            "on": ["product_id"],
            "within": "1 hour",
        }
    )
    kinds = [table(measures={"late": {"count_if": "is_late"}}), Joined("g", "j", join, "clicks")]
    left_out = {"ingested_at", "event_date"}
    assert columns_read(kinds, COLUMNS) == [name for name in COLUMNS if name not in left_out]


@pytest.mark.parametrize("sql", ["hash(*)", "to_json(struct( * ))", "size(array(value, *))"])
def test_an_expression_over_all_columns_reads_all(sql: str) -> None:
    assert columns_read([table(measures={"most": {"max": sql}})], COLUMNS) == COLUMNS


def test_a_product_is_no_star_and_an_odd_name_is_kept() -> None:
    kind = table(measures={"total": {"sum": "(value) * (2)"}})
    assert columns_read([kind], [*COLUMNS, "an odd name"])[-1] == "an odd name"
    assert "product_id" not in columns_read([kind], COLUMNS)
