"""Whether `tidelake init` takes the first record of CSV for a header, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelake.cli import app
from tidelake.cli.exits import run_command
from tidelake.cli.init.csv_sample import CsvFile, sample_csv
from tidelake.config import load_environment, load_pipeline
from tidelake.config.source import FilesSource
from tidelake.errors import SourceError

# Records are separated by a blank bar: each of these files begins with a header.
HEADERS = {
    "words above numbers": "id,name,n | 1,ann,5 | 2,bob,6 | 3,cid,7",
    "a number in one column": "name,n | ann,5 | bob,6",
    "times": "user,at | ann,2026-01-05T10:00:00Z | bob,2026-01-05T10:01:00Z",
    "times of a spreadsheet": "Nr;Datum | R1;31.12.2026 | R2;30.12.2026 | R3;29.12.2026",
    "truth values": "user,ok | ann,true | bob,false",
    "years": "country,2019,2020 | DE,1,2",
    "years above fractions": "country,2019,2020 | DE,1.5,2.25 | FR,3,4.5",
    "years above a missing value": "country,2019,2020 | DE,,2 | FR,3,",
    "years above texts": "country,2019,2020 | DE,low,high | FR,mid,low",
    "dates": "sensor,2026-01-05,2026-01-06 | a,1,2 | b,3,4",
    "months": "sensor,2026-01,2026-02 | a,1,2 | b,3,4",
    "a number above texts": "id,name,1 | 7,ann,a | 8,bob,b",
    "truth values as names": "id,true,false | 7,4,5 | 8,4,6",
    "hours above numbers": "day,0,1,2 | 2026-01-05,5,6,7 | 2026-01-06,5,7,7",
    "texts above codes": "name,country | alice,DE | bob,FR | carl,DE",
    "words above words": "name,action,country | alice,login,germany | bob,logout,france",
    "capitals": "NAME,STATUS | ALICE,OPEN | BOB,OPEN | CARL,PAID",
    "ids with digits": "id,name | e1,alice | e2,bob | e3,carl",
    "leading zeros": "zip,city | 01234,Bonn | 04567,Jena",
    "digests": "sha256,name | 9f86d081884c7d65,a | 2c26b46b68ffc68f,b",
    "a text of null": "id,delay | a,NA | b,5 | c,NA",
    "decimal commas": "Nr;Betrag | R1;12,50 | R2;7,25",
    "a total at the end": "name,n | ann,5 | bob,6 | TOTAL,11",
    "short records at the end": "name,n,m | ann,5,6 | bob,6,7 | TOTAL,11",
    "files put together": "name,kind | ann,a | bob,b | name,kind | cid,c",
    "one column": "name | alice | bob",
    "one record": "id,n | a,1",
    "no more than a header of texts": "name,country",
}
# None of these files does.
DATA = {
    "numbers": "1,2,3 | 4,5,6",
    "texts of which one comes again": "alice,login,DE | bob,logout,FR | carl,login,IT",
    "texts that come again": "INFO,db,started | WARN,db,disk low | INFO,web,stopped",
    "ids with digits": "e1,alice | e2,bob | e10,carl",
    "ids of one length": "3f2a-11ab,alice | 9c1d-22cd,bob | 7e0f-33ef,carl",
    "times": "e1,2026-01-05T10:00:00Z,5 | e2,2026-01-05T10:01:00Z,6",
    "times of a spreadsheet": "x;31.12.2026 | y;30.12.2026 | z;29.12.2026",
    "a text above numbers beside times": "ann,unknown,2026-01-05 | bob,5,2026-01-06",
    "texts and numbers": "ann,5 | bob,6 | cid,7",
    "fractions and whole numbers": "kitchen,20.5 | hall,19 | kitchen,21",
    "truth values": "a,true | b,false | c,true",
    "years": "ann,2019,5 | bob,2020,6 | cid,2021,7",
    "two years": "DE,2019,2020 | FR,2018,2021",
    "numbers like years": "s1,2019,2020 | s2,512,88 | s3,77,5",
    "a text of null first": "NA,5,x | 3,6,y | 4,7,x",
    "an empty field": "a,,b | 3,4,5",
    "a field twice": "a,b,a | 3,4,5",
    "one record": "e1,5",
}


def _content(records: str) -> bytes:
    return records.replace(" | ", "\n").encode() + b"\n"


@pytest.mark.parametrize(
    ("records", "is_header"),
    [
        *(pytest.param(text, True, id=f"a header: {name}") for name, text in HEADERS.items()),
        *(pytest.param(text, False, id=f"data: {name}") for name, text in DATA.items()),
    ],
)
def test_the_first_record_is_taken_for_what_it_is(records: str, is_header: bool) -> None:
    content = _content(records)
    layout, header, _, notes = sample_csv([CsvFile("a.csv", content, False)], each=100)
    assert (header is not None, layout.columns is None) == (is_header, is_header)
    shown = content.decode().splitlines()[0]
    meaning = "taken as the header" if is_header else "read as data, no header"
    assert f"the first record is {meaning}: {shown}. If it is " in notes[0]


@pytest.mark.parametrize("alone", ["name,action,country", "name,kind,n | bob,view,IT"])
@pytest.mark.parametrize(
    ("others", "is_header"),
    [
        ("country,2019,2020 | DE,1,2", True),
        (DATA["two years"], False),
        (DATA["texts of which one comes again"], False),
    ],
)
def test_a_file_of_which_nothing_tells_goes_with_the_others(
    alone: str, others: str, is_header: bool
) -> None:
    contents = {"a.csv": _content(alone), "b.csv": _content(others)}
    files = [CsvFile(place, content, False) for place, content in contents.items()]
    layout, _, _, _ = sample_csv(files, each=100)
    assert (layout.columns is None) == is_header


def test_a_file_without_a_header_beside_one_with_it_is_refused() -> None:
    """Bronze would take its first record for a header."""
    contents = {"a.csv": b"id,n\na,1\nb,2\n", "b.csv": b"c,3\n"}
    files = [CsvFile(place, content, False) for place, content in contents.items()]
    with pytest.raises(SourceError, match="differ in their header: a"):
        sample_csv(files, each=100)


@pytest.mark.parametrize(
    ("records", "keys"),
    [
        ("id,n | a,1 | b,2", '{header: true, delimiter: ","}'),
        ("a,1 | b,2", '{columns: [column_1, column_2], delimiter: ","}'),
    ],
)
def test_the_file_says_whether_there_is_a_header(
    empty_folder: Path, records: str, keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("landing").mkdir()
    Path("landing/a.csv").write_bytes(_content(records))
    assert run_command(app, ["init", "seen", "--source", "landing", "--yes"]) == 0
    assert f"csv: {keys}\n" in Path("conf/pipelines/seen.yml").read_text()
    assert "Note: the first record is" in capsys.readouterr().err
    assert isinstance(load_pipeline("seen", load_environment()).source, FilesSource)


def test_a_long_first_record_is_cut_off() -> None:
    content = f"id,{'n' * 80}\na,1\nb,2\n".encode()
    _, _, _, notes = sample_csv([CsvFile("a.csv", content, False)], each=100)
    assert f": id,{'n' * 57}…. If" in notes[0]
