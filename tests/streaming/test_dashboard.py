"""The dashboard's queries, run by Spark on tables that a pipeline filled."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.bundle.dashboards import read_dashboard
from tests.running import click, clickstream, land, run
from tidelake.config import Environment
from tidelake.delta.tables import Lake
from tidelake.ledger.terms import read_ledger


def asked(spark: SparkSession, lake: Lake, name: str) -> list[Any]:
    """Run a query on the tables of a root."""
    query = read_dashboard().queries[name]
    named = re.sub(r"\bops\.[a-z]+\b", lambda m: f"delta.`{lake.table(m[0]).path}`", query)
    return spark.sql(named).collect()


@pytest.mark.long
def test_the_dashboard_says_what_the_ledger_says(
    spark: SparkSession, environment: Environment, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    clicks = [click(number, minute=number / 2) for number in range(40)]
    land(landing, "a.jsonl", [*clicks, *clicks[:6], b"broken", b"{"])
    pipeline = clickstream(environment, landing)
    run(spark, environment, pipeline)
    land(landing, "b.jsonl", [click(number, minute=60 + number) for number in range(40, 50)])
    run(spark, environment, pipeline)

    by_fate: dict[str, int] = defaultdict(int)
    for row in asked(spark, lake, "fates"):
        by_fate[row.fate] += row.asDict()["rows"]
    books = read_ledger(lake, pipeline).to_json()
    assert by_fate == {
        "silver": books["silver"],
        "duplicate": books["duplicates"],
        "quarantined": books["quarantined"],
    }
    assert by_fate["quarantined"] == 2
    rates = {row.what: row.rate for row in asked(spark, lake, "rates")}
    assert rates == {"clickstream late": 0, "clickstream quarantined": pytest.approx(2 / 58)}
    assert asked(spark, lake, "unbalanced") == []
    assert {row.hop for row in asked(spark, lake, "freshness")} == {"bronze", "silver", "gold"}
    accepted = [row.asDict() for row in asked(spark, lake, "accepted_a_minute")]
    assert sum(row["rows"] for row in accepted) == books["silver"]
    assert {row["pipeline"] for row in accepted} == {"clickstream"}
    assert all(row["minute"].second == 0 for row in accepted)

    # One row more was written than was booked: the first batch stands out.
    store = DeltaTable.forPath(spark, str(lake.books().path))
    first = (F.col("table_name") == "silver.clickstream") & (F.col("batch") == 0)
    store.update(first, {"rows": F.col("rows") + 1})
    (found,) = asked(spark, lake, "unbalanced")
    assert (found.pipeline, found.batch, found.written - found.accepted) == ("clickstream", 0, 1)
