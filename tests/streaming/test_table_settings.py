"""Settings of gold tables in stored tables, and the views of a catalog through which they hide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.catalogs import a_catalog
from tests.running import click
from tests.worlds import World, world
from tidelake.config import Environment
from tidelake.delta.access import properties
from tidelake.delta.log import newest_version
from tidelake.errors import ConfigError
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.repairing import repair, reset
from tidelake.runtime.gold_settings import apply_gold_settings

_RETENTION = "delta.logRetentionDuration"


def totals(**settings: Any) -> list[dict[str, Any]]:
    window = {"kind": "tumbling", "size": "10 minutes"}
    measures = {"events": {"count": "*"}, "last_value": {"last": "value"}}
    return [
        {"name": "totals", "window": window, "keys": ["user_id"], "measures": measures, **settings}
    ]


def kept_by(one: World) -> dict[str, str]:
    found = properties(one.spark, one.lake.gold("totals"))
    return {key: found[key] for key in ("team", "tier", _RETENTION) if key in found}


@pytest.mark.long
def test_properties_follow_the_file_through_create_change_promote_and_rollback(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = {"team": "growth", _RETENTION: "interval 60 days"}
    made = world(spark, tmp_path, gold=totals(properties=first), quality=None)
    made.land("a.jsonl", [click(n, minute=n) for n in range(4)])
    made.run()
    table = made.lake.gold("totals")
    assert kept_by(made) == first
    created = (table.path / "_delta_log" / f"{0:020}.json").read_text(encoding="utf-8")
    assert '"team":"growth"' in created

    version = newest_version(table)
    made.run()
    assert newest_version(table) == version

    spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('tier' = 'of somebody else')")
    second = {"team": "it's \\ core"}
    changed = made.redefined(gold=totals(properties=second))
    build(changed.context, "silver")
    promote(changed.context)
    kept = {**second, "tier": "of somebody else"}
    assert kept_by(changed) == kept
    # RESTORE brings back the properties of the restored version, which the file does not have.
    rollback(changed.context)
    assert kept_by(changed) == kept
    reset(changed.context, "gold")
    repair(changed.context, "gold")
    assert kept_by(changed) == kept

    without = changed.redefined(gold=totals())
    without.run()
    version = newest_version(table)
    apply_gold_settings(without.context)
    assert newest_version(table) == version
    assert kept_by(without) == {"tier": "of somebody else"}


def test_what_delta_refuses_names_the_table_and_its_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = world(spark, tmp_path, gold=totals(properties={"delta.noSuchThing": "x"}), quality=None)
    made.land("a.jsonl", [click(0, minute=0)])
    with pytest.raises(ConfigError, match=r"gold\[0\].*gold\.totals.*delta\.noSuchThing"):
        made.run()


@pytest.fixture
def environment(spark: SparkSession, tmp_path: Path) -> Iterator[Environment]:
    """Give a catalog with two functions, and views of the last epoch."""
    with a_catalog(spark, tmp_path) as found:
        spark.sql("CREATE FUNCTION gold.hide(x STRING) RETURNS STRING RETURN 'hidden'")
        spark.sql("CREATE FUNCTION gold.odd(x STRING) RETURNS BOOLEAN RETURN x LIKE '%1'")
        yield found.model_copy(update={"consistent_views": True})


def shown(spark: SparkSession, view: str, columns: str = "*") -> list[tuple[Any, ...]]:
    rows = spark.sql(f"SELECT {columns} FROM gold.totals__{view}").collect()
    return sorted((tuple(row) for row in rows), key=repr)


def views(spark: SparkSession) -> list[str]:
    found = spark.sql("SHOW VIEWS IN gold").where("NOT isTemporary").collect()
    return sorted(row["viewName"] for row in found)


@pytest.mark.long
def test_views_of_a_catalog_hide_and_show_the_last_epoch(
    spark: SparkSession, tmp_path: Path, environment: Environment
) -> None:
    hiding = {"masks": {"user_id": "gold.hide"}}
    made = world(
        spark, tmp_path / "w", environment=environment, gold=totals(**hiding), quality=None
    )
    made.land("a.jsonl", [click(n, minute=n) for n in range(3)])
    made.run()
    assert views(spark) == ["totals__consistent", "totals__final", "totals__masked"]
    # Of the internal columns some hold the state of a measure, and so its values.
    columns = ["window_start", "window_end", "user_id", "events", "last_value"]
    assert spark.table("gold.totals__masked").columns == columns
    assert spark.table("gold.totals__final").columns == columns
    assert spark.table("gold.totals__consistent").columns == [*columns, "_epoch"]
    assert shown(spark, "masked", "user_id, events") == [("hidden", 1)] * 3
    assert shown(spark, "consistent", "user_id, events, _epoch") == [("hidden", 1, 1)] * 3

    # The epoch's version is read, whatever was written since.
    spark.sql("DELETE FROM gold.totals WHERE user_id = 'u1'")
    assert len(shown(spark, "masked", "events")) == 2
    assert shown(spark, "consistent", "events, _epoch") == [(1, 1)] * 3

    # A view that is replaced loses the rights that were granted on it, and its properties.
    spark.sql("ALTER VIEW gold.totals__masked SET TBLPROPERTIES ('granted' = 'yes')")
    both = {**hiding, "row_filter": {"function": "spark_catalog.gold.odd", "columns": ["user_id"]}}
    filtered = made.redefined(gold=totals(**both))
    filtered.land("b.jsonl", [click(6, minute=6)])
    filtered.run()
    for view in ("masked", "consistent"):
        assert shown(spark, view, "user_id, events") == [("hidden", 1)]
    assert spark.sql("SHOW TBLPROPERTIES gold.totals__masked").where("key = 'granted'").collect()
    assert spark.table("gold.totals__consistent").first()["_epoch"] > 1

    # The only table is dropped: a repair makes it anew, at versions below the last epoch's.
    spark.sql("ALTER VIEW gold.totals__consistent SET TBLPROPERTIES ('granted' = 'yes')")
    spark.sql("DROP TABLE gold.totals")
    repair(filtered.context, "gold")
    filtered.run()
    # With the event whose row was deleted by hand.
    assert shown(spark, "consistent", "user_id, events") == [("hidden", 2)]
    granted = spark.sql("SHOW TBLPROPERTIES gold.totals__consistent").where("key = 'granted'")
    assert granted.collect()

    unknown = made.redefined(gold=totals(masks={"user_id": "gold.nothing"}))
    with pytest.raises(ConfigError, match=r"gold\[0\].*gold\.totals.*nothing"):
        apply_gold_settings(unknown.context)
    assert len(shown(spark, "masked")) == 1

    off = environment.model_copy(update={"consistent_views": False})
    apply_gold_settings(replace(made.redefined(gold=totals()).context, environment=off))
    assert views(spark) == ["totals__final"]
    assert "_batch" in spark.table("gold.totals__final").columns
