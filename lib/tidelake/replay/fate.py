"""Trace records from source to gold, using only the tables and their logs, without Spark."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import sqlglot
from sqlglot import exp

from tidelake.config import GoldTable, Pipeline
from tidelake.config.expressions import DIALECT, Types, as_operand
from tidelake.config.pipeline import gold_types, silver_types
from tidelake.delta.commit_metadata import position
from tidelake.delta.log import commits, last_commit
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.instants import from_json
from tidelake.ledger.history import require_tables, version_read
from tidelake.ledger.query import ask
from tidelake.ledger.side_tables import in_closed_batch
from tidelake.names import logical_name
from tidelake.replay.subject import EVENT_ID, Subject
from tidelake.silver.envelope import unwrap
from tidelake.typed import runnable

FateState = Literal[
    "silver", "duplicate", "quarantined", "discarded", "late", "filtered", "requeued", "pending"
]
Row = Mapping[str, Any]
_ALL, _BOOLEAN, _NUMBER, _TEXT, _TIME = "TRUE", "BOOLEAN", "NUMBER", "STRING", "TIMESTAMP"
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "DOUBLE")
_COMPARABLE = (_BOOLEAN, _NUMBER, _TEXT, _TIME, "DATE")
# Expressions that DuckDB computes as Spark does, with the one type of their operands, None for any,
# and the type of their result, None for that of the operands.
_ALIKE: tuple[tuple[tuple[type[exp.Expr], ...], str | None, str | None], ...] = (
    ((exp.Paren,), None, None),
    ((exp.Neg,), _NUMBER, _NUMBER),
    ((exp.Lower, exp.Upper), _TEXT, _TEXT),
    ((exp.And, exp.Or, exp.Not), _BOOLEAN, _BOOLEAN),
    ((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), None, _BOOLEAN),
    ((exp.Between, exp.In, exp.Is), None, _BOOLEAN),
    ((exp.TimestampTrunc,), _TIME, _TIME),
    ((exp.Hour, exp.Minute), _TIME, _NUMBER),
)


@dataclass(frozen=True)
class GoldCount:
    """The rows of a gold table (by logical name) to which an event contributes.

    The verdict is ``counts``, ``outside`` (the table's ``where`` excludes it), ``waiting`` (gold
    has not processed the event's batch), ``no row`` (a join without a match or whose ``where``
    excludes it, a superseded change) or ``unknown`` (a ``where``, or a key of a query, is SQL that
    DuckDB may compute in another way than Spark).
    """

    table: str
    verdict: Literal["counts", "outside", "waiting", "no row", "unknown"]
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Fate:
    """The fate of a record, with the reasons as text; instants are UTC.

    A ``requeued`` record waits in the requeue and a ``pending`` one in bronze until silver
    processes it. An id or a time that could not be decoded is None. ``stage`` is where a
    quarantined record failed, ``copy_of`` the accepted record that it duplicates, ``counted`` the
    gold rows to which an accepted record contributes.
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


def fates_of(
    lake: Lake, pipeline: Pipeline, *, event_id: str | None = None, record_id: str | None = None
) -> list[Fate]:
    """Return the fates of an event's records, or of one record, in the order of arrival.

    Raises:
        UsageError: The pipeline has not run, there is no such record, or not exactly one id is
            given.
    """
    if (event_id is None) is (record_id is None):
        raise UsageError("give either event_id or record_id.")
    name = pipeline.name
    require_tables(lake, name)
    if event_id is not None:
        found = _fates_of_event(lake, pipeline, event_id)
        what, columns = f"no record of {name} has the event id {event_id!r}", "event_id, event_time"
        table = logical_name("silver", name)
    else:
        found = _fates(lake, pipeline, f"record_id = {_text(str(record_id))}")
        what, columns = f"{logical_name('bronze', name)} holds no record {record_id!r}", "record_id"
        table = logical_name("bronze", name)
    if not found:
        listing = runnable(f'tidelake sql "SELECT {columns} FROM {table} LIMIT 10"')
        raise UsageError(f"{what}. List existing ones: {listing}")
    return found


def _fates_of_event(lake: Lake, pipeline: Pipeline, event_id: str) -> list[Fate]:
    """Return the fates of an event's records.

    A record that is only in bronze is found by the id in its payload, or by a payload equal to that
    of a record in another table.
    """
    name = pipeline.name
    known = [
        record
        for table in (lake.silver(name), lake.late(name), lake.quarantine(name))
        if table.exists
        for (record,) in ask(
            lake, f"SELECT DISTINCT record_id FROM {table.name} WHERE event_id = {_text(event_id)}"
        ).rows
    ]
    # The longest part of the id that has only one spelling in JSON.
    core = max(re.findall(r"[A-Za-z0-9_.:-]+", event_id), key=len, default=event_id)
    of_known = f"record_id IN ({_listed(known)})"
    candidates = _fates(
        lake,
        pipeline,
        f"{of_known} OR payload IN "
        f"(SELECT payload FROM {logical_name('bronze', name)} WHERE {of_known}) "
        # Payloads that are not text can only be searched as hexadecimal digits.
        f"OR contains(hex(payload), hex({_text(core)}))",
    )
    return [
        fate
        for fate in candidates
        if fate.record_id in known or _is_of_event(fate, pipeline, event_id)
    ]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _listed(values: Iterable[str]) -> str:
    # NULL matches nothing.
    return ", ".join(_text(value) for value in values) or "NULL"


def _fates(lake: Lake, pipeline: Pipeline, condition: str) -> list[Fate]:
    name = pipeline.name
    rows = ask(
        lake,
        f"SELECT record_id, source, ingested_at, payload FROM {logical_name('bronze', name)} "
        f"WHERE {condition} ORDER BY ingested_at, record_id",
    ).as_dicts()
    # Before the tables: a record of a batch that is committed meanwhile is in one, or waits.
    waiting = _waiting(lake, name)
    inside = f"q.record_id IN ({_listed(row['record_id'] for row in rows)})"
    closed = f"{inside} AND {in_closed_batch(last_commit(lake.silver(name)))}"
    # The table that may hold a record, its rows that count, and their order: the last one counts.
    places = {
        "silver": (lake.silver(name), inside, "q._batch"),
        "quarantined": (lake.quarantine(name), closed, "q._batch"),
        "late": (lake.late(name), closed, "q._batch"),
        "requeued": (lake.requeue(name), inside, "q.requeued_at"),
        "discarded": (lake.discarded(name), inside, "q.discarded_at"),
    }
    seen: dict[str, dict[str, Row]] = defaultdict(dict)
    for place, (table, counts, order) in places.items():
        if table.exists:
            sql = f"SELECT q.* FROM {table.name} q WHERE {counts} ORDER BY {order}"
            for found in ask(lake, sql).as_dicts():
                seen[found["record_id"]][place] = found
    return [_fate(lake, pipeline, row, seen[row["record_id"]], waiting) for row in rows]


def _waiting(lake: Lake, pipeline: str) -> dict[datetime, bool]:
    """Return the arrivals in bronze and the requeue that silver has not fully processed.

    The value says whether it has processed a part of them.
    """
    last = last_commit(lake.silver(pipeline))
    found: dict[datetime, bool] = {}
    for key, table in lake.silver_inputs(pipeline).items():
        reached = position(last, key)
        taken = version_read(table, reached)
        stamp = "ingested_at" if key == "bronze" else "requeued_at"
        for commit in commits(table):
            if commit.version <= taken:
                break
            if (at := from_json(commit.note.get(stamp))) is not None:
                found[at] = commit.version == reached[0] and reached[1] >= 0
    return found


def _fate(
    lake: Lake,
    pipeline: Pipeline,
    row: Row,
    found: Mapping[str, Row],
    waiting: Mapping[datetime, bool],
) -> Fate:
    requeued_at = found["requeued"]["requeued_at"] if "requeued" in found else None
    judged = found.get("silver") or found.get("quarantined") or found.get("late") or {}
    fate = Fate(
        record_id=row["record_id"],
        state="pending",
        event_id=judged.get("event_id"),
        source=row["source"],
        ingested_at=row["ingested_at"],
        payload=bytes(row["payload"] or b""),
        event_time=judged.get("event_time"),
        reasons=("silver has not processed it yet",),
        requeued_at=requeued_at,
    )
    if "silver" in found:
        why = ("late, within the allowed lateness",) if judged["is_late"] else ()
        counted = _counted_in(lake, pipeline, fate.record_id)
        return replace(fate, state="silver", reasons=why, counted=counted)
    if requeued_at is not None and requeued_at in waiting:
        why = (f"requeued from {found['requeued']['reason']}",)
        return replace(fate, state="requeued", reasons=why)
    for side in ("quarantined", "late"):
        stored = found.get(side)
        if stored is not None and (requeued_at is None or requeued_at == stored["_requeued_at"]):
            return _side_fate(fate, stored, found.get("discarded"))
    if requeued_at is None and fate.ingested_at in waiting:
        if waiting[fate.ingested_at]:
            # A duplicate or a filtered row is in no table.
            why = (
                "silver has processed a part of its commit, and may have counted it as a duplicate "
                "or filtered it",
            )
            return replace(fate, reasons=why)
        return fate
    return _fate_without_row(lake, pipeline, fate)


def _side_fate(fate: Fate, stored: Row, given_up: Row | None) -> Fate:
    if "lateness_seconds" in stored:
        behind = f"{stored['lateness_seconds']:,.0f} s behind the watermark {stored['watermark']}"
        return replace(fate, state="late", reasons=(behind,))
    reasons, stage = tuple(stored["reasons"]), stored["stage"]
    if given_up is not None:
        return replace(fate, state="discarded", stage=stage, reasons=(*reasons, given_up["why"]))
    return replace(fate, state="quarantined", stage=stage, reasons=reasons)


def _fate_without_row(lake: Lake, pipeline: Pipeline, fate: Fate) -> Fate:
    """Return the fate of a record that no table of silver holds.

    It is a duplicate if its payload equals that of an accepted record.
    """
    bronze = lake.bronze(pipeline.name).name
    accepted = " UNION ALL ".join(
        f"SELECT record_id, event_id FROM {table.name}"
        for table in (lake.silver(pipeline.name), lake.late(pipeline.name))
        if table.exists
    )
    payload = f"SELECT payload FROM {bronze} WHERE record_id = {_text(fate.record_id)}"
    copies = ask(
        lake,
        f"SELECT a.record_id, a.event_id FROM {bronze} b JOIN ({accepted}) a USING (record_id) "
        f"WHERE b.payload = ({payload}) ORDER BY b.ingested_at, a.record_id LIMIT 1",
    ).rows
    if copies:
        original, event_id = copies[0]
        why = (f"a duplicate of {original}, which was accepted",)
        return replace(fate, state="duplicate", event_id=event_id, reasons=why, copy_of=original)
    if pipeline.envelope and (skipped := unwrap(fate.payload or b"null").skipped):
        return replace(fate, state="filtered", reasons=(skipped,))
    if pipeline.event.where:
        return replace(fate, state="filtered", reasons=(f"outside where: {pipeline.event.where}",))
    return replace(fate, state="duplicate", reasons=("a duplicate of an event no longer stored",))


def _is_of_event(fate: Fate, pipeline: Pipeline, event_id: str) -> bool:
    """Return whether a record whose payload contains an event id belongs to that event."""
    if fate.event_id is not None:
        return fate.event_id == event_id
    try:
        # A record of CSV may be JSON by chance, such as a number.
        content = json.loads(b"" if pipeline.csv else fate.payload)
        return isinstance(content, dict) and str(content.get(pipeline.event.id)) == event_id
    except ValueError:
        subject = Subject(EVENT_ID, event_id)
        text = fate.payload.decode("utf-8", errors="replace")
        return bool(re.search(subject.pattern, text)) or subject.avro in fate.payload


def _counted_in(lake: Lake, pipeline: Pipeline, record_id: str) -> tuple[GoldCount, ...]:
    """Return the rows of each gold table to which an accepted event contributes."""
    silver = logical_name("silver", pipeline.name)
    event = f"(SELECT * FROM {silver} WHERE record_id = {_text(record_id)})"
    (origin,) = ask(lake, f"SELECT _generation, _batch FROM {event}").rows
    closing = commits(lake.silver(pipeline.name))
    versions = (one.version for one in closing if (one.generation, one.batch) == origin)
    added_in = next(versions, None)

    def counted(
        name: str, columns: Sequence[str], condition: str | None, where: str | None
    ) -> GoldCount:
        try:
            if where not in (None, _ALL):
                ((admitted,),) = ask(lake, f"SELECT coalesce({where}, false) FROM {event} s").rows
                if not admitted:
                    return GoldCount(name, "outside")
            taken = position(last_commit(lake.table(name)), "silver")
            read = version_read(lake.silver(pipeline.name), taken)
            # Gold has processed every commit that is no longer in the log, and none in part.
            if added_in is not None and added_in > read:
                return GoldCount(name, "waiting")
            if condition is None:
                return GoldCount(name, "unknown")
            shown = ", ".join(f'g."{column}"' for column in columns)
            sql = f"SELECT {shown} FROM {name} g, {event} s WHERE {condition} ORDER BY ALL"
            rows = tuple(ask(lake, sql).as_dicts())
        except UsageError:
            # The stored tables may lack a column of the definition.
            return GoldCount(name, "unknown")
        return GoldCount(name, "counts" if rows else "no row", rows)

    return tuple(counted(*one) for one in _gold_conditions(pipeline) if lake.table(one[0]).exists)


def _gold_conditions(
    pipeline: Pipeline,
) -> Iterator[tuple[str, Sequence[str], str | None, str | None]]:
    """Yield how to find an event's rows in each gold table, in the pipeline file's order.

    Yields:
        The table; its visible columns; the condition over ``g``, a gold row, and ``s``, the event;
        the table's ``where`` over ``s``. Conditions are None where only Spark can evaluate them.
    """
    if pipeline.dimension is not None:
        own = list(pipeline.defined_columns)
        extra = {True: ["valid_from", "valid_to", "is_current"], False: []}
        for name in pipeline.gold_names:
            yield name, [*own, *extra["__" in name]], "g._change = s.record_id", _ALL
    silver = silver_types(pipeline)
    for gold in pipeline.gold:
        where = _in_duckdb(gold.where or _ALL, "s", silver)
        yield logical_name("gold", gold.name), gold.columns, _all([_same_row(gold), where]), where
    for join in pipeline.joins:
        matches = "g._left = s.record_id"
        if join.right.pipeline == pipeline.name:
            matches = f"({matches} OR g._right = s.record_id)"
        yield logical_name("gold", join.name), join.columns, matches, _ALL
    for detection in pipeline.detections:
        features = detection.hours
        yield logical_name("gold", features.name), features.columns, _same_row(features), _ALL
        columns = [name for name in detection.shown if name != "event_id"]
        yield logical_name("gold", detection.name), columns, "g._record = s.record_id", _ALL
    tables = {logical_name("gold", table.name): table for table in pipeline.aggregates}
    for query in pipeline.queries:
        parts, source = query.parts, tables.get(query.parts.source)
        row, types = ("w", gold_types(source, silver)) if source else ("s", silver)
        where = _in_duckdb(parts.where or _ALL, row, types)
        same = [where]
        for key in parts.keys:
            sql = _in_duckdb(key.sql, row, types, _COMPARABLE)
            same.append(sql and f'g."{key.name}" IS NOT DISTINCT FROM ({sql})')
        condition = _all(same)
        if source is not None:
            # Of the table that it reads, the rows to which the event contributes.
            where = _in_duckdb(source.where or _ALL, "s", silver)
            rows = _all([condition, _same_row(source, row), where])
            condition = rows and f"EXISTS (SELECT 1 FROM {parts.source} {row} WHERE {rows})"
        yield logical_name("gold", query.name), query.columns, condition, where


def _all(conditions: Sequence[str | None]) -> str | None:
    found = [f"({one})" for one in conditions if one]
    return " AND ".join(found) if len(found) == len(conditions) else None


def _in_duckdb(
    sql: str, row: str, types: Types, wanted: Collection[str] = (_BOOLEAN,)
) -> str | None:
    """Translate an expression over one of several tables, which may have the same columns.

    Returns:
        None unless DuckDB certainly computes what Spark does, of one of the types ``wanted``.
    """
    # In parentheses, because an expression may begin with a word of SQL.
    tree = sqlglot.parse_one(f"({as_operand(sql)})", dialect=DIALECT)
    if _common_type(tree, {name.lower(): kind for name, kind in types.items()}) not in wanted:
        return None
    for column in tree.find_all(exp.Column):
        column.set("table", exp.to_identifier(row))
    return tree.sql(dialect="duckdb")


def _common_type(node: exp.Expr, types: Types) -> str | None:
    """Return the type of an expression that both engines compute alike; None for any other.

    Numbers are one type. No function of a number is among these: the engines round, divide and cast
    in different ways. Of a time, ``dayofweek`` and others count from another number.
    """
    if isinstance(node, exp.Column):
        kind = types.get(node.name.lower()) if len(node.parts) == 1 else None
        kind = _NUMBER if kind and kind.partition("(")[0] in _NUMBERS else kind
        return kind if kind in _COMPARABLE else None
    if isinstance(node, exp.Boolean):
        return _BOOLEAN
    if isinstance(node, exp.Literal):
        return _TEXT if node.is_string else _NUMBER
    # The unit of date_trunc is a Var.
    operands = [one for one in node.iter_expressions() if not isinstance(one, exp.Null | exp.Var)]
    kinds = {_common_type(one, types) for one in operands}
    kind = kinds.pop() if len(kinds) == 1 else None
    for alike, operand, result in _ALIKE:
        if kind and isinstance(node, alike) and operand in (None, kind):
            return result or kind
    return None


def _same_row(gold: GoldTable, row: str = "g") -> str:
    """Return the condition for the windows that contain an event, as rows of ``row``."""
    same = [f'{row}."{key}" IS NOT DISTINCT FROM s."{key}"' for key in gold.keys]
    within = [f"{row}.window_start <= s.event_time", f"s.event_time < {row}.window_end"]
    between = {
        "tumbling": within,
        "hopping": within,
        "session": [f"s.event_time BETWEEN {row}.session_start AND {row}.session_end"],
        "global": [],
    }[gold.window.kind]
    return " AND ".join([*same, *between]) or "true"
