"""Types from a sample: exact where that can be, wide where it is open, and the reason noted."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from tidelake.cli.init.payload import value_shape
from tidelake.cli.init.sample import parse_object


def values(*texts: str) -> list[Any]:
    return [json.loads(text, parse_float=Decimal) for text in texts]


@pytest.mark.parametrize(
    ("name", "held", "sql"),
    [
        ("user", ['"a"', '"b"'], "STRING"),
        ("n", ["1", "-2"], "BIGINT"),
        ("n", ["9223372036854775808"], "DECIMAL(38,0)"),
        ("n", ["1" * 39], "STRING"),
        ("temperature", ["1.5", "2"], "DOUBLE"),
        ("temperature", ["1e3", "2"], "DOUBLE"),
        ("price", ["1.5", "2"], "DECIMAL(18,2)"),
        ("price", ["20"], "DECIMAL(18,2)"),
        ("unitPrice", ["1.0005"], "DECIMAL(18,4)"),
        ("price", ["1.00055"], "DECIMAL(38,18)"),
        # Room for amounts a million times as large within the 28 digits that gold sums.
        ("balance", ["0.12345678", "12345.5"], "DECIMAL(38,17)"),
        ("balance", ["0.12345678", "12345678901.5"], "DECIMAL(38,11)"),
        ("balance", ["0.123456789012345678", "12345678901.5"], "DECIMAL(38,18)"),
        ("amount", ["123456789012345.2", "0.1234"], "DECIMAL(38,7)"),
        # Of a currency with eight digits after the point, though a double has them too.
        ("amount", ["12345678.12345678"], "DECIMAL(38,14)"),
        # The digits of arithmetic: the next amount may have any number of them after the point.
        ("total", ["21.299999999999997", "0.5"], "DOUBLE"),
        # Neither more digits after the point nor before it would leave room for the other.
        ("price", ["1e-30"], "DOUBLE"),
        ("price", ["1e30", "0.5"], "DOUBLE"),
        # The value of this number has more digits than Python writes.
        ("price", ["1" * 5000 + ".5"], "STRING"),
        # Digits that no double has.
        ("value", ["12345678901234567.89"], "DECIMAL(38,10)"),
        ("value", ["1234567890123456789.5"], "DECIMAL(38,9)"),
        ("value", ["9223372036854775809", "0.5"], "DECIMAL(38,9)"),
        ("value", ["0.12345678901234567890123"], "DECIMAL(38,23)"),
        # Those of a double as Python and as C write it.
        ("value", ["21.299999999999997", "0.10000000000000001", "1e300"], "DOUBLE"),
        # Numbers in text, of which none may be an identifier.
        ("amount", ['"12.50"', '"-7"', '"0.5"'], "DECIMAL(18,2)"),
        ("price", ['"1.250"', '"1000.125"'], "DECIMAL(18,3)"),
        ("balance", ['"0.12345678"', '"12345.5"'], "DECIMAL(38,17)"),
        # A later one may be 0.125.
        ("qty", ['"2.5"'], "DECIMAL(18,6)"),
        ("quantity", ['"0.12345"'], "DECIMAL(18,6)"),
        ("total_excl", ['"12.50"'], "DECIMAL(18,2)"),
        ("feeEUR", ['"12.50"'], "DECIMAL(18,2)"),
        ("items", ['[{"price": "1.50"}]'], "ARRAY<STRUCT<price: DECIMAL(18,2)>>"),
        ("amount", ['"12.50"', '"12,50"'], "STRING"),
        ("amount", ['"12.50"', '""'], "STRING"),
        ("amount", ['"12.50"', '"1e3"'], "STRING"),
        ("amount", ['"12.50"', '"007"'], "STRING"),
        ("amount", ['"12"', '"1250"'], "STRING"),
        # The points may be between thousands.
        ("price", ['"1.250"', '"12.500"'], "STRING"),
        ("total", ['"21.299999999999997"', '"0.5"'], "STRING"),
        ("tax_ref", ['"12.50"'], "STRING"),
        ("card_payment", ['"12.50"'], "STRING"),
        ("cost_center", ['"4100.10"'], "STRING"),
        ("tax_class", ['"1.5"'], "STRING"),
        ("discount_group", ['"1.5"'], "STRING"),
        ("balance_version", ['"1.5"'], "STRING"),
        ("paid_at", ['"1767607200.5"'], "STRING"),
        ("version", ['"1.5"'], "STRING"),
        ("amount_cents", ["1999"], "BIGINT"),
        ("total_items", ["3"], "BIGINT"),
        ("tax_rate", ["0.19"], "DOUBLE"),
        ("value", ["22.5"], "DOUBLE"),
        ("ok", ["true", "false"], "BOOLEAN"),
        ("at", ['"2026-01-05T10:00:00Z"'], "TIMESTAMP"),
        ("at", ['"2026-01-05T10:00:00Z"', '"2026-01-05 10:00"'], "TIMESTAMP"),
        ("day", ['"2026-01-05"'], "DATE"),
        ("day", ['"2026-01-05"', '"2026-02-30"'], "STRING"),
        ("at", ['"10:15"'], "STRING"),
        ("tags", ['["a"]', "[]"], "ARRAY<STRING>"),
        ("c", ['{"a": 1}', '{"b": {"d e": 2.5}}'], "STRUCT<a: BIGINT, b: STRUCT<`d e`: DOUBLE>>"),
        ("items", ['[{"price": 1}]', '[{"price": 2.5}]'], "ARRAY<STRUCT<price: DECIMAL(18,2)>>"),
        ("c", ['{"A": 1, "a": 2}'], "MAP<STRING, BIGINT>"),
    ],
)
def test_values_have_the_type_that_keeps_them_exactly(name: str, held: list[str], sql: str) -> None:
    assert value_shape(name, [*values(*held), None]).type.sql == sql


def test_an_object_with_ever_new_names_is_a_map() -> None:
    shape = value_shape("by_user", values(*[f'{{"u{n}": {n}}}' for n in range(30)]))
    assert shape.type.sql == "MAP<STRING, BIGINT>"
    assert shape.notes == ("30 names in the sample, so a map",)


@pytest.mark.parametrize(
    ("held", "sql", "note"),
    [
        ([], "STRING", "always null in the sample"),
        (["1", '"a"'], "STRING", "mixed in the sample: text, whole"),
        (['{"a": 1}', "[]"], "STRING", "mixed in the sample: array, object"),
        (["true", "0"], "STRING", "mixed in the sample: boolean, whole"),
        (["0." + "1" * 39], "STRING", "numbers of 40 digits"),
        (["[]"], "ARRAY<STRING>", "always empty in the sample"),
        (["{}"], "MAP<STRING, STRING>", "always empty in the sample"),
        (['"2026-01-05 10:00:00"'], "TIMESTAMP", "without a zone, read as UTC"),
        (['{"a": null}'], "STRUCT<a: STRING>", "a: always null in the sample"),
    ],
)
def test_what_the_sample_leaves_open_is_noted(held: list[str], sql: str, note: str) -> None:
    shape = value_shape("x", values(*held))
    assert (shape.type.sql, shape.notes) == (sql, (note,))


def test_an_amount_that_was_computed_inexactly_is_noted() -> None:
    shape = value_shape("total", values("21.3", "21.299999999999997", "5.551115123125783e-17"))
    note = "DOUBLE, because 21.299999999999997 was computed with floating-point numbers"
    assert (shape.type.sql, shape.notes) == ("DOUBLE", (note,))
    # Not of other numbers, which are DOUBLE in any case.
    assert value_shape("celsius", values("21.299999999999997")).notes == ()


@pytest.mark.parametrize(
    "text", ["1e5000", "-1e99999999", "1e99999999999999999999", "1e-400", "-2E-9999999999999999999"]
)
def test_a_number_that_no_double_holds_is_text_as_in_silver(text: str) -> None:
    parsed = parse_object(f'{{"x": {text}}}'.encode())
    assert parsed == {"x": text}
    shape = value_shape("x", [text, Decimal("1.5")])
    assert (shape.type.sql, shape.notes) == ("STRING", ("mixed in the sample: fraction, text",))
    assert value_shape("x", [text]).type.sql == "STRING"


def test_a_zero_is_one_whatever_its_exponent() -> None:
    parsed = parse_object(b'{"a": 0.00, "b": 0e99999999999999999999, "c": -0.0e-9}')
    assert parsed == {"a": 0, "b": 0, "c": 0}
    assert isinstance(parsed, dict)
    assert str(parsed["a"]) == "0.00"
