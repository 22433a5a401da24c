"""Values: what survives its type exactly, and what is called broken."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shown import shown
from tidelake.config.types import parse_schema
from tidelake.silver.payloads import arrow_type
from tidelake.silver.values import (
    MOST_DEPTH,
    Number,
    canonical_json,
    is_too_deep,
    to_column,
    to_text_column,
)

BROKEN = "broken"


def outcomes(kind: str, texts: list[str | None]) -> list[str | None]:
    """Read texts as a type, all in one column: each as text again, or broken."""
    type_ = parse_schema(f"v {kind}")[0].type
    column, broken = to_column(texts, arrow_type(type_))
    found = column.to_pylist()
    assert all(found[row] is None for row in broken)
    # Each by itself gives the same.
    alone = [to_column([text], arrow_type(type_)) for text in texts]
    assert [one.to_pylist()[0] for one, _ in alone] == found
    assert [row for row, (_, bad) in enumerate(alone) if bad] == broken
    return [
        BROKEN if row in broken else None if value is None else shown(value, type_)
        for row, value in enumerate(found)
    ]


CASES: dict[str, dict[str | None, str | None]] = {
    "STRING": {"": "", " a ": " a ", "12,50": "12,50", None: None},
    "BOOLEAN": {
        "true": "true",
        "false": "false",
        "TRUE": BROKEN,
        "1": BROKEN,
        "yes": BROKEN,
        "": BROKEN,
        None: None,
    },
    "TINYINT": {
        "127": "127",
        "-128": "-128",
        "128": BROKEN,
        "1e2": "100",
        "1e3": BROKEN,
        None: None,
    },
    "SMALLINT": {"32767": "32767", "32768": BROKEN, "-32769": BROKEN, "3.2e4": "32000"},
    "INT": {
        "12": "12",
        "-0": "0",
        "1.0": "1",
        "1.2345678E7": "12345678",
        "1.23456785E7": BROKEN,
        "2147483647": "2147483647",
        "2147483648": BROKEN,
        "1e10": BROKEN,
        "1.5": BROKEN,
        "0.9": BROKEN,
        "1,000": BROKEN,
        "1_000": BROKEN,
        " 1": BROKEN,
        "+1": BROKEN,
        "1L": BROKEN,
        "0x1F": BROKEN,
        "\u0661": BROKEN,
        "~1": BROKEN,
        "true": BROKEN,
        "NaN": BROKEN,
        "": BROKEN,
        None: None,
    },
    "BIGINT": {
        "9223372036854775807": "9223372036854775807",
        "-9223372036854775808": "-9223372036854775808",
        "9223372036854775808": BROKEN,
        "9.223372036854775807E18": "9223372036854775807",
        "9.223372036854775808E18": BROKEN,
    },
    "FLOAT": {"0.5": "0.5", "1e39": BROKEN, "~0.5": BROKEN, "NaN": BROKEN, None: None},
    "DOUBLE": {
        "0.1": "0.1",
        "-1.5e3": "-1500.0",
        "~0.1": BROKEN,
        "1e400": BROKEN,
        "-1e400": BROKEN,
        "NaN": BROKEN,
        "Infinity": BROKEN,
        "-inf": BROKEN,
        "1,5": BROKEN,
        "1.5d": BROKEN,
        "": BROKEN,
        None: None,
    },
    "DECIMAL(18,2)": {
        "12": "12.00",
        "12.5": "12.50",
        "12.5000": "12.50",
        "-0.01": "-0.01",
        "1.23456785E7": "12345678.50",
        "1.234567891E7": "12345678.91",
        "1.2345678912E7": BROKEN,
        "15E-1": "1.50",
        "15E-3": BROKEN,
        "12,50": BROKEN,
        "1,234.50": BROKEN,
        "12.999": BROKEN,
        "0.001": BROKEN,
        "9999999999999999.99": "9999999999999999.99",
        "10000000000000000.00": BROKEN,
        "1e400": BROKEN,
        "~12.50": BROKEN,
        ".5": BROKEN,
        "5.": BROKEN,
        "+5": BROKEN,
        " 5": BROKEN,
        "$5": BROKEN,
        "NaN": BROKEN,
        "": BROKEN,
        None: None,
    },
    "DECIMAL(38,20)": {"0.12345678901234567890": "0.12345678901234567890"},
    "DATE": {
        "2024-02-29": "2024-02-29",
        "2023-02-29": BROKEN,
        "2024-2-9": BROKEN,
        "2024-02": BROKEN,
        "20240229": BROKEN,
        "2024-02-29T10:00:00": BROKEN,
        "today": BROKEN,
        None: None,
    },
    "TIMESTAMP": {
        "2024-01-01T10:15:00Z": "2024-01-01 10:15:00",
        "2024-01-01 10:15:00": "2024-01-01 10:15:00",
        "2024-01-01T10:15:00+05:30": "2024-01-01 04:45:00",
        "2024-01-01T10:15:00-0500": "2024-01-01 15:15:00",
        "2024-01-01T10:15:00.123456Z": "2024-01-01 10:15:00.123456",
        "2024-01-01T10:15:00.123456000Z": "2024-01-01 10:15:00.123456",
        "2024-01-01T10:15:00.1234567Z": BROKEN,
        "2024-01-01": "2024-01-01 00:00:00",
        "10:15": BROKEN,
        "T10:15:00Z": BROKEN,
        "2024-01": BROKEN,
        "2024-02-30T10:15:00Z": BROKEN,
        "2024-01-01T25:00:00Z": BROKEN,
        "2024-01-01T10:15:00+25:00": BROKEN,
        "2024-01-01T10:15:00 UTC": BROKEN,
        "1704103200": BROKEN,
        "now": BROKEN,
        "": BROKEN,
        None: None,
    },
    "TIMESTAMP_NTZ": {
        "2024-01-01T10:15:00": "2024-01-01 10:15:00",
        "2024-01-01T10:15:00Z": BROKEN,
        "10:15": BROKEN,
        None: None,
    },
    "BINARY": {"aGk=": "hi", "a-b!": BROKEN, None: None},
    "ARRAY<INT>": {
        "[1, 2, null]": "[1,2,null]",
        "[]": "[]",
        "[1, 1.5]": BROKEN,
        '["1"]': "[1]",
        "[1] [2]": BROKEN,
        "[1],[2]": BROKEN,
        '{"a": 1}': BROKEN,
        "1": BROKEN,
        "": BROKEN,
        None: None,
    },
    "ARRAY<BINARY>": {
        '["aGk=", null]': '["hi",null]',
        "[1234]": BROKEN,
        "[12.5e10]": BROKEN,
        "[1e4000]": BROKEN,
        "[true]": BROKEN,
    },
    "STRUCT<b: BINARY>": {'{"b": "aGk="}': '{"b":"hi"}', '{"b": 1234}': BROKEN},
    "MAP<STRING, BINARY>": {'{"k": "aGk="}': '{"k":"hi"}', '{"k": 1234}': BROKEN},
    "ARRAY<DECIMAL(18,8)>": {
        "[1E-8]": "[1E-8]",
        "[-1.5E-7, 0E-8]": "[-1.5E-7,0E-8]",
        "[1e2]": "[100.00000000]",
        "[1e-9]": BROKEN,
        "[1e10]": BROKEN,
        "[1e400]": BROKEN,
    },
    "ARRAY<BIGINT>": {
        "[1e8, 1.50e1]": "[100000000,15]",
        "[1e-1]": BROKEN,
        "[9.223372036854775808E18]": BROKEN,
    },
    "STRUCT<d: DECIMAL(18,8), n: MAP<STRING, INT>>": {
        '{"d": 1E-8, "n": {"k": 2e0}}': '{"d":1E-8,"n":{"k":2}}',
        '{"n": {"k": 2.5e0}}': BROKEN,
    },
    "ARRAY<DECIMAL(18,2)>": {"[1.5]": "[1.50]", "[1.5, 12.999]": BROKEN, '["12,50"]': BROKEN},
    "MAP<STRING, DECIMAL(18,2)>": {
        '{"a": 1.5, "b": null}': '{"a":1.50,"b":null}',
        "{}": "{}",
        '{"a": 1.555}': BROKEN,
        "[1]": BROKEN,
        '{"a": NaN}': BROKEN,
        None: None,
    },
    "STRUCT<a: INT, b: ARRAY<DATE>>": {
        '{"a": 1, "b": ["2024-01-01"]}': '{"a":1,"b":["2024-01-01"]}',
        '{"a": 1, "c": 2}': '{"a":1}',
        "{}": "{}",
        '{"a": 1.5}': BROKEN,
        '{"a": 1, "b": ["10:15"]}': BROKEN,
        '{"a": 1} {"a": 2}': BROKEN,
        "[]": BROKEN,
        "x": BROKEN,
        None: None,
    },
    "ARRAY<STRUCT<m: MAP<STRING, BIGINT>>>": {
        '[{"m": {"k": 9223372036854775807}}]': '[{"m":{"k":9223372036854775807}}]',
        '[{"m": {"k": 9223372036854775808}}]': BROKEN,
    },
}


@pytest.mark.parametrize("kind", CASES)
def test_a_value_survives_exactly_or_is_broken(kind: str) -> None:
    cases = CASES[kind]
    assert dict(zip(cases, outcomes(kind, list(cases)), strict=True)) == cases


_DIGITS = st.text("0123456789", min_size=1, max_size=45)
_WHOLE = st.one_of(st.just("0"), _DIGITS.map(lambda text: text.lstrip("0") or "0"))
_FRACTION = st.one_of(st.just(""), _DIGITS.map(lambda text: f".{text}"))
_EXPONENT = st.one_of(
    st.just(""),
    st.builds(
        "{}{}{}".format,
        st.sampled_from("eE"),
        st.sampled_from(["", "+", "-"]),
        st.one_of(
            st.integers(0, 40), st.integers(280, 420), st.just("00003"), st.just("99999999999")
        ),
    ),
)
_NUMBERS = st.builds("{}{}{}{}".format, st.sampled_from(["", "-"]), _WHOLE, _FRACTION, _EXPONENT)
_NUMERIC = ["TINYINT", "INT", "BIGINT", "DOUBLE", "FLOAT"]
_NUMERIC += ["DECIMAL(18,8)", "DECIMAL(38,20)", "DECIMAL(38,0)", "DECIMAL(5,5)"]


@given(kind=st.sampled_from(_NUMERIC), text=_NUMBERS)
def test_a_nested_number_is_read_exactly_as_one_by_itself(kind: str, text: str) -> None:
    type_ = arrow_type(parse_schema(f"v {kind}")[0].type)
    value = Number(text) if re.search("[.eE]", text) else int(text)
    column, bad = to_column([value], type_)
    (alone,) = column.to_pylist()
    array = pa.list_(pa.field("element", type_))
    for nested_kind, nested_value, whole in (
        (array, [value], [alone]),
        (array, f"[{text}]", [alone]),
        (pa.struct([("x", type_)]), {"x": value}, {"x": alone}),
        (pa.map_(pa.string(), type_), {"k": value}, [("k", alone)]),
    ):
        column, refused = to_column([nested_value], nested_kind)
        assert (refused, column.to_pylist()) == (bad, [None if bad else whole])
    if not bad and "DECIMAL" in kind:
        assert alone == Decimal(text.replace("e00003", "e3"))


_LETTERS = [b'"', b"\\", b"[", b"{", b"]", b"}", b"a", b'\\"', b"\n", b"["]


def test_the_depth_of_a_payload_is_that_of_its_brackets_outside_of_texts() -> None:
    closed = re.compile(rb'"(?:[^"\\]|(?s:\\.))*"')
    chance = random.Random(3)
    seen = set()
    for _ in range(3_000):
        # Enough for the limit, and texts of any content.
        head = b"[" * chance.randint(MOST_DEPTH - 6, MOST_DEPTH + 2)
        tail = b"".join(chance.choices(_LETTERS, k=chance.randint(0, 40)))
        payload = head + tail + b"]" * MOST_DEPTH
        bare = closed.sub(b"", payload)
        # Nothing after the quote of an unclosed text is a bracket.
        depth = deepest = 0
        for letter in bare.partition(b'"')[0]:
            depth += (letter in b"[{") - (letter in b"]}")
            deepest = max(deepest, depth)
        assert is_too_deep(payload) is (deepest > MOST_DEPTH)
        seen.add((deepest > MOST_DEPTH, b'"' in bare))
    assert len(seen) == 4


def test_a_stamp_may_leave_out_its_seconds() -> None:
    texts: list[str | None] = ["2024-01-01T10:15Z", "2024-01-01T10:15", "2024-01-01 10:15+00:00"]
    assert outcomes("TIMESTAMP", texts) == ["2024-01-01 10:15:00"] * len(texts)


def test_a_text_that_closes_the_wrapping_array_is_broken() -> None:
    assert outcomes("ARRAY<INT>", ["[1]]", "[1]] [[2]", "[1]],x"]) == [BROKEN] * 3


def test_an_exponent_without_bound_is_broken_and_stops_nothing() -> None:
    texts: list[str | None] = ["1e-999999999", "1E-2147483648", "1e999999999", "1e-00000", "1e-400"]
    for kind in ("DECIMAL(18,2)", "DECIMAL(38,0)", "BIGINT", "DOUBLE", "ARRAY<DECIMAL(18,2)>"):
        written = [f'["{text}"]' for text in texts] if kind.startswith("ARRAY") else texts
        assert outcomes(kind, [*written]) == [BROKEN] * len(texts), kind


def test_zeros_before_a_number_are_no_digits_however_many_they_are() -> None:
    zeros = "0" * 5000
    texts: list[str | None] = [f"{zeros}1", f"-{zeros}1.0", f"0.{zeros}1e5001", zeros]
    for kind, whole in (("BIGINT", ["1", "-1", "1", "0"]), ("DECIMAL(3,0)", ["1", "-1", "1", "0"])):
        assert outcomes(kind, texts) == whole


@pytest.mark.parametrize("value", [True, 1234, Number("12.5e1")])
def test_a_number_or_a_truth_of_json_is_no_base64(value: object) -> None:
    assert to_column([value, "aGk="], pa.binary())[1] == [0]


def test_only_escapes_of_control_characters_are_written_in_uppercase() -> None:
    for text, written in [
        ("\x1a\x1f", r"\u001A\u001F"),
        (r"C:\u001abc", r"C:\\u001abc"),
        ("\\\\\x1b", r"\\\\\u001B"),
        (r"[\u0000-\u001f]", r"[\\u0000-\\u001f]"),
    ]:
        assert canonical_json({"a": text}) == f'{{"a":"{written}"}}'


def test_zeros_before_a_negative_exponent_are_no_digits_beyond_the_scale() -> None:
    assert outcomes("DECIMAL(18,2)", ["1000E-3", "1230E-3"]) == ["1.00", "1.23"]


@pytest.mark.parametrize("text", ["4", "6.93791", "-2", "1", "10"])
def test_a_number_with_digits_before_the_point_is_no_decimal_of_fractions(text: str) -> None:
    number: object = Number(text) if "." in text else int(text)
    for precision in (18, 37, 38):
        kind = pa.decimal128(precision, precision)
        read = [Decimal("0.5"), Decimal("-0.25"), Decimal(0)]
        column, bad = to_text_column(pa.array([text, "0.5", "-0.25", "0"]), kind)
        assert (bad, column.to_pylist()) == ([0], [None, *read])
        # As numbers of JSON.
        column, bad = to_column([number, Number("0.5"), Number("-0.25"), 0], kind)
        assert (bad, column.to_pylist()) == ([0], [None, *read])
        assert to_text_column(pa.array([text]), kind)[1] == to_column([number], kind)[1] == [0]


@pytest.mark.parametrize(("precision", "scale"), [(38, 37), (38, 36), (37, 36), (18, 17)])
def test_a_decimal_has_room_for_all_numbers_of_its_digits_before_the_point(
    precision: int, scale: int
) -> None:
    kind, room = pa.decimal128(precision, scale), precision - scale
    most, more = f"{'9' * room}.{'9' * scale}", "1" + "0" * room
    texts = [most, f"-{most}", more, f"-{more}"]
    numbers = [Number(most), Number(f"-{most}"), int(more), -int(more)]
    for column, bad in (to_text_column(pa.array(texts), kind), to_column(numbers, kind)):
        assert bad == [2, 3]
        assert column.to_pylist() == [Decimal(most), Decimal(f"-{most}"), None, None]
