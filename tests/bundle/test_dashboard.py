"""The dashboard: its queries name what there is, its widgets show what the queries give."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from tests.bundle.dashboards import columns_of, read_dashboard
from tidelake.config.standard_tables import BOOKS_COLUMNS as BOOKS
from tidelake.delta.commit_metadata import FATES

DASHBOARD = read_dashboard()


@pytest.mark.parametrize("name", DASHBOARD.queries)
def test_a_query_names_columns_of_the_ledger_and_no_table_of_a_pipeline(name: str) -> None:
    assert columns_of(DASHBOARD.queries[name])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT pipelin FROM ops.books",
        "SELECT pipeline FROM ops.book",
        "SELECT events FROM gold.user_activity_1m",
        "SELECT FROM WHERE",
    ],
)
def test_a_query_that_names_anything_else_is_found(query: str) -> None:
    with pytest.raises(sqlglot.errors.SqlglotError):
        columns_of(query)


@pytest.mark.parametrize("name", DASHBOARD.queries)
def test_counts_are_opened_in_the_order_of_their_fields(name: str) -> None:
    # inline() names columns by their place, and wants a name for each.
    stored = exp.DataType.build(BOOKS["counts"], dialect="databricks")
    fields = [field.name for field in stored.find_all(exp.ColumnDef)]
    parsed = sqlglot.parse_one(DASHBOARD.queries[name], dialect="databricks")

    opened = [
        [column.name for column in lateral.args["alias"].columns]
        for lateral in parsed.find_all(exp.Lateral)
    ]
    assert all(columns == fields for columns in opened)
    fates = {one.right.name for one in parsed.find_all(exp.EQ) if one.left.name == "fate"}
    assert fates <= set(FATES)


@pytest.mark.parametrize("widget", DASHBOARD.widgets, ids=lambda widget: widget["name"])
def test_a_widget_shows_columns_of_its_query(widget: dict) -> None:  # type: ignore[type-arg]
    (query,) = (one["query"] for one in widget["queries"])
    given = set(columns_of(DASHBOARD.queries[query["datasetName"]]))

    for field in query["fields"]:
        named = sqlglot.parse_one(field["expression"], dialect="databricks").find(exp.Column)
        assert named is not None
        assert named.name in given
    encodings = widget["spec"]["encodings"]
    shown = encodings.get("columns") or list(encodings.values())
    assert {one["fieldName"] for one in shown} == {field["name"] for field in query["fields"]}


def test_every_query_is_shown() -> None:
    shown = {one["query"]["datasetName"] for w in DASHBOARD.widgets for one in w["queries"]}

    assert shown == set(DASHBOARD.queries)
