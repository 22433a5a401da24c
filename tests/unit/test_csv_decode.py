"""Decoding CSV: by name, exactly as a JSON string would be, and never a guess."""

from __future__ import annotations

import csv
import io
import json
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidelake.config.types import parse_schema
from tidelake.csv_records import Dialect, record_layout, split_fields, split_records
from tidelake.silver import csv_decode
from tidelake.silver.csv_decode import CsvDecoder
from tidelake.silver.decode import DecodedField
from tidelake.silver.payloads import arrow_type, decoder_of

SCHEMA = (
    "id STRING, n INT, b BIGINT, m DECIMAL(6,2), d DOUBLE, f FLOAT, ok BOOLEAN, day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, l ARRAY<INT>, s STRUCT<x: INT>"
)
PLAIN = Dialect()
NAMES = [field.name for field in parse_schema(SCHEMA)]


def decoder(schema: str = SCHEMA, evolution: str = "additive", *nulls: str) -> CsvDecoder:
    fields = parse_schema(schema)
    typed = [DecodedField(one.name, arrow_type(one.type), one.type.sql) for one in fields]
    return CsvDecoder(typed, evolution, nulls)


def decoded(
    records: Sequence[str | bytes | None],
    names: Sequence[str],
    by: CsvDecoder,
    dialect: Dialect = PLAIN,
) -> list[dict[str, Any]]:
    raw = [record.encode() if isinstance(record, str) else record for record in records]
    layouts = pa.array([record_layout(dialect, names)] * len(raw), pa.binary())
    found = by.decode(pa.array(raw, pa.binary()), layouts)
    assert found.type == by.type
    assert found.null_count == 0
    return found.to_pylist()  # type: ignore[no-any-return]


def test_columns_are_found_by_name_whatever_their_order() -> None:
    by = decoder("a STRING, b INT, c INT")
    (one,) = decoded(["1,x"], ["b", "a"], by)
    (two,) = decoded(["x,1"], ["a", "b"], by)
    assert one == two == {**one, "values": {"a": "x", "b": 1, "c": None}, "broken": []}


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_large_arrays_are_read_as_others(kind: pa.DataType) -> None:
    records = pa.array([b"1", b"2"], pa.binary()).cast(kind)
    layouts = pa.array([record_layout(PLAIN, ["b"])] * 2, pa.binary()).cast(kind)
    found = decoder("b INT").decode(records, layouts)
    assert [row["values"]["b"] for row in found.to_pylist()] == [1, 2]


def test_rows_of_several_layouts_keep_their_order() -> None:
    by = decoder("a STRING, b INT")
    layouts = [
        record_layout(Dialect(), ["a", "b"]),
        record_layout(Dialect(delimiter=";"), ["b", "a"]),
    ]
    records = [b"x,1", b"2;y", b"z,3", b'4;"u"', b"v", b"5;w;0"]
    which = [0, 1, 0, 1, 0, 1]
    given = pa.array([layouts[at] for at in which], pa.binary())
    found = by.decode(pa.array(records), given).to_pylist()
    values = [(row["values"]["a"], row["values"]["b"]) for row in found if row["parsed"]]
    assert values == [("x", 1), ("y", 2), ("z", 3), ("u", 4)]
    assert [row["broken"] for row in found[4:]] == [
        ["payload: 1 field, its file has 2 columns"],
        ["payload: 3 fields, its file has 2 columns"],
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("x", "1 field, its file has 2 columns"),
        ("x,1,", "3 fields, its file has 2 columns"),
        ('"x,1', "the quote of field 1 is not closed"),
        ('x,"1"2', "text after the closing quote of field 2"),
        (b"x\xff,1", "not utf-8 text"),
        (None, "missing"),
        ("", "1 field, its file has 2 columns"),
    ],
)
def test_a_record_that_is_not_of_its_file_is_not_parsed(
    record: str | bytes | None, reason: str
) -> None:
    whole, broken, also = decoded(["x,1", record, '"y",2'], ["a", "b"], decoder("a STRING, b INT"))
    assert whole["values"] == {"a": "x", "b": 1}
    assert also["values"] == {"a": "y", "b": 2}
    assert broken == {
        "parsed": False,
        "values": {"a": None, "b": None},
        "broken": [f"payload: {reason}"],
        "unknown": None,
    }


def test_a_record_without_a_layout_is_not_parsed() -> None:
    by = decoder("a STRING")
    found = by.decode(pa.array([b"x", b"y"]), pa.array([None, b"{}"], pa.binary())).to_pylist()
    reason = ["payload: the layout of its CSV file is missing"]
    assert [(row["parsed"], row["broken"]) for row in found] == [(False, reason)] * 2
    assert len(by.decode(pa.array([], pa.binary()), pa.array([], pa.binary()))) == 0


def test_empty_is_null_unless_it_is_quoted() -> None:
    rows = decoded([",", '"",""', "NA,NA", '"NA",1'], ["a", "b"], decoder("a STRING, b INT"))
    assert [row["values"] for row in rows] == [
        {"a": None, "b": None},
        {"a": "", "b": None},
        {"a": "NA", "b": None},
        {"a": "NA", "b": 1},
    ]
    refused = ["b: not exactly INT"]
    assert [row["broken"] for row in rows] == [[], refused, refused, []]
    by = decoder("a STRING, b INT", "additive", "NA")
    rows = decoded(["NA,NA", '"NA","NA"'], ["a", "b"], by)
    assert [(row["values"]["a"], row["broken"]) for row in rows] == [(None, []), ("NA", refused)]


@pytest.mark.parametrize(
    ("evolution", "broken", "unknown"),
    [
        ("strict", ["y: not in schema", "x: not in schema"], None),
        ("additive", [], [("x", None), ("y", "1.50")]),
        ("rescue", [], '{"x":null,"y":"1.50"}'),
    ],
)
def test_unknown_columns_follow_evolution(
    evolution: str, broken: list[str], unknown: object
) -> None:
    records = ["1.50,a,", '1,"a']
    first, second = decoded(records, ["y", "a", "x"], decoder("a STRING", evolution))
    assert (first["values"], first["broken"]) == ({"a": "a"}, broken)
    assert first["unknown"] == unknown
    assert (second["parsed"], second["unknown"]) == (False, None)


def test_members_that_a_struct_of_csv_lacks_are_unknown_fields() -> None:
    schema = "a STRING, s STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>"
    texts = ['{"x":1,"w":2.50}', '[{"x":1},{"y":[null]}]']
    out = io.StringIO()
    csv.writer(out).writerows([["a", *texts, "outer"], ["b", '{"x":1}', "", "z"], ["c", "{", ""]])
    records, names = out.getvalue().splitlines(), ["a", "s", "l", "s.w"]
    first, known, short = decoded(records, names, decoder(schema, "strict"))
    assert first["broken"] == [
        *("s.w: not in schema", "s.w#2: not in schema", "l[1].y: not in schema")
    ]
    assert known["broken"] == ["s.w: not in schema"]
    assert (short["parsed"], short["unknown"]) == (False, None)
    first, known, _ = decoded(records, names, decoder(schema, "rescue"))
    assert first["values"] == {"a": "a", "s": {"x": 1}, "l": [{"x": 1}, {"x": None}]}
    assert first["unknown"] == '{"l[1].y":[null],"s.w":"outer","s.w#2":2.5}'
    assert known["unknown"] == '{"s.w":"z"}'
    first, *_ = decoded(records, names, decoder(schema, "additive"))
    assert (first["broken"], first["unknown"]) == ([], [("s.w", "outer")])
    # Also where no column is unknown, in records that only the slow splitter reads.
    escaped = Dialect(escape="\\")
    (row,) = decoded([records[1][:-2]], names[:3], decoder(schema, "strict"), escaped)
    assert row["broken"] == []
    (row,) = decoded(['a,"{""w"":1}",'], names[:3], decoder(schema, "strict"), escaped)
    assert row["broken"] == ["s.w: not in schema"]


def test_other_encodings_and_escapes_are_read() -> None:
    by = decoder("a STRING, b INT")
    latin = Dialect(encoding="iso8859-1", escape="\\", quote=None)
    (row,) = decoded(["Zü\\,rich,1".encode("latin-1")], ["a", "b"], by, latin)
    assert row["values"] == {"a": "Zü,rich", "b": 1}
    (row,) = decoded([b"\x81,1"], ["a", "b"], by, Dialect(encoding="cp1252"))
    assert row["broken"] == ["payload: not cp1252 text"]


TEXTS = [
    *("1", "-1", "01", "+1", "1.0", "1.00", "1.5", "12,50", "12.999", "1e2", "1E-2", " 1", "1 "),
    *("99999.99", "9999.99", "10000", "2147483647", "2147483648", "-2147483648", "1e400", "1e-400"),
    *("9223372036854775807", "9223372036854775808", "999999999999999999", "NaN", "Infinity", "inf"),
    *("0.1", ".5", "5.", "1_000", "0x10", "true", "false", "True", "TRUE", "t", "yes", "null"),
    *("2026-01-05", "2026-02-30", "2026-1-5", "05.01.2026", "10:15", "2026-01-05T10:15:00Z"),
    *("2026-01-05T10:15Z", "2026-01-05 10:15:00.123456+02:00", "2026-01-05T10:15:00.1234567Z"),
    *("2026-01-05T24:00:00Z", "2026-01-05T10:15:00", "2026-02-30T10:15:00Z", "0001-01-01"),
    *("[1,2]", "[1,x]", '{"x":1}', '{"x":1.5}', "aGk=", "aGk", "a b", "\x00", "é", "-0", "-0.0"),
]


@pytest.mark.parametrize("name", NAMES)
def test_each_text_is_read_as_the_same_string_of_json(name: str) -> None:
    sql = next(field.type.sql for field in parse_schema(SCHEMA) if field.name == name)
    schema = f"{name} {sql}"
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([text] for text in TEXTS)
    records = [r for chunk in split_records(out.getvalue().encode(), Dialect()) for r in chunk]
    as_json = decoder_of(parse_schema(schema), "additive")
    payloads = pa.array([json.dumps({name: text}).encode() for text in TEXTS])
    wanted = as_json.decode(payloads).to_pylist()
    assert decoded(records, [name], decoder(schema)) == wanted
    # One by one as well: a value that Arrow cannot cast must not change how others are read.
    assert [decoded([record], [name], decoder(schema))[0] for record in records] == wanted


def jumbled(count: int) -> list[str]:
    """Draw records of fields in every form, some malformed, some with too many fields."""
    chance = random.Random(11)
    fields = ["", '""', "a", "NA", '"NA"', '"a,b"', '"a""b"', 'a"b', '"a\nb"', '"\r"', " ", "é"]
    fields += ['"a"b', '"a', '"', "\ufeff", '"\x00"', "'a'", "\\N", '"""a"""', '""""', '"a"""b"']
    return [
        ",".join(chance.choices(fields, k=chance.choice([1, 2, 2, 2, 2, 3]))) for _ in range(count)
    ]


@pytest.mark.parametrize("escape", [None, "\\"])
def test_arrow_reads_each_record_as_our_own_splitter(
    monkeypatch: pytest.MonkeyPatch, escape: str | None
) -> None:
    records, by = jumbled(3000), decoder("a STRING, b STRING", "additive", "NA")
    dialect = Dialect(escape=escape)
    fast = decoded(records, ["a", "b"], by, dialect)
    alone = [decoded([record], ["a", "b"], by, dialect)[0] for record in records[:300]]
    assert alone == fast[:300]

    def nothing_sound(
        texts: Sequence[bytes | None], _: Dialect, names: Sequence[str], __: object
    ) -> tuple[Any, list[pa.Array]]:
        return csv_decode.np.zeros(len(texts), bool), [pa.array([], pa.string())] * len(names)

    monkeypatch.setattr(csv_decode, "_read_sound", nothing_sound)
    assert decoded(records, ["a", "b"], by, dialect) == fast
    assert 0 < sum(row["parsed"] for row in fast) < len(fast)


def test_arrow_reads_what_is_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all records would go through the slow splitter, and no other test would fail."""

    def refused(record: str, *_: object) -> list[str | None]:
        raise AssertionError(record)

    monkeypatch.setattr(csv_decode, "split_fields", refused)
    records = ["a,b", '"a,b","c\r\nd"', '"a""b",', 'é,"x"']
    rows = decoded(records, ["a", "b"], decoder("a STRING, b STRING"))
    assert [tuple(row["values"].values()) for row in rows] == [
        tuple(split_fields(record, Dialect(), frozenset({""}))) for record in records
    ]


def test_a_decoder_survives_pickling() -> None:
    by = pickle.loads(pickle.dumps(decoder("a STRING", "rescue", "NA")))
    assert decoded(["NA"], ["a"], by)[0]["values"] == {"a": None}
