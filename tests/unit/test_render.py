"""Results on stdout: narrow tables for people, JSON for machines, every value exact."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tidelake import cli
from tidelake.cli.render import cell, print_json, print_table


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize("columns", [1, 3, 8, 20])
def test_a_table_is_at_most_100_columns_wide_and_loses_no_character(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    print_table([f"c{n}" for n in range(columns)], [["x" * 90] * columns])

    out = printed(capsys)
    assert max(len(line) for line in out.splitlines()) <= 100
    assert out.count("x") == 90 * columns


def test_a_table_of_forty_columns_still_shows_its_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table([f"c{n}" for n in range(40)], [["x"] * 40])

    assert printed(capsys).count("x") == 40


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_the_locale_cannot_encode_is_escaped_and_json_stays_json(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    words = 'Köln ▁ 😀 \\ "'

    def command(*_: object) -> int:
        print_json({words: words})
        print_table(["word"], [["Köln ▁ 😀"]])
        return 0

    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(cli, "run_command", command)
    cli.main()
    stdout.seek(0)
    document, *table = stdout.read().splitlines()
    assert json.loads(document) == {words: words}
    assert "\\u2581 \\ud83d\\ude00" in "".join(table)


def test_markup_in_values_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a[b]"], [["[red]x[/red]"]], title="[bold]t")

    out = printed(capsys)
    assert "a[b]" in out
    assert "[red]x[/red]" in out
    assert "\x1b" not in out


def test_numbers_stand_to_the_right_and_text_to_the_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["name", "rows"], [["a", 1], ["bbbb", 1000], ["c", None]])

    lines = [line.rstrip() for line in printed(capsys).splitlines() if line.strip()]
    assert lines[2:] == ["  a          1", "  bbbb   1,000", "  c          -"]


def test_a_table_without_rows_shows_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["user_id", "total"], [])

    assert "user_id   total" in printed(capsys)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (1234567, "1,234,567"),
        (-5, "-5"),
        (2.5, "2.500"),
        (0.0, "0.000"),
        (-0.001, "-0.001"),
        (0.00004, "4e-05"),
        (123456789012345.0, "123,456,789,012,345.000"),
        (-1e22, "-1e+22"),
        (float("nan"), "nan"),
        ([datetime(2024, 1, 1, tzinfo=UTC), None, "ü"], '["2024-01-01 00:00:00Z", null, "ü"]'),
        ({"a": [Decimal("1.50"), True], 2: (1,)}, '{"a": ["1.50", true], "2": [1]}'),
        (Decimal("1.50"), "1.50"),
        (Decimal("12345678901234567890.123456789012345678"), None),
        (Decimal("-0.01"), "-0.01"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01 00:00:00Z"),
        (datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "2024-01-01 00:00:00.000001Z"),
        (b'{"a": "\xc3\xbc"}', '{"a": "ü"}'),
        (b"\xff\xfe", "\\xff\\xfe"),
    ],
)
def test_a_value_is_written_the_way_people_read_it(value: Any, text: str | None) -> None:
    assert cell(value) == (str(value) if text is None else text)


@pytest.mark.parametrize(
    ("value", "text"), [(Decimal("0E-10"), "0.0000000000"), (Decimal("1E-7"), "0.0000001")]
)
def test_a_small_decimal_is_written_out(value: Decimal, text: str) -> None:
    assert cell(value) == text


def test_json_holds_timestamps_decimals_and_bytes_as_exact_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json(
        [
            {
                "at": datetime(2024, 1, 1, 10, 0, 0, 123456, tzinfo=UTC),
                "day": date(2024, 1, 1),
                "total": Decimal("12345678901234567890.10"),
                "payload": b'{"\xc3\xbc"}',
                "reasons": ["a", "b"],
                "rows": 3,
                "late": False,
                "none": None,
                "name": "ü",
            }
        ]
    )

    out = printed(capsys)
    assert json.loads(out) == [
        {
            "at": "2024-01-01 10:00:00.123456Z",
            "day": "2024-01-01",
            "total": "12345678901234567890.10",
            "payload": '{"ü"}',
            "reasons": ["a", "b"],
            "rows": 3,
            "late": False,
            "none": None,
            "name": "ü",
        }
    ]
    assert "ü" in out


def test_json_has_no_word_that_json_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"a": float("nan"), "b": float("inf")}])

    def refuse(word: str) -> None:
        raise ValueError(word)

    json.loads(printed(capsys), parse_constant=refuse)


def test_json_writes_maps_whose_keys_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"map": {date(2024, 1, 1): 1}}])

    assert json.loads(printed(capsys)) == [{"map": {"2024-01-01": 1}}]


def test_a_name_between_colons_is_no_picture(capsys: pytest.CaptureFixture[str]) -> None:
    """A record id of partition 100 could not be pasted otherwise."""
    print_table([":id:"], [["orders:100:4711"]], title="orders:100:4711: accepted")
    out = printed(capsys)
    assert ":id:" in out
    assert out.count("orders:100:4711") == 2
