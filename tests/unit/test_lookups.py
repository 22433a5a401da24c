"""A lookup repeats only in the table that a batch read, and in columns that its version has."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.unit.handmade import SHOP, write_commit
from tidelake.config import Enrich, load_environment, load_pipeline
from tidelake.delta.commit_metadata import DimensionUse, FateCount, SilverNote
from tidelake.delta.log import FOLLOWS, Commit
from tidelake.delta.tables import Lake, Table
from tidelake.errors import GenerationError, UsageError
from tidelake.ops.status import read_status
from tidelake.replay import generations
from tidelake.replay.generations import merged
from tidelake.replay.verify_silver import _looked_up
from tidelake.runtime.hop import Run
from tidelake.runtime.lookups import (
    Lookup,
    check_dimensions,
    enriched,
    lookups,
    refuse_replaced,
)
from tidelake.runtime.progress import Progress
from tidelake.runtime.silver import SilverHop
from tidelake.silver.enrich import looked_up

_ENRICH = Enrich.model_validate(
    {"dimension": "goods", "on": {"good": "good"}, "columns": ["category"]}
)
_WIDER = _ENRICH.model_copy(update={"columns": ("category", "Color", "weight")})
_REMEDY = r"tidelake run goods, then .*: tidelake backfill run shop, and promote it$"


def _pipeline(enrich: Enrich = _ENRICH) -> Any:
    return SimpleNamespace(name="shop", enrich=(enrich,))


def _run(lake: Lake, *, spark: Any = None, enrich: Enrich = _ENRICH, **more: Any) -> Run:
    kinds = {"category": StringType(), "Color": StringType(), "weight": IntegerType()}
    types = StructType([StructField(name, kind) for name, kind in kinds.items()])
    pipeline = _pipeline(enrich)
    plan = SimpleNamespace(pipeline=pipeline, entry_types={"goods": types})
    fields = {"spark": spark, "lake": lake, "pipeline": pipeline, "plan": plan, **more}
    return cast(Run, SimpleNamespace(**fields))


def _note(version: int, unmatched: int = 0, **more: Any) -> SilverNote:
    return SilverNote(dimensions=(DimensionUse("dim.goods", version, unmatched),), **more)


def _batch(lake: Lake, batch: int, second: float, note: SilverNote, **more: Any) -> None:
    """Commit a batch of silver, so many seconds after the new year."""
    made = {"generation": "g1", "batch": batch, **note.to_json(), **more}
    write_commit(lake.silver("shop"), batch + 1, note=made, second=second)


def _versions(table: Table, *seconds: float) -> None:
    """Give a table these versions, and no others."""
    shutil.rmtree(table.path, ignore_errors=True)
    for version, second in enumerate(seconds):
        write_commit(table, version, second=second)


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ((1, 2, 3), ""),
        # Later versions, and one that another machine wrote whose clock is a little ahead.
        ((1, 2, 20, 30), ""),
        ((), "which was deleted"),
        ((20, 21, 22, 23), "which was recreated since"),
        ((1, 2), "which is an older copy"),
        ((1, 2, 200), "which is an older copy"),
    ],
)
def test_silver_does_not_look_rows_up_in_another_table_than_its_last_batch(
    tmp_path: Path, seconds: tuple[float, ...], why: str
) -> None:
    lake = Lake(tmp_path)
    _versions(lake.table("dim.goods"), *seconds)
    _batch(lake, 0, 10, _note(2))
    # A repair repeats the versions of the batch, and makes nothing of another table's.
    _batch(lake, 1, 1000, _note(2), **{FOLLOWS: 1})
    if not why:
        refuse_replaced(lake, _pipeline())
        return
    hop = object.__new__(SilverHop)
    hop.run = _run(lake)
    match = rf"^shop, hop silver: rows .* in version 2 of dim\.goods, {why}\. Nothing .*{_REMEDY}"
    with pytest.raises(GenerationError, match=match):
        hop.offset_mismatch(cast(Commit, None))


@pytest.mark.parametrize("version", [None, -1])
def test_a_dimension_that_no_batch_has_read_may_be_any(tmp_path: Path, version: int | None) -> None:
    lake = Lake(tmp_path)
    _versions(lake.table("dim.goods"), 20)
    _batch(lake, 0, 10, SilverNote() if version is None else _note(version))
    refuse_replaced(lake, _pipeline())
    assert [one.version for one in lookups(lake, _pipeline(), _note(-1))] == [0]


@pytest.mark.parametrize(("seconds", "why"), [((), "was deleted"), ((1,), "is an older copy")])
def test_a_batch_does_not_look_rows_up_in_an_older_version_than_the_one_before(
    tmp_path: Path, seconds: tuple[float, ...], why: str
) -> None:
    lake = Lake(tmp_path)
    _versions(lake.table("dim.goods"), *seconds)
    with pytest.raises(GenerationError, match=rf"in version 1 of dim\.goods, which {why}"):
        lookups(lake, _pipeline(), _note(1))
    assert [one.version for one in lookups(lake, _pipeline())] == [len(seconds) - 1]


def _goods(lake: Lake, *versions: dict[str, list[Any]]) -> Table:
    """Fill a dimension for real; each version replaces the one before."""
    table = lake.table("dim.goods")
    for rows in versions:
        columns = {"good": [1], **rows}
        write_deltalake(
            str(table.path), pa.table(columns), mode="overwrite", schema_mode="overwrite"
        )
    return table


def test_silver_is_not_filled_from_a_dimension_without_a_column_of_the_definition(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, said = Lake(tmp_path), list[str]()
    run = _run(lake, spark=spark, enrich=_WIDER, progress=Progress(said.append))
    check_dimensions(run)
    assert said == [
        "dim.goods does not exist yet: its columns stay null. Fill it with: tidelake run goods"
    ]
    _goods(lake, {"category": ["a"]})
    match = r"^dim\.goods has no column Color yet, .* of shop .*: tidelake backfill run goods, then"
    with pytest.raises(UsageError, match=match):
        check_dimensions(run)
    # Before a rebuild changes anything.
    with pytest.raises(UsageError, match=match):
        generations.rebuild_silver(run)
    _goods(lake, {"category": ["a"], "color": ["red"], "weight": [1]})
    check_dimensions(run)
    assert len(said) == 1


def test_a_column_that_a_version_lacks_is_null(spark: SparkSession, tmp_path: Path) -> None:
    table = _goods(Lake(tmp_path), {"category": ["a"]}, {"category": ["b"], "color": ["red"]})
    rows = spark.sql("SELECT named_struct('good', 1L) AS _selected")
    found = []
    for version in (0, 1):
        run = _run(Lake(tmp_path), enrich=_WIDER)
        made = enriched(rows, run.plan, [Lookup(_WIDER, table, version)])
        found += made.select(f"{looked_up(0)}.*").collect()
    assert list(map(tuple, found)) == [("a", None, None), ("b", "red", None)]
    assert found[0].__fields__ == ["category", "Color", "weight"]


def _closing(*batches: tuple[int, datetime]) -> list[Commit]:
    """Give silver's commits, newest first: the versions that each looked rows up in, and when."""
    commits = [
        Commit(n, at, 1, {"generation": "g1", "batch": n, **_note(version).to_json()})
        for n, (version, at) in enumerate(batches)
    ]
    return commits[::-1]


def test_verify_says_why_a_lookup_cannot_be_repeated(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    table = _goods(lake, {"category": ["a"]}, {"category": ["b"]})
    run, now = _run(lake, spark=spark), datetime.now(UTC)
    rows = spark.sql("SELECT 0 AS _pins, named_struct('good', 1L) AS _selected")
    for version, category in ((0, "a"), (1, "b")):
        found = _looked_up(run, rows, _closing((version, now)))
        assert [row[0][0] for row in found.select(looked_up(0)).collect()] == [category]

    # Delta does not refuse a version of the last week, whose files a VACUUM deleted.
    (old,) = {file.name for file in table.path.glob("*.parquet")} - _files_of(spark, table)
    (table.path / old).unlink()
    match = r"as of version 0, which can no longer be read: .*: tidelake verify shop --start 20"
    with pytest.raises(UsageError, match=match):
        _looked_up(run, rows, _closing((0, now), (1, now)))
    # Its commit is not that of the batch.
    before = now - timedelta(days=1)
    remedy = r"Restore its newest copy, or .* tidelake backfill run shop, and promote it$"
    for made, why in (
        (_closing((1, before)), "which was recreated since"),
        (_closing((2, now)), "which is an older copy"),
    ):
        with pytest.raises(UsageError, match=rf"of dim\.goods, {why}\. {remedy}"):
            _looked_up(run, rows, made)
    shutil.rmtree(table.path)
    with pytest.raises(UsageError, match=r"in version 1 of dim\.goods, which was deleted\."):
        _looked_up(run, rows, _closing((1, now)))


def _files_of(spark: SparkSession, table: Table) -> set[str]:
    files = spark.read.format("delta").load(str(table.path)).inputFiles()
    return {Path(file).name for file in files}


def test_a_note_of_several_batches_has_all_their_counts() -> None:
    uses = [DimensionUse("dim.goods", 1, 2), DimensionUse("dim.goods", 1, 0)]
    newest = SilverNote(
        counts=(FateCount("silver", None, "bronze", 3, 1, 1),),
        warnings={"a": 1},
        dimensions=tuple(uses),
    )
    older = SilverNote(
        counts=(FateCount("silver", None, "bronze", 4, 2, 2),),
        warnings={"a": 2, "b": 1},
        dimensions=(uses[0]._replace(unmatched=5), uses[1]._replace(unmatched=7)),
    )
    found = merged([newest, older, SilverNote()], {"bronze": (9, -1)})
    assert found.counts == (FateCount("silver", None, "bronze", 7, 3, 3),)
    assert found.warnings == {"a": 3, "b": 1}
    assert [use.unmatched for use in found.dimensions] == [7, 7]
    assert found.until == {"bronze": (9, -1)}


def test_the_status_has_each_lookup_of_one_dimension(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(SHOP), encoding="utf-8")
    pipeline = load_pipeline(str(file), load_environment("local", root=str(lake.root)))
    for table in (lake.bronze("shop"), lake.gold("totals")):
        write_commit(table, 0, note={"generation": "g1", "batch": 0})
    for batch, unmatched in enumerate([(2, 0), (3, 1)]):
        uses = tuple(DimensionUse("dim.goods", batch, one) for one in unmatched)
        _batch(lake, batch, batch, SilverNote(dimensions=uses))
    shown = [(use.version, use.unmatched) for use in read_status(lake, pipeline).dimensions]
    assert shown == [(1, 5), (1, 1)]
