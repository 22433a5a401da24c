"""Set a stored table's properties and tags to those of the pipeline file.

The keys set from the pipeline file are recorded in a table property. So a key that leaves the file
is removed from the table, and keys that others have set are kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import SparkSession

from tidelake.config.table_settings import TableSettings, interval_of
from tidelake.delta.access import properties
from tidelake.delta.store import CatalogTable, sql_pairs, sql_text
from tidelake.delta.tables import Table
from tidelake.names import quoted

_RECORD = "tidelake.settings"
_OF_DELTA = "delta."


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
    """Return whether a stored value is the wanted one, or a length that maintain has set."""
    if stored is None or stored == wanted:
        return stored == wanted
    kept, least = interval_of(stored), interval_of(wanted)
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
