"""A first definition, whole: what follows from a sample and from what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from tidelake.config.expressions import expression_problems
from tidelake.config.model import suggestion
from tidelake.config.names import BRONZE_COLUMNS
from tidelake.config.source import Address
from tidelake.config.types import Field
from tidelake.errors import UsageError
from tidelake.scaffold.guesses import (
    DraftChoice,
    FirstTable,
    Lateness,
    event_ids,
    event_times,
    first_table,
    gold_keys,
    identities,
    in_future,
    instants,
    lateness_of,
    rules_of,
)
from tidelake.scaffold.payload import Column, Payload
from tidelake.scaffold.sample import Sample

NO_KEY = "none"
_SAMPLE_LINES = 20


@dataclass(frozen=True)
class Wishes:
    """What was asked for, a field or SQL; None where the sample decides."""

    id: str | None = None
    time: str | None = None
    key: str | None = None
    window: timedelta | None = None
    delay: timedelta | None = None


@dataclass(frozen=True)
class Draft:
    """A pipeline that is not written yet.

    ``columns`` are silver's but for the id and the time; ``examples`` payloads that it accepts.
    """

    name: str
    source: str | Address
    fields: tuple[Field, ...]
    columns: tuple[Column, ...]
    id: DraftChoice
    time: DraftChoice
    lateness: Lateness
    table: FirstTable
    rules: tuple[dict[str, Any], ...]
    examples: tuple[bytes, ...]
    records: int
    notes: tuple[str, ...]


def draft_of(
    name: str, source: str | Address, sample: Sample, payload: Payload, wishes: Wishes
) -> Draft:
    """Define a pipeline.

    Raises:
        UsageError: A wish names a field that the sample does not hold, or is no SQL.
    """
    count = len(sample.records)
    chosen_id = _choice(wishes.id, payload, event_ids(sample, payload), "--id")
    ranked = event_times(payload, from_topic=isinstance(source, Address))
    chosen_time = _choice(wishes.time, payload, ranked, "--time")
    times = instants(chosen_time, count)
    lateness = lateness_of(times, [record.partition for record in sample.records])
    if wishes.delay not in (None, lateness.delay):
        lateness = replace(lateness, delay=wishes.delay or lateness.delay, why="as asked")
    columns = _columns(payload, chosen_id, chosen_time)
    guessed = _key(None, columns, (chosen_id.column, chosen_time.column))
    key = guessed if wishes.key is None else _key(wishes.key, columns, ())
    table = first_table(name, columns, key=key, times=times, size=wishes.window)
    known = [one.column.path for one in (chosen_id, chosen_time) if one.column]
    ids = identities(chosen_id, payload, count)
    return Draft(
        name=name,
        source=source,
        fields=payload.fields,
        columns=columns,
        id=chosen_id,
        time=chosen_time,
        lateness=lateness,
        table=table if key is guessed else replace(table, why="as asked"),
        rules=tuple(rules_of([c for c in columns if c.path not in known])),
        examples=tuple(islice(_examples(sample, ids, times, chosen_time), _SAMPLE_LINES)),
        records=count,
        notes=tuple(_notes(sample, payload, columns, times, chosen_time)),
    )


def _choice(
    wish: str | None, payload: Payload, ranked: Sequence[DraftChoice], option: str
) -> DraftChoice:
    """Turn a wish, a field's name or SQL, into a choice; without one take the best."""
    if wish is None:
        return ranked[0]
    column = payload.column(wish)
    for one in ranked:
        if (one.sql == wish) if column is None else (one.column is column):
            return one
    if column is not None:
        return DraftChoice(column.field, "as asked", column)
    known = [*(field.name for field in payload.fields), *BRONZE_COLUMNS]
    problems = expression_problems(wish, known)
    if problems:
        raise UsageError(f"{option} '{wish}' {'; '.join(problems)}")
    return DraftChoice(wish, "as asked")


def _columns(payload: Payload, id_: DraftChoice, time: DraftChoice) -> tuple[Column, ...]:
    """Give silver's columns; what silver calls event_id and event_time is not there twice."""
    kept = []
    for column in payload.columns:
        mine = {"event_id": id_.column, "event_time": time.column}.get(column.name.lower(), False)
        if mine is column:
            continue
        kept.append(column if mine is False else replace(column, name=f"payload_{column.name}"))
    return tuple(kept)


def _key(
    wish: str | None, columns: Sequence[Column], left_out: Sequence[Column | None]
) -> Column | None:
    if wish is None:
        ranked = gold_keys(columns, left_out)
        return ranked[0] if ranked else None
    if wish.strip().lower() in (NO_KEY, ""):
        return None
    wanted = wish.strip().lower()
    scalars = [column for column in columns if column.is_scalar]
    for column in scalars:
        if wanted in (column.name.lower(), column.shown.lower()):
            return column
    names = [column.name for column in scalars]
    raise UsageError(
        f"--key '{wish}' is no column of silver with one value a row{suggestion(wish, names)} "
        f"(known: {', '.join(names)}; {NO_KEY} for no key)"
    )


def _examples(
    sample: Sample,
    ids: Sequence[str | None] | None,
    times: Sequence[datetime | None],
    time: DraftChoice,
) -> Iterator[bytes]:
    """Give the payloads of one line that become rows of silver: of a new id, in the past."""
    seen: set[str] = set()
    for at, (record, instant) in enumerate(zip(sample.records, times, strict=True)):
        one = str(at) if ids is None else ids[at]
        if one is None or one in seen:
            continue
        seen.add(one)
        timed = time.column is None or (instant is not None and not in_future([instant]))
        if timed and b"\n" not in record.payload:
            yield record.payload


def _notes(
    sample: Sample,
    payload: Payload,
    columns: Sequence[Column],
    times: Sequence[datetime | None],
    time: DraftChoice,
) -> Iterator[str]:
    yield from payload.notes
    for column in columns:
        yield from (f"{column.shown}: {note}" for note in column.notes)
    for column in columns:
        plain = ".".join(column.path).replace(".", "_")
        if column.name != plain:
            yield f"{column.shown} is called {column.name}"
    if sample.broken:
        first, why = sample.broken[0]
        yield (
            f"{len(sample.broken):,} of {len(sample.broken) + len(sample.records):,} records will "
            f"be quarantined, as not one JSON object; the first: {first.place}: {why}"
        )
    ahead = in_future(times)
    if ahead:
        yield (
            f"{ahead:,} of {len(times):,} records lie in the future by {time.sql}; those further "
            "ahead than watermark.max_future_skew will be quarantined"
        )
