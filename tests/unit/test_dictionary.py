"""The data dictionary: from the definitions alone, and its page is up to date."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest

from tests.pipelines import shop
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config.descriptions import entries_of
from tidelake.config.gold_definitions import Measure
from tidelake.config.pipeline import measured_type, type_of
from tidelake.config.standard_tables import OPS_TABLES

PAGE = Path(__file__).parents[2] / "docs" / "data-dictionary.md"
_KNOWN = {
    "n": "INT",
    "value": "DECIMAL(18,2)",
    "share": "DOUBLE",
    "at": "TIMESTAMP",
    "who": "STRING",
}


def test_the_page_in_the_docs_is_what_the_definitions_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(app, ["dictionary"]) == 0

    told = "write it anew with: tidelake dictionary > docs/data-dictionary.md"
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8"), told


def test_every_pipeline_of_a_folder_is_described_by_whichever_ending_its_file_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf" / "pipelines"
    folder.mkdir(parents=True)
    shipped = PAGE.parents[1] / "conf" / "pipelines" / "airlines.yml"
    (folder / "airlines.yaml").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    assert run_command(app, ["dictionary", "--json"]) == 0

    assert "airlines" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("value", "DECIMAL(18,2)"),
        ("lower(who)", "STRING"),
        ("n > 1", "BOOLEAN"),
        ("CASE WHEN who = 'a' THEN value END", "DECIMAL(18,2)"),
        ("nobody", None),
        ("no_such_function(n)", None),
        ("NULL", None),
    ],
)
def test_an_expressions_type_is_known_or_not_told(sql: str, kind: str | None) -> None:
    assert type_of(sql, _KNOWN) == kind


@pytest.mark.parametrize(
    ("aggregate", "sql", "kind"),
    [
        ("count", "*", "BIGINT"),
        ("sum", "value", "DECIMAL(28,2)"),
        ("avg", "value", "DECIMAL(22,6)"),
        ("sum", "n", "BIGINT"),
        ("avg", "n", "DOUBLE"),
        ("sum", "share", "DOUBLE"),
        ("max", "at", "TIMESTAMP"),
        ("last", "who", "STRING"),
        ("approx_percentile", "n", "DOUBLE"),
        ("sum", "who", "DOUBLE"),
        ("avg", "who", "DOUBLE"),
        ("sum", "nobody", None),
    ],
)
def test_a_measures_type_follows_from_its_values(
    aggregate: str, sql: str, kind: str | None
) -> None:
    measure = Measure(name="m", aggregate=aggregate, expression=sql, p=None)  # type: ignore[arg-type]
    assert measured_type(measure, _KNOWN) == kind


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("clicks / events", "DOUBLE"),
        ("clicks > 3", "BOOLEAN"),
        ("upper(user_id)", "STRING"),
        ("clicks - events", "BIGINT"),
        # Spark's types are others than sqlglot's.
        ("total / events", None),
        ("clicks * 1.5", None),
        ("window_end - window_start", None),
        ("timestampdiff(SECOND, window_start, window_end)", None),
    ],
)
def test_a_derived_columns_type_is_told_where_it_is_sure(
    tmp_path: Path, sql: str, kind: str | None
) -> None:
    measures = {"events": {"count": "*"}, "clicks": {"count": "value"}, "total": {"sum": "value"}}
    window = {"kind": "tumbling", "size": "1 hour"}
    table = {"name": "t", "window": window, "keys": ["user_id"], "measures": measures}
    (entry, *_) = entries_of(shop(tmp_path, gold=[{**table, "derive": {"found": sql}}]))
    assert [one.type for one in entry.columns if one.name == "found"] == [kind]
    assert "total, found FROM" in entry.example


def test_a_table_says_what_tells_its_rows_apart_and_how_time_is_cut(tmp_path: Path) -> None:
    windows = {
        "an_hour": {"kind": "tumbling", "size": "90 minutes"},
        "sliding": {"kind": "hopping", "size": "5 minutes", "slide": "30 seconds"},
        "visits": {"kind": "session", "gap": "1 day"},
        "ever": {"kind": "global"},
    }
    base = {"keys": ["user_id"], "measures": {"events": {"count": "*"}}}
    gold = [{"name": name, "window": window, **base} for name, window in windows.items()]
    entries = {entry.table: entry for entry in entries_of(shop(tmp_path, gold=gold))}

    told = {
        name: (entries[f"gold.{name}"].window, entries[f"gold.{name}"].keys) for name in windows
    }
    assert told == {
        "an_hour": ("90 minutes each", ("window_start", "user_id")),
        "sliding": ("5 minutes each, a new one every 30 seconds", ("window_start", "user_id")),
        "visits": ("until nothing happens for 1 day", ("session_id", "user_id")),
        "ever": ("all time", ("user_id",)),
    }
    assert list(entries)[4:] == [
        *("silver.shop", "silver.shop__late", "silver.shop__quarantine", "bronze.shop"),
    ]


def test_an_example_quotes_the_columns_that_are_keywords_and_no_other(tmp_path: Path) -> None:
    gold = {
        "name": "t",
        "window": {"kind": "tumbling", "size": "1 hour"},
        "keys": ["order", "user_id"],
        "measures": {"desc": {"count": "*"}},
    }
    join = {
        "name": "pairs",
        "left": {"columns": {"at": "event_time"}},
        "right": {"pipeline": "shop", "columns": {"to": "event_time"}},
        "on": ["user_id"],
        "within": "1 day",
    }
    query = {
        "name": "q",
        "sql": "SELECT window_start AS `from`, sum(`desc`) AS `end` FROM gold.t GROUP BY 1",
    }
    event = {"select": {"order": "value", "user_id": "user_id"}}
    tables = {"gold": [gold], "joins": [join], "queries": [query]}
    pipeline = shop(tmp_path, event=event, **tables)
    examples = {entry.table: entry.example for entry in entries_of(pipeline)}
    assert examples["gold.t"] == (
        'SELECT window_start, window_end, "order", user_id, "desc" FROM gold.t '
        'ORDER BY window_start DESC, "desc" DESC LIMIT 10'
    )
    assert 'count("to") AS matched' in examples["gold.pairs"]
    assert examples["gold.q"] == 'SELECT "from", "end" FROM gold.q ORDER BY "from" DESC LIMIT 10'
    columns = '1 AS window_start, 2 AS window_end, 3 AS "order", 4 AS user_id, 5 AS "desc"'
    with duckdb.connect() as connection:
        connection.execute(f"CREATE SCHEMA gold; CREATE TABLE gold.t AS SELECT {columns}")
        assert connection.execute(examples["gold.t"]).fetchall() == [(1, 2, 3, 4, 5)]
    # As the SQL of a catalog quotes them.
    of_catalog = {entry.table: entry.example for entry in entries_of(pipeline, "databricks")}
    assert "`order`, user_id, `desc` FROM" in of_catalog["gold.t"]


def test_the_whole_dictionary_has_the_tables_that_all_pipelines_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for table, columns in OPS_TABLES.items():
        part = page.partition(f"### {table}\n")[2].partition("### ")[0]
        assert re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", part, re.MULTILINE) == list(columns)
    assert run_command(app, ["dictionary", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["All pipelines"]
    assert [entry["table"] for entry in told] == list(OPS_TABLES)


def test_the_command_writes_a_page_or_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, ["dictionary", "products"]) == 0
    page = capsys.readouterr().out
    assert page.count("\n### ") == 6
    assert "### dim.products__history" in page
    assert run_command(app, ["dictionary", "products", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["products"]
    assert told["products"][0]["columns"][0] == {
        "name": "product_id",
        "type": "STRING",
        "meaning": "The product.",
    }
