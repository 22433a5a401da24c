"""SQL on a catalog: what Spark is asked is the statement, with the lake's tables in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from sqlglot import exp, parse_one

from tidelake.delta.store import Catalog
from tidelake.delta.tables import Lake
from tidelake.errors import UsageError
from tidelake.ledger import statements
from tidelake.ledger.query import _ask_spark, ask_for_user
from tidelake.ledger.statements import SPARK, read_instead, tables_in
from tidelake.spark.tuning import OLD_VERSION_SETTINGS

_TOTALS = "`prod`.`gold`.`totals`"


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
        ("gold.totals", _TOTALS),
        ("prod.gold.totals AS t", f"{_TOTALS} AS t"),
        ("gold.totals AS t(a, b)", f"{_TOTALS} AS t(a, b)"),
        (
            "(gold.totals JOIN PROD.gold.other USING (user_id))",
            f"({_TOTALS} JOIN `prod`.`gold`.`other` USING (user_id))",
        ),
        (
            "gold.totals PIVOT(SUM(n) FOR user_id IN ('a'))",
            f"{_TOTALS} PIVOT(SUM(n) FOR user_id IN ('a'))",
        ),
        ("gold.totals TABLESAMPLE (10 PERCENT)", f"{_TOTALS} TABLESAMPLE (10 PERCENT)"),
        (
            "(gold.totals LATERAL VIEW EXPLODE(ARRAY(n)) e AS x)",
            f"({_TOTALS} LATERAL VIEW EXPLODE(ARRAY(n)) e AS x)",
        ),
    ],
)
def test_what_follows_a_tables_name_is_asked_too(written: str, read: str) -> None:
    assert asked(f"SELECT * FROM {written}") == [f"SELECT * FROM {read}"]


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        # Spark describes a query that has no alias.
        ("DESCRIBE gold.totals", f"DESCRIBE SELECT * FROM {_TOTALS}"),
        ("DESCRIBE SELECT n FROM gold.totals", f"DESCRIBE SELECT n FROM {_TOTALS}"),
        ("DESCRIBE TABLE gold.totals", f"DESCRIBE SELECT * FROM {_TOTALS}"),
        ("; desc extended gold.totals", f"desc SELECT * FROM {_TOTALS}"),
        ("SELECT /*+ BROADCAST(t) */ t.n FROM gold.totals t", f"SELECT t.n FROM {_TOTALS} t"),
        ("/* all */; SELECT n FROM gold.totals", f"SELECT n FROM {_TOTALS}"),
        (
            "SELECT gold.totals.n, prod.gold.totals.user_id FROM gold.totals",
            f"SELECT gold.totals.n, prod.gold.totals.user_id FROM {_TOTALS}",
        ),
    ],
)
def test_a_table_is_described_and_its_name_may_stand_before_a_column(
    statement: str, read: str
) -> None:
    assert asked(statement) == [read]


@pytest.mark.parametrize(
    "columns",
    [
        # What sqlglot would write as another function, or in another way.
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY n)",
        "percentile_disc(0.9) WITHIN GROUP (ORDER BY n DESC)",
        "datediff(window_end, window_start), date_format(at, 'YYYY'), array_size(xs)",
        "1L, 1.50bd, 2e3, 'it''s' 'x', r'\\d', 'a\\'b', \"c\", x:a.b, n::int",
        # Names of tables that are none.
        "'gold.totals', 'é😀 gold.totals' AS `gold.totals`",
        "totals.gold FROM (SELECT 1 AS gold) AS totals UNION ALL SELECT n",
        "(WITH totals AS (SELECT 1 AS n) SELECT totals.n FROM totals)",
    ],
)
def test_all_but_the_names_of_tables_is_asked_as_it_is_written(columns: str) -> None:
    text = f"SELECT {columns}\n FROM {{}} AS gold WHERE gold.totals > 1 ;"
    read = " ".join(text.split())
    for name in ("gold.totals", "`gold` . `Totals`", "prod.GOLD.totals"):
        assert asked(text.format(name)) == [read.format(_TOTALS)]


def test_comments_and_hints_whose_end_is_another_for_spark_are_left_out() -> None:
    hidden = "/* /*+ */ , reflect('a', 'b') -- */"
    for comment in (hidden, "/*+ BROADCAST(gold.totals) */", "-- a\r"):
        text = f"SELECT {comment}\n n /* gold.totals */ FROM gold.totals -- it's gold.totals"
        assert asked(text) == [f"SELECT n FROM {_TOTALS}"]
    assert asked("SELECT 1; -- done") == ["SELECT 1;"]


def test_final_rows_are_a_query_that_may_have_an_alias_and_a_sample() -> None:
    query = "((SELECT * FROM t WHERE ends < 1) AS `totals__final`)"

    def read(sql: str) -> str:
        return read_instead(sql, {"gold.totals__final": query, "gold.totals": "t"})

    final = "gold.totals__final"
    assert read(f"SELECT a.n FROM {final} TABLESAMPLE (1 ROWS) AS a") == (
        f"SELECT a.n FROM {query} TABLESAMPLE (1 ROWS) AS a"
    )
    assert read(f"SELECT {final}.n, prod.{final}.*, gold.totals.n FROM {final}, gold.totals") == (
        f"SELECT totals__final.n, totals__final.*, gold.totals.n FROM {query}, t"
    )
    assert read(f"DESCRIBE {final}") == f"DESCRIBE SELECT * FROM {query}"


def test_a_name_that_cannot_be_located_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(sql: str, dialect: str) -> exp.Expr:
        return parse_one(f" {sql}", dialect=dialect)

    monkeypatch.setattr(statements, "_one_query", elsewhere)
    with pytest.raises(UsageError, match=r"^gold\.totals cannot be located in the statement"):
        read_instead("SELECT * FROM gold.totals", {"gold.totals": _TOTALS})


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
