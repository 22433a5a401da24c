"""Sample change events: their rows, the types that their schema gives, and the primary key.

A module of its own because it imports pyarrow, which a sample of plain JSON does not need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidelake.cli.init.field_names import has_word, words_of
from tidelake.cli.init.file_schema import common_types, of_connect
from tidelake.cli.init.sample import Record, Sample, parse_object
from tidelake.config.types import FieldType
from tidelake.errors import SourceError
from tidelake.silver.envelope import Unwrapped, unwrap

_CREATED, _DELETED = ("c", "r"), "d"


def unwrap_sample(
    records: Sequence[Record], objects: Sequence[dict[str, Any]], empty: Sample
) -> Sample:
    """Fill a sample with the rows of change events; ``objects`` are the records that are objects.

    Raises:
        SourceError: No record has a row; names the first with the reason.
    """
    sound: list[tuple[Record, dict[str, Any], Unwrapped]] = []
    broken: list[tuple[Record, str]] = []
    skipped = 0
    for record in records:
        change = unwrap(record.payload or b"null", record.key)
        row = parse_object(change.row)
        if change.skipped:
            skipped += 1
        elif change.refusal or isinstance(row, str):
            broken.append((record, change.refusal or str(row)))
        else:
            sound.append((record, row, change))
    if not sound:
        why = f"{broken[0][0].place}: {broken[0][1]}" if broken else "all are tombstones"
        raise SourceError(
            f"no change event of the sample has a row: {why}. Pass other records with --sample"
        )
    rows = [row for _, row, _ in sound]
    # The schema of an Avro file is that of the whole event.
    after = empty.types.get("after")
    given = {field.name: field.type for field in after.fields} if after else empty.types
    changes = tuple(change for _, _, change in sound)
    return replace(
        empty,
        records=tuple(record for record, _, _ in sound),
        values=tuple(rows),
        broken=tuple(broken),
        types={**given, **common_types([_types(objects[0]), _types(objects[-1])])},
        changes=changes,
        key=_key_of_records(records) or _key_of_rows(rows, changes, _table(objects[0])),
        skipped=skipped,
    )


def _table(value: Mapping[str, Any]) -> str:
    event = value.get("payload") if "payload" in value else value
    source = event.get("source") if isinstance(event, dict) else None
    return str(source.get("table") or "") if isinstance(source, dict) else ""


def _types(value: Mapping[str, Any]) -> dict[str, FieldType]:
    """Return the types of a row's fields by the schema in a message; none without a sound one."""
    try:
        images = {image["field"]: image for image in value["schema"]["fields"]}
        return {field["field"]: of_connect(field) for field in images["after"]["fields"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _key_of_records(records: Sequence[Record]) -> tuple[tuple[str, ...], str] | None:
    for record in records:
        key = parse_object(record.key or b"")
        if isinstance(key, dict):
            fields = key["payload"] if key.keys() == {"schema", "payload"} else key
            if isinstance(fields, dict) and fields:
                return tuple(fields), "the key of the records"
    return None


def _key_of_rows(
    rows: Sequence[dict[str, Any]], changes: Sequence[Unwrapped], table: str
) -> tuple[tuple[str, ...], str]:
    """Guess the primary key: what deletes carry alone, or else a field that created rows differ in.

    By default PostgreSQL logs only the key of a deleted row; the other fields are null.
    """
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    deleted = [row for row, change in zip(rows, changes, strict=True) if change.op == _DELETED]
    carried = tuple(
        name for name in names if deleted and all(row.get(name) is not None for row in deleted)
    )
    if 0 < len(carried) < len(names):
        return carried, "the fields that deletes carry"
    created = [row for row, change in zip(rows, changes, strict=True) if change.op in _CREATED]
    created = created or [*rows]

    def rank(name: str) -> int:
        words = words_of(name)
        of_table = bool(words) and bool(table) and table.lower().startswith(words[0])
        return 2 * (words == ("id",)) + 2 * of_table + has_word(name, "id key uuid code no number")

    unique = [
        name
        for name in names
        if isinstance(created[0].get(name), str | int)
        and all(row.get(name) is not None for row in rows)
        and len({json.dumps(row[name]) for row in created}) == len(created)
    ]
    for name in sorted(unique, key=rank, reverse=True):
        if rank(name):
            return (name,), "unique among the created rows of the sample: check it"
    return (), ""
