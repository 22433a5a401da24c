"""Unwrapped events: the row as the database has it, and what is no row by its name."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.changes import ROW, Json, line, mysql, postgres, with_schema
from tidelake.config.types import parse_schema
from tidelake.silver.envelope import ChangeDecoder, Unwrapped, unwrap
from tidelake.silver.payloads import decoder_of

ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
MARIE = ANNE | {"first_name": "Anne Marie"}
AT = 1_559_033_904_863_123
SEEN = datetime(2019, 5, 28, 8, 58, 24, 863_123, tzinfo=UTC)
LSN = "00000000000024023128"
CUSTOMERS = "id BIGINT, first_name STRING, last_name STRING, email STRING"
TOASTED = "__debezium_unavailable_value"
OWN = ("op", "source_time", "source_position")


def decoded(
    payloads: Sequence[bytes | None],
    ddl: str = CUSTOMERS,
    *,
    keys: Sequence[bytes | None] | None = None,
    evolution: str = "additive",
) -> list[dict[str, Any]]:
    """Decode records in one array."""
    decoder = ChangeDecoder(decoder_of(parse_schema(ddl), evolution))
    keys = [None] * len(payloads) if keys is None else keys
    columns = [pa.array(payloads, pa.binary()), pa.array(keys, pa.binary())]
    found = decoder.decode(*columns)
    assert found.type == decoder.type
    return found.to_pylist()  # type: ignore[no-any-return]


def row_of(change: Unwrapped) -> Json:
    """Parse an unwrapped row."""
    found: Json = json.loads(change.row)
    return found


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("event", "row", "seen", "position"),
    [
        (postgres("c", at=AT, lsn=24023128, before=None, after=ANNE), ANNE, SEEN, LSN),
        (postgres("r", at=AT, lsn=24023128, before=None, after=ANNE), ANNE, SEEN, LSN),
        (postgres("u", at=AT, lsn=24023128, before={"id": 1}, after=MARIE), MARIE, SEEN, LSN),
        (postgres("d", at=AT, lsn=24023128, before={"id": 1}, after=None), {"id": 1}, SEEN, LSN),
        (
            mysql("u", millis=1465581029100, pos=484, row=2, before=ANNE, after=MARIE),
            MARIE,
            datetime(2016, 6, 10, 17, 50, 29, 100_000, tzinfo=UTC),
            "0000000003:00000000000000000484:0000000002",
        ),
        (
            mysql("d", millis=1465581902300, pos=805, before=MARIE, after=None),
            MARIE,
            datetime(2016, 6, 10, 18, 5, 2, 300_000, tzinfo=UTC),
            "0000000003:00000000000000000805:0000000000",
        ),
        (
            # Without a time of the change: when the connector saw it.
            mysql("c", millis=0, pos=154, before=None, after=ANNE),
            ANNE,
            datetime(2016, 6, 10, 18, 5, 2, 461_000, tzinfo=UTC),
            "0000000003:00000000000000000154:0000000000",
        ),
    ],
)
def test_a_published_event_gives_its_row_op_time_and_position(
    event: Json, row: Json, seen: datetime, position: str, wrapped: bool
) -> None:
    (found,) = decoded([line(with_schema(event) if wrapped else event)])
    own = dict(zip(OWN, (event["op"], seen, position), strict=True))
    empty = dict.fromkeys(ANNE)
    assert found == {
        "parsed": True,
        "values": empty | row | own,
        "broken": [],
        "unknown": None,
        "skipped": False,
        "refusal": None,
    }


def test_positions_compare_as_the_changes_were_made() -> None:
    def position(**source: Any) -> str | None:
        event = {"source": source, "op": "c", "after": {}}
        return unwrap(line(event)).source_position

    lsns = [position(lsn=lsn) for lsn in (0, 9, 10, 24023128, 46523128, (1 << 63) - 1)]
    assert lsns == sorted(map(str, lsns)) and len(set(lsns)) == len(lsns)
    places = [
        *[("mysql-bin.000009", 999, 0), ("mysql-bin.000010", 4, 0), ("mysql-bin.000010", 4, 1)],
        *[("mysql-bin.000010", 4, 10), ("mysql-bin.000010", 30, 0), ("mysql-bin.1000000", 4, 0)],
    ]
    texts = [position(file=file, pos=pos, row=row) for file, pos, row in places]
    assert texts == sorted(map(str, texts)) and len(set(texts)) == len(texts)
    unordered = [{}, {"lsn": "7"}, {"lsn": -1}, {"lsn": True}, {"file": "bin", "pos": 4}]
    assert [position(**one) for one in unordered] == [None] * len(unordered)


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        (line(postgres("t", at=AT, lsn=1)), "payload: op t empties the whole table"),
        (line(with_schema(postgres("t", at=AT, lsn=1))), "payload: op t empties the whole table"),
        (line(postgres("x" * 50, at=AT, lsn=1)), f"payload: op {'x' * 20} is not known"),
        (line(postgres("u", at=AT, lsn=1, after=None)), "payload: op u without after"),
        (line(postgres("d", at=AT, lsn=1, before=None)), "payload: op d without before"),
        (b'{"op":"c","after":[1]}', "payload: its row is not one JSON object"),
        (b'{"op":"c","after":{"id":1}', "payload: not one change event"),
        (b'{"op":1,"after":{"id":1}}', "payload: not one change event"),
        (b'{"schema":[1],"payload":{"op":"c","after":{}}}', "payload: its schema cannot be read"),
        (line(ANNE), "payload: not one change event"),
        (b"[" * 600 + b"]" * 600, "payload: not one change event"),
        (b"", "payload: not one change event"),
        (None, "payload: not one change event"),
        (b"7", "payload: not one change event"),
    ],
)
def test_what_is_no_change_of_a_row_is_refused_by_name(payload: bytes, refusal: str) -> None:
    (found,) = decoded([payload])
    assert not found["parsed"] and not found["skipped"]
    assert found["refusal"].startswith(refusal)


def test_an_event_beside_another_named_payload_is_the_event() -> None:
    event = postgres("c", at=AT, lsn=1, after=ANNE)
    other = postgres("d", at=AT, lsn=2, before={"id": 2})
    found = unwrap(line(event | {"payload": other}))
    assert (found.op, row_of(found)) == ("c", ANNE)


def test_tombstones_and_messages_are_skipped_and_counted_with_a_reason() -> None:
    message = postgres("m", at=AT, lsn=1) | {"message": {"prefix": "foo", "content": "Ymfy"}}
    payloads = [b"null", line(with_schema(None)), line(message), line(with_schema(message))]
    tombstone, no_row = ["payload: a tombstone"], ["payload: op m has no row"]
    for found, reasons in zip(
        decoded(payloads), [tombstone, tombstone, no_row, no_row], strict=True
    ):
        assert (found["parsed"], found["skipped"], found["refusal"]) == (True, True, None)
        assert found["broken"] == reasons


def test_a_tombstone_and_a_delete_without_row_have_the_fields_of_their_key() -> None:
    key = {"type": "struct", "fields": [{"type": "int32", "optional": False, "field": "id"}]}
    delete = line(postgres("d", at=AT, lsn=1, before=None, after=None))
    keys = [b'{"id":7}', line({"schema": key, "payload": {"id": 7}}), b"7", b"\x00\x00"]
    for payload in (b"null", delete):
        found = decoded([payload] * len(keys), keys=keys)
        assert [one["values"]["id"] for one in found] == [7, 7, None, None]
        # A tombstone needs no key that can be read.
        assert [one["parsed"] for one in found] == [True, True, *[payload == b"null"] * 2]


def typed(field: str, kind: str, name: str | None = None, **parameters: str) -> Json:
    """Describe a column as Kafka Connect does."""
    named = {} if name is None else {"name": name, "version": 1}
    told = {"parameters": parameters} if parameters else {}
    return {"type": kind, "optional": True, "field": field, **named, **told}


DECIMAL = "org.apache.kafka.connect.data.Decimal"
TYPES: list[tuple[Json, str, Any, Any]] = [
    (typed("v", "bytes", DECIMAL, scale="2"), "DECIMAL(18,2)", "AMc=", Decimal("1.99")),
    (typed("v", "bytes", DECIMAL, scale="2"), "DECIMAL(18,2)", "/zk=", Decimal("-1.99")),
    (typed("v", "bytes", DECIMAL, scale="2"), "STRING", "AMg=", "2.00"),
    (typed("v", "bytes", DECIMAL, scale="0"), "BIGINT", "Aw==", 3),
    (typed("v", "bytes", DECIMAL, scale="-2"), "BIGINT", "Aw==", 300),
    # The converter writes numbers with decimal.format=numeric.
    (typed("v", "bytes", DECIMAL, scale="2"), "DECIMAL(18,2)", 1.99, Decimal("1.99")),
    (
        typed("v", "struct", "io.debezium.data.VariableScaleDecimal"),
        "DECIMAL(18,3)",
        {"scale": 3, "value": "AMc="},
        Decimal("0.199"),
    ),
    (typed("v", "int32", "io.debezium.time.Date"), "DATE", 17702, date(2018, 6, 20)),
    (typed("v", "int32", "org.apache.kafka.connect.data.Date"), "DATE", -1, date(1969, 12, 31)),
    (typed("v", "string", "io.debezium.time.IsoDate"), "DATE", "2018-06-20Z", date(2018, 6, 20)),
    (
        typed("v", "int64", "io.debezium.time.MicroTimestamp"),
        "TIMESTAMP",
        1529507596945104,
        datetime(2018, 6, 20, 15, 13, 16, 945_104, tzinfo=UTC),
    ),
    (
        typed("v", "int64", "io.debezium.time.Timestamp"),
        "TIMESTAMP_NTZ",
        1529476623000,
        datetime(2018, 6, 20, 6, 37, 3),
    ),
    (
        typed("v", "int64", "org.apache.kafka.connect.data.Timestamp"),
        "TIMESTAMP",
        -1,
        datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    ),
    (
        typed("v", "int64", "io.debezium.time.NanoTimestamp"),
        "TIMESTAMP",
        1529507596945104000,
        datetime(2018, 6, 20, 15, 13, 16, 945_104, tzinfo=UTC),
    ),
    (
        typed("v", "string", "io.debezium.time.ZonedTimestamp"),
        "TIMESTAMP",
        "2018-06-20T13:37:03.5+02:00",
        datetime(2018, 6, 20, 11, 37, 3, 500_000, tzinfo=UTC),
    ),
    (
        typed("v", "string", "io.debezium.time.IsoTimestamp"),
        "TIMESTAMP_NTZ",
        "2018-06-20T06:37:03Z",
        datetime(2018, 6, 20, 6, 37, 3),
    ),
    (typed("v", "string", "io.debezium.time.IsoTime"), "STRING", "06:37:03Z", "06:37:03"),
    (typed("v", "int32", "io.debezium.time.Time"), "STRING", 54_796_945, "15:13:16.945000"),
    (typed("v", "int64", "io.debezium.time.MicroTime"), "STRING", 1_000_000, "00:00:01"),
    (typed("v", "int64", "io.debezium.time.MicroTime"), "STRING", -1, "-00:00:00.000001"),
    (typed("v", "int64", "io.debezium.time.MicroTime"), "STRING", 3_020_399_000_000, "838:59:59"),
    (typed("v", "int32", "io.debezium.time.Time"), "STRING", 86_400_000, "24:00:00"),
    (typed("v", "string", "io.debezium.data.Json"), "STRUCT<a: INT>", '{"a":1}', {"a": 1}),
    (typed("v", "string", "io.debezium.data.Uuid"), "STRING", "09e1b0c4", "09e1b0c4"),
    (typed("v", "string", "io.debezium.data.Enum", allowed="a,b"), "STRING", "a", "a"),
    (typed("v", "bytes", "io.debezium.data.Bits", length="9"), "BINARY", "AQE=", b"\x01\x01"),
    (typed("v", "int32", "io.debezium.time.Year"), "INT", 2018, 2018),
    (typed("v", "double"), "DOUBLE", 1.25, 1.25),
    (typed("v", "int32", "io.debezium.time.Date"), "DATE", None, None),
    (
        typed("v", "array") | {"items": typed("", "int32", "io.debezium.time.Date")},
        "ARRAY<DATE>",
        [0, None],
        [date(1970, 1, 1), None],
    ),
    (
        typed("v", "map") | {"values": typed("", "bytes", DECIMAL, scale="1")},
        "MAP<STRING, DECIMAL(9,1)>",
        {"a": "Aw=="},
        [("a", Decimal("0.3"))],
    ),
    (
        typed("v", "struct") | {"fields": [typed("d", "int32", "io.debezium.time.Date")]},
        "STRUCT<d: DATE>",
        {"d": 1},
        {"d": date(1970, 1, 2)},
    ),
]


@pytest.mark.parametrize(("column", "ddl", "written", "value"), TYPES)
def test_a_value_with_its_schema_is_read_exactly(
    column: Json, ddl: str, written: Any, value: Any
) -> None:
    event = postgres("c", at=AT, lsn=1, after={"v": written})
    (found,) = decoded([line(with_schema(event, [column]))], f"v {ddl}")
    assert (found["values"]["v"], found["broken"], found["refusal"]) == (value, [], None)


@pytest.mark.parametrize(
    ("column", "ddl", "written"),
    [
        (typed("v", "bytes", DECIMAL, scale="2"), "DECIMAL(18,1)", "AMc="),
        (typed("v", "bytes", DECIMAL, scale="2"), "DECIMAL(18,2)", "no base64"),
        (typed("v", "bytes", DECIMAL, scale="9999"), "DECIMAL(18,2)", "AMc="),
        # PostgreSQL's infinity.
        (typed("v", "int64", "io.debezium.time.MicroTimestamp"), "TIMESTAMP", 9223372036825200000),
        (typed("v", "int64", "io.debezium.time.NanoTimestamp"), "TIMESTAMP", 1529507596945104698),
        (typed("v", "int32", "io.debezium.time.Date"), "DATE", 2147483647),
    ],
)
def test_a_value_that_has_no_exact_equal_breaks_the_contract(
    column: Json, ddl: str, written: Any
) -> None:
    event = postgres("c", at=AT, lsn=1, after={"v": written})
    (found,) = decoded([line(with_schema(event, [column]))], f"v {ddl}")
    assert (found["parsed"], found["broken"]) == (True, [f"v: not exactly {ddl}"])


def test_without_a_schema_values_are_taken_as_they_are() -> None:
    event = postgres("c", at=AT, lsn=1, after={"paid": 1529507596945104, "total": "AMc="})
    (found,) = decoded([line(event)], "paid BIGINT, total DECIMAL(18,2)")
    assert found["values"]["paid"] == 1529507596945104
    assert found["broken"] == ["total: not exactly DECIMAL(18,2)"]


@pytest.mark.parametrize(
    "placeholder",
    [
        TOASTED,
        base64.b64encode(TOASTED.encode()).decode(),
        TOASTED.encode().hex(),
        [TOASTED],
        list(TOASTED.encode()),
        {TOASTED: TOASTED},
        # Of an hstore as JSON, of bytea[] and of uuid[].
        f'{{"{TOASTED}":"{TOASTED}"}}',
        [base64.b64encode(TOASTED.encode()).decode()],
        ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        # Of arrays of double precision and numeric.
        list(map(float, TOASTED.encode())),
        [base64.b64encode(bytes([code])).decode() for code in TOASTED.encode()],
        [
            {"scale": 0, "value": base64.b64encode(bytes([code])).decode()}
            for code in TOASTED.encode()
        ],
        # Of a point, a geometry and a geography.
        {"x": -99999999.0, "y": -99999999.0, "wkb": "AQEAAAAAAAD8g9eXwQAAAPyD15fB", "srid": None},
        {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": 4326},
        {"wkb": "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA==", "srid": 4326},
    ],
)
def test_a_value_that_was_not_sent_is_never_taken_for_one(placeholder: Any) -> None:
    after = ANNE | {"email": placeholder, "undeclared": placeholder}
    update = postgres("u", at=AT, lsn=1, after=after)
    delete = postgres("d", at=AT, lsn=1, before=after)
    found, gone = decoded([line(update), line(delete)])
    assert found["broken"] == [
        "email: not sent by the connector (a large value that did not change)"
    ]
    # A delete needs the key alone.
    assert (gone["broken"], gone["values"]["id"]) == ([], 1)
    assert [one["values"]["email"] for one in (found, gone)] == [None, None]
    assert [one["unknown"] for one in (found, gone)] == [None, None]


def test_what_was_not_sent_is_known_before_its_conversion_and_what_is_like_it_is_kept() -> None:
    days = typed("v", "array") | {"items": typed("", "int32", "io.debezium.time.Date")}
    codes = list(TOASTED.encode())
    likes = [
        [*codes, 1],
        codes[:-1],
        [0, *codes[1:]],
    ]
    events = [postgres("u", at=AT, lsn=1, after={"v": value}) for value in (codes, *likes)]
    missing, *found = decoded([line(with_schema(one, [days])) for one in events], "v ARRAY<DATE>")
    assert missing["broken"] == ["v: not sent by the connector (a large value that did not change)"]
    assert [len(one["values"]["v"]) for one in found] == [29, 27, 28]
    assert [one["broken"] for one in found] == [[], [], []]


@pytest.mark.parametrize(
    ("evolution", "unknown", "broken"),
    [
        ("additive", [("op", "x"), ("vip", "true")], []),
        ("rescue", '{"op":"x","vip":true}', []),
        ("strict", None, ["vip: not in schema", "op: not in schema"]),
    ],
)
def test_a_row_s_other_fields_follow_evolution_even_with_a_name_of_the_envelope(
    evolution: str, unknown: Any, broken: list[str]
) -> None:
    event = postgres("u", at=AT, lsn=1, after=ANNE | {"vip": True, "op": "x"})
    (found,) = decoded([line(event)], evolution=evolution)
    assert (found["unknown"], found["broken"]) == (unknown, broken)
    assert found["values"]["op"] == "u"


def test_a_decoder_can_be_sent_to_a_worker() -> None:
    decoder = ChangeDecoder(decoder_of(parse_schema(CUSTOMERS), "rescue"))
    assert pickle.loads(pickle.dumps(decoder)).type == decoder.type


_MANY = (
    "id BIGINT, total DECIMAL(18,2), free DECIMAL(38,6), born DATE, seen TIMESTAMP, "
    "at TIMESTAMP_NTZ, name STRING, ok BOOLEAN, score DOUBLE, days ARRAY<DATE>, raw BINARY"
)
_COLUMNS = [
    typed("id", "int64"),
    typed("total", "bytes", DECIMAL, scale="2"),
    typed("free", "struct", "io.debezium.data.VariableScaleDecimal"),
    typed("born", "int32", "io.debezium.time.Date"),
    typed("seen", "int64", "io.debezium.time.MicroTimestamp"),
    typed("at", "int64", "io.debezium.time.Timestamp"),
    typed("name", "string"),
    typed("ok", "boolean"),
    typed("score", "double"),
    typed("days", "array") | {"items": typed("", "int32", "io.debezium.time.Date")},
    typed("raw", "bytes"),
]
_EPOCH = datetime(1970, 1, 1)
_DATES = st.dates(date(1, 1, 2), date(9999, 12, 30))
_MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))


def _money(scale: int, most: int) -> st.SearchStrategy[Decimal]:
    unscaled = st.integers(-most, most)
    return unscaled.map(lambda number: Decimal(number).scaleb(-scale))


_ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "total": st.none() | _money(2, 10**18 - 1),
        "free": st.none() | _money(6, 10**27),
        "born": st.none() | _DATES,
        "seen": st.none() | _MOMENTS,
        "at": st.none()
        | _MOMENTS.map(lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000)),
        "name": st.none() | st.text(st.characters(codec="utf-8")),
        "ok": st.none() | st.booleans(),
        "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "days": st.none() | st.lists(st.none() | _DATES, max_size=3),
        "raw": st.none() | st.binary(max_size=9),
    }
)


def _unscaled(value: Decimal, scale: int) -> str:
    number = int(value.scaleb(scale))
    return base64.b64encode(number.to_bytes(17, "big", signed=True)).decode()


def _days(value: date) -> int:
    return (datetime.combine(value, time()) - _EPOCH).days


_AS_CONNECT: dict[str, Any] = {
    "total": lambda value: _unscaled(value, 2),
    "free": lambda value: {"scale": 6, "value": _unscaled(value, 6)},
    "born": _days,
    "seen": lambda value: (value - _EPOCH) // timedelta(microseconds=1),
    "at": lambda value: (value - _EPOCH) // timedelta(milliseconds=1),
    "days": lambda value: [None if day is None else _days(day) for day in value],
    "raw": lambda value: base64.b64encode(value).decode(),
}
_AS_JSON: dict[str, Any] = {
    **dict.fromkeys(("total", "free"), lambda value: format(value, "f")),
    **dict.fromkeys(("born", "at"), lambda value: value.isoformat()),
    "seen": lambda value: value.isoformat() + "Z",
    "days": lambda value: [None if day is None else day.isoformat() for day in value],
    "raw": _AS_CONNECT["raw"],
}


def _written(row: Json, ways: dict[str, Any]) -> Json:
    return {
        name: value if value is None or name not in ways else ways[name](value)
        for name, value in row.items()
    }


@settings(max_examples=150)
@given(st.lists(_ROWS, min_size=1, max_size=3))
def test_a_row_in_an_envelope_has_the_values_of_its_plain_json(rows: list[Json]) -> None:
    plain = decoder_of(parse_schema(_MANY), "strict")
    written = [line(_written(row, _AS_JSON)) for row in rows]
    wanted = plain.decode(pa.array(written, pa.binary())).to_pylist()
    events = [
        postgres("u", at=AT, lsn=1, before=None, after=_written(row, _AS_CONNECT)) for row in rows
    ]
    found = decoded([line(with_schema(one, _COLUMNS)) for one in events], _MANY, evolution="strict")
    for one, other in zip(found, wanted, strict=True):
        assert {k: v for k, v in one["values"].items() if k not in OWN} == other["values"]
        assert (one["broken"], one["parsed"]) == (other["broken"], True)


def test_the_rows_of_the_examples_are_described() -> None:
    assert [column["field"] for column in ROW] == list(ANNE)
