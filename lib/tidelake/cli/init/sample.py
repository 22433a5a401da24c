"""Read a sample of records, from files (JSON lines, CSV, Parquet, Avro) or from a Delta table."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate, chain, islice
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote

from tidelake.bronze.archives import DAMAGE, OPENERS, decompressed
from tidelake.cli.init.file_schema import common_types, of_arrow, types_in
from tidelake.config import CsvFormat, FilesSource, Registry
from tidelake.config.source import FileFormat
from tidelake.config.types import FieldType
from tidelake.errors import SourceError
from tidelake.folders import Folder, folder
from tidelake.object_store import translating_errors
from tidelake.runtime.landed_files import LandedFile, list_files, refuse_unfit, refuse_unreadable
from tidelake.visible import shortened

if TYPE_CHECKING:
    from tidelake.silver.envelope import Unwrapped

# Maximum files read of a folder, which may hold a million: evenly spread by modification time.
_FILES = 50
# Maximum commits read of a Delta table's log.
_COMMITS = 1_000
# What a file begins with.
_MAGIC: dict[bytes, FileFormat] = {b"PAR1": "parquet", b"Obj\x01": "avro"}
_GZIP = b"\x1f\x8b"
# What a sender that cuts texts leaves of a pair of surrogates.
_HALF = "half of a character"
_SUFFIXES: dict[str, FileFormat] = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".csv", ".tsv", ".psv"), "csv"),
    ".parquet": "parquet",
    ".avro": "avro",
}
# What is read of a file to recognise CSV, of all CSV files, and at once from an object store.
_HEAD_BYTES, _MAX_CSV_BYTES, _BLOCK_BYTES = 1 << 16, 16 << 20, 1 << 18
# Files that must be read whole are left out beyond this, but one.
_MAX_WHOLE_BYTES = 64 << 20
# Maximum bytes of a record, to bound memory.
_MAX_RECORD_BYTES = 16 << 20
# Characters of a payload in a message.
_SHOWN = 40
# Fields of a line that is not taken for a broken one of JSON.
_BLANK_SEPARATED = 3
# Lines in which a JSON value of several lines is looked for.
_OPENING = 200


@dataclass(frozen=True)
class Record:
    """A record: its location for messages, its source partition (one for all files), its bytes.

    ``key`` is that of a topic's record, if it has one; ``commit`` the version of a Delta table that
    added a row, if it is known.
    """

    place: str
    partition: str
    payload: bytes
    key: bytes | None = None
    commit: int | None = None


@dataclass(frozen=True)
class Sample:
    """Records that parse, in order of arrival, and ``broken`` ones with the reason.

    ``values`` are the parsed records; numbers with a decimal point are ``Decimal``. ``types`` are
    those of the fields that the schemas of files or messages define. Of CSV files, ``csv`` is the
    layout and ``header`` the header record of the first, None if they have none. Of change events,
    ``values`` are the rows, ``changes`` what else each event says, ``key`` the fields of the
    primary key with the reason, and ``skipped`` how many records have no row.
    """

    records: tuple[Record, ...]
    values: tuple[dict[str, Any], ...]
    broken: tuple[tuple[Record, str], ...]
    format: FileFormat | Literal["delta"] = "json"
    types: Mapping[str, FieldType] = field(default_factory=dict)
    csv: CsvFormat | None = None
    header: bytes | None = None
    registry: Registry | None = None
    notes: tuple[str, ...] = ()
    changes: tuple[Unwrapped, ...] = ()
    key: tuple[tuple[str, ...], str] = ((), "")
    skipped: int = 0


def sample_of(
    records: Iterable[Record],
    format_: FileFormat | Literal["delta"] = "json",
    types: Mapping[str, FieldType] | None = None,
) -> Sample:
    """Parse records as JSON; change events are unwrapped.

    Raises:
        SourceError: There are no records, or most are not JSON objects; names the first of those.
    """
    parsed = [(record, parse_object(record.payload)) for record in records]
    objects = [found for _, found in parsed if isinstance(found, dict)]
    empty = Sample((), (), (), format_, types or {})
    if format_ in ("json", "avro") and 2 * sum(map(_is_change, objects)) > len(objects):
        # It imports pyarrow, which is slow.
        from tidelake.cli.init.changes import unwrap_sample  # noqa: PLC0415

        return unwrap_sample([record for record, _ in parsed], objects, empty)
    return _sorted_out(parsed, empty)


def _is_change(value: dict[str, Any]) -> bool:
    """Return whether an object is a change event of Debezium, bare or with its schema."""
    event = value.get("payload") if value.keys() == {"schema", "payload"} else value
    return (
        isinstance(event, dict)
        and isinstance(event.get("op"), str)
        and isinstance(event.get("source"), dict)
        and not event.keys().isdisjoint(("before", "after"))
    )


def _sorted_out(parsed: Iterable[tuple[Record, dict[str, Any] | str]], empty: Sample) -> Sample:
    """Fill a sample with records, each with its values or the reason why it is broken."""
    read = list(parsed)
    sound = [(record, found) for record, found in read if not isinstance(found, str)]
    broken = [(record, found) for record, found in read if isinstance(found, str)]
    if not read:
        raise SourceError(
            "the sample holds no record: every file or line is empty. Write records to it, or give "
            "another source"
        )
    if len(broken) >= max(len(sound), 1):
        first, why = broken[0]
        share = f"{len(broken):,} of {len(read):,} records"
        if empty.csv is not None:
            remedy = "Write the pipeline file by hand, with the dialect under source.csv."
            raise SourceError(f"{first.place}: {why} ({share} are not CSV of one kind). {remedy}")
        raise SourceError(
            f"{first.place}: {why} ({share} are not one JSON object). {_remedy(first, why)}"
        )
    records, values = tuple(one for one, _ in sound), tuple(found for _, found in sound)
    return replace(empty, records=records, values=values, broken=tuple(broken))


def read_source(place: str, *, lines: int) -> Sample:
    """Sample records of a Delta table's newest files, or the first of files by modification time.

    Of each file, equally many are taken. A folder is read recursively, without hidden files. On an
    object store, only the beginning of a file is fetched where its format allows.

    Raises:
        SourceError: The path does not exist, has no files or files of several formats, or a file
            cannot be read.
        UsageError: There is no such bucket.
        MachineError: The object store refuses access or does not answer.
    """
    place = os.path.expanduser(place).rstrip("/") or "/"
    with translating_errors(f"the source {place}"):
        if _is_table(place):
            return _read_table(folder(place), lines)
        return _read_files(place, lines=lines)


def _is_table(place: str) -> bool:
    with suppress(OSError):
        return bool((folder(place) / "_delta_log").exists())
    return False


def _read_table(path: Folder, lines: int) -> Sample:
    # pyarrow is slow to import.
    from tidelake.bronze.arrow_json import UnsupportedTypeError, to_json_objects  # noqa: PLC0415
    from tidelake.ledger.query import first_rows  # noqa: PLC0415

    found = first_rows(path, lines)
    rows, files = found.remove_column(found.num_columns - 1), found.columns[-1].to_pylist()
    versions = _versions(path, set(files))
    arrived = [versions.get(file) for file in files]
    names = rows.schema.names
    types = common_types([{field.name: of_arrow(field.type) for field in rows.schema}])
    try:
        payloads = [to_json_objects(batch.columns, names) for batch in rows.to_batches()]
    except UnsupportedTypeError as error:
        raise SourceError(
            f"the Delta table {path} cannot be sampled: {error}. Pass files of its records with "
            "--sample"
        ) from error
    records = [
        Record(f"{path} row {number}", "table", payload.as_py(), commit=version)
        for number, (payload, version) in enumerate(
            zip(chain.from_iterable(payloads), arrived, strict=True), start=1
        )
    ]
    # The newest commit is scanned first.
    records.sort(key=lambda record: -1 if record.commit is None else record.commit)
    return sample_of(records, "delta", types)


def _versions(path: Folder, files: set[str]) -> dict[str, int]:
    """Return the version of a Delta table that added each of its files, by the file's path.

    Left out are files that a compaction wrote, and those of commits that are no longer in the log
    or are not among its newest.
    """
    from tidelake.delta.log import files_of  # noqa: PLC0415  only for a table

    # Names in the log are URLs, relative to the table.
    wanted = {PurePosixPath(str(file)).name: file for file in files}
    found: dict[str, int] = {}
    for commit in islice(files_of(path, {}), _COMMITS):
        for add in commit.actions("add"):
            file = wanted.pop(PurePosixPath(unquote(add["path"])).name, None)
            if file is not None and add.get("dataChange", True):
                found[file] = commit.version
        if not wanted:
            break
    return found


def _read_files(place: str, *, lines: int) -> Sample:
    # Messages name files as the user named the folder.
    root = str(folder(place))
    named_so = (
        replace(file, path=f"{place}{file.path.removeprefix(root)}")
        for file in list_files(place).values()
    )
    listed = sorted(named_so, key=lambda file: (file.modified, file.path))
    # An archive has no format of its own.
    refuse_unreadable([file.path for file in listed if _named_format(file.path) is None], "json")
    step = max(len(listed) / _FILES, 1)
    files = [listed[int(at * step)] for at in range(min(len(listed), _FILES))]
    # All files are judged by their extensions, the chosen ones by their content too.
    formats = {
        format_: file.path
        for chosen, tell in ((files, _format_of), (listed, _named_format))
        for file in reversed(chosen)
        if (format_ := tell(file.path)) is not None
    }
    if len(formats) > 1:
        examples = ", ".join(f"{path} ({name})" for name, path in sorted(formats.items()))
        raise SourceError(
            f"{place} holds files of several formats: {examples}. A source has one format: pass a "
            "folder for each, or a file with --sample."
        )
    (format_,) = formats
    refuse_unfit(listed, format_)
    _refuse_tables(place, files if format_ == "parquet" else ())
    each = max(lines // len(files), 1)
    if format_ == "csv":
        sample = _csv_sample(files, each=each)
    elif format_ != "json":
        sample = _of_whole_files(files, format_, lines=lines)
    else:
        found = (record for file in files for record in islice(_lines(file.path), each))
        sample = sample_of(islice(found, lines))
    return replace(sample, notes=sample.notes + _notes_on(files[0].path.removeprefix(place)))


def _notes_on(path: str) -> tuple[str, ...]:
    """Return a note on columns that are in a file's path alone, as in partitioned folders."""
    return tuple(
        f"{name} is in the names of the folders, not in the records; to keep it, add to "
        f"event.select: {name}: regexp_extract(source, '/{name}=([^/]*)/', 1)"
        for name in re.findall(r"(?<=/)([A-Za-z]\w*)=[^/]*(?=/)", path)
    )


def _refuse_tables(place: str, files: Iterable[LandedFile]) -> None:
    """Refuse a folder of Delta tables, whose files include those of deleted rows."""
    inner = {str(up) for file in files for up in Path(file.path.removeprefix(place)).parents}
    for below in sorted(inner, key=len)[:_FILES]:
        table = f"{place}/{below.strip('/')}"
        if _is_table(table):
            raise SourceError(f"{place} holds Delta tables: pass one, such as --source {table}")


def _csv_sample(files: Sequence[LandedFile], *, each: int) -> Sample:
    # Needs numpy, which comes with the extra `local`; a sample of JSON does without.
    from tidelake.cli.init.csv_sample import CsvFile, sample_csv  # noqa: PLC0415

    size = max(_MAX_CSV_BYTES // len(files), _HEAD_BYTES)
    heads = [CsvFile(file.path, *_head(file.path, size)) for file in files]
    layout, header, parsed, notes = sample_csv(heads, each=each)
    return _sorted_out(parsed, Sample((), (), (), "csv", csv=layout, header=header, notes=notes))


def _head(path: str, size: int) -> tuple[bytes, bool]:
    """Return the beginning of a file, and whether it goes on after that."""
    with _opened(path) as stream:
        head = stream.read(size)
    return head, len(head) == size


def _named_format(path: str) -> FileFormat | None:
    """Return a file's format by the extension before that of a compression; None if unknown."""
    file = PurePosixPath(path)
    bare = file.with_suffix("") if file.suffix in OPENERS else file
    return _SUFFIXES.get(bare.suffix.lower())


def _format_of(path: str) -> FileFormat:
    """Return a file's format by its name, or by what it begins with."""
    if named_format := _named_format(path):
        return named_format
    head, is_cut = _head(path, _HEAD_BYTES)
    if found := _MAGIC.get(head[:4]):
        return found
    from tidelake.cli.init.csv_sample import looks_like_csv  # noqa: PLC0415  as above

    return "csv" if looks_like_csv(head, is_cut=is_cut) else "json"


@contextmanager
def _raw(path: str) -> Iterator[IO[bytes]]:
    """Open a file, on a disk or an object store; errors of the block name it."""
    place = folder(path)
    try:
        if isinstance(place, Path):
            opened: IO[bytes] = place.open("rb")
        else:
            # By default an object is fetched in blocks of many megabytes.
            stored = place.open("rb", block_size=_BLOCK_BYTES)
            # Its own lines have no limit.
            opened = io.BufferedReader(cast(io.RawIOBase, stored))
        with opened:
            yield opened
    except DAMAGE as error:
        raise SourceError(
            f"{path} cannot be read: {error}. Pass another file with --sample"
        ) from error


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed; errors of the block name it."""
    with _raw(path) as stream:
        open_compressed = OPENERS.get(PurePosixPath(path).suffix)
        if open_compressed is None and cast(io.BufferedReader, stream).peek(2)[:2] == _GZIP:
            raise SourceError(
                f"{path} is compressed with gzip: let its name end in .gz, by which Spark knows it"
            )
        yield stream if open_compressed is None else open_compressed(stream)


def _of_whole_files(files: Sequence[LandedFile], format_: FileFormat, *, lines: int) -> Sample:
    """Sample the first rows of files whose schemas have their fields' types."""
    # pyarrow, which a sample of JSON does not need, is slow to import.
    from tidelake.bronze.whole_files import reader_of  # noqa: PLC0415

    totals = accumulate(file.size for file in files)
    chosen = [
        file.path
        for number, (file, total) in enumerate(zip(files, totals, strict=True))
        if number == 0 or total <= _MAX_WHOLE_BYTES
    ]
    each = max(lines // len(chosen), 1)
    read = reader_of(FilesSource(kind="files", path=chosen[0], format=format_))
    assert read is not None
    records: list[Record] = []
    schemas = []
    for path in chosen:
        with _raw(path) as stream:
            content = decompressed(path, stream.read())
            payloads = chain.from_iterable(chunk.to_pylist() for chunk, _ in read(content))
            records += [
                Record(f"{path} row {number}", "files", payload)
                for number, payload in enumerate(islice(payloads, each), start=1)
            ]
            schemas.append(types_in(format_, content))
    return sample_of(records[:lines], format_, common_types(schemas))


def _lines(path: str) -> Iterator[Record]:
    with _opened(path) as stream:
        lines = iter(lambda: stream.readline(_MAX_RECORD_BYTES), b"")
        opening = list(islice(lines, _OPENING))
        if opening:
            opening[0] = opening[0].removeprefix(b"\xef\xbb\xbf")
            _refuse_document(path, b"".join(opening).decode(errors="replace").strip())
        for number, line in enumerate(chain(opening, lines), start=1):
            payload = line.removesuffix(b"\n")
            if payload.strip():
                yield Record(f"{path} line {number}", "files", payload)


def _refuse_document(path: str, opening: str) -> None:
    """Refuse a file whose lines are not its JSON objects."""
    first = opening.partition("\n")[0].strip()
    if re.match(r"\[\s*(?:\{|$)", first):
        raise SourceError(
            f"{path} is one JSON array, not one JSON object per line. Write one object per line, "
            f"into another folder: jq -c '.[]' FILE > LINES.jsonl"
        )
    if not first.startswith("{") or isinstance(parse_object(first.encode()), dict):
        return
    try:
        _, end = json.JSONDecoder().raw_decode(opening)
    except (ValueError, RecursionError):
        # For a longer object, its first line says more than the message of the parser.
        end = len(first) + 1 if first == "{" else 0
    if end > len(first):
        raise SourceError(
            f"{path} has JSON objects of several lines. Write each object on one line, into "
            "another folder: jq -c . FILE > LINES.jsonl"
        )


def parse_object(payload: bytes) -> dict[str, Any] | str:
    """Return the object that JSON text holds, or the reason why it holds none."""
    try:
        text = payload.decode("utf-8")
        value = json.loads(text, parse_float=_number, parse_constant=_no_constant)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except UnicodeEncodeError as error:
        return rf"not JSON: {_HALF}, \u{ord(error.object[error.start]):04x}"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.pos + 1}: {shortened(text, _SHOWN)}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(value, dict):
        return f"JSON, but not an object: {shortened(text, _SHOWN)}"
    return value


def _number(text: str) -> Decimal | str:
    """Return a number; as silver does, its text if it overflows or underflows a double."""
    digits, value = re.split("[eE]", text)[0], float(text)
    if math.isinf(value) or (value == 0 and digits.strip("-0.")):
        return text
    # The exponent of a zero may be one that no Decimal has.
    return Decimal(text if value else digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _remedy(record: Record, why: str) -> str:
    payload = record.payload
    if _HALF in why:
        return "The sender cuts texts within a character: mend it there, or use other records."
    if payload.startswith(b"\0"):
        return (
            "It begins as Avro with the id of its schema: pass --registry URL of the schema "
            "registry. Without one, write the pipeline file by hand, with source.format: avro."
        )
    text = payload.decode("utf-8", errors="replace").strip()
    is_plain = "{" not in text and not text.startswith("[")
    bare = re.sub('"[^"]*"', "", text)
    if is_plain and "," in bare:
        return "This looks like CSV; give its files names that end in .csv."
    if is_plain and record.partition == "files" and len(bare.split()) >= _BLANK_SEPARATED:
        return (
            "These are neither JSON lines nor CSV with one of , ; tab |. For fields separated by "
            "blanks write the pipeline file by hand, with format: csv and "
            'csv: {columns: […], delimiter: " "}'
        )
    return "A source is JSON, one object per line."
