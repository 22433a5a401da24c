"""An erasure: a subject's rows leave every table, the neighbours' stay, and streams go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.conf import RuntimeConfig

from tests.following import GOLD, JOINS
from tests.oracles.gold import columns_of
from tests.running import START, click, read, versions
from tests.worlds import TO_SILVER, World, world
from tidelake.delta.locks import hold
from tidelake.delta.log import last_commit
from tidelake.errors import LockedError, NotBuiltError, RefusedError, UsageError
from tidelake.instants import Range
from tidelake.ledger.terms import read_ledger
from tidelake.replay import erase as steps
from tidelake.replay import erase_records, generations
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.backfill_state import State, write_state
from tidelake.replay.certificates import Certificate, CertifiedTable, changed_since
from tidelake.replay.erase import Report, erase, look
from tidelake.replay.repairing import repair
from tidelake.replay.requeue import Choice, apply_late, discard_quarantine
from tidelake.replay.subject import Subject
from tidelake.replay.verify import verify
from tidelake.runtime.hop import Run

pytestmark = pytest.mark.usefixtures("interpreted")

_DAY = 24 * 60
_ARRIVALS = [START + timedelta(days=3, minutes=n) for n in range(4)]
_ZOE = Subject("user_id", "zoe")
_HER = re.compile(rb"zoe(?!y)")
# Its rows are of several users, but for sessions of hers alone.
_GOLD: list[dict[str, Any]] = [
    {
        "name": "visits",
        "window": {"kind": "session", "gap": "30 minutes"},
        "keys": ["product_id"],
        "measures": {
            "events": {"count": "*"},
            "total": {"sum": "value"},
            "last": {"last": "user_id"},
        },
    },
]
# How many rows of each table are hers once all is taken in; and of them what an event gave.
_HERS = {
    "bronze.clickstream": 24,
    "silver.clickstream": 13,
    "silver.clickstream__discarded": 2,
    "silver.clickstream__late": 2,
    "silver.clickstream__quarantine": 6,
    "bronze.clickstream__requeue": 1,
}
_KEPT = {
    "source": 74,
    "erased": 24,
    "bronze": 50,
    "silver": 42,
    "duplicates": 4,
    "quarantined": 3,
    "late": 1,
    "filtered": 0,
    "balanced": True,
}
_OTHERS = "record_id, event_id, user_id, event_time, value, is_late"


def _lines(part: int) -> list[bytes]:
    """Write hers and others', with every fate among both; every line but a copy has its own id."""
    first, at = part * 20, 3 * _DAY - 60 * part

    def hers(number: int, **changes: Any) -> bytes:
        return click(500 + first + number, minute=at - number, user_id="zoe", **changes)

    theirs = [click(n, minute=at - n) for n in range(first, first + 12)]
    lines = [*theirs, theirs[3], *(hers(n) for n in range(4)), hers(2)]
    lines += [click(first + 12, minute=at, user_id="zoey"), b'{"user_id": "zoey", broken %d' % part]
    lines += [b'{"broken %d": "zoe"' % part, hers(5, value="12,50")]
    if part == 1:
        # One event of hers that another wants too, twice and alike; and rows that come too late.
        again = click(500, minute=3 * _DAY, user_id="u9")
        lines += [again, again, click(501, minute=3 * _DAY, user_id="u8")]
        lines += [click(900 + n, minute=n, user_id=who) for n, who in enumerate(("zoe", "u1"))]
        lines += [click(910, minute=_DAY, user_id="zoe"), hers(6, action=None)]
        lines += [click(911, minute=_DAY, user_id="u2")]
    return lines


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run two files, send late rows again, give others up; let silver and gold lag behind.

    The erasure itself fills gold, in one batch, before it deletes a row.
    """
    made = world(spark, tmp_path_factory.mktemp("erase"), gold=_GOLD, quality=None)
    made = made.with_limits(silver_bytes="1k")
    for part in range(2):
        made.land(f"{part}.jsonl", _lines(part))
    made.run(*_ARRIVALS[:2], hops=TO_SILVER)
    assert apply_late(made.context, Range(end=START + timedelta(days=1))) == 2
    assert discard_quarantine(made.context, Choice(stage="contract"), why="a test") == 2
    made.land("2.jsonl", _lines(2))
    made.run(_ARRIVALS[2], hops=["bronze"])
    return made


@dataclass(frozen=True)
class Erased:
    """Tables without her, and what was said of it."""

    world: World
    report: Report


@pytest.fixture(scope="module")
def erased(filled: World, tmp_path_factory: pytest.TempPathFactory) -> Erased:
    """Erase her, cut off when all rows are deleted; nothing else may write until it is done."""
    played = filled.copied(tmp_path_factory.mktemp("erased") / "copy")
    # As a prefilter would have left it.
    remembered = played.lake.checkpoints("clickstream", "silver") / "g1" / "state" / "0"
    remembered.mkdir(parents=True)
    (remembered / "ids").write_text("zoe")
    # As the gate of an earlier version left it.
    page = played.lake.root / "data_docs" / "clickstream" / "validations" / "page.html"
    page.parent.mkdir(parents=True)
    page.write_text("1 unexpected: zoe")
    # Rows are found and deleted in a session that refuses settings, as on serverless compute.
    with _dying_at("continue_silver", module=generations), _refusing_once_drained():
        erase(played.context, _ZOE)
    # The erasure has filled gold first, of which the last step makes new files.
    assert "gold.visits" in _tables_holding(played)
    before = versions(played.lake)
    for command in (
        played.run,
        lambda: apply_late(played.context),
        lambda: repair(played.context, "silver"),
        lambda: build(played.context, "bronze"),
    ):
        with pytest.raises(RefusedError, match="an erasure of clickstream has not finished"):
            command()
    with pytest.raises(UsageError, match="an erasure of another subject"):
        erase(played.context, Subject("user_id", "u1"))
    with pytest.raises(UsageError, match="the definition of clickstream changed after"):
        erase(played.redefined(gold=[{**_GOLD[0], "keys": ["user_id"]}]).context, _ZOE)
    (problem, *_) = read_ledger(played.lake, played.pipeline).problems
    assert "an erasure of clickstream has not finished" in problem
    assert versions(played.lake) == before
    assert not (played.lake.root / "backfill").exists()
    return Erased(played, erase(played.context, _ZOE, now=True))


@contextmanager
def _dying_at(step: str, call: int = 0, *, module: Any = steps) -> Iterator[None]:
    """Die before a step of an erasure, when it comes for the nth time, from 0."""
    real, made = getattr(module, step), []

    def stepped(*rest: Any, **options: Any) -> Any:
        if len(made) == call:
            raise RuntimeError("cut off")
        made.append(step)
        return real(*rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, step, stepped)
        with pytest.raises(RuntimeError, match="cut off"):
            yield


def _holding(root: Path) -> list[str]:
    """List the files under a root that hold her, whatever the tables' logs say of them.

    Of a log, the statistics are left out: the least and greatest values of files that are gone.
    """
    files = [file for file in sorted(root.rglob("*")) if file.is_file()]
    return [str(file.relative_to(root)) for file in files if _holds(file)]


def _tables_holding(played: World) -> set[str]:
    """Name the tables in whose files she is."""
    return {".".join(Path(file).parts[:2]) for file in _holding(played.lake.root)}


def _holds(file: Path) -> bool:
    if file.suffix == ".parquet":
        # No table here is old enough for a checkpoint of its log.
        assert "_delta_log" not in file.parts
        found = duckdb.sql(
            f"SELECT count(*) FROM read_parquet('{file}') r "
            "WHERE regexp_matches(r::VARCHAR, 'zoe([^y]|$)')"
        )
        return bool(found.fetchall()[0][0])
    told = file.read_bytes()
    if "_delta_log" in file.parts:
        if file.suffix != ".json":
            return False
        actions = [json.loads(line) for line in told.splitlines()]
        for action in actions:
            for kind in ("add", "remove"):
                action.get(kind, {}).pop("stats", None)
        told = json.dumps(actions).encode()
    return _HER.search(told) is not None


def _assert_balanced(played: World, **changes: Any) -> None:
    told = read_ledger(played.lake, played.pipeline).to_json()
    assert told["problems"] == []
    assert {name: told[name] for name in _KEPT} == {**_KEPT, **changes}


def _assert_right(played: World, **changes: Any) -> None:
    """Want the tables to be what follows from bronze, and the books to balance."""
    _assert_balanced(played, **changes)
    off = [one for one in verify(played.context).tables if not one.comparison.equal]
    assert off == []


def test_her_rows_are_gone_and_the_books_balance(erased: Erased) -> None:
    _assert_balanced(erased.world)
    assert erased.report.rows == _HERS
    assert look(erased.world.context, _ZOE) == dict.fromkeys(_HERS, 0)


def test_others_keep_every_row_once_and_get_the_event_that_hers_had_taken(
    filled: World, erased: Erased
) -> None:
    before = read(filled.lake, "silver.clickstream", _OTHERS)
    after = read(erased.world.lake, "silver.clickstream", _OTHERS)
    assert {row for row in before if row[2] != "zoe"} < set(after)
    assert len({row[1] for row in after}) == len(after)
    taken = [row[1:3] for row in after if row[2] in ("u8", "u9")]
    assert sorted(taken) == [("e500", "u9"), ("e501", "u8")]
    assert erased.report.sent_again == 3
    parsed = "silver.clickstream__quarantine WHERE stage = 'parse'"
    broken = read(erased.world.lake, parsed, "payload")
    assert [b"zoey" in bytes(payload) for (payload,) in broken] == [True] * 3


def test_no_file_holds_her_and_what_is_left_is_said(filled: World, erased: Erased) -> None:
    # Of what was given up there are ids alone.
    with_values = _HERS.keys() - {"silver.clickstream__discarded"}
    assert _tables_holding(filled) == with_values
    assert _holding(erased.world.lake.root) == []
    left = {one.where for one in erased.report.remains}
    assert {Path(where).name for where in left - {"every table"}} == {
        f"{n}.jsonl" for n in range(3)
    }
    assert not erased.report.rollback_given_up
    assert not list(erased.world.lake.root.glob("erasures/*"))


def test_streams_go_on_every_table_follows_from_bronze_and_a_row_that_is_lost_is_found(
    erased: Erased, tmp_path: Path
) -> None:
    played = erased.world.copied(tmp_path / "copy")
    assert played.run() == []
    new = [click(number, minute=3 * _DAY) for number in (700, 701)]
    file = played.land("3.jsonl", [*_lines(0)[:3], *new])
    try:
        played.run(_ARRIVALS[3])
        # What the erasure left wrong would be wrong still.
        _assert_right(played, source=79, bronze=55, silver=44, duplicates=7)
    finally:
        file.unlink()
    for name, problem in (
        ("silver.clickstream", "rows as silver, the table has"),
        ("bronze.clickstream", "wrote 79 rows and 24 were erased, it holds 54"),
    ):
        one = read(played.lake, name, "record_id")[-1][0]
        DeltaTable(str(played.lake.table(name).path)).delete(f"record_id = '{one}'")
        assert any(problem in told for told in read_ledger(played.lake, played.pipeline).problems)


def test_a_certificate_from_before_is_not_held_against_the_tables(erased: Erased) -> None:
    made = {"bronze.clickstream": CertifiedTable(id=None, version=1, columns={}, groups={})}
    earlier = Certificate("clickstream", START, None, made)
    with pytest.raises(UsageError, match="rows of clickstream were erased after that"):
        changed_since(erased.world.context, earlier)


def test_while_a_hop_runs_or_a_backfill_is_open_nothing_is_erased(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy")
    before = versions(played.lake)
    for hop in ("bronze", "silver", "gold"):
        with (
            hold(played.lake.checkpoints("clickstream", hop), "it"),  # type: ignore[arg-type]
            pytest.raises(LockedError, match=f"clickstream, hop {hop}"),
        ):
            erase(played.context, _ZOE)
    write_state(played.lake, played.pipeline, State("bronze", "another", stage="building"))
    with pytest.raises(RefusedError, match="the backfill of clickstream is building"):
        erase(played.context, _ZOE)
    with pytest.raises(NotBuiltError, match="prefilter"):
        erase(played.redefined(dedup={"prefilter": "operator"}).context, _ZOE)
    refused = "does not support session settings, which --now needs"
    with _refusing_settings(), pytest.raises(UsageError, match=refused):
        erase(played.context, _ZOE, now=True)
    assert versions(played.lake) == before


@pytest.mark.long
def test_records_of_an_earlier_definition_are_found_by_the_rows_that_they_gave(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path, gold=[], joins=[], enrich=[], quality=None)
    at = 3 * _DAY
    hers, bot = click(1, minute=at, user_id="zoe"), click(3, minute=at, user_id="zoe")
    theirs = [click(n, minute=at) for n in (4, 5)]
    conflict = click(1, minute=at, user_id="zoe", product_id="p9")
    played.land("0.jsonl", [hers, hers, bot, bot, *theirs, theirs[0], conflict])
    played.run(_ARRIVALS[0], hops=TO_SILVER)
    event = played.pipeline.event.model_dump(by_alias=True)
    changed = played.redefined(
        event={
            "schema": f"{event['schema']}, visitor STRING",
            "where": "action <> 'bot'",
            "select": {**event["select"], "user_id": "visitor"},
        }
    )
    report = erase(changed.context, _ZOE)

    assert (report.rows["bronze.clickstream"], report.rows["silver.clickstream"]) == (4, 2)
    payloads = read(played.lake, "bronze.clickstream", "payload")
    assert sorted(bytes(one) for (one,) in payloads) == sorted([*theirs, theirs[0], conflict])
    # Whose it is cannot be told: another's record may mention her.
    unclear = [one for one in report.remains if "mention" in one.what]
    assert [one.what for one in unclear] == ["1 record that mentions the value, without a user_id"]
    assert "tidelake erase clickstream --subject event_id=ID" in unclear[0].remedy
    told = read_ledger(played.lake, changed.pipeline).to_json()
    assert (told["duplicates"], told["filtered"], told["balanced"]) == (1, 0, True)
    # The conflict has its event id now.
    assert (told["silver"], told["quarantined"], report.sent_again) == (3, 0, 1)
    assert look(changed.context, Subject("event_id", "e1"))["bronze.clickstream"] == 1


@contextmanager
def _refusing_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("set", "unset"):
            patch.setattr(RuntimeConfig, name, _refused)
        yield


@contextmanager
def _refusing_once_drained() -> Iterator[None]:
    """Refuse settings after all has been read: bronze itself is filled in a session with them."""
    drain = steps._drain
    with ExitStack() as later, pytest.MonkeyPatch.context() as patch:

        def drained(run: Run) -> None:
            drain(run)
            later.enter_context(_refusing_settings())

        patch.setattr(steps, "_drain", drained)
        yield


def _refused(*_: Any, **__: Any) -> None:
    raise AnalysisException("[CONFIG_NOT_AVAILABLE] not here")


@pytest.mark.long
def test_without_settings_and_kept_frames_the_same_tables_are_left(
    filled: World, erased: Erased, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = filled.copied(tmp_path / "copy")
    for name in ("cache", "persist", "checkpoint", "localCheckpoint"):
        monkeypatch.setattr(DataFrame, name, _refused)
    with _refusing_once_drained():
        report = erase(played.context, _ZOE)
    assert (report.rows, report.sent_again) == (_HERS, erased.report.sent_again)
    monkeypatch.undo()
    _assert_right(played)
    _assert_as_erased(played, erased)


def _assert_as_erased(played: World, erased: Erased) -> None:
    for table, columns in (
        ("silver.clickstream", _OTHERS),
        ("silver.clickstream__quarantine", "record_id, stage"),
        ("silver.clickstream__late", "record_id"),
        ("gold.visits", "product_id, session_start, session_end, events, total, last"),
    ):
        assert read(played.lake, table, columns) == read(erased.world.lake, table, columns)


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "call", "module"),
    [
        ("run_hops", 0, steps),
        ("begin", 0, erase_records),
        *[("delete_records", call, steps) for call in range(6)],
        ("append_nothing", 0, steps),
        ("prepare_checkpoint", 0, generations),
        ("rebuild_gold", 0, generations),
        ("append", 0, generations),
        ("append_nothing", 0, generations),
        ("requeue_from", 0, steps),
        ("run_hops", 1, steps),
        ("copy_books", 0, steps),
        ("end", 0, erase_records),
        ("purge", 0, steps),
    ],
)
def test_cut_off_anywhere_it_goes_on_to_the_same_tables(
    filled: World, erased: Erased, tmp_path: Path, step: str, call: int, module: Any
) -> None:
    played = filled.copied(tmp_path / "copy")
    with _dying_at(step, call, module=module):
        erase(played.context, _ZOE, now=True)
    erase(played.context, _ZOE, now=True)
    _assert_right(played)
    assert _holding(played.lake.root) == []
    _assert_as_erased(played, erased)


@pytest.mark.long
def test_without_now_old_files_stay_and_are_named_with_when_they_go(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy")
    report = erase(played.context, _ZOE)
    old = {one.where: one for one in report.remains if one.where.startswith(("bronze", "gold"))}
    assert {"bronze.clickstream", "bronze.clickstream__requeue", "gold.visits"} <= old.keys()
    until = old["bronze.clickstream"].until
    assert until is not None
    written = last_commit(played.lake.silver("clickstream")).written_at  # type: ignore[union-attr]
    assert timedelta(days=6, hours=23) < until - written < timedelta(days=7, hours=1)
    assert _holding(played.lake.root) != []


@pytest.mark.long
def test_a_second_erasure_and_repairs_after_it_count_each_row_once(
    erased: Erased, tmp_path: Path
) -> None:
    played = erased.world.copied(tmp_path / "copy")
    erase(played.context, Subject("event_id", "e0"))
    gone = {"erased": 25, "bronze": 49, "silver": 41}
    _assert_right(played, **gone)
    for hop in ("bronze", "silver", "gold"):
        repair(played.context, hop)  # type: ignore[arg-type]
        _assert_right(played, **gone)
    played.run()
    _assert_right(played, **gone)


@pytest.mark.long
def test_a_promotion_cannot_be_rolled_back_any_more(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    played.run()
    build(played.context, "bronze")
    promote(played.context)
    assert erase(played.context, _ZOE, now=True).rollback_given_up
    assert verify(played.context).equal
    assert read_ledger(played.lake, played.pipeline).problems == ()
    assert _holding(played.lake.root) == []
    with pytest.raises(UsageError, match="has no backfill"):
        rollback(played.context)


@pytest.mark.long
def test_rows_that_a_deletion_vector_only_hides_are_purged(filled: World, tmp_path: Path) -> None:
    played = filled.copied(tmp_path / "copy")
    for table in played.lake.existing():
        played.spark.sql(
            f"ALTER TABLE delta.`{table.path}` "
            "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
    erase(played.context, _ZOE, now=True)
    _assert_right(played)
    assert _holding(played.lake.root) == []
    assert list(played.lake.root.rglob("deletion_vector*.bin")) == []


@pytest.mark.long
def test_gold_of_every_kind_is_as_if_she_had_never_been_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    played, without = (
        world(spark, tmp_path / name, gold=GOLD, joins=JOINS, quality=None)
        for name in ("played", "without")
    )
    for part in range(2):
        played.land(f"{part}.jsonl", _lines(part))
        without.land(f"{part}.jsonl", [one for one in _lines(part) if not _HER.search(one)])
    for one in (played, without):
        one.run(*_ARRIVALS[:2])
    erase(played.context, _ZOE)
    for one in (played, without):
        one.land("2.jsonl", [click(n, minute=3 * _DAY - 9 * n) for n in range(700, 720)])
        one.run(_ARRIVALS[2])
    for table in (*GOLD, *JOINS):
        name, columns = f"gold.{table['name']}", ", ".join(columns_of(table))
        rows = read(without.lake, name, columns)
        assert rows or table in JOINS
        assert read(played.lake, name, columns) == rows
    assert verify(played.context).equal
    assert read_ledger(played.lake, played.pipeline).problems == ()


@pytest.mark.long
def test_a_subject_of_a_dimension_leaves_its_state_and_its_history(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = world(spark, tmp_path, base="products")

    def change(product: str, revision: int) -> bytes:
        at = (START + timedelta(minutes=revision)).isoformat()
        return json.dumps(
            {
                "change_id": f"{product}@{revision}",
                "product_id": product,
                "revision": revision,
                "changed_at": at,
                "op": "upsert",
                "category": f"c{revision}",
                "price": 1.5,
            }
        ).encode()

    played.land("0.jsonl", [change(one, n) for n in range(1, 4) for one in ("zoe", "p2")])
    played.run()
    erase(played.context, Subject("product_id", "zoe"), now=True)
    assert read(played.lake, "dim.products", "product_id, category") == [("p2", "c3")]
    assert len(read(played.lake, "dim.products__history", "product_id")) == 3
    assert verify(played.context).equal
    assert read_ledger(played.lake, played.pipeline).problems == ()
    assert _holding(played.lake.root) == []
