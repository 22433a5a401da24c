"""Decoding: one object a payload, nothing after it, every digit as it was written."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.shown import shown
from tidelake.config.types import parse_schema
from tidelake.silver.decode import Decoder
from tidelake.silver.payloads import decoder_of
from tidelake.silver.values import MOST_DEPTH

SCHEMA = (
    "a STRING, n DECIMAL(38,20), i DECIMAL(38,0), d DOUBLE, m DECIMAL(18,2), "
    "l ARRAY<DECIMAL(38,20)>, s STRUCT<n: DECIMAL(38,20)>"
)
UNPARSED = "not one object"
Payload = str | bytes | None


def decoded(payloads: Sequence[Payload], decoder: Decoder) -> list[dict[str, Any]]:
    """Decode payloads in one array."""
    raw = [p.encode() if isinstance(p, str) else p for p in payloads]
    found = decoder.decode(pa.array(raw, pa.binary()))
    assert found.type == decoder.type
    assert found.null_count == 0
    return found.to_pylist()  # type: ignore[no-any-return]


def outcomes(payloads: Sequence[Payload]) -> list[str | tuple[dict[str, str], list[str]]]:
    """Decode payloads: the values that are not null, and the broken fields."""
    fields = parse_schema(SCHEMA)
    found: list[str | tuple[dict[str, str], list[str]]] = []
    for row in decoded(payloads, decoder_of(fields, "additive")):
        values = {
            field.name: shown(value, field.type)
            for field, value in zip(fields, row["values"].values(), strict=True)
            if value is not None
        }
        assert row["parsed"] or not (values or row["broken"] or row["unknown"])
        found.append((values, row["broken"]) if row["parsed"] else UNPARSED)
    return found


def test_what_is_not_exactly_one_object_does_not_parse() -> None:
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
    found = outcomes(payloads)
    assert [p for p, outcome in zip(payloads, found, strict=True) if outcome != UNPARSED] == []


def test_whatever_follows_a_bracket_that_closes_our_array_is_refused() -> None:
    payloads: list[str | bytes | None] = [
        '{"a":1}],[{"b":1}',
        '{"a":1}]x',
        '{"a":1}]}',
        '{"a":1}],',
    ]
    assert outcomes(payloads) == [UNPARSED] * len(payloads)


def test_one_object_parses_whatever_surrounds_its_values() -> None:
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
    assert outcomes(list(cases)) == [(values, []) for values in cases.values()]


def jumbled(count: int, seed: int) -> list[str]:
    """Draw objects of fields known and unknown, in every spelling, some of them broken."""
    chance = random.Random(seed)
    names = ['"a"', '"n"', '"m"', '"other"', '"A"', '" a"', '"\\u0061"', '"a\\"n"', '"a.n"', '""']
    values = ['"x"', '"}"', '"\\"other\\":1"', '"}]"', '","', '"é"', "null", "true", "1", "1.50"]
    values += ["-0.5", "1e3", "1" * 15, "1" * 16, f"0.{'1' * 14}", f"0.{'1' * 15}", "01", "NaN"]
    values += ["1e-400", "1e400", "2E+400", "1e-5", "1e300", " true ", "false"]
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


class Refusing:
    """A decoder that leaves every payload to the one that takes any field."""

    def decode(self, _: bytes) -> None:
        raise msgspec.DecodeError


@pytest.mark.parametrize("evolution", ["strict", "additive", "rescue"])
def test_a_plain_payload_is_read_like_any_other(evolution: str) -> None:
    payloads = jumbled(6_000, 7)
    schema = parse_schema("a STRING, n DECIMAL(38,20), m DECIMAL(18,2), l ARRAY<STRING>")
    plain = decoded(payloads, decoder_of(schema, evolution))
    slow = decoder_of(schema, evolution)
    slow._plain = Refusing()
    assert decoded(payloads, slow) == plain
    found = {(row["parsed"], row["unknown"] is not None) for row in plain}
    assert found == {(False, False), (True, False), *([(True, True)] * (evolution != "strict"))}


def test_a_field_may_have_any_name() -> None:
    """Names with these characters are no names in msgspec's structs."""
    decoder = decoder_of(parse_schema('`a\\b` BIGINT, `c"d` STRING, e STRING'), "strict")
    payloads = [r'{"a\\b": 1, "c\"d": "x", "e": null}', '{"e": "y"}', '{"f0": 2}', "{"]
    assert [
        (row["parsed"], [*row["values"].values()], row["broken"])
        for row in decoded(payloads, decoder)
    ] == [
        (True, [1, "x", None], []),
        (True, [None, None, "y"], []),
        (True, [None, None, None], ["f0: not in schema"]),
        (False, [None, None, None], []),
    ]


def test_a_lone_surrogate_does_not_parse_and_a_pair_does() -> None:
    lone = ['{"a":"\\ud83d"}', '{"a":"\\ude00"}', '{"a":"\\uDE00\\uD83D"}', '{"a":"\\ud83dx"}']
    pair = ['{"a":"\\ud83d\\ude00"}', '{"a":"\\uD83D\\uDE00"}', '{"a":"\U0001f600"}']
    found = outcomes([*lone, *pair])
    assert found[: len(lone)] == [UNPARSED] * len(lone)
    assert found[len(lone) :] == [({"a": "\U0001f600"}, [])] * len(pair)


def test_no_digit_of_a_number_is_lost() -> None:
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
    found = dict(zip(cases, outcomes(list(cases)), strict=True))
    assert found == {payload: (values, []) for payload, values in cases.items()}


def test_no_digit_of_a_nested_number_is_lost() -> None:
    number = "0.12345678901234567891"
    found = outcomes([f'{{"l":[{number}]}}', f'{{"s":{{"n":{number}}}}}'])
    assert found == [({"l": f"[{number}]"}, []), ({"s": f'{{"n":{number}}}'}, [])]


def test_a_number_that_does_not_fit_is_named_with_its_type() -> None:
    cases = {
        f'{{"i":1{"0" * 38}}}': ["i: not exactly DECIMAL(38,0)"],
        '{"m":12.999,"d":"x"}': ["d: not exactly DOUBLE", "m: not exactly DECIMAL(18,2)"],
        '{"m":12345678901234567.99}': ["m: not exactly DECIMAL(18,2)"],
        f'{{"n":0.{"1" * 40}}}': ["n: not exactly DECIMAL(38,20)"],
    }
    found = outcomes(list(cases))
    assert dict(zip(cases, found, strict=True)) == {
        payload: ({}, broken) for payload, broken in cases.items()
    }


BEYOND = ["1e-400", "2e-400", "-1e-400", "1e400", "2e400", "-2E+400", "1e-999999999", "1e-9999"]
BEYOND += [f"0.{'0' * 330}1", f"1{'0' * 400}.5", f"{'9' * 320}e1"]


def test_a_number_that_a_double_makes_zero_or_infinity_keeps_its_value_or_is_broken() -> None:
    broken = {
        '{"d": %s }': ["d: not exactly DOUBLE"],
        '{"m":%s,"a":"x"}': ["m: not exactly DECIMAL(18,2)"],
        '{"l":[0.5,%s]}': ["l: not exactly ARRAY<DECIMAL(38,20)>"],
        '{"s":{"n":%s}}': ["s: not exactly STRUCT<n: DECIMAL(38,20)>"],
    }
    expected: dict[str, object] = {
        place % number: ({"a": "x"} if '"x"' in place else {}, why)
        for place, why in broken.items()
        for number in BEYOND
    }
    # A text has the digits as they were written; what no field takes harms nobody.
    expected |= {f'{{"a":{number}}}': ({"a": number}, []) for number in BEYOND}
    for place in ('{"other":%s,"a":"1"}', '{"a":%s,"a":"1"}', '{"other":[{"x": %s}],"a":"1"}'):
        expected |= {place % number: ({"a": "1"}, []) for number in BEYOND}
    # Within a text it is none, also beside one; and what is no number stays none.
    expected['{"d":1e400,"a":"q:1e400,\\"b"}'] = (
        {"a": 'q:1e400,"b'},
        ["d: not exactly DOUBLE"],
    )
    expected |= {f'{{"a":{none}}}': UNPARSED for none in ("01e400", "1.e400", "1" * 300 + ".1.1")}
    found = outcomes(list(expected))
    assert dict(zip(expected, found, strict=True)) == expected


def test_a_number_keeps_its_value_or_is_broken() -> None:
    """No two numbers that differ become one text, however small or long they are."""
    long = "1" * 50
    cases: dict[str, list[str]] = {
        '{"a":1.23456789e-320}': ["a: not exactly STRING"],
        '{"a":1.23456788e-320}': ["a: not exactly STRING"],
        f'{{"a":0.{"1" * 40}}}': ["a: not exactly STRING"],
        f'{{"a":0.{"1" * 41}}}': ["a: not exactly STRING"],
        '{"a":1.23456789012345678e-5}': ["a: not exactly STRING"],
        '{"d":"1e-400"}': ["d: not exactly DOUBLE"],
        '{"d":"2e400"}': ["d: not exactly DOUBLE"],
        f'{{"d":{"1" * 400}}}': ["d: not exactly DOUBLE"],
        '{"m":"1e-400"}': ["m: not exactly DECIMAL(18,2)"],
        '{"m":"1e-999999999"}': ["m: not exactly DECIMAL(18,2)"],
        '{"i":"1e-99999999"}': ["i: not exactly DECIMAL(38,0)"],
        '{"m":1e-300}': ["m: not exactly DECIMAL(18,2)"],
        f'{{"l":[0.{"1" * 40}]}}': ["l: not exactly ARRAY<DECIMAL(38,20)>"],
        '{"l":["1e-999999999"]}': ["l: not exactly ARRAY<DECIMAL(38,20)>"],
        f'{{"s":{{"n":0.{"1" * 40}}}}}': ["s: not exactly STRUCT<n: DECIMAL(38,20)>"],
    }
    kept: dict[str, dict[str, str]] = {
        f'{{"a":{long},"other":1}}': {"a": long},
        '{"a":1e5}': {"a": "100000.0"},
        # As Python writes a double.
        '{"a":9.866067656255055e-05}': {"a": "9.866067656255055E-5"},
        '{"a":0e0,"other":-0.0}': {"a": "0.0"},
        '{"d":1.5e300,"a":"1e400","other":2.5e-5}': {"d": "1.5e+300", "a": "1e400"},
        '{"d":5e-324}': {"d": "5e-324"},
        '{"d":0.0000000000000000e+00,"a":"x"}': {"d": "0.0", "a": "x"},
        '{"d":1.2345678901234567e-5,"l":[0.5]}': {
            "d": "1.2345678901234568e-05",
            "l": f"[0.5{'0' * 19}]",
        },
        '{"d":0e0,"m":1e2}': {"d": "0.0", "m": "100.00"},
        '{"d":0e-400}': {"d": "0.0"},
        '{"a":"n: 1e400","other":"x"}': {"a": "n: 1e400"},
    }
    found = outcomes([*cases, *kept])
    assert found == [*(({}, why) for why in cases.values()), *((one, []) for one in kept.values())]


def test_a_nested_number_keeps_its_value_or_is_broken() -> None:
    (whole,) = parse_schema(
        "v STRUCT<t: ARRAY<STRING>, d: MAP<STRING, DOUBLE>, "
        "s: STRUCT<x: STRUCT<t: STRING, d: DOUBLE>>>"
    )
    broken = [
        f'{{"t":["x",{"1" * 50}]}}',
        '{"t":[1.23456789012345678e-5]}',
        f'{{"d":{{"k":{"1" * 400}}}}}',
        f'{{"s":{{"x":{{"t":{"1" * 50}}}}}}}',
    ]
    kept = {
        '{"t":[9.866067656255055e-05]}': '{"t":["9.866067656255055E-5"]}',
        '{"t":["1e-400","2e400"],"d":{"k":1e-300}}': '{"t":["1e-400","2e400"],"d":{"k":1e-300}}',
        '{"d":{"k":1.2345678901234567e-5,"z":0e0}}': '{"d":{"k":1.2345678901234568e-05,"z":0.0}}',
        '{"s":{"x":{"t":"x","d":1.23456789012345678e-5}}}': (
            '{"s":{"x":{"t":"x","d":1.2345678901234568e-05}}}'
        ),
    }
    found = decoded([*broken, *kept], decoder_of(whole.type.fields, "additive"))
    assert [len(row["broken"]) for row in found] == [1] * len(broken) + [0] * len(kept)
    texts = [shown(row["values"], whole.type) for row in found]
    assert texts == ["{}"] * len(broken) + list(kept.values())


def test_an_object_is_read_down_to_the_same_depth_from_any_stack() -> None:
    def nested(depth: int) -> str:
        return '{"other":' + "[" * (depth - 1) + "]" * (depth - 1) + ',"a":"[[[{"}'

    def from_deep_down(levels: int) -> list[Any]:
        return from_deep_down(levels - 1) if levels else outcomes(depths)

    depths = [nested(MOST_DEPTH), nested(MOST_DEPTH + 1), nested(10 * MOST_DEPTH)]
    expected = [({"a": "[[[{"}, []), UNPARSED, UNPARSED]
    assert outcomes(depths) == expected
    assert from_deep_down(250) == expected


def test_a_value_of_a_column_does_not_depend_on_those_beside_it() -> None:
    chance = random.Random(5)
    pool = [{"a": "x"}, {"a": 1.5}, {"m": "1.5"}, {"m": 2}, {"m": 1e2}, {"m": "x"}, {"d": 0.5}]
    pool += [{"d": "0.25"}, {"d": True}, {"i": 12}, {"n": [1]}, {"a": None}, {"a": True}]
    texts = [json.dumps(chance.choice(pool)) for _ in range(500)]
    assert outcomes(texts) == [outcomes([text])[0] for text in texts]


def test_a_name_may_have_any_length_in_every_path() -> None:
    decoder = decoder_of(parse_schema("id STRING, m MAP<STRING, INT>"), "rescue")
    name, ones = "k" * 60_000, ",".join(["1"] * 26_000)
    payloads = [
        f'{{"m":{{"{name}":1}}}}',
        f'{{"m":{{"{name}":1}},"u":2}}',
        f'{{"{name}":1}}',
        # What stands between two strings is no name.
        f'{{"u":["x",{ones},":z"]}}',
    ]
    found = decoded(payloads, decoder)
    assert [row["parsed"] for row in found] == [True] * len(payloads)
    assert [row["values"]["m"] for row in found[:2]] == [[(name, 1)]] * 2
    unknown = [row["unknown"] and json.loads(row["unknown"]) for row in found[:3]]
    assert unknown == [None, {"u": 2}, {name: 1}]


_READ_LONG_TEXTS = """
import json
import pyarrow as pa
from tidelake.silver.decode import DecodedField, Decoder
inner = json.dumps([{"sku": "abc", "count": number} for number in range(6_000)])
whole = json.dumps({"id": "a", "body": inner, "new": 1}).encode()
decoder = Decoder([DecodedField("id", pa.string(), "STRING")], "additive")
found = decoder.decode(pa.array([whole, whole[:-20]], pa.binary()))
assert len(whole) > 200_000
assert found.field("parsed").to_pylist() == [True, False]
"""


def test_a_long_text_full_of_escapes_takes_no_minutes_whether_it_ends_or_not() -> None:
    # In another process: a thread that matches a pattern could not be ended.
    subprocess.run([sys.executable, "-c", _READ_LONG_TEXTS], check=True, timeout=60)


def test_a_decoder_reaches_another_process_as_its_schema() -> None:
    decoder = decoder_of(parse_schema(SCHEMA), "rescue")
    copy = pickle.loads(pickle.dumps(decoder))
    assert decoded(['{"a":"x","b":[1.50]}'], copy) == decoded(['{"a":"x","b":[1.50]}'], decoder)


def test_nothing_comes_of_nothing() -> None:
    assert decoded([], decoder_of(parse_schema(SCHEMA), "additive")) == []


_NESTED = (
    "c STRUCT<name: STRING, at: STRUCT<x: INT>>, items ARRAY<STRUCT<sku: STRING>>, "
    "m MAP<STRING, STRUCT<n: INT>>"
)


def test_members_of_nested_values_that_the_schema_lacks_are_unknown_fields() -> None:
    payload = (
        '{"c":{"name":"a","email":"e@x","at":{"x":1,"y":2}},'
        '"items":[{"sku":"s"},{"sku":"t","qty":5}],"m":{"k":{"n":1,"o":null}}}'
    )
    fields = parse_schema(_NESTED)
    known = '{"c":{"name":"a","at":{"x":1}},"items":[{"sku":"s"},null],"m":{"k":{"n":1}},"z":7}'
    strict = decoded([payload, known], decoder_of(fields, "strict"))
    paths = ["c.email", "c.at.y", "items[1].qty", "m.k.o"]
    assert [row["broken"] for row in strict] == [
        [f"{path}: not in schema" for path in paths],
        ["z: not in schema"],
    ]
    rescued = decoded([payload, known], decoder_of(fields, "rescue"))
    values = dict(zip(paths, ["e@x", 2, 5, None], strict=True))
    assert [json.loads(row["unknown"]) for row in rescued] == [values, {"z": 7}]
    # Only columns are added.
    additive = decoded([payload], decoder_of(fields, "additive"))
    assert (additive[0]["broken"], additive[0]["unknown"]) == ([], None)


def test_members_of_nested_json_in_texts_are_unknown_fields_too() -> None:
    inner = json.dumps({"name": "a", "email": "e@x", "at": json.dumps({"x": 1, "y": 2.50})})
    items = ['{"sku":"s"}', '{"sku":"t","qty":5}']
    payload = json.dumps({"c": inner, "items": items, "m": '{"k":{"n":1,"o":null}}'})
    no_json = '{"c":"{\\"email\\"","items":"{\\"qty\\":1}","m":7}'
    fields = parse_schema(_NESTED)
    paths = ["c.email", "c.at.y", "items[1].qty", "m.k.o"]
    strict = decoded([payload, no_json], decoder_of(fields, "strict"))
    assert [row["broken"] for row in strict] == [
        [f"{path}: not in schema" for path in paths],
        [f"{field.name}: not exactly {field.type.sql}" for field in fields],
    ]
    rescued = decoded([payload, no_json], decoder_of(fields, "rescue"))
    values = '{"c.at.y":2.5,"c.email":"e@x","items[1].qty":5,"m.k.o":null}'
    assert [row["unknown"] for row in rescued] == [values, None]
    additive = decoded([payload], decoder_of(fields, "additive"))
    assert (additive[0]["broken"], additive[0]["unknown"]) == ([], None)


def test_an_unknown_field_named_like_a_path_is_kept_beside_it() -> None:
    fields = parse_schema("st STRUCT<x: INT, a: STRUCT<x: INT>>")
    payload = (
        '{"st":{"x":1,"w":"inner","a":{"b":1},"a.b":2},"st.w":"outer","st.w#2":"second","other":0}'
    )
    (row,) = decoded([payload], decoder_of(fields, "rescue"))
    assert json.loads(row["unknown"]) == {
        "st.w": "outer",
        "st.w#2": "second",
        "st.w#3": "inner",
        "st.a.b": 1,
        "st.a.b#2": 2,
        "other": 0,
    }


LONG_NUMBERS = [
    "1.2345678901234567890E-7",
    "-12345678901234567e5",
    "0.12345678901234567890123456789012345678901",
    "1" * 60,
    "3e-324",
    "1.23456789e-320",
]


@pytest.mark.parametrize("number", LONG_NUMBERS)
def test_an_unknown_number_that_no_double_holds_stays_as_it_was_written(number: str) -> None:
    payload = f'{{"u":{number},"w":[{number}]}}'
    fields = parse_schema("a STRING")
    (row,) = decoded([payload], decoder_of(fields, "additive"))
    assert row["unknown"] == [("u", number), ("w", f"[{number}]")]
    (row,) = decoded([payload], decoder_of(fields, "rescue"))
    assert row["unknown"] == payload
    # In a field of text it is refused: of one value there would be several texts.
    (row,) = decoded([f'{{"a":{number}}}'], decoder_of(fields, "rescue"))
    assert bool(row["broken"]) is (number != "1" * 60)


@pytest.mark.parametrize(
    "text", ["0.00000000000000000e99999999999999999999", "0e-9999999999999999"]
)
def test_a_zero_with_an_endless_exponent_stops_nothing(text: str) -> None:
    decoder = decoder_of(parse_schema("a STRING, l ARRAY<STRING>"), "additive")
    (row,) = decoded([f'{{"a":{text},"l":[{text}],"u":{text}}}'], decoder)
    found = (row["values"], row["broken"], row["unknown"])
    assert found == ({"a": "0.0", "l": ["0"]}, [], [("u", "0.0")])


@pytest.mark.parametrize("text", ["0e-2", "-0e-2", "-0.00e-3", "0.0e7", "0e400"])
def test_zero_is_exact_with_any_exponent(text: str) -> None:
    fields = parse_schema("whole INT, price DECIMAL(4,2)")
    (row,) = decoded([f'{{"whole":{text},"price":{text}}}'], decoder_of(fields, "additive"))
    assert (row["values"], row["broken"]) == ({"whole": 0, "price": 0}, [])
