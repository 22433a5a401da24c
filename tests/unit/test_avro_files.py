"""Records of Avro container files as JSON, against the Python values that fastavro wrote."""

from __future__ import annotations

import json
import random
import zlib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.bronze import avro_files
from tidelake.bronze.avro_files import avro_schema_of, datum_reader, read_avro_container
from tidelake.bronze.file_format import BrokenFileError
from tidelake.silver.decode import DecodedField, Decoder

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_STAMP = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 31))


def _logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def _digits(value: float) -> Decimal:
    return Decimal(repr(value))


# Schema, values, and what JSON has of a value.
_SCALARS: list[tuple[Any, st.SearchStrategy[Any], Any]] = [
    ("boolean", st.booleans(), None),
    ("int", st.integers(-(2**31), 2**31 - 1), None),
    ("long", st.integers(-(2**63), 2**63 - 1), None),
    ("string", _TEXT, None),
    ("double", st.floats(allow_nan=False, allow_infinity=False), _digits),
    ("float", st.floats(width=32, allow_nan=False, allow_infinity=False), _digits),
    (_logical("bytes", "decimal", precision=20, scale=7), st.decimals(-1000, 1000, places=7), None),
    (_logical("int", "date"), st.dates(), lambda one: one.isoformat()),
    (_logical("long", "timestamp-micros"), _STAMP.map(lambda at: at.replace(tzinfo=UTC)),
     lambda one: one.isoformat(timespec="microseconds").replace("+00:00", "Z")),
    (_logical("long", "timestamp-millis"),
     _STAMP.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC)),
     lambda one: one.isoformat(timespec="microseconds").replace("+00:00", "Z")),
    (_logical("long", "local-timestamp-micros"), _STAMP,
     lambda one: one.isoformat(timespec="microseconds")),
    (_logical("long", "time-micros"), st.times(),
     lambda one: one.isoformat(timespec="microseconds")),
    (_logical("string", "uuid"), st.uuids(), str),
]  # fmt: skip


def _written(schema: Any, records: list[Any], **options: Any) -> bytes:
    out = BytesIO()
    fastavro.writer(out, schema, records, **options)
    return out.getvalue()


def _with_schema(schema: Any, plain: Any, records: list[Any]) -> bytes:
    """Write records with one schema and name another that has the same bytes."""
    header, marker = BytesIO(), b"m" * 16
    metadata = {"avro.schema": json.dumps(schema).encode()}
    fastavro.schemaless_writer(header, {"type": "map", "values": "bytes"}, metadata)
    blocks = _written(plain, records, sync_marker=marker).partition(marker)[2]
    return b"Obj\x01" + header.getvalue() + marker + blocks


def _rows(content: bytes) -> list[Any]:
    return [
        json.loads(payload, parse_float=Decimal)
        for payloads, headers in read_avro_container(content)
        for payload in payloads.to_pylist()
        if headers == {}
    ]


def _record(fields: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "Row", "fields": named}


@st.composite
def _fields(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[tuple[Any, Any]]]:
    """Draw a type, and the strategy of its values with what JSON has of each."""
    kind, values, convert = draw(st.sampled_from(_SCALARS))
    pairs = values.map(lambda one: (one, convert(one) if convert else one))
    if draw(st.booleans()):
        kind, pairs = ["null", kind], st.none().map(lambda _: (None, None)) | pairs
    shape = draw(st.sampled_from(["plain", "array", "map"]))
    if shape == "array":
        several = st.lists(pairs, max_size=3)
        return {"type": "array", "items": kind}, several.map(
            lambda many: ([one for one, _ in many], [json for _, json in many])
        )
    if shape == "map":
        named = st.dictionaries(_TEXT, pairs, max_size=3)
        return {"type": "map", "values": kind}, named.map(
            lambda many: (
                {name: one for name, (one, _) in many.items()},
                {name: json for name, (_, json) in many.items()},
            )
        )
    return kind, pairs


@settings(max_examples=150)
@given(st.data())
def test_every_value_is_the_one_that_was_written(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(_fields(), min_size=1, max_size=3))
    pairs = [
        {f"c{at}": data.draw(values) for at, (_, values) in enumerate(kinds)}
        for _ in range(data.draw(st.integers(0, 5)))
    ]
    schema = _record({f"c{at}": kind for at, (kind, _) in enumerate(kinds)})
    records = [{name: one for name, (one, _) in row.items()} for row in pairs]
    codec = data.draw(st.sampled_from(["null", "deflate", "bzip2", "xz"]))
    content = _written(schema, records, codec=codec, sync_interval=20)
    assert _rows(content) == [{name: json for name, (_, json) in row.items()} for row in pairs]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("double", float("nan"), "NaN"),
        ("float", float("-inf"), "-Infinity"),
        ("bytes", b"\xff\x00", "/wA="),
        ({"type": "fixed", "name": "Two", "size": 2}, b"ab", "YWI="),
        ({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "B", "B"),
        (
            {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal",
             "precision": 8, "scale": 2},
            Decimal("-0.05"),
            Decimal("-0.05"),
        ),
        (
            {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"},
            b"\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00",
            {"months": 1, "days": 2, "milliseconds": 3},
        ),
        (_logical("long", "timestamp-millis"), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
         "1969-12-31T23:59:59.999000Z"),
        (_logical("long", "timestamp-nanos"), 1, "1970-01-01T00:00:00.000000001Z"),
        (_logical("long", "timestamp-nanos"), 1000, "1970-01-01T00:00:00.000001Z"),
        # Beyond the years of Python.
        (_logical("long", "timestamp-micros"), 2**62, "4611686018427387904 microseconds"),
        (_logical("int", "time-millis"), time(23, 59, 59, 1000), "23:59:59.001000"),
        (_logical("string", "uuid"), UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (
            {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"},
            UUID(int=5).bytes,
            "00000000-0000-0000-0000-000000000005",
        ),
        # A branch decides, not the Python type.
        (["null", _logical("long", "timestamp-micros"), "string"], "2024", "2024"),
        (["int", _logical("int", "date")], date(1970, 1, 2), "1970-01-02"),
        (["int", _logical("int", "date")], 1, 1),
    ],
)  # fmt: skip
def test_values_are_written_as_the_decoder_expects_them(
    kind: Any, value: Any, written: Any
) -> None:
    (row,) = _rows(_written(_record({"c": kind}), [{"c": value}]))
    assert row == {"c": written}


def test_named_types_are_followed() -> None:
    node = _record({"size": "double"}) | {"name": "Node"}
    schema = _record({"first": node, "second": ["null", "Node"]})
    row = {"first": {"size": 1.5}, "second": {"size": 2.5}}
    assert _rows(_written(schema, [row])) == [row]
    assert avro_schema_of(_written(schema, [row]))["name"] == "Row"


def _node(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Node", "namespace": "shop", "fields": [*fields]}


@pytest.mark.parametrize(
    "schema",
    [
        _node({"name": "next", "type": ["null", "Node"], "default": None}),
        _record({"n": _node({"name": "m", "type": {"type": "map", "values": "Node"}})}),
        {"type": "array", "items": _node({"name": "l", "type": {"type": "array",
                                                                "items": "shop.Node"}})},
        _node({"name": "e", "type": _record({"up": ["null", "shop.Node"]})}),
    ],
)  # fmt: skip
def test_a_recursive_schema_is_refused_before_data_that_would_end_the_process(schema: Any) -> None:
    content = _written(schema, [])
    with pytest.raises(BrokenFileError, match=r"^its schema is recursive: shop\.Node holds itself"):
        _rows(content)
    with pytest.raises(BrokenFileError, match="as JSON text, or the file as JSON lines"):
        avro_schema_of(content)
    with pytest.raises(BrokenFileError, match="recursive"):
        datum_reader(schema)


def test_types_nested_more_than_200_levels_deep_are_refused() -> None:
    def chain(length: int) -> dict[str, Any]:
        # Each type is defined beside the others and holds the one before it.
        kinds = [_record({"f": f"T{at - 1}" if at else "int"}) for at in range(length)]
        named = [kind | {"name": f"T{at}"} for at, kind in enumerate(kinds)]
        return _record({f"c{at}": ["null", kind] for at, kind in enumerate(named)})

    row = dict.fromkeys(f"c{at}" for at in range(199))
    value: Any = {"f": 7}
    for _ in range(198):
        value = {"f": value}
    assert _rows(_written(chain(199), [row | {"c198": value}])) == [row | {"c198": value}]
    with pytest.raises(BrokenFileError, match="201 levels deep, at most 200"):
        _rows(_written(chain(200), []))


def test_a_decimal_that_is_too_long_for_digits_leaves_the_other_rows_readable() -> None:
    schema = _record({"n": "long", "m": "bytes"})
    money = _record({"n": "long", "m": _logical("bytes", "decimal", precision=9, scale=2)})
    marker = b"m" * 16
    rows = [
        {"n": 1, "m": b"\x7d"},
        {"n": 2, "m": b"\x7f" * 2000},
        {"n": 3, "m": b"\x80" + b"\x00" * 1999},
        # As many bytes, though few digits, and the most digits.
        {"n": 4, "m": b"\xff" * 2000},
        {"n": 5, "m": b"\x3f" + b"\xff" * 1749},
    ]
    plain = _written(schema, rows, sync_marker=marker)
    data = plain.removeprefix(_written(schema, [], sync_marker=marker))
    content = _written(money, [], sync_marker=marker) + data
    found = [payload for chunk, _ in read_avro_container(content) for payload in chunk.to_pylist()]
    assert found[0] == b'{"n":1,"m":1.25}'
    assert found[3] == b'{"n":4,"m":-0.01}'
    assert json.loads(found[1])["m"] == "unscaled 0x" + "7f" * 2000
    assert json.loads(found[2])["m"] == "unscaled -0x80" + "00" * 1999
    most = str(2**13_998 - 1)
    assert found[4] == b'{"n":5,"m":%b.%b}' % (most[:-2].encode(), most[-2:].encode())
    fields = [DecodedField("m", pa.decimal128(38, 2), "DECIMAL(38,2)")]
    decoded = Decoder(fields, "additive").decode(pa.array(found, pa.binary())).to_pylist()
    assert [row["broken"] != [] for row in decoded] == [False, True, True, False, True]


@pytest.mark.parametrize("fixed", [False, True])
def test_a_decimal_with_a_scale_below_0_has_zeros_behind_its_digits(fixed: bool) -> None:
    plain = {"type": "fixed", "name": "F", "size": 3} if fixed else {"type": "bytes"}
    numbers = [12345, 5, 0, -7]
    rows = [{"m": number.to_bytes(3, "big", signed=True)} for number in numbers]
    found = {}
    for scale in (-2, 0, 2):
        kind = plain | {"logicalType": "decimal", "precision": 7, "scale": scale}
        content = _with_schema(_record({"m": kind}), _record({"m": plain}), rows)
        ((payloads, _),) = read_avro_container(content)
        found[scale] = [one.removeprefix(b'{"m":')[:-1] for one in payloads.to_pylist()]
    assert found == {
        -2: [b"1234500", b"500", b"0", b"-700"],
        0: [b"12345", b"5", b"0", b"-7"],
        2: [b"123.45", b"0.05", b"0.00", b"-0.07"],
    }


@pytest.mark.parametrize(
    ("size", "scale", "is_text"),
    [(1750, 4_300, False), (1750, 4_301, True), (1, 10**12, True), (1250, -1_205, False),
     (1250, -1_206, True), (1, -4_213, False), (1, -4_214, True), (1, -(10**12), True)],
)  # fmt: skip
def test_a_decimal_with_many_zeros_is_refused_by_its_field_alone(
    size: int, scale: int, is_text: bool
) -> None:
    kind = _logical("bytes", "decimal", precision=9, scale=scale)
    rows = [{"m": b"\x0f" + b"\xff" * (size - 1)}]
    content = _with_schema(_record({"m": kind}), _record({"m": "bytes"}), rows)
    ((payloads, _),) = read_avro_container(content)
    assert payloads[0].as_py().startswith(b'{"m":"unscaled 0xf') is is_text
    fields = [DecodedField("m", pa.decimal128(38, 2), "DECIMAL(38,2)")]
    (row,) = Decoder(fields, "additive").decode(payloads).to_pylist()
    assert (row["parsed"], len(row["broken"])) == (True, 1)


@pytest.mark.parametrize("scale", [None, 2.5, "2", True])
def test_a_scale_that_is_no_whole_number_is_named_with_its_field(scale: Any) -> None:
    kind = {"type": "array", "items": _logical("bytes", "decimal", precision=9, scale=scale)}
    schema = _record({"order": _record({"prices": ["null", kind]}) | {"name": "Order"}})
    text = f"^its field order.prices has a decimal with the scale {json.dumps(scale)}, which is no"
    for content in (_with_schema(schema, _SCHEMA, []), _with_schema(schema, _SCHEMA, _RECORDS)):
        with pytest.raises(BrokenFileError, match=text):
            _rows(content)
        with pytest.raises(BrokenFileError, match=text):
            avro_schema_of(content)
    with pytest.raises(BrokenFileError, match=text):
        datum_reader(schema)


_NOTHING = _record({"nil": "null"}) | {"name": "Nothing"}


@pytest.mark.parametrize(
    ("items", "place"),
    [
        ("null", "field c"),
        ({"type": "null"}, "field c"),
        ({"type": "fixed", "name": "F", "size": 0}, "field c"),
        (_record({}) | {"name": "E"}, "field c"),
        (_record({"first": _NOTHING, "second": "Nothing"}) | {"name": "E"}, "field c"),
        (_record({"in": {"type": "array", "items": "null"}}) | {"name": "E"}, "field c.in"),
    ],
)
def test_an_array_whose_items_take_no_bytes_is_refused_before_it_is_read(
    items: Any, place: str
) -> None:
    array = {"type": "array", "items": items}
    text = f"^its {place} has an array whose items take no bytes, so that a damaged number"
    with pytest.raises(BrokenFileError, match=text):
        _rows(_written(_record({"c": array}), []))
    with pytest.raises(BrokenFileError, match=text):
        datum_reader(_record({"c": ["null", {"type": "map", "values": array}]}))
    text = text.replace("field c has", "schema has").replace("c.in", "in")
    with pytest.raises(BrokenFileError, match=text):
        _rows(_written(array, []))


def test_an_array_whose_items_take_a_byte_is_read() -> None:
    pair = _record({"a": "null", "b": "int"}) | {"name": "D"}
    texts, nulls = {"type": "array", "items": "string"}, {"type": "map", "values": "null"}
    items = {"a": ["null"], "b": nulls, "c": texts, "d": pair}
    schema = _record({name: {"type": "array", "items": kind} for name, kind in items.items()})
    row = {"a": [None, None], "b": [{"k": None}, {}], "c": [[], [""]], "d": [{"a": None, "b": 1}]}
    assert _rows(_written(schema, [row])) == [row]


_SCHEMA = _record({"n": "long", "t": "string"})
_RECORDS = [{"n": at, "t": "x" * at} for at in range(50)]


def _encoded(codec: str, compress: Any) -> bytes:
    """Write a file in a codec for which fastavro needs a library that is not installed."""
    plain = _written(_SCHEMA, _RECORDS)
    marker = plain[-16:]
    body = plain[plain.index(marker) + 16 : -16]
    datum = BytesIO()
    for record in _RECORDS:
        fastavro.schemaless_writer(datum, _SCHEMA, record)
    assert body.endswith(datum.getvalue())
    header = BytesIO()
    metadata = {"avro.codec": codec.encode(), "avro.schema": json.dumps(_SCHEMA).encode()}
    header.write(b"Obj\x01")
    fastavro.schemaless_writer(header, {"type": "map", "values": "bytes"}, metadata)
    block = compress(datum.getvalue())
    header.write(marker)
    fastavro.schemaless_writer(header, "long", len(_RECORDS))
    fastavro.schemaless_writer(header, "bytes", block)
    return header.getvalue() + marker


def _snappy(data: bytes) -> bytes:
    return pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


def test_snappy_and_zstandard_need_no_other_library() -> None:
    assert _rows(_encoded("snappy", _snappy)) == _RECORDS
    assert _rows(_encoded("zstandard", lambda data: pa.compress(data, "zstd", asbytes=True))) == (
        _RECORDS
    )


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(BrokenFileError, match="codec lz5 is not supported"):
        _rows(_encoded("lz5", bytes))


def test_a_damaged_checksum_is_found() -> None:
    with pytest.raises(BrokenFileError, match="block 1: its checksum differs"):
        _rows(_encoded("snappy", lambda data: _snappy(data)[:-4] + b"0000"))


def test_a_block_that_its_codec_or_its_records_do_not_fill_is_found() -> None:
    def deflate(data: bytes) -> bytes:
        return zlib.compress(data, wbits=-15)

    assert _rows(_encoded("deflate", deflate)) == _RECORDS
    with pytest.raises(BrokenFileError, match="block 1: truncated"):
        _rows(_encoded("deflate", lambda data: deflate(data)[:-1]))
    another = BytesIO()
    fastavro.schemaless_writer(another, _SCHEMA, _RECORDS[0])
    # Read as an array, the second would be one more record, and the third the array's end.
    for behind in (b"x", b"\x02" + another.getvalue(), b"\x00"):
        with pytest.raises(BrokenFileError, match="more bytes than its records"):
            _rows(_encoded("null", lambda data, behind=behind: data + behind))


@pytest.mark.parametrize("codec", ["null", "deflate", "xz"])
def test_a_file_cut_anywhere_but_between_blocks_is_broken(codec: str) -> None:
    content = _written(_SCHEMA, _RECORDS, codec=codec, sync_interval=400)
    whole = []
    for length in range(len(content)):
        try:
            whole.append(_rows(content[:length]))
        except BrokenFileError:
            continue
    assert 2 < len(whole) < 9
    assert whole[0] == []
    assert all(_RECORDS[: len(rows)] == rows for rows in whole)


def test_text_that_is_not_utf_8_is_kept_for_quarantine() -> None:
    content = _written(_SCHEMA, [{"n": 1, "t": "a?b"}, {"n": 2, "t": "ok"}])
    ((payloads, _),) = read_avro_container(content.replace(b"a?b", b"a\xffb"))
    assert payloads.to_pylist() == [b'{"n":1,"t":"a\\udcffb"}', b'{"n":2,"t":"ok"}']


def test_a_key_that_is_not_utf_8_is_kept_for_quarantine_beside_one_that_looks_like_it() -> None:
    kind = {"type": "map", "values": {"type": "array", "items": "double"}}
    rows = [{"m": {"a?": [1.5], r"a\udcff": [2.0, float("nan")]}}, {"m": {"ok": []}}]
    content = _written(_record({"m": kind}), rows)
    ((payloads, _),) = read_avro_container(content.replace(b"a?", b"a\xff"))
    assert payloads.to_pylist() == [
        b'{"m":{"a\\udcff":[1.5],"a\\\\udcff":[2.0,"NaN"]}}',
        b'{"m":{"ok":[]}}',
    ]
    fields = [DecodedField("m", pa.map_(pa.string(), pa.list_(pa.float64())), "MAP<STRING,…>")]
    decoded = Decoder(fields, "additive").decode(payloads).to_pylist()
    assert [row["parsed"] for row in decoded] == [False, True]


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_nanoseconds_are_those_of_numpy(nanos: int) -> None:
    (row,) = _rows(_written(_record({"c": _logical("long", "timestamp-nanos")}), [{"c": nanos}]))
    assert row == {"c": str(np.datetime64(nanos, "ns")).removesuffix("000") + "Z"}


def test_small_blocks_become_few_chunks_and_a_large_one_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = _written(_SCHEMA, _RECORDS, sync_interval=1), _written(_SCHEMA, _RECORDS)
    for content in (small, large):
        ((payloads, _),) = read_avro_container(content)
        assert [json.loads(one) for one in payloads.to_pylist()] == _RECORDS
    monkeypatch.setattr(avro_files, "_CHUNK_RECORDS", 20)
    for content in (small, large):
        assert [len(payloads) for payloads, _ in read_avro_container(content)] == [20, 20, 10]
        assert _rows(content) == _RECORDS
    monkeypatch.setattr(avro_files, "_CHUNK_BYTES", 100)
    lengths = [len(payloads) for payloads, _ in read_avro_container(small)]
    assert sum(lengths) == 50
    assert max(lengths) < 20


def test_records_without_bytes_are_read_and_bytes_behind_them_found() -> None:
    nothing = _record({})
    assert _rows(_written(nothing, [{}] * 3)) == [{}] * 3
    content = _written(nothing, [{}] * 3)
    # The number of records, then the bytes of the block, as zigzag numbers.
    block = b"\x06\x00"
    assert content.count(block) == 1
    for behind in (b"\x02", b"\x00", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"):
        broken = content.replace(block, b"\x06" + bytes([2 * len(behind)]) + behind)
        with pytest.raises(BrokenFileError, match="more bytes than its records"):
            _rows(broken)


def test_a_damaged_number_of_records_without_bytes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    content = _written(_record({}), [{}] * 3)
    assert content.count(b"\x06\x00") == 1
    for behind in (b"\x00", b"\x02x"):
        broken = content.replace(b"\x06\x00", b"\x80" * 8 + b"\x01" + behind)
        with pytest.raises(BrokenFileError, match=r"36,[\d,]+ records without bytes, of which at"):
            _rows(broken)
    # Records with bytes end with them, and fewer than the most are read.
    monkeypatch.setattr(avro_files, "_MOST_RECORDS_WITHOUT_BYTES", 8192)
    assert len(_rows(_written("long", [7] * 20_000, sync_interval=1 << 20))) == 20_000
    assert len(_rows(_written("null", [None] * 8192, sync_interval=1 << 20))) == 8192


def test_what_is_no_container_is_an_error() -> None:
    for content in (b"", b"Obj", b"{}", b"Obj\x01\x00" + b"m" * 16):
        with pytest.raises(BrokenFileError):
            _rows(content)


def test_a_container_of_plain_values_gives_plain_json() -> None:
    assert _rows(_written("long", [1, 2])) == [1, 2]


def test_a_damaged_file_is_never_another_error() -> None:
    chance, broken = random.Random(7), 0
    for _ in range(1000):
        content = bytearray(_written(_SCHEMA, _RECORDS, codec="deflate"))
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            list(read_avro_container(bytes(content)))
        except BrokenFileError:
            broken += 1
    assert broken > 500
