"""Splitting CSV: the records and fields of Python's csv, and every byte accounted for."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake import csv_records
from tidelake.bronze.file_format import BrokenFileError, Chunk
from tidelake.bronze.whole_files import reader_of
from tidelake.config import CsvFormat, FilesSource
from tidelake.config.types import parse_schema
from tidelake.csv_records import (
    LAYOUT_HEADER,
    Dialect,
    MalformedRecord,
    keeps_bytes,
    parse_layout,
    record_layout,
    split_fields,
    split_records,
)
from tidelake.silver.csv_decode import CsvDecoder
from tidelake.silver.decode import DecodedField
from tidelake.silver.payloads import arrow_type

DIALECTS = [
    Dialect(),
    Dialect(delimiter="\t"),
    Dialect(delimiter=";", quote="'"),
    Dialect(quote=None),
    Dialect(escape="\\"),
    Dialect(quote=None, escape="\\"),
    Dialect(delimiter="^", quote="]", escape="-"),
]
LINES = re.compile("[^\r\n]*(?:\r\n|\r|\n|$)")


def records_of(text: str, dialect: Dialect) -> list[bytes]:
    return [record for chunk in split_records(text.encode(), dialect) for record in chunk]


def by_python(text: str, dialect: Dialect, *, strict: bool = False) -> list[list[str]]:
    """Return the rows of Python's csv without empty lines."""
    # csv takes lines; str.splitlines would also split at letters such as U+0085.
    reader = csv.reader(
        [line for line in LINES.findall(text) if line],
        delimiter=dialect.delimiter,
        quotechar=dialect.quote,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape,
        strict=strict,
    )
    return [row for row in reader if row]


def texts(dialect: Dialect) -> st.SearchStrategy[str]:
    letters = f"aé{dialect.delimiter}{dialect.quote or ''}{dialect.escape or ''}\r\n \x85"
    return st.text(st.sampled_from(letters), max_size=30)


cases = st.sampled_from(DIALECTS).flatmap(lambda d: st.tuples(st.just(d), texts(d)))


def accounted(content: bytes, records: Sequence[bytes], start: int = 0) -> bool:
    """Whether nothing but line ends is between the records, in order."""
    position = start
    for record in records:
        while content[position : position + 1] in (b"\r", b"\n"):
            position += 1
        if content[position : position + len(record)] != record:
            return False
        position += len(record)
    return not content[position:].strip(b"\r\n")


@given(cases)
def test_records_are_those_of_pythons_csv_and_hold_every_byte(case: tuple[Dialect, str]) -> None:
    dialect, text = case
    records = records_of(text, dialect)
    assert accounted(text.encode(), records)
    whole = by_python(text, dialect)
    assert len(records) == len(whole)
    assert [by_python(record.decode(), dialect) for record in records] == [[row] for row in whole]


@given(cases)
def test_pieces_of_any_size_give_the_same_records(case: tuple[Dialect, str]) -> None:
    dialect, text = case
    whole = records_of(text, dialect)
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 2, 5):
            patch.setattr(csv_records, "_PIECE_BYTES", size)
            assert records_of(text, dialect) == whole


def read_fields(record: str, dialect: Dialect, nulls: str = "") -> list[str | None] | str:
    try:
        return split_fields(record, dialect, frozenset(nulls.split()) | {""})
    except MalformedRecord as error:
        return str(error)


@given(cases)
def test_fields_are_those_of_pythons_csv_or_both_refuse(case: tuple[Dialect, str]) -> None:
    dialect, text = case
    for record in (record.decode() for record in records_of(text, dialect)):
        found = read_fields(record, dialect)
        try:
            # At the end of a file, csv refuses a line end that is escaped.
            (wanted,) = by_python(record + "\n", dialect, strict=True)
        except csv.Error:
            assert isinstance(found, str), record
            continue
        assert [field or "" for field in found] == wanted, record


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        ("", [None]),
        (",", [None, None]),
        ('"",', ["", None]),
        ('NA,"NA",na', [None, "NA", "na"]),
        (' "a" ,b', [' "a" ', "b"]),
        ('5" pipe,6"', ['5" pipe', '6"']),
        ('"a""b"', ['a"b']),
        ('"a,b\r\nc"', ["a,b\r\nc"]),
        ('"a"b,c', "text after the closing quote of field 1"),
        ('a,"b" ', "text after the closing quote of field 2"),
        ('a,"b', "the quote of field 2 is not closed"),
        ('a,"b""', "the quote of field 2 is not closed"),
    ],
)
def test_null_empty_and_quoted_are_told_apart(record: str, fields: list[str] | str) -> None:
    assert read_fields(record, Dialect(), "NA") == fields


def test_an_escape_takes_the_meaning_from_the_next_letter() -> None:
    dialect = Dialect(escape="\\")
    assert read_fields(r"a\,b,\"c,\\,\n", dialect) == ["a,b", '"c', "\\", "n"]
    assert read_fields(r'"a\"b\n\\""c"', dialect) == ['a"bn\\"c']
    assert read_fields("a\\\nb", dialect) == ["a\nb"]
    assert read_fields(r"\N,N", dialect, r"\N") == [None, "N"]
    assert read_fields("a\\", dialect) == "ends with the escape character"
    assert read_fields('"a\\"', dialect) == "the quote of field 1 is not closed"
    assert read_fields('"a\\', dialect) == "the quote of field 1 is not closed"


def in_duckdb(file: Path, count: int) -> list[tuple[str | None, ...]]:
    columns = {f"c{number}": "VARCHAR" for number in range(count)}
    relation = duckdb.read_csv(
        str(file),
        header=False,
        columns=columns,
        delimiter=",",
        quotechar='"',
        escapechar='"',
        auto_detect=False,
        strict_mode=True,
        allow_quoted_nulls=False,
        parallel=False,
    )
    return [tuple(row) for row in relation.fetchall()]


_WORDS = st.one_of(st.none(), st.text(st.sampled_from('ab,"\n é'), max_size=5))


@given(rows=st.lists(st.tuples(_WORDS, _WORDS, _WORDS), min_size=1, max_size=8))
def test_well_formed_files_are_read_as_by_duckdb(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str | None, ...]]
) -> None:
    """DuckDB differs elsewhere, see the test below."""

    def written(field: str | None) -> str:
        return "" if field is None else '"' + field.replace('"', '""') + '"'

    text = "".join(",".join(map(written, row)) + "\n" for row in rows)
    file = tmp_path_factory.mktemp("duck") / "a.csv"
    file.write_bytes(text.encode())
    found = [tuple(read_fields(r.decode(), Dialect())) for r in records_of(text, Dialect())]
    assert found == rows
    assert in_duckdb(file, 3) == rows


def test_where_python_and_duckdb_differ_python_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    # An empty line of one column: no record for us, a null for DuckDB.
    file.write_bytes(b"a\n\nb\n")
    assert in_duckdb(file, 1) == [("a",), (None,), ("b",)]
    assert records_of("a\n\nb\n", Dialect()) == [b"a", b"b"]
    # A line feed in quotes where lines end in CRLF: part of the field for us, an error for DuckDB.
    file.write_bytes(b'"a\nb",c\r\n')
    with pytest.raises(duckdb.Error):
        in_duckdb(file, 2)
    assert read_fields('"a\nb",c', Dialect()) == ["a\nb", "c"]
    # Text after a closing quote is an error for both, though csv takes it unless it is strict.
    file.write_bytes(b'"a"b,c\n')
    with pytest.raises(duckdb.Error):
        in_duckdb(file, 2)
    assert by_python('"a"b,c', Dialect()) == [["ab", "c"]]


def layout(**keys: object) -> CsvFormat:
    return CsvFormat.model_validate(keys)


def read_file(content: bytes, csv_format: CsvFormat) -> Iterator[Chunk]:
    read = reader_of(FilesSource(kind="files", path="x", format="csv", csv=csv_format))
    assert read is not None
    return read(content)


def payloads_of(content: bytes, csv_format: CsvFormat) -> tuple[list[bytes], list[str]]:
    """Return a file's payloads, and the names of its columns."""
    payloads: list[bytes] = []
    names: list[str] = []
    for chunk, headers in read_file(content, csv_format):
        assert headers.keys() == {LAYOUT_HEADER}
        records = chunk.to_pylist()
        payloads += records
        dialect, columns = parse_layout(headers[LAYOUT_HEADER])
        names = list(columns)
        for record in records:
            record.decode(dialect.encoding)
    return payloads, names


def test_the_header_is_no_record_and_kept_with_each_record() -> None:
    content = b'\xef\xbb\xbfid,"a ""b"""\r\n1,x\r\n'
    assert payloads_of(content, layout()) == ([b"1,x"], ["id", 'a "b"'])
    assert payloads_of(b"1,x\n", layout(columns=["id", "a"])) == ([b"1,x"], ["id", "a"])
    marked = b"\xef\xbb\xbf1,x\n"
    assert payloads_of(marked, layout(columns=["id", "a"])) == ([b"1,x"], ["id", "a"])
    assert list(read_file(b"", layout())) == []
    assert payloads_of(b"\n\nid,a\n\n", layout()) == ([], ["id", "a"])


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"id,,a,\n", "its header has no name in column 2, no name in column 4"),
        (b"id,a,id,a,id\n", "its header has the name id 3 times, the name a 2 times"),
        (b'id,"a\n1,2\n', "its header cannot be read: the quote of field 2 is not closed"),
        (b"id,\xff\n", "its header is not utf-8 text"),
    ],
)
def test_a_header_without_names_to_rely_on_breaks_the_file(header: bytes, reason: str) -> None:
    with pytest.raises(BrokenFileError, match=f"^{re.escape(reason)}$"):
        list(read_file(header, layout()))


def test_bytes_are_kept_in_any_encoding_that_allows_it() -> None:
    latin = "id,städtename\n1,Zürich\n".encode("latin-1")
    assert payloads_of(latin, layout(encoding="latin-1"))[0] == ["1,Zürich".encode("latin-1")]
    assert payloads_of(latin, layout(encoding="cp1252"))[1] == ["id", "städtename"]
    # 表 is 0x95 0x5C in Shift-JIS, and 0x5C alone is a backslash.
    japanese = "id,a\n1,表\n2,x\n".encode("shift_jis")
    csv_format = layout(encoding="shift_jis", escape="\\")
    assert payloads_of(japanese, csv_format)[0] == ["1,表".encode(), b"2,x"]
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        wide = "\ufeffid,a\n1,é\n" if encoding == "utf-16-le" else "id,a\n1,é\n"
        content = wide.encode(encoding)
        found = payloads_of(content, layout(encoding=encoding))
        assert found == (["1,é".encode()], ["id", "a"])
    with pytest.raises(BrokenFileError, match="it is not utf-16-le text: byte 2"):
        list(read_file(b"a\x00b", layout(encoding="utf-16-le")))


def test_encodings_are_told_apart_by_what_their_bytes_mean() -> None:
    kept = ["utf-8", "ascii", "latin-1", "cp1252", "koi8-r", "euc_jp", "iso8859-15", "gb2312"]
    converted = ["utf-16", "utf-32-be", "shift_jis", "big5", "gbk", "cp037", "iso2022_jp", "hz"]
    assert [name for name in kept if not keeps_bytes(name)] == []
    assert [name for name in converted if keeps_bytes(name)] == []


def test_a_layout_is_read_as_it_was_written() -> None:
    for dialect in DIALECTS:
        assert parse_layout(record_layout(dialect, ["a", 'é"'])) == (dialect, ("a", 'é"'))
    for broken in (b"", b"{}", b"[]", b'{"columns":["a"],"colour":1}', b"\xff"):
        with pytest.raises(ValueError, match=r"layout|codec|Expecting"):
            parse_layout(broken)


FUZZED = pytest.param(10_000, marks=pytest.mark.long)


@pytest.mark.parametrize("count", [300, FUZZED])
def test_each_byte_of_a_fuzzed_file_is_in_a_record_that_is_decoded_or_refused(count: int) -> None:
    chance = random.Random(7)
    pieces = [
        b"a",
        b"1.5",
        b'"',
        b'""',
        b",",
        b",",
        b"\n",
        b"\r\n",
        b"\r",
        b"\\",
        b" ",
        b"\xff",
        b"",
    ]
    pieces += [b"\xef\xbb\xbf", "é".encode(), b"\x00", b";", b"NA", b'"x,y"', b'"q\nr",']
    formats = [
        layout(columns=["a", "b"]),
        layout(columns=["a", "b"], escape="\\"),
        layout(columns=["a", "b"], quote=None, delimiter=";"),
        layout(columns=["a", "b"], encoding="latin-1"),
    ]
    fields = [
        DecodedField(one.name, arrow_type(one.type), one.type.sql)
        for one in parse_schema("a STRING, b DOUBLE")
    ]
    decoder, parsed = CsvDecoder(fields, "additive", ["NA"]), 0
    for _ in range(count):
        content = b"".join(chance.choices(pieces, k=chance.randint(0, 25)))
        csv_format = chance.choice(formats)
        chunks = list(read_file(content, csv_format))
        records = [record for chunk, _ in chunks for record in chunk.to_pylist()]
        is_marked = content.startswith(b"\xef\xbb\xbf") and csv_format.encoding == "utf-8"
        assert accounted(content, records, start=3 if is_marked else 0), content
        for chunk, headers in chunks:
            layouts = pa.array([headers[LAYOUT_HEADER]] * len(chunk), pa.binary())
            rows = decoder.decode(chunk, layouts).to_pylist()
            assert len(rows) == len(chunk), content
            # What is not of its file has its reason, and no values.
            assert all(
                row["parsed"] or (row["broken"] and not any(row["values"].values())) for row in rows
            ), content
            parsed += sum(row["parsed"] for row in rows)
        try:
            with_header = [
                r for chunk, _ in read_file(content, layout()) for r in chunk.to_pylist()
            ]
        except BrokenFileError as error:
            assert str(error)
        else:
            whole = [
                r
                for chunk, _ in read_file(content, layout(columns=["a"]))
                for r in chunk.to_pylist()
            ]
            assert with_header == whole[1:], content
    assert parsed > count // 10
