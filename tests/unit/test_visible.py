"""No value of a person leaves in a message, and no letter of theirs commands a terminal."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.pipelines import bronze
from tidelake.cli.exits import run_command, say
from tidelake.cli.render import FORMATS, format_answer, print_json, print_line, print_table
from tidelake.errors import SourceError
from tidelake.ledger.query import Answer
from tidelake.ops.alerts import Alert
from tidelake.runtime.failures import named
from tidelake.runtime.landed_files import refuse_broken
from tidelake.spark.session import spark_log
from tidelake.visible import first_line, kind_of, kind_of_text, some, visible

MARK = "mrsjones42"
# What would clear a screen, forge a line, turn a line round, or end one.
COMMANDS = "\x1b[2J \x9b31m \r\n\t \x00\x07\x7f\x85 \u202e\u2066\u200f\u061c \u2028\u2029 \ufeff"
RAW = frozenset(COMMANDS) - {" ", "[", "2", "J", "3", "1", "m"}


def test_a_control_character_is_shown_and_not_obeyed() -> None:
    assert visible("a\x1b[2Jb\nc\u202ed\x9b\ud800é日本") == (
        "a\\x1b[2Jb\\nc\\u202ed\\x9b\\ud800é日本"
    )
    assert visible("two\nlines\t", lines=True) == "two\nlines\\t"


def test_no_table_line_or_document_prints_what_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value: dict[str, Any] = {f"id{COMMANDS}": [COMMANDS, {COMMANDS: COMMANDS.encode()}]}
    print_table(["id", f"key{COMMANDS}"], [[COMMANDS, COMMANDS.encode()]], title=COMMANDS)
    print_table([f"c{n}" for n in range(20)], [[COMMANDS] * 20])
    print_line(COMMANDS)
    print_json(value)
    say(COMMANDS.replace("\n", " "))
    rows = Answer(("id", f"key{COMMANDS}"), ((COMMANDS, 1), (COMMANDS, 2)))
    shown = [format_answer(rows, how, 80)[0] for how in FORMATS if how != "csv"]
    told = capsys.readouterr()
    assert not RAW - {"\n"} & set(told.out + told.err + "".join(shown))
    printed = [line for line in told.out.splitlines() if line.startswith("{")]
    assert list(json.loads(printed[0])) == [f"id{COMMANDS}"]
    # A value's own line break begins no line.
    assert len(shown[0].splitlines()) == 6


def test_an_alert_obeys_no_value_in_its_message() -> None:
    alert = Alert("lag_growing", "shop", None, "warning", COMMANDS, None, f"look {COMMANDS}")
    assert not RAW & set(str(alert) + alert.to_json()["message"])


def failing(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Give actions that fail on a row, each in another way, whose messages quote the row."""
    rows = bronze(spark, [{"record_id": "f:0", "payload": MARK}])
    text = F.col("payload").cast("string")
    table = folder / "table"
    spark.sql(f"CREATE TABLE delta.`{table}` (v STRING) USING DELTA")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT short CHECK (length(v) < 5)")
    strictly = F.from_json(text, "v INT", {"mode": "FAILFAST"})
    tries = {
        "cast": lambda: rows.select(text.cast("int")).collect(),
        "time": lambda: rows.select(text.cast("timestamp")).collect(),
        "malformed": lambda: rows.select(strictly).collect(),
        "raised": lambda: rows.select(F.raise_error(text)).collect(),
        "key": lambda: rows.select(
            F.map_from_arrays(F.array(text, text), F.array(text, text))
        ).collect(),
        "constraint": lambda: (
            rows.select(text.alias("v")).write.format("delta").mode("append").save(str(table))
        ),
        "literal": lambda: spark.sql(f"SELECT CAST('{MARK}' AS DATE)").collect(),
        "plan": lambda: rows.select(F.col(f"`{MARK}`")).collect(),
    }
    return tries


def test_no_error_of_spark_s_tells_a_value_of_a_row(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, action in failing(spark, tmp_path).items():
        error = raised_by(action)
        assert MARK in str(error), name
        assert run_command(click.Command("fails", callback=partial(raising, error)), []) == 1
        wrapped = named(error, "shop, hop silver")
        told = [kind_of(error), first_line(error), str(wrapped), first_line(wrapped)]
        told += [kind_of_text(str(error)), capsys.readouterr().err]
        assert not [one for one in told if "jones" in one], name
        assert type(error).__name__ in told[0]


def test_of_an_error_that_lists_files_the_first_is_named_without_what_is_wrong_with_it() -> None:
    header = f"its header has the name {MARK} 2 times"
    with pytest.raises(SourceError) as caught:
        refuse_broken({"/landing/b.csv": header, "/landing/a.csv": header})
    assert header in str(caught.value)
    what = "files of the source are broken, and none of their batch was ingested: /landing/a.csv"
    assert kind_of(caught.value) == what
    assert kind_of(SourceError("shop: \x1b\nSee the log.")) == "shop: \\x1b"
    assert kind_of(SourceError("one line:")) == "one line:"


def test_a_count_has_a_noun_and_a_verb_that_fit() -> None:
    assert [some(count, "files") for count in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]
    assert some(1, "rows", "waiting") == "1 row is waiting"
    assert some(2, "rows", "waiting") == "2 rows are waiting"


def raised_by(action: Callable[[], Any]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def raising(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "text",
    [
        f"[CAST_INVALID_INPUT] The value '{MARK}: No space left on device' of the type",
        f"[X] '{MARK} /home/{MARK} (Permission denied)'",
        f"[X] '{MARK} org.apache.kafka.common.errors.TimeoutException: {MARK}'",
        f"[X] 'Cannot fetch record for offset {MARK}'",
        f"[X] 'Could not connect to the endpoint {MARK}'",
        f"[X] 'FileNotFoundException {MARK}'",
        f"[X] 'Some data may have been lost\n{MARK}'",
        f"bad: {MARK}",
    ],
)
def test_a_value_that_says_what_the_machine_says_is_not_told_either(text: str) -> None:
    assert MARK not in str(named(RuntimeError(text), "shop, hop silver"))


def test_the_condition_and_the_types_are_told(spark: SparkSession) -> None:
    rows = bronze(spark, [{"record_id": "f:0", "payload": MARK}])
    with pytest.raises(Exception, match="CAST_INVALID_INPUT") as caught:
        rows.select(F.col("payload").cast("string").cast("int")).collect()
    told = kind_of(caught.value)
    assert told == (
        'NumberFormatException [CAST_INVALID_INPUT] (sourceType "STRING", targetType "INT")'
    )


def test_what_spark_logs_is_the_user_s_alone() -> None:
    log = spark_log()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700


def test_the_log_goes_with_its_process_unless_an_error_names_it() -> None:
    script = (
        "from tidelake.spark.session import kept_log, spark_log\n"
        "print(spark_log())\n"
        "import sys\n"
        "if sys.argv[1:]: print(kept_log(ValueError('why')))\n"
    )

    def logged(*arguments: str) -> Path:
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        return Path(done.stdout.splitlines()[0])

    assert not logged().parent.exists()
    kept = logged("fails")
    try:
        assert "ValueError: why" in kept.read_text()
    finally:
        kept.unlink()
        kept.parent.rmdir()
