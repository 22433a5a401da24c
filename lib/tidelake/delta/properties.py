"""Read a stored table's properties, and set them and its tags to those of the pipeline file.

The keys set from the pipeline file are recorded in a table property. So a key that leaves the file
is removed from the table, and keys that others have set are kept. The retentions that ``maintain``
sets have a record too: it shortens no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidelake.config.table_settings import LEAST, TableSettings, interval_of
from tidelake.delta.access import properties
from tidelake.delta.log import LogFile
from tidelake.delta.store import CatalogTable, sql_pairs, sql_text
from tidelake.delta.tables import Table
from tidelake.folders import Folder
from tidelake.names import quoted

_RECORD = "tidelake.settings"
# By property: the value that maintain has ``set``, and, if others set one, theirs as ``least``.
RETENTIONS = "tidelake.retentions"
_OF_DELTA = "delta."
_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(
    r"([+-]?)\s*([0-9]{0,19})(?:\.([0-9]{0,9}))?(?<=[0-9.])"
    rf"\s+({'|'.join(_MICROSECONDS)})s?(?:\s+|$)",
    re.ASCII,
)
# Longer than any table exists; sums with an instant do not overflow.
_LONGEST = timedelta(days=100_000)
_SET_BY_MAINTAIN = re.compile(r"interval [1-9][0-9]* days")


def stored_interval(text: str) -> timedelta | None:
    """Return the length of an interval as Delta reads it; None if it would refuse the text.

    So in more spellings than the pipeline file may have: ``365 days``, ``INTERVAL 1 WEEK 2 DAYS``.
    After Delta's ``DeltaConfigs.parseCalendarInterval`` and Spark's ``stringToInterval``.
    """
    rest = text.strip().lower().removeprefix("interval ").lstrip()
    total, is_interval = 0, False
    while rest:
        part = _PART.match(rest)
        if part is None or (part[3] is not None and part[4] != "second"):
            return None
        length = int(part[2] or 0) * _MICROSECONDS[part[4]] + int(f"{part[3] or 0:0<6}"[:6])
        total += -length if part[1] == "-" else length
        rest, is_interval = rest[part.end() :], True
    if total < 0 or not is_interval:
        return None
    return min(timedelta(microseconds=min(total, _LONGEST // timedelta(microseconds=1))), _LONGEST)


def stored_properties(table: Table) -> Mapping[str, str]:
    """Read a table's properties, under a root from its log: without Spark.

    None are found where neither commits nor a checkpoint in one file have them.
    """
    if isinstance(table, CatalogTable):
        return properties(table.catalog.session(), table)
    version, found = _checkpointed(table.path / "_delta_log")
    for entry in table.entries():
        if entry.version <= version:
            break
        if isinstance(entry, LogFile):
            for action in entry.actions("metaData"):
                return action.get("configuration") or {}
    return found


def _checkpointed(log: Folder) -> tuple[int, Mapping[str, str]]:
    """Return the version of a log's last checkpoint and the properties in it; -1 without one."""
    # Imported here: commands that read no checkpoint do not load Arrow.
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        version = int(json.loads((log / "_last_checkpoint").read_text())["version"])
        with (log / f"{version:020d}.checkpoint.parquet").open("rb") as file:
            column = pq.ParquetFile(file).read(columns=["metaData.configuration"])["metaData"]
    except (OSError, KeyError, TypeError, ValueError):
        return -1, {}
    found = next((one["configuration"] for one in column.to_pylist() if one), None)
    return (-1, {}) if found is None else (version, dict(found))


def others_retentions(
    stored: Mapping[str, str], limits: Mapping[str, timedelta] | None = None
) -> dict[str, str]:
    """Return the retentions of a table that others have set, as they wrote them, by property.

    A value is Tidelake's own if it is the recorded one. Earlier releases kept no record of what
    ``maintain`` set, but always set both properties, in whole days and one spelling, and no longer
    than needed at that time. So without a record, values like these are its own below ``limits``,
    which are what is needed now. Longer ones may be of somebody else, and are kept to be safe.
    """
    is_recorded = RETENTIONS in stored
    record: dict[str, dict[str, str]] = json.loads(stored.get(RETENTIONS, "{}"))
    of_file = json.loads(stored.get(_RECORD, "{}")).get("properties", {})
    settings = {_spelling(key): value for key, value in of_file.items()}
    may_be_maintained = not is_recorded and all(
        _SET_BY_MAINTAIN.fullmatch(stored.get(key, "")) for key in LEAST
    )
    found: dict[str, str] = {}
    for key in LEAST:
        if (text := stored.get(key)) is None:
            continue
        of_maintain = record.get(key, {})
        length = stored_interval(text)
        is_within = length is not None and length < (limits or {}).get(key, timedelta(0))
        is_own = text in (of_maintain.get("set"), settings.get(_spelling(key)))
        if not is_own and not (may_be_maintained and is_within):
            found[key] = text
        elif "least" in of_maintain:
            # Maintain had lengthened it for a reader.
            found[key] = of_maintain["least"]
    return found


def retentions_record(kept: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return the record of a table's retentions, given all of them and those of others."""
    record = {
        key: {"set": text} | ({"least": others[key]} if key in others else {})
        for key, text in kept.items()
        if text != others.get(key)
    }
    return json.dumps(record, sort_keys=True)


def recorded_properties(settings: TableSettings) -> dict[str, str]:
    """Return the properties of a new table, with the record of them."""
    wanted = settings.properties
    return {**wanted, _RECORD: _record(wanted, ())} if wanted else {}


def may_differ(settings: TableSettings, details: Mapping[str, str]) -> bool:
    """Return whether a table needs :func:`apply_settings`, by what Spark says of it.

    Most tables have no settings, and reading their properties takes as long as opening them.
    """
    is_recorded = f"{_RECORD}=" in details.get("Table Properties", "")
    return bool(settings.properties or settings.tags or is_recorded)


def apply_settings(spark: SparkSession, table: Table, settings: TableSettings) -> None:
    """Change a stored table's properties and tags where they differ from the settings.

    Properties are changed in a commit without metadata or rows, tags without a commit. A retention
    that ``maintain`` has lengthened is kept, and so is any value that others have changed of a key
    that left the file.
    """
    stored = properties(spark, table)
    before: dict[str, Any] = json.loads(stored.get(_RECORD, "{}"))
    # Tags are no part of the log: a restored table still has those of before.
    _apply_tags(spark, table, settings.tags, before.get("tags", ()))
    recorded: dict[str, str] = before.get("properties", {})
    kept = {_spelling(key) for key in settings.properties}
    names = {_spelling(key): key for key in stored}
    gone = [
        names[spelling]
        for key, value in recorded.items()
        if (spelling := _spelling(key)) not in kept
        if spelling in names and stored[names[spelling]] == value
    ]
    changed = {
        key: value
        for key, value in settings.properties.items()
        if not _is_met(stored.get(names.get(_spelling(key), "")), value, recorded.get(key))
    }
    tags = settings.tags if isinstance(table, CatalogTable) else ()
    record = _record(settings.properties, tags)
    if record and record != stored.get(_RECORD):
        changed[_RECORD] = record
    elif not record and _RECORD in stored:
        gone.append(_RECORD)
    if gone:
        listed = ", ".join(map(sql_text, gone))
        spark.sql(f"ALTER TABLE {table.sql} UNSET TBLPROPERTIES IF EXISTS ({listed})")
    if changed:
        spark.sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ({sql_pairs(changed)})")


def _record(wanted: Mapping[str, str], tags: Collection[str]) -> str:
    """Return the record of what is set; empty if nothing is."""
    found = {"properties": dict(wanted), "tags": sorted(tags)}
    return json.dumps(found, sort_keys=True) if wanted or tags else ""


def _spelling(key: str) -> str:
    """Return a key as Delta compares it: its own keys without their case."""
    return key.lower() if key.lower().startswith(_OF_DELTA) else key


def _is_met(stored: str | None, wanted: str, recorded: str | None) -> bool:
    """Return whether a stored value is the wanted one, or a length at least as long."""
    if stored is None or stored == wanted:
        return stored == wanted
    kept, least = stored_interval(stored), interval_of(wanted)
    return stored != recorded and kept is not None and least is not None and kept >= least


def _apply_tags(
    spark: SparkSession, table: Table, wanted: Mapping[str, str], recorded: Collection[str]
) -> None:
    if not isinstance(table, CatalogTable) or not (wanted or recorded):
        return
    tags = f"{quoted(table.catalog.name)}.information_schema.table_tags"
    found = spark.sql(
        f"SELECT tag_name, tag_value FROM {tags} WHERE schema_name = {sql_text(table.schema)} "
        f"AND table_name = {sql_text(table.table)}"
    )
    stored = {row["tag_name"]: row["tag_value"] for row in found.collect()}
    gone = sorted(name for name in recorded if name in stored and name not in wanted)
    changed = {name: value for name, value in wanted.items() if stored.get(name) != value}
    if gone:
        listed = ", ".join(map(sql_text, gone))
        spark.sql(f"ALTER TABLE {table.sql} UNSET TAGS ({listed})")
    if changed:
        spark.sql(f"ALTER TABLE {table.sql} SET TAGS ({sql_pairs(changed)})")
