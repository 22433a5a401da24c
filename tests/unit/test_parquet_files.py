"""Rows of Parquet as JSON, against DuckDB reading the same file, and through the decoder."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tidelake.bronze import parquet_files
from tidelake.bronze.file_format import BrokenFileError
from tidelake.bronze.parquet_files import parquet_schema, read_parquet
from tidelake.silver.decode import DecodedField, Decoder

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_STAMP = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))
_SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), _TEXT),
    (pa.dictionary(pa.int32(), pa.string()), _TEXT),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.decimal128(38, 20), st.decimals(-(10**17), 10**17, places=20)),
    (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), _STAMP),
    (pa.timestamp("us", "UTC"), _STAMP.map(lambda at: at.replace(tzinfo=UTC))),
    (pa.timestamp("ms"), _STAMP.map(lambda at: at.replace(microsecond=at.microsecond % 10 * 1000))),
    (pa.time64("us"), st.times()),
]  # fmt: skip


def _rows(content: bytes) -> list[Any]:
    return [
        json.loads(payload, parse_float=Decimal)
        for payloads, headers in read_parquet(content)
        for payload in payloads.to_pylist()
        if headers == {}
    ]


def _written(table: pa.Table, **options: Any) -> bytes:
    out = BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


@st.composite
def _columns(draw: st.DrawFn, depth: int = 0) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """Draw a type, scalar or nested, and the strategy of its values, null included."""
    shape = draw(st.sampled_from(["scalar", "list", "struct", "map"] if depth < 2 else ["scalar"]))
    if shape == "scalar":
        kind, values = draw(st.sampled_from(_SCALARS))
        if depth and pa.types.is_dictionary(kind):
            kind = pa.string()
        return kind, st.none() | values
    kind, values = draw(_columns(depth + 1))
    if shape == "list":
        return pa.list_(kind), st.none() | st.lists(values, max_size=3)
    if shape == "map":
        return pa.map_(pa.string(), kind), st.none() | st.dictionaries(_TEXT, values, max_size=3)
    other, others = draw(_columns(depth + 1))
    made = st.fixed_dictionaries({"a b": values, 'c"': others})
    return pa.struct([("a b", kind), ('c"', other)]), st.none() | made


def _as_json(value: Any) -> Any:
    """Write a value of DuckDB as the payload should have it."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, datetime | time):
        utc = value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
        return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return Decimal(repr(value))
    return value


def _item(value: Any, kind: pa.DataType) -> Any:
    """Write a drawn value as Arrow takes it: a map as pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _item(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_item(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _item(value[field.name], field.type) for field in kind}
    return value


def _by_duckdb(content: bytes) -> list[tuple[Any, ...]]:
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file, duckdb.connect() as connection:
        Path(file.name).write_bytes(content)
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(f"SELECT * FROM '{file.name}'").fetchall()


@settings(max_examples=100)
@given(st.data())
def test_every_value_is_the_one_that_duckdb_reads(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(_columns(), min_size=1, max_size=3))
    size = data.draw(st.integers(0, 6))
    columns = {
        f"c{at}": pa.array(
            [_item(one, kind) for one in data.draw(st.lists(values, min_size=size, max_size=size))],
            kind,
        )
        for at, (kind, values) in enumerate(kinds)
    }
    compression = data.draw(st.sampled_from(["none", "zstd", "snappy"]))
    content = _written(pa.table(columns), row_group_size=2, compression=compression)
    expected = [
        {name: _as_json(value) for name, value in zip(columns, row, strict=True)}
        for row in _by_duckdb(content)
    ]
    assert _rows(content) == expected
    with pytest.MonkeyPatch.context() as patch:
        _convert_singly(patch)
        assert _rows(content) == expected


def _convert_singly(patch: pytest.MonkeyPatch) -> None:
    """Read texts as dictionaries, and convert the rows that are read at once one by one."""
    patch.setattr(parquet_files, "_REPEATED_BYTES", 0)
    patch.setattr(parquet_files, "_CONVERTED_BYTES", 1)


def _one(values: list[Any], kind: pa.DataType, **options: Any) -> list[Any]:
    """Give the JSON values of one column."""
    return [row["c"] for row in _rows(_written(pa.table({"c": pa.array(values, kind)}), **options))]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.float32(), 0.1, Decimal("0.10000000149011612")),
        (pa.decimal128(38, 10), Decimal("1e-10"), Decimal("0.0000000001")),
        (pa.binary(), b"\xff\x00", "/wA="),
        (pa.binary(2), b"ab", "YWI="),
        (pa.uuid(), UUID(int=5).bytes, "00000000-0000-0000-0000-000000000005"),
        (pa.timestamp("ns", "UTC"), 1, "1970-01-01T00:00:00.000000001Z"),
        (pa.timestamp("ns"), -1000, "1969-12-31T23:59:59.999999"),
        (pa.timestamp("ns"), -1, "1969-12-31T23:59:59.999999999"),
        (pa.timestamp("ms", "Europe/Berlin"), 0, "1970-01-01T00:00:00.000000Z"),
        (pa.time32("ms"), 1, "00:00:00.001"),
        (pa.map_(pa.int32(), pa.bool_()), [(1, True)], {"1": True}),
        (pa.map_(pa.date32(), pa.int8()), [(date(2024, 1, 1), 1)], {"2024-01-01": 1}),
        (pa.list_(pa.timestamp("ns")), [1, None], ["1970-01-01T00:00:00.000000001", None]),
        (pa.string(), 'a"\\\n\x01é', 'a"\\\n\x01é'),
        (pa.null(), None, None),
    ],
)  # fmt: skip
def test_values_are_written_as_the_decoder_expects_them(
    kind: pa.DataType, value: Any, written: Any
) -> None:
    assert _one([value, None], kind) == [written, None]


def test_int96_times_are_instants_of_any_year_with_their_nanoseconds() -> None:
    far, odd = datetime(9999, 12, 31), 1
    nested = pa.struct([("d", pa.string()), ("e.f", pa.map_(pa.string(), pa.int8()))])
    table = pa.table(
        {
            # Leaves before the others, whose paths begin as those do.
            "c": pa.array([None, None], nested),
            "c.d": pa.array([odd, None], pa.timestamp("ns")),
            "n": pa.array([[{"t": odd}], None], pa.list_(pa.struct([("t", pa.timestamp("ns"))]))),
        }
    )
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    assert _rows(_written(table, **options)) == [
        {
            "c": None,
            "c.d": "1970-01-01T00:00:00.000000001Z",
            "n": [{"t": "1970-01-01T00:00:00.000000001Z"}],
        },
        {"c": None, "c.d": None, "n": None},
    ]
    assert _one([far], pa.timestamp("us"), **options) == ["9999-12-31T00:00:00.000000Z"]


def test_rows_that_are_converted_singly_have_their_own_int96_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    times = pa.array([1, None, 3], pa.timestamp("ns"))
    content = _written(pa.table({"c": times, "t": ["aa", "b", "aa"]}), **options)
    _convert_singly(monkeypatch)
    assert [len(payloads) for payloads, _ in read_parquet(content)] == [1, 1, 1]
    at = "1970-01-01T00:00:00.00000000"
    assert _rows(content) == [
        {"c": f"{at}1Z", "t": "aa"},
        {"c": None, "t": "b"},
        {"c": f"{at}3Z", "t": "aa"},
    ]


@pytest.mark.parametrize(
    "groups",
    [*(pytest.param(groups, marks=pytest.mark.long) for groups in (1000, 10_000)), 2000, 6000],
)
def test_rows_of_any_groups_with_long_texts_have_their_own_int96_times(groups: int) -> None:
    # As Spark writes texts that repeat, in row groups of which a batch may hold several.
    count = 10_000
    times = pa.array([1000 * at + 1 for at in range(count)], pa.timestamp("ns"))
    texts = [chr(97 + at % 7) * 20_000 for at in range(count)]
    table = pa.table({"n": range(count), "c": times, "t": texts})
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    content = _written(table, row_group_size=groups, **options)
    found = [
        [json.loads(payload)[name] for name in "nc"]
        for payloads, _ in read_parquet(content)
        for payload in payloads.to_pylist()
    ]
    assert found == [[at, f"1970-01-01T00:00:00.{1000 * at + 1:09}Z"] for at in range(count)]


def test_a_file_of_which_fewer_rows_are_read_than_it_names_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = _written(pa.table({"n": range(10)}))
    every = parquet_files._batches
    monkeypatch.setattr(parquet_files, "_BATCH_ROWS", 5)
    monkeypatch.setattr(parquet_files, "_batches", lambda *args: list(every(*args))[:1])
    with pytest.raises(BrokenFileError, match="5 of its 10 rows were read"):
        _rows(content)


def test_times_beside_int96_in_a_nested_column_are_local_ones_with_their_own_digits(
    spark: SparkSession, tmp_path: Path
) -> None:
    local, instant = "TIMESTAMP_NTZ'2026-01-05 10:00:00.123456'", "TIMESTAMP'2026-01-05 10:00:01Z'"
    rows = spark.sql(
        f"SELECT named_struct('a', {instant}, 'b', {local}, 'l', array({local}, NULL)) AS s, "
        f"map({instant}, {local}) AS m"
    )
    # As Spark's defaults write both types.
    rows.coalesce(1).write.option("outputTimestampType", "INT96").parquet(str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.parquet")
    content, plain = file.read_bytes(), "2026-01-05T10:00:00.123456"
    assert parquet_schema(content)[1] == {"s", "m"}
    at = "2026-01-05T10:00:01.000000Z"
    assert _rows(content) == [{"s": {"a": at, "b": plain, "l": [plain, None]}, "m": {at: plain}}]


def test_int96_keys_of_a_map_are_instants_with_their_nanoseconds() -> None:
    kind = pa.map_(pa.timestamp("ns"), pa.timestamp("ns"))
    values = [[(1, 2), (1000, None)], None, []]
    assert _one(values, kind, use_deprecated_int96_timestamps=True, store_schema=False) == [
        {
            "1970-01-01T00:00:00.000000001Z": "1970-01-01T00:00:00.000000002Z",
            "1970-01-01T00:00:00.000001Z": None,
        },
        None,
        {},
    ]


def test_what_the_contract_cannot_hold_is_quarantined_not_rounded() -> None:
    fields = [
        DecodedField("d", pa.decimal128(4, 2), "DECIMAL(4,2)"),
        DecodedField("n", pa.timestamp("us", "UTC"), "TIMESTAMP"),
        DecodedField("f", pa.float64(), "DOUBLE"),
        DecodedField("b", pa.binary(), "BINARY"),
    ]
    table = pa.table(
        {
            "d": pa.array([Decimal("1.25"), Decimal("1.255")], pa.decimal128(9, 3)),
            "n": pa.array([1000, 1001], pa.timestamp("ns", "UTC")),
            "f": [1.5, float("inf")],
            "b": [b"\xff", b""],
        }
    )
    payloads = pa.concat_arrays([chunk for chunk, _ in read_parquet(_written(table))])
    decoded = Decoder(fields, "strict").decode(payloads).to_pylist()
    epoch = datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
    assert decoded[0]["values"] == {"d": Decimal("1.25"), "n": epoch, "f": 1.5, "b": b"\xff"}
    assert decoded[0]["broken"] == []
    assert [reason.partition(":")[0] for reason in decoded[1]["broken"]] == ["d", "n", "f"]


def test_text_that_is_not_utf_8_is_kept_for_quarantine() -> None:
    bad = pa.array([b'\xff"'], pa.binary()).view(pa.string())
    ((payloads, _),) = read_parquet(_written(pa.table({"c": bad}), store_schema=False))
    assert payloads.to_pylist() == [b'{"c":"\xff\\""}']


def test_numbers_are_written_plainly_and_doubles_are_told_from_integers() -> None:
    table = pa.table({"d": [1.0], "n": pa.array([Decimal("1e-10")], pa.decimal128(38, 10))})
    ((payloads, _),) = read_parquet(_written(table))
    assert payloads.to_pylist() == [b'{"d":1.0,"n":0.0000000001}']


def test_a_file_without_columns_has_no_rows() -> None:
    assert _rows(_written(pa.table({"c": [1, 2]}).select([]))) == []


def test_many_rows_come_in_order_and_in_small_chunks() -> None:
    content = _written(pa.table({"n": range(20_000), "t": ["x" * 2000] * 20_000}))
    chunks = [len(payloads) for payloads, _ in read_parquet(content)]
    assert max(chunks) <= 8192
    assert [row["n"] for row in _rows(content)] == list(range(20_000))


def test_a_row_group_without_rows_says_nothing_about_the_others() -> None:
    out, table = BytesIO(), pa.table({"n": range(5000)})
    with pq.ParquetWriter(out, table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table.slice(0, 0))
    content = out.getvalue()
    assert [group["rows"] for group in _groups(content)] == [5000, 0]
    assert len(list(read_parquet(content))) < 5


def _groups(content: bytes) -> list[dict[str, int]]:
    file = pq.ParquetFile(BytesIO(content)).metadata
    groups = map(file.row_group, range(file.num_row_groups))
    return [{"rows": group.num_rows, "bytes": group.total_byte_size} for group in groups]


# Buffers return their memory to the pool that gave it, so pools live as long as the tests.
_POOLS: list[pa.MemoryPool] = []


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Measure the memory that Arrow takes from here on."""
    before = pa.default_memory_pool()
    _POOLS.append(pa.proxy_memory_pool(before))
    pa.set_memory_pool(_POOLS[-1])
    yield _POOLS[-1]
    pa.set_memory_pool(before)


_LONG, _MIB = "x" * 40_000, 1 << 20


def _repeated(counts: list[tuple[str, int]], shape: str = "plain") -> bytes:
    """Write texts, each as many times as given, which a Parquet file has once."""
    texts = [text for text, _ in counts]
    indices = pa.array([at for at, (_, count) in enumerate(counts) for _ in range(count)])
    column = pa.DictionaryArray.from_arrays(indices.cast(pa.int32()), pa.array(texts))
    if shape == "nested":
        column = pa.StructArray.from_arrays([column], ["u"])
    table = pa.table({"n": range(len(indices)), "t": column})
    content = _written(table, store_schema=shape == "dictionary")
    assert len(content) < 200_000
    return content


@pytest.mark.parametrize("shape", ["plain", "dictionary", "nested"])
def test_a_long_text_of_all_rows_is_in_memory_for_few_of_them(
    pool: pa.MemoryPool, shape: str
) -> None:
    content = _repeated([(_LONG, 8000)], shape)
    assert _groups(content)[0]["bytes"] < _MIB
    rows = 0
    for payloads, _ in read_parquet(content):
        assert payloads.nbytes < 16 * _MIB
        rows += len(payloads)
    assert rows == 8000
    assert pool.max_memory() < 200 * _MIB


@pytest.mark.parametrize("other", ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_texts_of_any_encoding_are_read_beside_long_ones(other: str) -> None:
    rows = [{"t": _LONG, "u": f"u{n}", "v": b"v".decode()} for n in range(3000)]
    content = _written(
        pa.Table.from_pylist(rows),
        use_dictionary=["t"],
        column_encoding={"u": other, "v": other},
    )
    assert _rows(content) == rows


def test_a_long_text_among_short_ones_makes_no_small_parts() -> None:
    content = _repeated([("a", 9000), ("x" * (_MIB // 2), 1), ("b", 9000)])
    assert sum(len(payloads) for payloads, _ in read_parquet(content)) == 18_001
    assert len(list(read_parquet(content))) < 10


def test_rows_that_get_longer_later_in_a_file_are_read_and_converted_in_smaller_parts(
    pool: pa.MemoryPool,
) -> None:
    content = _repeated([("a", 9000), (_LONG, 6000), ("b", 5000)])
    lengths, numbers = [], []
    for payloads, _ in read_parquet(content):
        lengths.append(payloads.nbytes)
        numbers += [json.loads(row)["n"] for row in payloads.to_pylist()]
    assert numbers == list(range(20_000))
    # All long rows are 229 MiB.
    assert max(lengths) < 40 * _MIB
    assert len(lengths) < 60
    # Nor are all of them read at once, before it is known that they are long.
    assert pool.max_memory() < 250 * _MIB


_WHOLE = _written(pa.table({"c": list(range(1000))}), write_page_checksum=True, compression="none")


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"{}", _WHOLE[:-1], _WHOLE[: len(_WHOLE) // 2], _WHOLE[1:]]
)
def test_what_is_no_whole_file_is_an_error(content: bytes) -> None:
    with pytest.raises(BrokenFileError):
        list(read_parquet(content))


def test_a_flipped_bit_is_found_by_the_checksum() -> None:
    flipped = bytearray(_WHOLE)
    flipped[200] ^= 1
    with pytest.raises(BrokenFileError, match="not a readable Parquet file"):
        list(read_parquet(bytes(flipped)))


def test_two_columns_of_one_name_are_an_error() -> None:
    table = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(BrokenFileError, match="two columns with the name a"):
        list(read_parquet(_written(table)))


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda kind: kind, "c.a"),
        (lambda kind: pa.struct([("b", pa.int8()), ("d", kind)]), "c.d.a"),
        (pa.list_, "c.element.a"),
        (lambda kind: pa.map_(pa.string(), kind), "c.value.a"),
    ],
)
def test_two_fields_of_one_name_in_a_struct_are_an_error(
    wrap: Callable[[pa.DataType], pa.DataType], path: str
) -> None:
    twins = pa.struct([("a", pa.int8()), ("a", pa.int8())])
    table = pa.table({"a": [1], "c": pa.nulls(1, wrap(twins))})
    with pytest.raises(BrokenFileError, match=f"two columns with the name {re.escape(path)}"):
        list(read_parquet(_written(table)))


def test_fields_of_one_name_in_two_structs_are_no_error() -> None:
    value = {"a": 1, "b": {"a": 2, "b": 3}}
    assert _rows(_written(pa.table({"a": [value], "b": [value]}))) == [{"a": value, "b": value}]


_SMALL = _written(pa.table({"name": ["a"] * 9, "nested": [[1], None, []] * 3}), compression="none")


def test_a_damaged_file_is_never_another_error() -> None:
    chance, broken = random.Random(7), 0
    for _ in range(1000):
        content = bytearray(_SMALL)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            list(read_parquet(bytes(content)))
        except BrokenFileError:
            broken += 1
    assert broken > 500
