"""A stored table follows the definition as far as it may, and every older value stays."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from tidelake.delta.append import Difference, Freedom, append, ensure_table, schema_differences
from tidelake.delta.log import last_commit, newest_version
from tidelake.delta.tables import Lake, Table
from tidelake.errors import SchemaChangedError
from tidelake.ledger.query import ask

pytestmark = pytest.mark.usefixtures("interpreted")

GROWS = [
    ("tinyint", "smallint"),
    ("tinyint", "int"),
    ("tinyint", "bigint"),
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("decimal(10,2)", "decimal(11,2)"),
    ("decimal(10,2)", "decimal(11,3)"),
    ("decimal(10,2)", "decimal(38,2)"),
    ("decimal(10,2)", "decimal(38,30)"),
    ("decimal(1,0)", "decimal(2,1)"),
]
REFUSED = [
    *[(new, old) for old, new in GROWS],
    ("decimal(10,2)", "decimal(10,3)"),
    ("decimal(10,2)", "decimal(11,4)"),
    ("decimal(10,2)", "decimal(38,31)"),
    ("decimal(10,2)", "decimal(38,1)"),
    ("int", "double"),
    ("int", "decimal(10,0)"),
    ("bigint", "decimal(20,0)"),
    ("bigint", "double"),
    ("bigint", "float"),
    # 0.1 as FLOAT is 0.10000000149011612 as DOUBLE.
    ("float", "double"),
    ("double", "float"),
    ("float", "decimal(38,10)"),
    ("decimal(3,0)", "int"),
    ("int", "string"),
    ("string", "int"),
    ("string", "binary"),
    ("boolean", "int"),
    ("date", "timestamp"),
    ("date", "timestamp_ntz"),
    ("timestamp", "timestamp_ntz"),
    ("array<int>", "array<bigint>"),
    ("map<string,int>", "map<string,bigint>"),
    ("struct<a:int>", "struct<a:bigint>"),
    ("struct<a:int>", "struct<a:int,b:int>"),
]
NOTE = {"generation": "g1", "batch": -1}
OLD = "id int, s smallint, f double, d decimal(10,2), gone string"
NEW = "id bigint, s int, f double, d decimal(14,4), fresh string, mapped map<string,int>"


def compared(old: str, new: str, freedom: Freedom) -> list[Difference]:
    return schema_differences(StructType.fromDDL(old), StructType.fromDDL(new), freedom)


@pytest.mark.parametrize(("old", "new"), GROWS)
def test_a_type_may_grow_where_no_value_changes(spark: SparkSession, old: str, new: str) -> None:
    for freedom in ("types", "columns"):
        assert compared(f"a {old}", f"a {new}", freedom) == [Difference("a", old, new, "widened")]
    assert compared(f"a {old}", f"a {new}", "none") == [Difference("a", old, new, "refused")]


def test_a_column_that_another_one_holds_as_text_grows_only_to_the_same_text(
    spark: SparkSession,
) -> None:
    old = "d decimal(5,2), e decimal(5,2), i int, n bigint, x decimal(5,2)"
    new = "d decimal(8,4), e decimal(9,2), i bigint, n decimal(38,0), x decimal(8,4)"
    stored, wanted = StructType.fromDDL(old), StructType.fromDDL(new)
    found = schema_differences(stored, wanted, "types", ("d", "e", "i", "n"))
    assert [one.column for one in found if one.verdict == "refused"] == ["d"]
    assert [one.column for one in found if one.verdict == "widened"] == ["e", "i", "n", "x"]


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_any_other_change_of_a_type_is_refused(spark: SparkSession, old: str, new: str) -> None:
    for freedom in ("none", "types", "columns"):
        assert compared(f"a {old}", f"a {new}", freedom) == [Difference("a", old, new, "refused")]


@pytest.mark.parametrize(
    ("freedom", "verdicts"),
    [
        ("none", ("refused", "refused", "refused")),
        ("types", ("refused", "refused", "widened")),
        ("columns", ("added", "kept", "widened")),
    ],
)
def test_columns_come_and_go_only_where_columns_are_free(
    spark: SparkSession, freedom: Freedom, verdicts: tuple[str, str, str]
) -> None:
    found = compared("same date, went string, b int", "b bigint, came string, same date", freedom)
    assert [(one.column, one.verdict) for one in found] == [
        ("b", verdicts[2]),
        ("came", verdicts[0]),
        ("went", verdicts[1]),
    ]
    assert [str(one) for one in found] == [
        "b: stored int, defined bigint",
        "came: stored nothing, defined string",
        "went: stored string, defined nothing",
    ]


def test_a_name_that_differs_in_case_alone_is_refused(spark: SparkSession) -> None:
    assert compared("userId STRING, n INT", "userid STRING, n BIGINT", "columns") == [
        Difference("n", "int", "bigint", "widened"),
        Difference("userId", "string", None, "refused"),
        Difference("userid", None, "string", "refused"),
    ]


@pytest.mark.parametrize("freedom", ["none", "types", "columns"])
def test_the_hash_of_ids_comes_into_any_table_of_an_earlier_version(
    spark: SparkSession, freedom: Freedom
) -> None:
    found = compared("a int", "a int, _id_hash bigint", freedom)
    assert [(one.column, one.verdict) for one in found] == [("_id_hash", "added")]


def test_the_order_of_columns_is_no_difference(spark: SparkSession) -> None:
    assert compared("a int, b string", "b string, a int", "none") == []


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.gold("evolving")


def write(spark: SparkSession, table: Table, rows: list[tuple[object, ...]], ddl: str) -> None:
    batch = newest_version(table)
    append(spark.createDataFrame(rows, ddl), table, {"generation": "g1", "batch": batch})


def stored(spark: SparkSession, table: Table) -> DataFrame:
    return spark.read.format("delta").load(str(table.path))


def made(spark: SparkSession, table: Table, ddl: str = OLD) -> None:
    ensure_table(spark, table, StructType.fromDDL(ddl), NOTE)


def test_a_table_that_follows_keeps_every_older_value_and_duckdb_reads_it(
    spark: SparkSession, table: Table, lake: Lake
) -> None:
    made(spark, table)
    write(spark, table, [(2147483647, 32767, 1.5, Decimal("12345678.91"), "old")], OLD)
    ensure_table(spark, table, StructType.fromDDL(NEW), NOTE, freedom="columns")
    wide = (2**63 - 1, 2**31 - 1, 0.1, Decimal("1234567890.1234"), "new", {"k": 1})
    write(spark, table, [wide], NEW)

    frame = stored(spark, table)
    assert dict(frame.dtypes) == {
        "id": "bigint",
        "s": "int",
        "f": "double",
        "d": "decimal(14,4)",
        "gone": "string",
        "fresh": "string",
        "mapped": "map<string,int>",
    }
    older = (2147483647, 32767, 1.5, Decimal("12345678.9100"), "old", None, None)
    newer = (*wide[:4], None, *wide[4:])
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [older, newer]
    names = "id, s, f, d, gone, fresh, mapped"
    assert ask(lake, f"SELECT {names} FROM gold.evolving ORDER BY id").rows == (older, newer)
    assert ask(lake, "SELECT count(*) FROM gold.evolving WHERE id > 2147483647").rows == ((1,),)


def test_a_table_of_this_definition_gets_no_commit(spark: SparkSession, table: Table) -> None:
    made(spark, table)
    before = newest_version(table)
    ensure_table(spark, table, StructType.fromDDL(OLD), NOTE, freedom="columns")
    # A column that the definition no longer has stays as it is.
    ensure_table(spark, table, StructType.fromDDL("id int"), NOTE, freedom="columns")
    assert newest_version(table) == before


def test_what_the_table_follows_leaves_its_books_as_they_were(
    spark: SparkSession, table: Table
) -> None:
    made(spark, table)
    write(spark, table, [(1, 1, 1.0, Decimal(1), "old")], OLD)
    before = last_commit(table)
    ensure_table(spark, table, StructType.fromDDL(NEW), NOTE, freedom="columns")
    assert newest_version(table) > 1
    assert last_commit(table) == before


def test_one_refused_difference_refuses_all_and_changes_nothing(
    spark: SparkSession, table: Table
) -> None:
    made(spark, table)
    before = newest_version(table)
    wanted = StructType.fromDDL("id bigint, s string, f double, d decimal(9,2), fresh int")
    with pytest.raises(SchemaChangedError) as refused:
        ensure_table(spark, table, wanted, NOTE, freedom="types")
    assert str(refused.value).splitlines() == [
        "gold.evolving was written under another definition:",
        "  - d: stored decimal(10,2), defined decimal(9,2)",
        "  - fresh: stored nothing, defined int",
        "  - gone: stored string, defined nothing",
        "  - s: stored smallint, defined string",
        "Restore the definition, or rebuild the tables from bronze under the new one with: "
        "tidelake backfill run PIPELINE, then promote",
    ]
    assert newest_version(table) == before
    assert dict(stored(spark, table).dtypes)["id"] == "int"


def test_without_freedom_nothing_changes(spark: SparkSession, table: Table) -> None:
    made(spark, table)
    with pytest.raises(SchemaChangedError, match="id: stored int, defined bigint"):
        ensure_table(spark, table, StructType.fromDDL(OLD.replace("id int", "id bigint")), NOTE)
    assert newest_version(table) == 0


def follow(spark: SparkSession, table: Table, folder: Path) -> list[Row]:
    """Take what a stream over the table has not taken yet."""
    taken: list[Row] = []
    query = (
        spark.readStream.format("delta")
        .option("startingVersion", 0)
        .load(str(table.path))
        .writeStream.option("checkpointLocation", str(folder))
        .foreachBatch(lambda rows, _: taken.extend(rows.collect()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return taken


@pytest.mark.parametrize(
    ("old", "new"),
    [("id int", "id int, fresh string"), ("id int", "id bigint")],
    ids=["a new column", "a wider type"],
)
def test_a_stream_that_follows_the_table_goes_on(
    spark: SparkSession, table: Table, tmp_path: Path, old: str, new: str
) -> None:
    made(spark, table, old)
    write(spark, table, [(1,)], old)
    assert [row["id"] for row in follow(spark, table, tmp_path / "checkpoint")] == [1]

    ensure_table(spark, table, StructType.fromDDL(new), NOTE, freedom="columns")
    value = (2, "x") if "fresh" in new else (2,)
    write(spark, table, [value], new)
    assert [tuple(row) for row in follow(spark, table, tmp_path / "checkpoint")] == [value]


def test_a_stream_that_has_yet_to_read_the_older_rows_reads_them_all(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    steps = ["id int", "id bigint", "id bigint, fresh string"]
    made(spark, table, steps[0])
    write(spark, table, [(1,)], steps[0])
    for number, (_, new) in enumerate(pairwise(steps), start=2):
        ensure_table(spark, table, StructType.fromDDL(new), NOTE, freedom="columns")
        write(spark, table, [(number, "x") if "fresh" in new else (number,)], new)

    found = follow(spark, table, tmp_path / "checkpoint")
    assert sorted(row["id"] for row in found) == [1, 2, 3]
