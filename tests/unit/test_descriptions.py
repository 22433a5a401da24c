"""What tables and columns mean: the file's words, then the standard ones, and never another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines import shop
from tidelake.config import load_environment, load_pipeline
from tidelake.config.descriptions import meaning_of, standard_meaning
from tidelake.config.standard_tables import OPS_TABLES
from tidelake.delta.commit_metadata import definition_note, silver_note
from tidelake.errors import ConfigError
from tidelake.names import BRONZE_COLUMNS
from tidelake.runtime.schemas import SCHEMAS_DDL

_COUNTED = {
    "name": "counted",
    "window": {"kind": "tumbling", "size": "1 hour"},
    "keys": ["user_id"],
    "measures": {
        "events": {"count": "*"},
        "spent": {"sum": "value"},
        "high": {"approx_percentile": {"expression": "value", "p": 0.95}},
    },
    "derive": {"each": "spent\n/ events"},
}
_WORDS = {"user_id": "Who it was."}


def test_a_files_words_hold_for_silver_and_for_the_gold_that_takes_its_columns(
    tmp_path: Path,
) -> None:
    pipeline = shop(tmp_path, description="A shop.", comments=_WORDS, gold=[_COUNTED])

    silver, gold = (meaning_of(pipeline, name) for name in ("silver.shop", "gold.counted"))
    assert silver.description == "A shop. Accepted events, each once."
    assert silver.of("user_id") == gold.of("user_id") == "Who it was."
    assert silver.of("value") is None
    assert (
        silver.of("is_late")
        == "Whether the event was behind the watermark, within the allowed lateness."
    )
    assert silver.of("surprise") == "A payload field that the schema does not know, as text."


def test_what_nobody_described_is_read_off_the_definition(tmp_path: Path) -> None:
    gold = meaning_of(shop(tmp_path, gold=[_COUNTED]), "gold.counted")

    assert gold.description == "One row per window and user_id."
    assert gold.of("events") == "Number of events."
    assert gold.of("spent") == "Sum of value."
    assert gold.of("high") == "About the 95th percentile of value."
    assert gold.of("each") == "Computed from the row: spent / events."
    assert gold.of("window_start") == "Where the window begins (UTC); included."
    assert gold.of("_high_sketch") == "Kept to merge the next batch; not for analysis."


def test_a_tables_own_words_win(tmp_path: Path) -> None:
    words = {"description": "Busy hours.", "comments": {"user_id": "A guest.", "spent": "Money."}}
    gold = meaning_of(shop(tmp_path, comments=_WORDS, gold=[_COUNTED | words]), "gold.counted")

    assert gold.description == "Busy hours."
    assert (gold.of("user_id"), gold.of("spent")) == ("A guest.", "Money.")


def test_a_column_that_shares_a_standard_name_does_not_take_its_meaning(tmp_path: Path) -> None:
    event = {
        "schema": "event_id STRING, event_time TIMESTAMP, user_id STRING, reason STRING",
        "select": {"user_id": "user_id", "reason": "reason"},
    }
    pipeline = shop(tmp_path, event=event)

    assert meaning_of(pipeline, "silver.shop").of("reason") is None
    assert standard_meaning("bronze.shop__requeue").of("reason") == "Reason for the requeue."


def test_no_word_redefines_a_table(tmp_path: Path) -> None:
    plain = shop(tmp_path, gold=[_COUNTED])
    told = shop(
        tmp_path,
        description="A shop.",
        comments=_WORDS,
        gold=[_COUNTED | {"description": "Busy.", "comments": {"events": "All."}}],
    )

    assert definition_note(told.gold[0]) == definition_note(plain.gold[0])
    assert silver_note(told) == silver_note(plain)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"comments": {"user": "x"}},
            r"comments\.user .*unknown column.*did you mean user_id",
        ),
        ({"comments": {"user_id": "  "}}, r"comments\.user_id .*is empty"),
        ({"comments": {"user_id": 1}}, r"comments\.user_id .*must be text"),
        ({"description": "x" * 1001}, r"description .*1,001 characters long"),
        ({"descriptoin": "x"}, r"unknown key; did you mean description"),
        (
            {"gold": [_COUNTED | {"comments": {"spend": "x"}}]},
            r"gold\[0\]\.comments\.spend .*did you mean spent",
        ),
    ],
)
def test_words_in_the_wrong_place_are_told_with_it(
    tmp_path: Path, keys: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        shop(tmp_path, **keys)


@pytest.mark.parametrize(
    "name",
    ["clickstream", "products", "flights", "airlines", "planes", "payments", "payment_fast_alerts"],
)
def test_the_reference_pipelines_describe_every_table_and_column(tmp_path: Path, name: str) -> None:
    environment = load_environment("local", root=str(tmp_path))
    pipeline = load_pipeline(name, environment)

    assert pipeline.description
    assert all(table.description for table in (*pipeline.gold, *pipeline.joins))
    shown = {f"gold.{gold.name}": gold.columns for gold in pipeline.gold}
    shown |= {f"gold.{join.name}": join.columns for join in pipeline.joins}
    shown |= {f"gold.{one.name}": one.shown for one in pipeline.detections}
    shown[f"silver.{name}"] = pipeline.defined_columns
    for table, columns in shown.items():
        meaning = meaning_of(pipeline, table)
        assert not [column for column in columns if not meaning.of(column)], table


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        *((name, tuple(columns)) for name, columns in OPS_TABLES.items()),
        ("bronze.shop", BRONZE_COLUMNS),
        ("bronze.shop__requeue", (*BRONZE_COLUMNS, "reason", "requeued_at")),
        ("bronze.shop__schemas", tuple(part.split()[0] for part in SCHEMAS_DDL.split(", "))),
    ],
)
def test_the_tables_of_every_pipeline_are_described_whole(
    table: str, columns: tuple[str, ...]
) -> None:
    meaning = standard_meaning(table)

    assert meaning.description
    assert not [column for column in columns if not meaning.of(column)]
