"""SQL on a catalog: what Spark is asked is the statement, with the lake's tables in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ledger.query import _ask_spark, ask_for_user
from tidelake.ledger.statements import SPARK, tables_in
from tidelake.spark.tuning import OLD_VERSION_SETTINGS

_TOTALS = "(SELECT * FROM `prod`.`gold`.`totals` WHERE TRUE)"


class _Session:
    """A session in whose catalog every table of two layers exists; it keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.catalog = SimpleNamespace(tableExists=lambda name: "`gold`" in name)

    def sql(self, statement: str) -> Any:
        if statement.startswith("SHOW"):
            return SimpleNamespace(collect=list)
        self.asked.append(statement)
        raise AnalysisException("not run")


def asked(statement: str) -> list[str]:
    """Return what Spark is asked for a user's statement."""
    session: Any = _Session()
    lake = Lake(Path("/volume"), catalog=Catalog("prod", lambda: session), needs_locks=False)
    with pytest.raises(UsageError, match="not run"):
        ask_for_user(lake, statement)
    return list(session.asked)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("gold.totals", f"{_TOTALS} AS totals"),
        ("prod.gold.totals AS t", f"{_TOTALS} AS t"),
        ("gold.totals AS t(a, b)", f"{_TOTALS} AS t(a, b)"),
        (
            "(gold.totals JOIN PROD.gold.other USING (user_id))",
            f"({_TOTALS} AS totals JOIN (SELECT * FROM `prod`.`gold`.`other` WHERE TRUE) AS other "
            "USING (user_id))",
        ),
        (
            "gold.totals PIVOT(SUM(n) FOR user_id IN ('a'))",
            f"{_TOTALS} AS totals PIVOT(SUM(n) FOR user_id IN ('a'))",
        ),
        ("gold.totals TABLESAMPLE (10 PERCENT)", f"{_TOTALS} TABLESAMPLE (10 PERCENT) AS totals"),
        (
            "(gold.totals LATERAL VIEW EXPLODE(ARRAY(n)) e AS x)",
            f"({_TOTALS} AS totals LATERAL VIEW EXPLODE(ARRAY(n)) e AS x)",
        ),
    ],
)
def test_what_follows_a_tables_name_is_asked_too(written: str, read: str) -> None:
    assert asked(f"SELECT * FROM {written}") == [f"SELECT * FROM {read}"]


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        # Spark describes a query that has no alias.
        ("DESCRIBE gold.totals", f"DESCRIBE {_TOTALS[1:-1]}"),
        ("DESCRIBE SELECT n FROM gold.totals", f"DESCRIBE SELECT n FROM {_TOTALS} AS totals"),
        (
            "SELECT gold.totals.n, prod.gold.totals.user_id FROM gold.totals",
            f"SELECT totals.n, totals.user_id FROM {_TOTALS} AS totals",
        ),
    ],
)
def test_a_table_is_described_and_its_name_may_stand_before_a_column(
    statement: str, read: str
) -> None:
    assert asked(statement) == [read]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("dev.gold.totals", "there is no table dev.gold.totals"),
        ("prod.gold.other.totals", "there is no table prod.gold.other.totals"),
        ("dev.information_schema.tables", "there is no table dev.information_schema.tables"),
        ("gold.totals VERSION AS OF 3", "gold.totals VERSION AS OF 3 is refused.*current version"),
        ("gold.totals TIMESTAMP AS OF '2026-01-05'", "is refused.*Write only the name"),
        ("gold.totals@v3", "is refused.*Write only the name"),
    ],
)
def test_another_catalog_or_version_is_refused(written: str, why: str) -> None:
    session: Any = _Session()
    lake = Lake(Path("/volume"), catalog=Catalog("prod", lambda: session), needs_locks=False)
    with pytest.raises(UsageError, match=why):
        tables_in(f"SELECT count(*) FROM {written}", lake, dialect=SPARK)


@pytest.mark.parametrize("text", ["SELECT '${env:PATH}'", "SELECT 1 AS `${spark.app.name}`"])
def test_a_variable_that_spark_would_replace_is_refused(text: str) -> None:
    lake = Lake(Path("/volume"), catalog=Catalog("prod", _Session), needs_locks=False)
    with pytest.raises(UsageError, match=r"^\$\{ is refused: .* Write '\$' \|\| '\{' for the text"):
        tables_in(text, lake, dialect=SPARK)
    assert asked("SELECT '$' || '{env:PATH}'") == ["SELECT '$' || '{env:PATH}'"]


def test_a_call_that_lacks_arguments_is_refused_in_one_line() -> None:
    lake = Lake(Path("/volume"), catalog=Catalog("prod", _Session), needs_locks=False)
    with pytest.raises(UsageError, match=r"^the statement cannot be read: .*$"):
        tables_in("SELECT date_trunc()", lake, dialect=SPARK)


def test_a_version_that_is_pinned_is_read_however_old_it_is() -> None:
    set_while: list[dict[str, str]] = []

    class Session(_Session):
        def __init__(self) -> None:
            super().__init__()
            stored = dict[str, str]()
            self.stored, self.conf = (
                stored,
                SimpleNamespace(get=stored.get, set=stored.__setitem__, unset=stored.pop),
            )

        def sql(self, statement: str) -> Any:
            set_while.append(dict(self.stored))
            return super().sql(statement)

    session: Any = Session()
    lake = Lake(Path("/volume"), catalog=Catalog("prod", lambda: session), needs_locks=False)
    tables = {"gold.totals": lake.table("gold.totals")}
    for versions in ({}, {"gold.totals": 3}):
        with pytest.raises(UsageError, match="not run"):
            _ask_spark(lake, "SELECT * FROM gold.totals", tables, versions, dialect=SPARK)
    assert set_while == [{}, OLD_VERSION_SETTINGS]
    assert "VERSION AS OF 3" in session.asked[1] and not session.stored
