"""Names of tables: what resolves, and that nothing hostile reaches a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.handmade import write_commit
from tidelake.config import Environment, load_pipeline
from tidelake.delta.store import Catalog
from tidelake.delta.tables import HOPS, Lake
from tidelake.errors import UsageError


def test_a_logical_name_becomes_a_folder_under_the_root(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("gold.user_sessions")

    assert (table.name, table.path) == ("gold.user_sessions", tmp_path / "gold" / "user_sessions")


def test_each_layer_of_a_pipeline_has_its_own_name() -> None:
    lake = Lake(Path("/lake"))

    assert [
        lake.bronze("shop").name,
        lake.requeue("shop").name,
        lake.silver("shop").name,
        lake.quarantine("shop").name,
        lake.late("shop").name,
        lake.gold("totals").name,
        lake.books().name,
        lake.epochs().name,
    ] == [
        "bronze.shop",
        "bronze.shop__requeue",
        "silver.shop",
        "silver.shop__quarantine",
        "silver.shop__late",
        "gold.totals",
        "ops.books",
        "ops.epochs",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gold",
        "gold.",
        ".x",
        "gold.x; drop",
        "gold.x drop",
        "gold.x--",
        "gold.x'",
        'gold.x"',
        "gold.`x`",
        "../x",
        "gold.../x",
        "gold./etc",
        "gold.x/../../y",
        "gold.x.y",
        "gold.X",
        "Gold.x",
        "gold.1x",
        "gold._x",
        "gold.x\n",
        "gold.x\0",
        " gold.x",
        "gold.é",
        "gold.x\N{ARABIC-INDIC DIGIT ONE}",
        "landing.x",
        "checkpoints.x",
    ],
)
def test_a_hostile_or_foreign_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"is no table name: write layer\.table") as refused:
        Lake(Path("/lake")).table(name)

    assert refused.value.exit_code == 2


@pytest.mark.parametrize("pipeline", ["../x", "a b", "Shop", "x; drop"])
def test_a_pipeline_name_cannot_smuggle_one_in(pipeline: str) -> None:
    lake = Lake(Path("/lake"))

    for resolve in (lake.bronze, lake.requeue, lake.silver, lake.quarantine, lake.late, lake.gold):
        with pytest.raises(UsageError):
            resolve(pipeline)


def test_a_pipeline_name_cannot_lead_its_checkpoints_out_of_the_root() -> None:
    with pytest.raises(UsageError):
        Lake(Path("/lake")).checkpoints("../../etc", "silver")


def test_a_table_exists_from_its_first_commit_on(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("gold.x")
    assert not table.exists

    (table.path / "_delta_log").mkdir(parents=True)
    assert not table.exists

    write_commit(table, 0)
    assert table.exists


def test_existing_tables_come_in_the_order_of_the_layers_and_strays_are_passed_over(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    for name in ("gold.b", "silver.z", "gold.a", "bronze.z", "dim.d", "ops.books"):
        write_commit(lake.table(name), 0)
    (tmp_path / "gold" / "Not A Table").mkdir()
    (tmp_path / "gold" / "no_log").mkdir()
    (tmp_path / "landing" / "files").mkdir(parents=True)

    assert [table.name for table in lake.existing()] == [
        "bronze.z",
        "silver.z",
        "gold.a",
        "gold.b",
        "dim.d",
        "ops.books",
    ]


def test_an_empty_or_missing_root_holds_no_table(tmp_path: Path) -> None:
    assert Lake(tmp_path).existing() == []
    assert Lake(tmp_path / "nowhere").existing() == []


def test_checkpoints_lie_by_pipeline_and_hop() -> None:
    assert Lake(Path("/lake")).checkpoints("shop", "gold") == Path("/lake/checkpoints/shop/gold")


def test_a_hop_reads_the_tables_of_the_hop_before_it_and_gold_other_pipelines_too() -> None:
    lake = Lake(Path("/lake"))
    pipeline = load_pipeline("clickstream", Environment(name="local", root=Path("/lake")))
    assert [list(lake.hop_inputs(pipeline, hop)) for hop in HOPS] == [
        [],
        ["bronze", "requeue"],
        ["silver"],
    ]
    (join,) = pipeline.joins
    other = join.model_copy(update={"right": join.right.model_copy(update={"pipeline": "sales"})})
    read = lake.hop_inputs(pipeline.model_copy(update={"joins": (join, other)}), "gold")
    assert read == {"silver": lake.silver("clickstream"), "silver.sales": lake.silver("sales")}
    assert lake.closing_tables(pipeline, "silver") == [lake.silver("clickstream")]
    golds = [table.name for table in lake.closing_tables(pipeline, "gold")]
    assert golds == list(pipeline.gold_names)


def test_a_table_in_a_catalog_is_a_quoted_name_and_has_no_folder() -> None:
    catalog = Catalog("my-catalog", session=lambda: pytest.fail("Spark was asked"))
    lake = Lake(Path("/Volumes/v"), catalog=catalog)
    table = lake.table("gold.user_sessions")

    assert table.sql == "`my-catalog`.`gold`.`user_sessions`"
    with pytest.raises(TypeError, match="is in a catalog"):
        _ = table.path
    assert lake.checkpoints("shop", "gold") == Path("/Volumes/v/checkpoints/shop/gold")
    with pytest.raises(UsageError):
        lake.table("gold.x`; DROP TABLE y")


def test_a_folder_stands_quoted_in_a_statement(tmp_path: Path) -> None:
    assert Lake(tmp_path / "a`b").table("gold.x").sql == f"delta.`{tmp_path}/a``b/gold/x`"
