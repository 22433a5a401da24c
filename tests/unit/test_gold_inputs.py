"""Gold reads silver exactly as far as its batch goes, also where that is inside a commit."""

from __future__ import annotations

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.oracles.gold import files_until
from tidelake.delta.positions import Position
from tidelake.delta.store import FolderTable
from tidelake.delta.tables import Table
from tidelake.runtime.gold_tables import up_to

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Write two commits of three and two files."""
    path = tmp_path_factory.mktemp("silver") / "counted"
    for first, files in ((0, 3), (30, 2)):
        rows = spark.range(first, first + 30).selectExpr("id", "'x' AS _payload_hash")
        rows.repartition(files).write.format("delta").mode("append").save(str(path))
    return FolderTable("silver.counted", path)


@pytest.mark.parametrize(
    "position", [(0, -1), (0, 0), (0, 1), (0, 2), (1, -1), (1, 0), (1, 1), (2, -1)]
)
def test_a_position_is_read_to_the_file(
    spark: SparkSession, table: Table, position: Position
) -> None:
    rows = up_to(spark, {"silver": table}, {"silver": position})("silver")
    assert rows.columns == ["id"]
    files = files_until(table.path, position)
    expected = duckdb.sql(f"SELECT id FROM read_parquet({files})").fetchall() if files else []
    assert sorted(row[0] for row in rows.collect()) == sorted(row[0] for row in expected)
