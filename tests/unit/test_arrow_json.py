"""Columns of Arrow as JSON objects: what depends on the values of a whole column."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.bronze.arrow_json import to_json_objects

_ODD = st.text(st.sampled_from('aé"\\\n\r\t\x00\x1f\x7f\u2028 '), max_size=6)


def _rows(column: pa.Array) -> list[Any]:
    objects = to_json_objects([column, column], ["a", "b"])
    assert objects.null_count == 0
    rows = [json.loads(one, parse_float=Decimal) for one in objects.to_pylist()]
    assert all(row["a"] == row["b"] for row in rows)
    return [row["a"] for row in rows]


@given(st.lists(st.none() | _ODD, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_texts_are_escaped_in_any_part_of_a_column(
    values: list[str | None], begin: int, length: int
) -> None:
    part = pa.array(values, pa.string()).slice(min(begin, len(values)), length)
    assert _rows(part) == part.to_pylist()


@pytest.mark.parametrize("letter", [chr(code) for code in (*range(0x20), 0x22, 0x5C)])
def test_each_letter_that_json_escapes_is_escaped_alone_and_beside_others(letter: str) -> None:
    values = ["plain", letter, f'"{letter}\\', letter * 3]
    assert _rows(pa.array(values)) == values


@pytest.mark.parametrize("whole", [[], [1.0], [-3.0, 0.0]])
def test_doubles_are_told_from_integers_whether_or_not_all_have_a_fraction(
    whole: list[float],
) -> None:
    values = [0.5, 1e-7, 1e20, 123456789012345680.0, *whole]
    found = _rows(pa.array(values))
    assert [type(value) for value in found] == [Decimal] * len(values)
    assert list(map(float, found)) == values


def test_columns_with_and_without_nulls_are_written_beside_each_other() -> None:
    inner = pa.struct([("n", pa.int8()), ("t", pa.string()), ("e", pa.struct([]))])
    full = [{"n": 1, "t": "x", "e": {}}, {"n": None, "t": None, "e": None}]
    assert _rows(pa.array(full, inner)) == full
    gaps = [*full, None]
    assert _rows(pa.array(gaps, inner)) == gaps
    several = pa.list_(inner)
    assert _rows(pa.array([full, [], None, gaps], several)) == [full, [], None, gaps]
    assert _rows(pa.array([full, [], [None]], several)) == [full, [], [None]]
    assert _rows(pa.array([None, None], pa.timestamp("us"))) == [None, None]
    assert _rows(pa.array([], inner)) == []


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_only_times_that_are_read_finer_are_instants(unit: str) -> None:
    def kind(of_instant: str) -> pa.DataType:
        return pa.struct([("at", pa.timestamp(of_instant)), ("local", pa.timestamp(unit))])

    one = {"at": datetime(2026, 1, 5), "local": datetime(2026, 1, 5, 10)}
    coarse, fine = (pa.array([one, None], kind(of_instant)) for of_instant in ("us", "ns"))
    (written, nothing) = to_json_objects([coarse], ["c"], [fine]).to_pylist()
    assert json.loads(written) == {
        "c": {"at": "2026-01-05T00:00:00.000000Z", "local": "2026-01-05T10:00:00.000000"}
    }
    assert nothing == b'{"c":null}'


@pytest.mark.parametrize(
    ("nanoseconds", "written"),
    [
        (-(2**63), "1677-09-21T00:12:43.145224192"),
        # pandas.Timestamp.min
        (-(2**63) + 1, "1677-09-21T00:12:43.145224193"),
        (-(2**63) + 808, "1677-09-21T00:12:43.145225"),
        (-1, "1969-12-31T23:59:59.999999999"),
        (-1000, "1969-12-31T23:59:59.999999"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807"),
    ],
)
def test_each_time_of_nanoseconds_has_its_digits(nanoseconds: int, written: str) -> None:
    times = pa.array([nanoseconds, None], pa.int64()).view(pa.timestamp("ns"))
    found = to_json_objects([times], ["c"]).to_pylist()
    assert [json.loads(one)["c"] for one in found] == [written, None]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1_000_000), ("ms", 1000), ("us", 1)])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_that_is_too_far_changes_no_other(unit: str, factor: int, zone: str | None) -> None:
    second = 1_000_000 // factor
    far = [2**63 - 1, -(2**63), 971_890_963_200 * second]
    counts = [1_767_607_200 * second, None, *far, 971_890_963_199 * second]
    times = pa.array(counts, pa.int64()).view(pa.timestamp(unit, zone))
    found = [json.loads(one)["c"] for one in to_json_objects([times], ["c"]).to_pylist()]
    end = ".000000" + ("Z" if zone else "")
    assert found == [
        f"2026-01-05T10:00:00{end}",
        None,
        *[f"{count * factor} microseconds" for count in far],
        f"32767-12-31T23:59:59{end}",
    ]
