"""Parsing: one object a payload, nothing after it, every digit as it was written."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from tests.pipelines import bronze
from tidelake.config import Event
from tidelake.silver import parse as parsing
from tidelake.silver.fields import as_json
from tidelake.silver.parse import BROKEN, PARSED, REFUSAL, UNKNOWN, VALUES, parse

SCHEMA = (
    "a STRING, n DECIMAL(38,20), i DECIMAL(38,0), d DOUBLE, m DECIMAL(18,2), "
    "l ARRAY<DECIMAL(38,20)>, s STRUCT<n: DECIMAL(38,20)>"
)
EVENT = Event(schema=SCHEMA, id="a", time="a")
UNPARSED = "not one object"


def outcomes(
    spark: SparkSession, payloads: list[str | bytes | None]
) -> list[str | tuple[dict[str, str], list[str]]]:
    """Parse payloads in one frame: the values that are not null, and the broken fields."""
    rows = bronze(spark, [{"record_id": str(n), "payload": p} for n, p in enumerate(payloads)])
    texts = [
        F.col(f"{VALUES}.{field.name}").cast("string").alias(field.name) for field in EVENT.fields
    ]
    read = parse(rows, EVENT).select("record_id", PARSED, BROKEN, F.struct(*texts).alias("texts"))
    found: list[str | tuple[dict[str, str], list[str]]] = []
    for row in sorted(read.collect(), key=lambda row: int(row["record_id"])):
        values = {name: text for name, text in row["texts"].asDict().items() if text is not None}
        assert row[PARSED] is not None
        assert row[PARSED] or not values
        found.append((values, row[BROKEN]) if row[PARSED] else UNPARSED)
    return found


def test_what_is_not_exactly_one_object_does_not_parse(spark: SparkSession) -> None:
    payloads: list[str | bytes | None] = [
        None,
        "",
        "   ",
        "null",
        "1",
        '"a"',
        "[]",
        '[{"a":1}]',
        "not json",
        '{"a":1',
        '{"a":1}x',
        '{"a":1}}',
        '{"a":1} {"a":2}',
        '{"a":1},{"a":2}',
        '{"a":1},',
        ',{"a":1}',
        '{"a":1}]',
        '{"a":1} ]',
        '{"a":1}] [{"b":1}',
        '{"a":1},"s":{"a":2}',
        "{'a':1}",
        "{a:1}",
        '{"a":NaN}',
        '{"a":01}',
        '{"a":"\\x"}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"a":1}',
        '{"a":1}\x00',
    ]
    found = outcomes(spark, payloads)
    assert [p for p, outcome in zip(payloads, found, strict=True) if outcome != UNPARSED] == []


def test_whatever_follows_a_bracket_that_closes_our_array_is_refused(spark: SparkSession) -> None:
    payloads: list[str | bytes | None] = [
        '{"a":1}],[{"b":1}',
        '{"a":1}]x',
        '{"a":1}]}',
        '{"a":1}],',
    ]
    assert outcomes(spark, payloads) == [UNPARSED] * len(payloads)


def test_one_object_parses_whatever_surrounds_its_values(spark: SparkSession) -> None:
    cases: dict[str, dict[str, str]] = {
        "{}": {},
        ' {"a":"x"}\r': {"a": "x"},
        '{"a":null,"unknown":[{"b":1}]}': {},
        '{"a":{"b":[1,2]}}': {"a": '{"b":[1,2]}'},
        '{"a":"}] ["}': {"a": "}] ["},
        '{"a":"x"} \n': {"a": "x"},
        '{"a":[{"b":1}],"d":1}': {"a": '[{"b":1}]', "d": "1.0"},
        '{"a":[{"b":1}]}': {"a": '[{"b":1}]'},
        '{"a":"first","a":"last"}': {"a": "last"},
    }
    assert outcomes(spark, list(cases)) == [(values, []) for values in cases.values()]


def jumbled(count: int, seed: int) -> list[str]:
    """Draw objects of fields known and unknown, in every spelling, some of them broken."""
    chance = random.Random(seed)
    names = ['"a"', '"n"', '"m"', '"other"', '"A"', '" a"', '"\\u0061"', '"a\\"n"', '"a.n"', '""']
    values = ['"x"', '"}"', '"\\"other\\":1"', '"}]"', '","', '"é"', "null", "true", "1", "1.50"]
    values += ["-0.5", "1e3", "1" * 15, "1" * 16, f"0.{'1' * 14}", f"0.{'1' * 15}", "01", "NaN"]
    values += ["[]", "{}", '{"other":null}', '[{"a":1}]', f"{'1' * 16}e1", '"', "\\", "1 1", "1]"]
    spaces = ["", "", "", " ", "  ", "\n"]

    def member() -> str:
        gaps = [chance.choice(spaces) for _ in range(4)]
        name, value = chance.choice(names), chance.choice(values)
        return f"{gaps[0]}{name}{gaps[1]}:{gaps[2]}{value}{gaps[3]}"

    between, ends = [",", ",", ",", "", ",,", "}"], ["}", "}", "} ", "}\n", "", "]", "}]", "},"]
    return [
        "{"
        + chance.choice(between).join(member() for _ in range(chance.randint(0, 3)))
        + chance.choice(ends)
        for _ in range(count)
    ]


def test_a_plain_payload_is_read_like_any_other(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = bronze(
        spark, [{"record_id": f"{n}", "payload": p} for n, p in enumerate(jumbled(3_000, 7))]
    )

    def read() -> list[Row]:
        event = Event(schema="a STRING, n DECIMAL(38,20), m DECIMAL(18,2)", id="a", time="a")
        columns = ["payload", PARSED, VALUES, BROKEN, as_json(F.col(UNKNOWN)).alias("unknown")]
        return sorted(parse(rows, event).select("record_id", *columns).collect())

    plain = read()
    monkeypatch.setattr(parsing, "_PLAIN", "(?!)(?:%s)")
    assert plain == read()
    found = [(row[PARSED], row["unknown"] is not None) for row in plain]
    assert {(False, False), (True, False), (True, True)} == set(found)


def test_a_lone_surrogate_does_not_parse_and_a_pair_does(spark: SparkSession) -> None:
    lone = ['{"a":"\\ud83d"}', '{"a":"\\ude00"}', '{"a":"\\uDE00\\uD83D"}', '{"a":"\\ud83dx"}']
    pair = ['{"a":"\\ud83d\\ude00"}', '{"a":"\\uD83D\\uDE00"}', '{"a":"\U0001f600"}']
    found = outcomes(spark, [*lone, *pair])
    assert found[: len(lone)] == [UNPARSED] * len(lone)
    assert found[len(lone) :] == [({"a": "\U0001f600"}, [])] * len(pair)


def test_no_digit_of_a_number_is_lost(spark: SparkSession) -> None:
    twenty = "0.12345678901234567891"
    long = "12345678901234567890123456789012345678"
    cases: dict[str, dict[str, str]] = {
        f'{{"n":{twenty}}}': {"n": twenty},
        f'{{"n":"{twenty}"}}': {"n": twenty},
        f'{{"n":-{twenty}}}': {"n": f"-{twenty}"},
        '{"n":123456789012345678.12345678901234567891}': {
            "n": "123456789012345678.12345678901234567891"
        },
        f'{{"i":{long}}}': {"i": long},
        f'{{"i":-{long}}}': {"i": f"-{long}"},
        f'{{"i":"{long}"}}': {"i": long},
        '{"m":12345678.5}': {"m": "12345678.50"},
        '{"m":123456789012345.67}': {"m": "123456789012345.67"},
        '{"m":1234567890123456.78}': {"m": "1234567890123456.78"},
        '{"m":0.10}': {"m": "0.10"},
        '{"m":1.23456785E7}': {"m": "12345678.50"},
        '{"d":0.1}': {"d": "0.1"},
        f'{{"d":{twenty}}}': {"d": "0.12345678901234568"},
    }
    found = dict(zip(cases, outcomes(spark, list(cases)), strict=True))
    assert found == {payload: (values, []) for payload, values in cases.items()}


def test_no_digit_of_a_nested_number_is_lost(spark: SparkSession) -> None:
    number = "0.12345678901234567891"
    found = outcomes(spark, [f'{{"l":[{number}]}}', f'{{"s":{{"n":{number}}}}}'])
    assert found == [({"l": f"[{number}]"}, []), ({"s": f"{{{number}}}"}, [])]


def test_a_number_that_does_not_fit_is_named_with_its_type(spark: SparkSession) -> None:
    cases = {
        f'{{"i":1{"0" * 38}}}': ["i: not exactly DECIMAL(38,0)"],
        '{"m":12.999,"d":"x"}': ["d: not exactly DOUBLE", "m: not exactly DECIMAL(18,2)"],
        '{"m":12345678901234567.99}': ["m: not exactly DECIMAL(18,2)"],
        f'{{"n":0.{"1" * 40}}}': ["n: not exactly DECIMAL(38,20)"],
    }
    found = outcomes(spark, list(cases))
    assert dict(zip(cases, found, strict=True)) == {
        payload: ({}, broken) for payload, broken in cases.items()
    }


def test_the_rows_other_columns_stay_as_they_are(spark: SparkSession) -> None:
    rows = bronze(spark, [{"record_id": "f:0", "payload": "{}"}])
    read = parse(rows, EVENT)
    assert read.columns == [*rows.columns, PARSED, REFUSAL, VALUES, BROKEN, UNKNOWN]
