"""Check what Tidelake needs of a catalog and its volume; each failing line says the remedy.

Rights are not read but tried: what may be granted, inherited or owned has many ways, and a table
that was made and dropped is proof.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from tidelake.delta.store import Catalog
from tidelake.delta.tables import LAYERS, Lake
from tidelake.errors import MachineError
from tidelake.ops.doctor import Finding, check_python
from tidelake.runtime.failures import FOREIGN


def examine_catalog(lake: Lake, catalog: Catalog) -> list[Finding]:
    """Run every check that goes with a catalog.

    Args:
        lake: Whose root is the volume.
        catalog: Where its tables are.
    """
    return [check_python(), *_tables(catalog), check_volume(Path(str(lake.root)))]


def check_volume(folder: Path) -> Finding:
    """Want to write on the volume."""
    remedy = (
        "create the volume, or name another under `volume` of the environment, and grant READ "
        "VOLUME and WRITE VOLUME on it"
    )
    if not folder.is_dir():
        return Finding("Volume", f"{folder} is not there", remedy)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            probe.write(b"tidelake")
    except OSError as error:
        return Finding("Volume", f"{folder}: {error.strerror}", remedy)
    return Finding("Volume", f"{folder} is writable")


def _tables(catalog: Catalog) -> Iterator[Finding]:
    try:
        session = catalog.session()
    except MachineError as error:
        yield Finding("Spark", "no session", str(error))
        return
    yield Finding("Spark", f"version {session.version}")
    try:
        there = catalog.layers()
    except FOREIGN as error:
        remedy = f"create catalog {catalog.name} or name another, and grant USE CATALOG on it"
        yield Finding("Catalog", _first_line(error), remedy)
        return
    yield Finding("Catalog", f"{catalog.name} is there")
    for layer in LAYERS:
        yield _schema(catalog, layer, is_there=layer in there)


def _schema(catalog: Catalog, layer: str, *, is_there: bool) -> Finding:
    """Want to make a table in a schema."""
    name = catalog.schema(layer)
    if not is_there:
        return Finding(f"Schema {layer}", "is not there", f"CREATE SCHEMA {name}")
    session, probe = catalog.session(), f"{name}.`tidelake_doctor_{uuid.uuid4().hex[:12]}`"
    try:
        session.sql(f"CREATE TABLE {probe} (probe INT) USING DELTA")
        session.sql(f"DROP TABLE {probe}")
    except FOREIGN as error:
        remedy = f"grant USE SCHEMA, CREATE TABLE, SELECT and MODIFY on schema {name}"
        return Finding(f"Schema {layer}", _first_line(error), remedy)
    return Finding(f"Schema {layer}", "is writable")


def _first_line(error: Exception) -> str:
    """Give the line that says what is wrong; Py4J's own comes before it."""
    lines = str(error).strip().splitlines()
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (told or lines)[0].removeprefix(": ")[:200]
