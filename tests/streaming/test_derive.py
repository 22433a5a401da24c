"""Derived columns: in each row, whatever wrote it, what their expression says of the stored row."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.crashes import after_merges
from tests.pipelines import VISITORS
from tests.running import START, read
from tests.worlds import TO_SILVER, World, world
from tidelake.delta.log import newest_version
from tidelake.errors import ConfigError, GenerationError
from tidelake.ops.status import read_status
from tidelake.replay.backfill import build
from tidelake.replay.backfill_promotion import promote, rollback
from tidelake.replay.compare import TableComparison
from tidelake.replay.differences import differences
from tidelake.replay.verify import judge_target, verify
from tidelake.runtime import gold
from tidelake.runtime.gold_tables import targets_of
from tidelake.runtime.schemas import check_definition

_PARTS = 3
_MINUTES: dict[str, Any] = {
    "name": "by_minute",
    "window": {"kind": "tumbling", "size": "1 minute"},
    "keys": ["who"],
    "measures": {
        "events": {"count": "*"},
        "clicks": {"count_if": "action = 'click'"},
        "money": {"sum": "money"},
        "mean": {"avg": "money"},
        "heat": {"sum": "CAST(n AS DOUBLE) / 3"},
    },
    "derive": {
        "rate": "clicks / events",
        "per_click": "money / (7 * clicks)",
        "warmth": "heat / EVENTS",
        "about": "CASE WHEN mean > 2 THEN concat(who, date_format(window_end, ' HH:mm')) END",
    },
}
_VISITS: dict[str, Any] = {
    "name": "visits",
    "window": {"kind": "session", "gap": "4 minutes"},
    "keys": ["who"],
    "measures": {"events": {"count": "*"}, "last_action": {"last": "action"}},
    "derive": {
        "pace": "events / timestampdiff(SECOND, session_start, session_end)",
        "ended": "concat(last_action, '!')",
    },
}
_EVER: dict[str, Any] = {
    "name": "ever",
    "window": {"kind": "global"},
    "keys": ["action"],
    "measures": {"events": {"count": "*"}, "people": {"approx_count_distinct": "who"}},
    "derive": {"each": "events / people", "number": "CAST(action AS INT)"},
}
_BASE: dict[str, Any] = {
    **VISITORS,
    "gold": [_MINUTES, _VISITS, _EVER],
}


class _Event(NamedTuple):
    id: str
    at: datetime
    who: str | None
    action: str
    n: int
    money: Decimal


def _events(part: int) -> list[_Event]:
    """Make events that lie among those of the files before, and connect their sessions."""
    return [
        _Event(
            f"{part}-{n}",
            START + timedelta(minutes=(n * 7 + part * 3) % 40, seconds=part),
            (None, "a", "b")[n % 3],
            ("click", "view", "17")[(n + part) % 3],
            n * n + part,
            Decimal(n * 37 + part) / 10,
        )
        for n in range(24)
    ]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Run three files, a batch each: the second as a large one, the third dies between tables."""
    made = world(spark, tmp_path_factory.mktemp("derive"), base=_BASE)
    for part in range(_PARTS):
        lines = [json.dumps(one._asdict(), default=str).encode() for one in _events(part)]
        made.land(f"{part}.jsonl", lines)
    made.run(hops=TO_SILVER)
    sizes = iter([True, False, True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gold, "is_small", lambda *_: next(sizes))
        with after_merges(len(_BASE["gold"]) * (_PARTS - 1) + 1):
            made.run(hops=["gold"])
    # Both sizes were asked for, and the batch that died.
    assert not list(sizes)
    made.run()
    return made


def _by_minute(parts: int) -> dict[tuple[datetime, str | None], list[_Event]]:
    found = defaultdict(list)
    for part in range(parts):
        for one in _events(part):
            found[one.at.replace(second=0), one.who].append(one)
    return found


def _quotients(played: World, table: str, columns: str) -> Iterator[tuple[float | None, Any]]:
    """Divide two stored columns of each row, and give the third beside."""
    for over, under, stored in read(played.lake, table, columns):
        yield (float(over) / float(under) if under else None), stored


@pytest.mark.long
def test_derived_values_follow_from_the_events_and_from_their_own_row(filled: World) -> None:
    found = read(filled.lake, "gold.by_minute", "window_start, who, rate, per_click::DOUBLE, about")
    expected = []
    for (minute, who), events in _by_minute(_PARTS).items():
        clicks = sum(one.action == "click" for one in events)
        money = sum(one.money for one in events)
        about = None
        if who and money / len(events) > 2:
            about = f"{who} {minute + timedelta(minutes=1):%H:%M}"
        per_click = round(float(money) / (7 * clicks), 6) if clicks else None
        expected.append((minute, who, clicks / len(events), per_click, about))
    rounded = [(*row[:3], None if row[3] is None else round(row[3], 6), row[4]) for row in found]
    assert rounded == sorted(expected, key=repr)

    for table, columns in (
        ("gold.by_minute", "heat, events, warmth"),
        ("gold.ever", "events, people, each"),
        ("gold.visits", "events, epoch(session_end - session_start)::BIGINT, pace"),
    ):
        pairs = list(_quotients(filled, table, columns))
        assert pairs and [value for value, _ in pairs] == [stored for _, stored in pairs]
    ended = read(filled.lake, "gold.visits", "last_action || '!', ended")
    assert len(ended) > 3 and all(wanted == stored for wanted, stored in ended)
    assert read(filled.lake, "gold.ever", "action, number") == [
        ("17", 17),
        ("click", None),
        ("view", None),
    ]
    judged = _judged(filled)
    assert all(one.equal for one in judged.values()), judged


def _judged(played: World) -> dict[str, TableComparison]:
    """Compare each gold table with its recomputation."""
    return {
        target.table.name: judge_target(played.context, target, newest_version(target.table), None)
        for target in targets_of(played.lake, played.pipeline)
    }


def _visits(parts: int) -> list[list[_Event]]:
    found: list[list[_Event]] = []
    for who in (None, "a", "b"):
        events = (one for part in range(parts) for one in _events(part) if one.who == who)
        own = sorted(events, key=lambda one: one.at)
        for number, one in enumerate(own):
            if number and one.at - own[number - 1].at <= timedelta(minutes=4):
                found[-1].append(one)
            else:
                found.append([one])
    return found


@pytest.mark.long
def test_rows_on_which_a_derived_column_fails_are_counted_in_their_batch(filled: World) -> None:
    minutes = visits = 0
    for part in range(_PARTS):
        changed = {(one.at.replace(second=0), one.who) for one in _events(part)}
        windows = _by_minute(part + 1)
        minutes += sum(all(one.action != "click" for one in windows[key]) for key in changed)
        own = {one.id for one in _events(part)}
        visits += sum(
            visit[0].at == visit[-1].at and not own.isdisjoint(one.id for one in visit)
            for visit in _visits(part + 1)
        )
    told = read_status(filled.lake, filled.pipeline).failed
    assert told == {"gold.by_minute": minutes, "gold.visits": visits, "gold.ever": 2 * _PARTS}
    assert minutes > 0 and visits > 0


@pytest.mark.long
def test_verify_finds_a_derived_value_that_is_off_by_the_least(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy")
    ((warmth,), *_) = read(played.lake, "gold.by_minute WHERE who = 'a'", "warmth")
    ((each,),) = read(played.lake, "gold.ever WHERE action = '17'", "each")
    changes = {
        "by_minute": ("who = 'a'", "warmth", warmth),
        "ever": ("action = '17'", "each", each),
    }
    for table, (where, column, value) in changes.items():
        stored = DeltaTable.forPath(played.spark, str(played.lake.gold(table).path))
        stored.update(
            f"{where} AND {column} = {value!r}D", {column: f"{math.nextafter(value, 9e9)!r}D"}
        )
    found = {
        name: {tuple(one.columns) for one in judged.differences}
        for name, judged in _judged(played).items()
    }
    assert found == {
        "gold.by_minute": {("warmth",)},
        "gold.visits": set(),
        "gold.ever": {("each",)},
    }


@pytest.mark.long
def test_a_changed_expression_is_refused_before_a_batch(filled: World) -> None:
    derive = {**_MINUTES["derive"], "rate": "2 * clicks / events"}
    changed = filled.redefined(gold=[_MINUTES | {"derive": derive}, _VISITS, _EVER])
    with pytest.raises(GenerationError, match="by_minute was filled under another definition"):
        changed.run(hops=["gold"])
    filled.redefined(gold=_BASE["gold"])


@pytest.mark.long
def test_a_changed_expression_comes_by_a_backfill_which_can_be_rolled_back(
    filled: World, tmp_path: Path
) -> None:
    played = filled.copied(tmp_path / "copy")
    derive = {**_MINUTES["derive"], "rate": "2 * clicks / events", "twice": "usual * 2"}
    measures = {**_MINUTES["measures"], "usual": {"avg": "n"}}
    table = _MINUTES | {"derive": derive, "measures": measures}
    changed = played.redefined(gold=[table, _VISITS, _EVER])
    before = read(played.lake, "gold.by_minute", "window_start, who, rate")

    found = differences(changed.context, build(changed.context, "silver"))
    assert found.redefined == {"gold.by_minute"}
    assert [name for name, one in found.gold.items() if not one.equal] == ["gold.by_minute"]
    off = {name for one in found.gold["gold.by_minute"].differences for name in one.columns}
    assert off == {"rate"}

    promote(changed.context)
    doubled = [(*key, 2 * rate) for *key, rate in before]
    assert read(played.lake, "gold.by_minute", "window_start, who, rate") == doubled
    assert verify(changed.context).equal
    rollback(changed.context)
    assert read(played.lake, "gold.by_minute", "window_start, who, rate") == before
    played = played.redefined(gold=_BASE["gold"])
    played.run()
    assert verify(played.context).equal


@pytest.mark.long
def test_what_only_spark_can_tell_of_a_derived_column_is_refused_with_its_place(
    filled: World,
) -> None:
    derive = {"lasts": "window_end - window_start", "no": "NULL", "odd": "array(who) + 1"}
    measures = _VISITS["measures"] | {"spread": {"max": "event_time - ingested_at"}}
    visits = _VISITS | {"measures": measures}
    changed = filled.redefined(gold=[_MINUTES | {"derive": derive}, visits])
    with pytest.raises(ConfigError) as refused:
        check_definition(changed.context)
    filled.redefined(gold=_BASE["gold"])
    told = {one.path: one.message for one in refused.value.violations}
    places = [f"gold[0].derive.{name}" for name in derive]
    assert list(told) == [*places, "gold[1].measures.spread"]
    assert "interval day to second" in told["gold[1].measures.spread"]
    assert (
        "interval day to second, which a Delta table cannot store" in told["gold[0].derive.lasts"]
    )
    assert "void, which a Delta table cannot store" in told["gold[0].derive.no"]
    assert "DATATYPE_MISMATCH" in told["gold[0].derive.odd"]
