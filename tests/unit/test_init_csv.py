"""`tidelake init` on CSV: the dialect, the header and the types are recognised, or named."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines import sql_types
from tidelake.bronze.whole_files import decompressed, reader_of
from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.config import CsvFormat, FilesSource, Pipeline, load_environment, load_pipeline

_START = datetime(2013, 1, 1, 5, tzinfo=UTC)
_HEADER = ["flight_id", "time_hour", "tailnum", "dep_delay", "fare", "cancelled", "zip"]


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("landing").mkdir()
    return empty_folder


def _row(number: int) -> list[str]:
    when = _START + timedelta(hours=number)
    delay = "NA" if number == 3 else str(number - 5)
    tail = "" if number == 4 else f"N{number % 3}"
    fare, cancelled = f"{number}.50", str(number % 2 == 0).lower()
    return [f"f{number}", f"{when:%Y-%m-%d %H:%M:%S}", tail, delay, fare, cancelled, "01234"]


def _text(delimiter: str = ",", *, header: bool = True, rows: int = 30) -> str:
    lines = [_HEADER] * header + [_row(number) for number in range(rows)]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def _init(*arguments: str) -> Pipeline:
    assert run_command(app, ["init", "flown", "--source", "landing", *arguments, "--yes"]) == 0
    return load_pipeline("flown", load_environment())


def _source(pipeline: Pipeline) -> FilesSource:
    assert isinstance(pipeline.source, FilesSource)
    assert pipeline.source.format == "csv"
    return pipeline.source


def _refused(capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(app, ["init", "flown", "--source", "landing", "--yes"]) == 2
    assert not Path("conf").exists()
    return capsys.readouterr().err


def test_types_and_nulls_are_those_of_the_texts() -> None:
    Path("landing/a.csv").write_text(_text())
    pipeline = _init()
    assert sql_types(pipeline) == {
        "flight_id": "STRING",
        "time_hour": "TIMESTAMP",
        "tailnum": "STRING",
        "dep_delay": "BIGINT",
        "fare": "DECIMAL(18,2)",
        "cancelled": "BOOLEAN",
        # A number with a leading zero is a code.
        "zip": "STRING",
    }
    assert (pipeline.event.id, pipeline.event.time) == ("flight_id", "time_hour")
    assert _source(pipeline).csv == CsvFormat(nulls=("NA",))
    sample = Path("tests/flown.sample.csv").read_bytes().splitlines()
    assert sample[:2] == [line.encode() for line in _text().splitlines()[:2]]
    test = Path("tests/test_flown.py").read_text()
    assert 'SENT = [HEADER, *LINES, LINES[0], LINES[0] + b",more"]' in test
    assert '"payload: 8 fields, its file has 7 columns": 1' in test


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", _text(";"), {"delimiter": ";"}),
        ("a.tsv", _text("\t"), {"delimiter": "\t"}),
        ("a.txt", _text("|"), {"delimiter": "|"}),
        ("a.csv.gz", gzip.compress(_text().encode()), {}),
        ("a.csv", "\ufeff" + _text(), {}),
        ("a.csv", _text().replace("N1", "Ñ1").encode("latin-1"), {"encoding": "latin-1"}),
        ("a.csv", _text().replace("N1", "Ñ1").encode("utf-16"), {"encoding": "utf-16"}),
        (
            "a.csv",
            _text(header=False),
            {"columns": [f"column_{number}" for number in range(1, 8)]},
        ),
    ],
)
def test_the_dialect_is_recognised(
    name: str, content: str | bytes, expected: dict[str, Any]
) -> None:
    raw = content.encode() if isinstance(content, str) else content
    (Path("landing") / name).write_bytes(raw)
    source = _source(_init())
    assert source.csv == CsvFormat.model_validate({"nulls": ["NA"], **expected})
    read = reader_of(source)
    assert read is not None
    assert sum(len(chunk) for chunk, _ in read(decompressed(name, raw))) == 30


def test_quoted_fields_and_a_column_that_some_files_have_are_read() -> None:
    Path("landing/a.csv").write_text('id,at,note\n1,2026-01-05T10:00:00Z,"a, ""b""\nc"\n')
    Path("landing/b.csv").write_text("note,id,at,more\n-,2,2026-01-05T10:01:00Z,1.5\n")
    pipeline = _init()
    assert [(field.name, field.type.sql) for field in pipeline.event.fields] == [
        ("id", "BIGINT"),
        ("at", "TIMESTAMP"),
        ("note", "STRING"),
        ("more", "DOUBLE"),
    ]
    assert _source(pipeline).csv == CsvFormat()


def test_a_text_that_means_null_in_another_column_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = "id,country,temp,at\na,NA,1,NA\nb,DE,NA,2026-01-05\nc,-,2,\nd,NA,4,\n"
    Path("landing/a.csv").write_text(rows)
    assert _source(_init()).csv == CsvFormat(nulls=("NA",))
    told = " ".join(capsys.readouterr().err.split())
    # The code of Namibia.
    assert "country: NA is null here too, in 2 records" in told
    assert told.count("is null here too") == 1


def test_blanks_around_numbers_and_times_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("landing/a.csv").write_text("id, at, n, what\n" + "a, 2026-01-05T10:00:00Z, 1, x\n" * 2)
    pipeline = _init()
    told = " ".join(capsys.readouterr().err.split())
    assert "Note: ' at', ' n': read as text, because blanks around a value are part" in told
    # The SQL that is told loads.
    [sql] = re.findall(r"CAST\(trim\(` at`\) AS TIMESTAMP\)", told)
    assert pipeline.event.time == "source_timestamp"
    assert run_command(app, ["init", "b", "--source", "landing", "--yes", "--time", sql]) == 0


def test_a_broken_record_is_told_and_no_obstacle(capsys: pytest.CaptureFixture[str]) -> None:
    Path("landing/a.csv").write_text(_text() + "x,y\n")
    _init()
    told = capsys.readouterr().err
    assert "1 of 31 records will be quarantined: not CSV of that kind" in told
    assert "landing/a.csv record 31: 2 fields, its file has 7 columns" in told


def test_short_records_at_the_end_do_not_hide_the_header(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("landing/a.csv").write_text(_text() + "TOTAL,30\nrows,30\n")
    assert [field.name for field in _init().event.fields] == _HEADER
    assert "2 of 32 records will be quarantined" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.csv": _text(), "b.csv": _text(";")}, "differ in their delimiter: landing/a.csv (',')"),
        ({"a.csv": _text(), "b.csv": _text(header=False)}, "differ in their header"),
        ({"a.csv": "é,b\n1,2\n", "b.csv": "a,\xe9\n1,2\n"}, "differ in their encoding"),
        ({"a.csv": _text(), "b.jsonl": '{"a": 1}\n'}, "holds files of several formats"),
        ({"a.csv": ""}, "the sample holds no record"),
        ({"a.csv": "a,b\n1\n2,\n3,4,5\n"}, "landing/a.csv record 1: 1 fields, its file has 2"),
        (
            {"a.csv": f"# of {_START}\n{_text()}"},
            "(1) than most others (7), so it cannot be their header",
        ),
        # Neither blank lines nor short records at the end hide the header.
        (
            {"a.csv": f"# of\n\n# b\n{_text()}TOTAL,30\n"},
            "is flight_id,time_hour,tailnum,dep_delay,fare,cancelled,zip, remove the lines above",
        ),
        ({"a.csv": f"{'t' * 70}\na,b\n1,2\n3,4\n"}, f"its first record ({'t' * 60}…) has"),
        # As many titles as other records.
        ({"a.csv": "# of\n# b\na,b\n1,2\n"}, "is a,b, remove the lines above it from the files"),
        # A header that names too few columns.
        ({"a.csv": "a,b\n1,2,3\n4,5,6\n"}, "is the first record, let it name each column"),
    ],
)
def test_what_is_not_csv_of_one_kind_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], files: dict[str, str], words: str
) -> None:
    for name, content in files.items():
        encoding = "latin-1" if "\xe9" in content and name == "b.csv" else "utf-8"
        (Path("landing") / name).write_text(content, encoding=encoding)
    assert words in _refused(capsys)


def test_the_files_are_in_the_form_that_fmt_gives_them() -> None:
    """Also where a text needs quotes."""
    Path("landing/a.csv").write_text("id,the kind,select\na,x,1\nb,y,2\n")
    assert (_init().event.select or {})["the_kind"] == "`the kind`"
    assert run_command(app, ["fmt", "--check"]) == 0


@pytest.mark.parametrize("header", ["id,n,", "id,n,n"])
def test_a_header_that_is_none_is_told(capsys: pytest.CaptureFixture[str], header: str) -> None:
    Path("landing/a.csv").write_text(f"{header}\na,1,2\nb,2,3\n")
    pipeline = _init()
    told = " ".join(capsys.readouterr().err.split())
    assert f"read as data, no header: {header}. If it is the header, correct the files" in told
    assert [field.name for field in pipeline.event.fields][-1] == "column_3"
    Path("landing/a.csv").write_text("a,1,2\nb,2,3\n")
    assert run_command(app, ["init", "other", "--source", "landing", "--yes"]) == 0
    assert "correct the files" not in capsys.readouterr().err


def _spreadsheet(number: int, total: str, note: str = "é") -> str:
    day = _START + timedelta(minutes=number * 400)
    return f"R{number};{day:%d.%m.%Y %H:%M};{day:%d.%m.%Y};{total};1,234;{note}"


def _exported(*rows: str, encoding: str) -> bytes:
    return "\r\n".join(["Nr;Datum;Tag;Betrag;Menge;Text", *rows, ""]).encode(encoding)


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        ("1", "CAST(trim(` v`) AS BIGINT)"),
        ("true", "CAST(trim(` v`) AS BOOLEAN)"),
        ("05.01.2026", "to_date(trim(` v`), 'dd.MM.yyyy')"),
    ],
)
def test_blanks_are_left_out_by_sql_of_the_values_type(
    capsys: pytest.CaptureFixture[str], value: str, sql: str
) -> None:
    Path("landing/a.csv").write_text(f"id, v\na, {value}\nb, {value}\n")
    _init()
    assert f"event.select: {sql}" in " ".join(capsys.readouterr().err.split())


def test_decimal_commas_and_dates_of_a_spreadsheet_are_converted() -> None:
    totals = ["12,50", "-7", "1.234,00", "", "1.234.567,891"] * 8
    rows = [_spreadsheet(number, total) for number, total in enumerate(totals)]
    Path("landing/a.csv").write_bytes(_exported(*rows, encoding="latin-1"))
    flown = _init()
    assert _source(flown).csv == CsvFormat(delimiter=";", encoding="latin-1")
    # A comma before three digits alone may be one of thousands.
    assert {field.type.sql for field in flown.event.fields} == {"STRING"}
    select = flown.event.select or {}
    assert select["Betrag"].startswith("CAST(translate(regexp_replace(Betrag, ")
    assert (select["Menge"], select["Tag"]) == (
        "Menge",
        "to_date(Tag, 'dd.MM.yyyy')",
    )
    assert flown.event.time == "try_to_timestamp(Datum, 'dd.MM.yyyy HH:mm')"
    # In the files' encoding, as the test writes them to a source.
    sample = Path("tests/flown.sample.csv").read_bytes()
    assert "é".encode("latin-1") in sample
    assert len(sample.splitlines()) == 21


def test_amounts_that_gold_cannot_sum_have_no_sum() -> None:
    """Gold sums 28 digits of a DECIMAL, and refuses one with more after the point."""
    amounts = ["0.12345678,1.000000000000000001,0.1234567890123456789012345678901"] * 30
    amounts[3] = f"1.5,{10**12}.5,1.5"
    rows = "".join(
        f"e{at},{_START + timedelta(minutes=at):%Y-%m-%d %H:%M:%S},{row}\n"
        for at, row in enumerate(amounts)
    )
    Path("landing/a.csv").write_text(f"id,at,price,fee,tax\n{rows}")
    flown = _init()
    assert [field.type.sql for field in flown.event.fields][2:] == [
        "DECIMAL(38,18)",
        "DECIMAL(38,18)",
        "DECIMAL(38,31)",
    ]
    measures = [(measure.name, measure.aggregate) for measure in flown.gold[0].measures]
    assert measures == [("events", "count"), ("total_price", "sum")]


def test_letters_of_windows_are_recognised_and_fit_files_without_them() -> None:
    Path("landing/a.csv").write_bytes(_exported(_spreadsheet(1, "1,5"), encoding="latin-1"))
    Path("landing/b.csv").write_bytes(_exported(_spreadsheet(2, "2,5", "5 €"), encoding="cp1252"))
    assert _source(_init()).csv.encoding == "cp1252"
