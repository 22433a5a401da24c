"""Tell the fate of single records, from the tables and their logs, without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from tidelake.config import Pipeline
from tidelake.delta.tables import Lake, Table
from tidelake.errors import UsageError
from tidelake.ops.books import require_tables
from tidelake.ops.query import ask
from tidelake.replay.erase.subject import EVENT_ID, Subject
from tidelake.replay.fate.counted import Counted, counted_in
from tidelake.replay.fate.seen import Seen
from tidelake.replay.fate.texts import listed, text

State = Literal[
    "silver", "duplicate", "quarantined", "discarded", "late", "filtered", "requeued", "pending"
]


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
        requeued_at: When it was last sent again (UTC).
        counted: Of an accepted row: what each gold table makes of it.
    """

    record_id: str
    state: State
    event_id: str | None
    source: str
    ingested_at: datetime
    payload: bytes
    event_time: datetime | None = None
    stage: str | None = None
    reasons: tuple[str, ...] = ()
    copy_of: str | None = None
    requeued_at: datetime | None = None
    counted: tuple[Counted, ...] = ()


def fates_of_event(lake: Lake, pipeline: Pipeline, event_id: str) -> list[Fate]:
    """Tell the fate of every record of an event, in the order of arrival.

    A record that is in no table but bronze is found by the id in its payload, or by a payload
    equal to that of one that is.

    Raises:
        UsageError: The pipeline has not run, or no record is of that event.
    """
    require_tables(lake, pipeline.name)
    known = [
        record
        for table in _judged_tables(lake, pipeline)
        for (record,) in ask(
            lake,
            f"SELECT DISTINCT record_id FROM {table.name} WHERE event_id = {text(event_id)}",
        ).rows
    ]
    same = (
        f"SELECT b.payload FROM {_bronze(lake, pipeline)} b WHERE b.record_id IN ({listed(known)})"
    )
    rows = _bronze_rows(
        lake,
        pipeline,
        f"record_id IN ({listed(known)}) OR payload IN ({same}) "
        # Of bytes that are no text only hexadecimal digits can be searched.
        f"OR contains(hex(payload), hex({text(_core(event_id))}))",
    )
    found = [
        fate
        for fate in _fates(lake, pipeline, rows)
        if fate.record_id in known or _is_of_event(fate, pipeline, event_id)
    ]
    if not found:
        raise UsageError(
            f"no record of {pipeline.name} has the event id {event_id!r}. "
            f"Look at what there is: tidelake sql "
            f'"SELECT event_id, event_time FROM silver.{pipeline.name} LIMIT 10"'
        )
    return found


def fates_of_record(lake: Lake, pipeline: Pipeline, record_id: str) -> list[Fate]:
    """Tell the fate of one record.

    Raises:
        UsageError: The pipeline has not run, or bronze holds no such record.
    """
    require_tables(lake, pipeline.name)
    rows = _bronze_rows(lake, pipeline, f"record_id = {text(record_id)}")
    if not rows:
        raise UsageError(
            f"bronze.{pipeline.name} holds no record {record_id!r}. "
            f"Look at what there is: tidelake sql "
            f'"SELECT record_id FROM bronze.{pipeline.name} LIMIT 10"'
        )
    return _fates(lake, pipeline, rows)


def _judged_tables(lake: Lake, pipeline: Pipeline) -> list[Table]:
    name = pipeline.name
    tables = (lake.silver(name), lake.late(name), lake.quarantine(name))
    return [table for table in tables if table.exists]


def _bronze(lake: Lake, pipeline: Pipeline) -> str:
    return lake.bronze(pipeline.name).name


def _core(event_id: str) -> str:
    """Take the longest part of an id that JSON writes in one way only."""
    return max(re.findall(r"[A-Za-z0-9_.:-]+", event_id), key=len, default=event_id)


def _bronze_rows(lake: Lake, pipeline: Pipeline, condition: str) -> list[dict[str, Any]]:
    return ask(
        lake,
        "SELECT record_id, source, ingested_at, payload "
        f"FROM {_bronze(lake, pipeline)} WHERE {condition} ORDER BY ingested_at, record_id",
    ).as_dicts()


def _fates(lake: Lake, pipeline: Pipeline, rows: Sequence[Mapping[str, Any]]) -> list[Fate]:
    seen = Seen.of(lake, pipeline, [row["record_id"] for row in rows])
    return [_fate(lake, pipeline, row, seen) for row in rows]


def _fate(lake: Lake, pipeline: Pipeline, row: Mapping[str, Any], seen: Seen) -> Fate:
    record = row["record_id"]
    base = {
        "record_id": record,
        "source": row["source"],
        "ingested_at": row["ingested_at"],
        "payload": bytes(row["payload"] or b""),
    }
    again = seen.requeue.get(record)
    sent = None if again is None else again["requeued_at"]
    side = seen.quarantine.get(record) or seen.late.get(record) or {}
    base |= {
        "event_id": side.get("event_id"),
        "event_time": side.get("event_time"),
        "requeued_at": sent,
    }
    accepted = seen.silver.get(record)
    if accepted is not None:
        why = ("it came late, within the allowed lateness",) if accepted["is_late"] else ()
        base |= {"event_id": accepted["event_id"], "event_time": accepted["event_time"]}
        counted = counted_in(lake, pipeline, record)
        return Fate(state="silver", reasons=why, counted=counted, **base)
    if again is not None and sent in seen.waiting:
        return Fate(state="requeued", reasons=(f"sent again after {again['reason']}",), **base)
    for state, rows in (("quarantined", seen.quarantine), ("late", seen.late)):
        found = rows.get(record)
        if found is not None and (sent is None or sent == found["_requeued_at"]):
            return _beside(state, found, seen.discarded.get(record), base)
    if sent is None and row["ingested_at"] in seen.waiting:
        return Fate(state="pending", reasons=("silver has not taken it yet",), **base)
    return _nowhere(lake, pipeline, base)


def _beside(
    state: str, found: Mapping[str, Any], given_up: Mapping[str, Any] | None, base: dict[str, Any]
) -> Fate:
    """Tell why a row is in a side table."""
    if state == "late":
        behind = f"{found['lateness_seconds']:,.0f} s behind the watermark {found['watermark']}"
        return Fate(state="late", reasons=(behind,), **base)
    reasons = tuple(found["reasons"])
    if given_up is not None:
        return Fate(
            state="discarded", stage=found["stage"], reasons=(*reasons, given_up["why"]), **base
        )
    return Fate(state="quarantined", stage=found["stage"], reasons=reasons, **base)


def _nowhere(lake: Lake, pipeline: Pipeline, base: dict[str, Any]) -> Fate:
    """Tell a copy from what was filtered: a copy has the payload of an accepted row."""
    accepted = [
        f"SELECT record_id, event_id FROM {table.name}"
        for table in (lake.silver(pipeline.name), lake.late(pipeline.name))
        if table.exists
    ]
    mine = f"SELECT payload FROM {_bronze(lake, pipeline)} WHERE record_id = "
    twins = ask(
        lake,
        f"SELECT a.record_id, a.event_id FROM {_bronze(lake, pipeline)} b "
        f"JOIN ({' UNION ALL '.join(accepted)}) a USING (record_id) "
        f"WHERE b.payload = ({mine}{text(base['record_id'])}) "
        "ORDER BY b.ingested_at, a.record_id LIMIT 1",
    ).rows
    if twins:
        original, event_id = twins[0]
        base |= {"event_id": event_id}
        why = f"a copy of {original}, which was accepted"
        return Fate(state="duplicate", reasons=(why,), copy_of=original, **base)
    if pipeline.event.where:
        return Fate(state="filtered", reasons=(f"outside where: {pipeline.event.where}",), **base)
    return Fate(state="duplicate", reasons=("a copy of an event that is gone",), **base)


def _is_of_event(fate: Fate, pipeline: Pipeline, event_id: str) -> bool:
    """Tell whether a record that names an id is of that event."""
    if fate.event_id is not None:
        return fate.event_id == event_id
    try:
        content = json.loads(fate.payload)
        return isinstance(content, dict) and str(content.get(pipeline.event.id)) == event_id
    except ValueError:
        named = Subject(EVENT_ID, event_id)
        spoken = fate.payload.decode("utf-8", errors="replace")
        return bool(re.search(named.pattern, spoken)) or named.avro in fate.payload
