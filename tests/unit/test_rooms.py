"""Where Spark is, and how it is built inside, is known in one room."""

from __future__ import annotations

import re
from pathlib import Path

import tidelake

_LIB = Path(tidelake.__file__).parent
# Rooms that decide it.
_DECIDE_WHERE = ("spark/", "delta/", "folders.py", "config/environment.py")
_ASKS_WHERE = re.compile(
    r"\bis_remote\b|\bis_stored\b|isinstance\([^)]*(Catalog|CatalogTable|FolderTable)\b"
)
# Of other objects than self, whose attributes internals handed out.
_PRIVATE = re.compile(
    r"\bpy4j\.protocol|java_gateway"
    r"|(?<!self)\._(jvm|jc|jdf|jsc|jsparkSession|gateway|active_spark_context|origin)\b"
)

# Of literals, those of tables that exist once, such as ops.books, are their own names.
_BUILDS_NAME = re.compile(r"""\b(bronze|silver|gold|dim|ops)\.\{""")


def lines_with(pattern: re.Pattern[str], *, apart_from: tuple[str, ...]) -> list[str]:
    """Find lines of the library, outside some rooms or files."""
    return [
        f"{path.relative_to(_LIB)}: {line.strip()}"
        for path in sorted(_LIB.rglob("*.py"))
        if not path.relative_to(_LIB).as_posix().startswith(apart_from)
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    ]


def test_only_the_rooms_of_spark_and_of_tables_ask_where_spark_and_tables_are() -> None:
    assert lines_with(_ASKS_WHERE, apart_from=_DECIDE_WHERE) == []


def test_only_internals_calls_private_api_of_spark() -> None:
    assert lines_with(_PRIVATE, apart_from=("spark/internals.py",)) == []


def test_only_names_builds_the_logical_name_of_a_table() -> None:
    assert lines_with(_BUILDS_NAME, apart_from=("names.py",)) == []
