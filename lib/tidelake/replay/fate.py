"""Follow records from the source to gold: where each one is, why, and in which rows it counts.

Everything is read from the tables and their logs, without Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlglot
from sqlglot.errors import SqlglotError

from tidelake.config import GoldTable, Pipeline
from tidelake.delta.log import commits, last_commit
from tidelake.delta.notes import positions
from tidelake.delta.positions import BEGINNING, version_at
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.ops.history import require_tables
from tidelake.ops.query import ask
from tidelake.ops.side import closed_batch, in_closed_batch
from tidelake.replay.subject import EVENT_ID, Subject

FateState = Literal[
    "silver", "duplicate", "quarantined", "discarded", "late", "filtered", "requeued", "pending"
]
Verdict = Literal["counts", "outside", "waiting", "no row", "unknown"]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class GoldCount:
    """What a gold table makes of an event.

    Attributes:
        table: The logical name.
        verdict: ``counts``, ``outside`` (its ``where`` is not met), ``waiting`` (gold has not
            taken the event's batch), ``no row`` (a join without a match, a change that was
            overtaken) or ``unknown`` (its ``where`` is SQL that only Spark understands).
        rows: The rows, as analysts read them.
    """

    table: str
    verdict: Verdict
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Fate:
    """Where a record of the source is.

    Attributes:
        record_id: The record.
        state: Its one fate; ``requeued``: sent into silver once more and not taken yet;
            ``pending``: not taken at all yet.
        event_id: Its event's id; None where it has none that could be read.
        source: The file or topic.
        ingested_at: When it arrived (UTC).
        payload: Its bytes.
        event_time: When it happened (UTC); None where that is not known.
        stage: Of a quarantined row: where it failed.
        reasons: Why it is where it is, for people.
        copy_of: Of a duplicate: the accepted record.
        requeued_at: When it was last requeued (UTC).
        counted: Of an accepted row: what each gold table makes of it.
    """

    record_id: str
    state: FateState
    event_id: str | None
    source: str
    ingested_at: datetime
    payload: bytes
    event_time: datetime | None = None
    stage: str | None = None
    reasons: tuple[str, ...] = ()
    copy_of: str | None = None
    requeued_at: datetime | None = None
    counted: tuple[GoldCount, ...] = ()


def fates_of_event(lake: Lake, pipeline: Pipeline, event_id: str) -> list[Fate]:
    """Return the fate of every record of an event, in the order of arrival.

    A record that is in no table but bronze is found by the id in its payload, or by a payload
    equal to that of one that is.

    Raises:
        UsageError: The pipeline has not run, or no record is of that event.
    """
    name = pipeline.name
    require_tables(lake, name)
    known = [
        record
        for table in (lake.silver(name), lake.late(name), lake.quarantine(name))
        if table.exists
        for (record,) in ask(
            lake,
            f"SELECT DISTINCT record_id FROM {table.name} WHERE event_id = {_text(event_id)}",
        ).rows
    ]
    # The longest part of the id that JSON writes in one way only.
    core = max(re.findall(r"[A-Za-z0-9_.:-]+", event_id), key=len, default=event_id)
    of_known = f"record_id IN ({_listed(known)})"
    found = [
        fate
        for fate in _fates(
            lake,
            pipeline,
            f"{of_known} OR payload IN (SELECT payload FROM bronze.{name} WHERE {of_known}) "
            # Of bytes that are no text only hexadecimal digits can be searched.
            f"OR contains(hex(payload), hex({_text(core)}))",
        )
        if fate.record_id in known or _is_of_event(fate, pipeline, event_id)
    ]
    if not found:
        raise UsageError(
            f"no record of {name} has the event id {event_id!r}. "
            f"Look at what there is: tidelake sql "
            f'"SELECT event_id, event_time FROM silver.{name} LIMIT 10"'
        )
    return found


def fates_of_record(lake: Lake, pipeline: Pipeline, record_id: str) -> list[Fate]:
    """Return the fate of one record.

    Raises:
        UsageError: The pipeline has not run, or bronze holds no such record.
    """
    require_tables(lake, pipeline.name)
    found = _fates(lake, pipeline, f"record_id = {_text(record_id)}")
    if not found:
        raise UsageError(
            f"bronze.{pipeline.name} holds no record {record_id!r}. "
            f"Look at what there is: tidelake sql "
            f'"SELECT record_id FROM bronze.{pipeline.name} LIMIT 10"'
        )
    return found


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _listed(values: Iterable[str]) -> str:
    """Write texts between the brackets of ``IN``; NULL equals nothing."""
    return ", ".join(_text(value) for value in values) or "NULL"


def _fates(lake: Lake, pipeline: Pipeline, condition: str) -> list[Fate]:
    """Return the fates of bronze's rows that meet a condition."""
    name = pipeline.name
    rows = ask(
        lake,
        f"SELECT record_id, source, ingested_at, payload FROM bronze.{name} "
        f"WHERE {condition} ORDER BY ingested_at, record_id",
    ).as_dicts()
    inside = f"q.record_id IN ({_listed(row['record_id'] for row in rows)})"
    closed = f"{inside} AND {in_closed_batch(closed_batch(lake, name))}"

    def newest(table: Table, condition: str, order: str) -> dict[str, dict[str, Any]]:
        if not table.exists:
            return {}
        sql = f"SELECT q.* FROM {table.name} q WHERE {condition} ORDER BY {order}"
        return {row["record_id"]: row for row in ask(lake, sql).as_dicts()}

    seen = {
        "silver": newest(lake.silver(name), inside, "q._batch"),
        "quarantined": newest(lake.quarantine(name), closed, "q._batch"),
        "late": newest(lake.late(name), closed, "q._batch"),
        "requeued": newest(lake.requeue(name), inside, "q.requeued_at"),
        "discarded": newest(lake.discarded(name), inside, "q.discarded_at"),
    }
    waiting = _waiting(lake, name)
    return [_fate(lake, pipeline, row, seen, waiting) for row in rows]


def _waiting(lake: Lake, pipeline: str) -> frozenset[datetime]:
    """List the arrivals, in bronze and in the requeue, that silver has not taken whole."""
    until = positions(last_commit(lake.silver(pipeline)))
    instants: list[str | None] = []
    for key, table, stamp in (
        ("bronze", lake.bronze(pipeline), "ingested_at"),
        ("requeue", lake.requeue(pipeline), "requeued_at"),
    ):
        if not table.exists:
            continue
        position = until.get(key, BEGINNING)
        whole = version_at(table, position)
        taken = position[0] - 1 if whole is None else whole
        for commit in commits(table):
            if commit.version <= taken:
                break
            instants.append(commit.note.get(stamp))
    return frozenset(datetime.fromisoformat(one) for one in instants if one)


def _fate(
    lake: Lake,
    pipeline: Pipeline,
    row: Row,
    seen: Mapping[str, Mapping[str, Row]],
    waiting: frozenset[datetime],
) -> Fate:
    record = row["record_id"]
    found = {name: rows[record] for name, rows in seen.items() if record in rows}
    again = found.get("requeued")
    sent = None if again is None else again["requeued_at"]
    judged = found.get("silver") or found.get("quarantined") or found.get("late") or {}
    base = {
        "record_id": record,
        "source": row["source"],
        "ingested_at": row["ingested_at"],
        "payload": bytes(row["payload"] or b""),
        "event_id": judged.get("event_id"),
        "event_time": judged.get("event_time"),
        "requeued_at": sent,
    }
    if "silver" in found:
        why = ("it came late, within the allowed lateness",) if judged["is_late"] else ()
        counted = _counted_in(lake, pipeline, record)
        return Fate(state="silver", reasons=why, counted=counted, **base)
    if again is not None and sent in waiting:
        return Fate(state="requeued", reasons=(f"sent again after {again['reason']}",), **base)
    for side in ("quarantined", "late"):
        stored = found.get(side)
        if stored is not None and (sent is None or sent == stored["_requeued_at"]):
            return _side_fate(stored, found.get("discarded"), base)
    if sent is None and row["ingested_at"] in waiting:
        return Fate(state="pending", reasons=("silver has not taken it yet",), **base)
    return _fate_without_row(lake, pipeline, base)


def _side_fate(stored: Row, given_up: Row | None, base: dict[str, Any]) -> Fate:
    """Say why a row is in a side table."""
    if "lateness_seconds" in stored:
        behind = f"{stored['lateness_seconds']:,.0f} s behind the watermark {stored['watermark']}"
        return Fate(state="late", reasons=(behind,), **base)
    reasons, stage = tuple(stored["reasons"]), stored["stage"]
    if given_up is not None:
        return Fate(state="discarded", stage=stage, reasons=(*reasons, given_up["why"]), **base)
    return Fate(state="quarantined", stage=stage, reasons=reasons, **base)


def _fate_without_row(lake: Lake, pipeline: Pipeline, base: dict[str, Any]) -> Fate:
    """Tell a copy from what was filtered: a copy has the payload of an accepted row."""
    bronze = lake.bronze(pipeline.name).name
    accepted = [
        f"SELECT record_id, event_id FROM {table.name}"
        for table in (lake.silver(pipeline.name), lake.late(pipeline.name))
        if table.exists
    ]
    mine = f"SELECT payload FROM {bronze} WHERE record_id = {_text(base['record_id'])}"
    twins = ask(
        lake,
        f"SELECT a.record_id, a.event_id FROM {bronze} b "
        f"JOIN ({' UNION ALL '.join(accepted)}) a USING (record_id) "
        f"WHERE b.payload = ({mine}) ORDER BY b.ingested_at, a.record_id LIMIT 1",
    ).rows
    if twins:
        original, base["event_id"] = twins[0]
        why = f"a copy of {original}, which was accepted"
        return Fate(state="duplicate", reasons=(why,), copy_of=original, **base)
    if pipeline.event.where:
        return Fate(state="filtered", reasons=(f"outside where: {pipeline.event.where}",), **base)
    return Fate(state="duplicate", reasons=("a copy of an event that is gone",), **base)


def _is_of_event(fate: Fate, pipeline: Pipeline, event_id: str) -> bool:
    """Return whether a record that names an id is of that event."""
    if fate.event_id is not None:
        return fate.event_id == event_id
    try:
        content = json.loads(fate.payload)
        return isinstance(content, dict) and str(content.get(pipeline.event.id)) == event_id
    except ValueError:
        named = Subject(EVENT_ID, event_id)
        spoken = fate.payload.decode("utf-8", errors="replace")
        return bool(re.search(named.pattern, spoken)) or named.avro in fate.payload


def _counted_in(lake: Lake, pipeline: Pipeline, record_id: str) -> tuple[GoldCount, ...]:
    """Find the rows of gold in which an accepted event counts."""
    event = f"(SELECT * FROM silver.{pipeline.name} WHERE record_id = {_text(record_id)})"
    (origin,) = ask(lake, f"SELECT _generation, _batch FROM {event}").rows
    brought = next(
        (
            commit.version
            for commit in commits(lake.silver(pipeline.name))
            if (commit.generation, commit.batch) == origin
        ),
        None,
    )
    return tuple(
        _counted(lake, lake.table(name), columns, condition, where, event, brought)
        for name, columns, condition, where in _reaches(pipeline)
        if lake.table(name).exists
    )


def _counted(
    lake: Lake,
    table: Table,
    columns: Sequence[str],
    condition: str,
    where: str | None,
    event: str,
    brought: int | None,
) -> GoldCount:
    admitted: bool | None = True
    if where is not None:
        try:
            (sql,) = sqlglot.transpile(where, read="databricks", write="duckdb")
            ((admitted,),) = ask(lake, f"SELECT coalesce({sql}, false) FROM {event}").rows
        except (SqlglotError, UsageError):
            admitted = None
    if admitted is False:
        return GoldCount(table.name, "outside")
    taken = positions(last_commit(table)).get("silver", (0, -1))
    # A commit that the log has no more is older than anything that gold may still wait for.
    if brought is not None and brought >= taken[0] + (taken[1] >= 0):
        return GoldCount(table.name, "waiting")
    if admitted is None:
        return GoldCount(table.name, "unknown")
    shown = ", ".join(f'g."{column}"' for column in columns)
    sql = f"SELECT {shown} FROM {table.name} g, {event} s WHERE {condition} ORDER BY ALL"
    rows = tuple(ask(lake, sql).as_dicts())
    return GoldCount(table.name, "counts" if rows else "no row", rows)


def _reaches(pipeline: Pipeline) -> Iterator[tuple[str, Sequence[str], str, str | None]]:
    """Say how each table's rows are found, in the file's order.

    Yields:
        The table; the columns that analysts read; SQL over ``g``, gold's row, and ``s``, the
        event; Spark SQL over the event that lets it in, None for every event.
    """
    if pipeline.dimension is not None:
        own = list(pipeline.defined_columns)
        extra = {True: ["valid_from", "valid_to", "is_current"], False: []}
        for name in pipeline.gold_names:
            yield name, [*own, *extra["__" in name]], "g._change = s.record_id", None
    for gold in pipeline.gold:
        yield f"gold.{gold.name}", gold.columns, _same_row(gold), gold.where
    for join in pipeline.joins:
        mine, where = "g._left = s.record_id", join.left.where
        if join.right.pipeline == pipeline.name:
            mine = f"({mine} OR g._right = s.record_id)"
            sides = [join.left.where, join.right.where]
            either = " OR ".join(f"({one})" for one in sides)
            where = either if all(sides) else None
        yield f"gold.{join.name}", join.columns, mine, where
    for detection in pipeline.detections:
        features = detection.hours
        yield f"gold.{features.name}", features.columns, _same_row(features), None
        columns = [name for name in detection.shown if name != "event_id"]
        keyed = " AND ".join(f"{key} IS NOT NULL" for key in detection.keys)
        yield f"gold.{detection.name}", columns, "g._record = s.record_id", keyed


def _same_row(gold: GoldTable) -> str:
    """Say which rows of a table of windows an event falls into."""
    same = [f'g."{key}" IS NOT DISTINCT FROM s."{key}"' for key in gold.keys]
    between = {
        "tumbling": ["g.window_start <= s.event_time", "s.event_time < g.window_end"],
        "hopping": ["g.window_start <= s.event_time", "s.event_time < g.window_end"],
        "session": ["s.event_time BETWEEN g.session_start AND g.session_end"],
        "global": [],
    }[gold.window.kind]
    return " AND ".join([*same, *between]) or "true"
