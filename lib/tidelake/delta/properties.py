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
from tidelake.delta.log import LogFile, checkpointed_metadata
from tidelake.delta.store import CatalogTable, sql_pairs, sql_text
from tidelake.delta.tables import Table
from tidelake.names import quoted

_RECORD = "tidelake.settings"
# By property: the value that maintain has ``set``, and, if others set one, theirs as ``least``.
RETENTIONS = "tidelake.retentions"
_OF_DELTA = "delta."
# Longer than any table exists; sums with an instant do not overflow.
_FOR_EVER = timedelta(days=100_000)
_PART = re.compile(
    r"([+-]?[0-9]+)\s+(microsecond|millisecond|second|minute|hour|day|week)s?(?:\s+|$)", re.ASCII
)


def stored_interval(text: str) -> timedelta:
    """Return the length of an interval in Delta's spellings, as ``INTERVAL 1 WEEK 2 DAYS``.

    Any other text counts as for ever, so that nothing is deleted.
    """
    rest = text.strip().lower().removeprefix("interval ").lstrip()
    parts = _PART.findall(rest)
    if not parts or _PART.sub("", rest):
        return _FOR_EVER
    try:
        lengths = [timedelta(**{f"{unit}s": int(number)}) for number, unit in parts]
        return min(sum(lengths, timedelta(0)), _FOR_EVER)
    except OverflowError:
        return _FOR_EVER


def stored_properties(table: Table) -> Mapping[str, str]:
    """Read a table's properties, under a root from its log: without Spark.

    None are found where neither commits nor a checkpoint in one file have them.
    """
    if isinstance(table, CatalogTable):
        return properties(table.catalog.session(), table)
    found = checkpointed_metadata(table.path / "_delta_log", "configuration")
    for entry in table.entries():
        if found is not None and entry.version <= found[0]:
            break
        if isinstance(entry, LogFile):
            for action in entry.actions("metaData"):
                return action.get("configuration") or {}
    return dict(found[1]) if found else {}


def others_retentions(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the retentions of a table that others have set, as they wrote them, by property.

    A value is Tidelake's own if it is the recorded one. Earlier releases kept no record: there
    Delta's defaults, below which maintenance never goes, count as its own, and other values as set
    by others.
    """
    record: dict[str, dict[str, str]] = json.loads(stored.get(RETENTIONS, "{}"))
    of_file = json.loads(stored.get(_RECORD, "{}")).get("properties", {})
    settings = {_spelling(key): value for key, value in of_file.items()}
    found: dict[str, str] = {}
    for key, least in LEAST.items():
        text, own = stored.get(key), record.get(key, {})
        if text is None:
            continue
        is_default = RETENTIONS not in stored and text == f"interval {least.days} days"
        if not is_default and text not in (own.get("set"), settings.get(_spelling(key))):
            found[key] = text
        elif "least" in own:
            # Maintain had lengthened it for a reader.
            found[key] = own["least"]
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
    least = interval_of(wanted)
    return stored != recorded and least is not None and stored_interval(stored) >= least


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
