"""What a folder offers, what was taken from it, and that no file changes unseen."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import os
import re
import shutil
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.handmade import write_commit, write_offset
from tidelake import folders
from tidelake.config.source import FileFormat, FilesSource
from tidelake.delta.log import commits
from tidelake.delta.tables import Lake
from tidelake.errors import SourceChangedError, SourceError, SourceNameError
from tidelake.folders import LISTING_SECONDS, place_of
from tidelake.runtime import landed_files
from tidelake.runtime.checkpoints import batch_paths, logged_files
from tidelake.runtime.landed_files import (
    LandedFile,
    LandingGuard,
    check_bytes,
    check_landing,
    check_unchanged,
    clean_landing,
    list_files,
    planned_files,
    present_files,
    refuse_broken,
    refuse_changed,
    refuse_too_large,
    refuse_unreadable,
    taken_files,
    uncleaned_text,
)

EVENT = '{"a": 1}\n'


def put(file: Path, text: str = EVENT) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return str(file)


def write_source_log(
    checkpoint: Path, number: int, entries: Iterable[tuple[str, int]], *, compact: bool = False
) -> None:
    """Write an entry of Spark's file source log: (URI, number of the log entry) of each file."""
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": uri, "timestamp": 1, "batchId": batch}) for uri, batch in entries]
    name = f"{number}.compact" if compact else str(number)
    (log / name).write_text("\n".join(["v1", *lines]), encoding="utf-8")


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere does not exist\. Create it .*--source") as told:
        list_files(str(tmp_path / "nowhere"))

    assert told.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no file"):
        list_files(str(tmp_path))


def test_a_folder_of_hidden_files_alone_counts_as_empty(tmp_path: Path) -> None:
    for name in (".part-0.json", "_SUCCESS", "_temporary/0/a.json", ".git/b.json", "deep/_c.json"):
        put(tmp_path / name)

    with pytest.raises(SourceError, match=r"holds no file.*names that begin with \. or _"):
        list_files(str(tmp_path))


def test_names_are_ignored_as_spark_ignores_them(tmp_path: Path) -> None:
    """But for Parquet's own files, which Spark plans and does not read."""
    read = [
        put(tmp_path / name)
        for name in ("_a=b.json", "_day=1/x.json", "_metadata/x.json", "_common_metadata.d/x.json")
    ]
    for name in ("_metadata", "_common_metadata", "a._COPYING_", "b._COPYING_/x.json"):
        put(tmp_path / "_day=1" / name)
    put(tmp_path / "_h" / "_day=1" / "x.json")

    assert set(list_files(str(tmp_path))) == set(read)
    # A folder may have such a name if it is the source, but a file may not.
    assert set(list_files(str(tmp_path / "_h"))) == {str(tmp_path / "_h" / "_day=1" / "x.json")}
    with pytest.raises(SourceError, match="holds no file"):
        list_files(str(tmp_path / "_day=1" / "_metadata"))


def test_files_are_found_in_nested_folders_with_size_and_time(tmp_path: Path) -> None:
    top = put(tmp_path / "a.json")
    deep = put(tmp_path / "2024" / "01" / "b c.json", EVENT * 2)
    put(tmp_path / "2024" / ".b.json.crc")
    os.utime(deep, ns=(0, 1_704_067_200_123_000_000))

    found = list_files(str(tmp_path))

    assert set(found) == {top, deep}
    assert found[deep] == LandedFile(deep, 18, 1_704_067_200_123)


def test_a_single_file_is_a_source_too(tmp_path: Path) -> None:
    file = put(tmp_path / "a.json")

    assert list(list_files(file)) == [file]


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may read everything, so the refusal is played.
    def refuse(folder: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        list_files(str(tmp_path))


def test_a_link_to_nowhere_is_an_error_by_name(tmp_path: Path) -> None:
    put(tmp_path / "a.json")
    (tmp_path / "dead.json").symlink_to(tmp_path / "nowhere")

    with pytest.raises(SourceError, match=r"dead\.json"):
        list_files(str(tmp_path))


def test_unchanged_gone_and_new_files_are_no_change(tmp_path: Path) -> None:
    put(tmp_path / "a.json")
    gone = Path(put(tmp_path / "gone.json"))
    taken = list_files(str(tmp_path))
    gone.unlink()
    put(tmp_path / "new.json")

    refuse_changed(list_files(str(tmp_path)), taken)


def test_a_file_that_grew_is_refused_by_name_and_sizes(tmp_path: Path) -> None:
    file = put(tmp_path / "a.json")
    put(tmp_path / "b.json")
    taken = list_files(str(tmp_path))
    put(tmp_path / "a.json", EVENT * 200)

    with pytest.raises(SourceChangedError) as refused:
        refuse_changed(list_files(str(tmp_path)), taken)

    assert refused.value.changes == (f"{file}: 9 bytes when read, 1,800 bytes now, modified since",)
    assert refused.value.exit_code == 3
    assert "new file" in str(refused.value)


def test_a_file_replaced_by_one_of_the_same_size_is_refused(tmp_path: Path) -> None:
    file = put(tmp_path / "a.json")
    os.utime(file, ns=(0, 1_704_067_200_000_000_000))
    taken = list_files(str(tmp_path))
    put(tmp_path / "a.json", EVENT.replace("1", "2"))

    with pytest.raises(SourceChangedError, match=r"a\.json"):
        refuse_changed(list_files(str(tmp_path)), taken)


def test_many_changes_are_all_kept_and_the_first_ten_shown() -> None:
    before = {f"/{n}": LandedFile(f"/{n}", 1, 1) for n in range(12)}
    after = {path: LandedFile(path, 2, 1) for path in before}

    with pytest.raises(SourceChangedError, match="… and 2 more") as refused:
        refuse_changed(after, before)

    assert len(refused.value.changes) == 12


def test_taken_files_are_those_of_bronzes_notes(tmp_path: Path) -> None:
    bronze = Lake(tmp_path).bronze("shop")
    assert taken_files(commits(bronze)) == {}

    write_commit(bronze, 0, note={"generation": "g1", "batch": -1})
    write_commit(
        bronze,
        1,
        note={"generation": "g1", "batch": 0, "files": [["/a", 9, 7, 1], ["/b", 8, 6, 2]]},
    )
    write_commit(bronze, 2, note={"generation": "g1", "batch": 1, "files": [["/c", 5, 4, 3]]})

    assert taken_files(commits(bronze)) == {
        "/a": LandedFile("/a", 9, 7),
        "/b": LandedFile("/b", 8, 6),
        "/c": LandedFile("/c", 5, 4),
    }


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (100, "all of it"),
        (101, "no line feed at the end"),
        (97, "a byte order mark"),
        (98, "a byte order mark and no line feed"),
    ],
)
def test_a_byte_order_mark_and_a_missing_last_line_feed_are_harmless(read: int, why: str) -> None:
    check_bytes(LandedFile("/a.json", 100, 0), read)


@pytest.mark.parametrize("read", [0, 90, 96, 99, 102, 200])
def test_other_bytes_than_listed_mean_that_the_file_was_being_written(read: int) -> None:
    with pytest.raises(SourceChangedError, match=rf"/a\.json: 100 bytes listed, {read} bytes read"):
        check_bytes(LandedFile("/a.json", 100, 0), read)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "zst"])
def test_the_bytes_of_a_compressed_file_are_not_compared(suffix: str) -> None:
    check_bytes(LandedFile(f"/a.json.{suffix}", 100, 0), 5_000)


_COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda text: pa.compress(text, "zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", _COMPRESSED)
def test_a_compressed_file_of_which_nothing_was_read_must_hold_nothing(
    tmp_path: Path, suffix: str
) -> None:
    """One that is filled after Spark found it empty would be counted as taken, without a row."""
    file, compress = tmp_path / f"a.jsonl.{suffix}", _COMPRESSED[suffix]
    for content in (b"", compress(b""), compress(BOM_UTF8)):
        file.write_bytes(content)
        check_bytes(*present_files([str(file)]), 0)
    filled = compress(EVENT.encode())
    for content in (filled, filled[: len(filled) // 2]):
        file.write_bytes(content)
        with pytest.raises(SourceChangedError, match=rf"{len(content)} bytes listed, 0 bytes read"):
            check_bytes(*present_files([str(file)]), 0)


def test_where_spark_alone_looks_at_a_file_its_time_is_compared_in_seconds() -> None:
    planned = LandedFile("gs://bucket/a.json", 9, 1_750)
    check_bytes(LandedFile(planned.path, 9, 1_000), 9, planned)
    with pytest.raises(SourceChangedError, match="9 bytes when the batch was planned"):
        check_bytes(LandedFile(planned.path, 9, 2_000), 9, planned)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///data/a.json", "/data/a.json"),
        ("file:/data/a.json", "/data/a.json"),
        ("file:///a%20b/%C3%BC%23%3F.json", "/a b/ü#?.json"),
        ("file:///100%25/a%2520b.json", "/100%/a%20b.json"),
    ],
)
def test_a_uri_becomes_the_path_that_the_system_knows(uri: str, path: str) -> None:
    assert place_of(uri) == path


def test_the_first_batch_takes_every_log_entry_up_to_its_offset(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / name) for name in ("a.json", "b.json", "c.json")]
    uris = [Path(file).as_uri() for file in files]
    write_source_log(tmp_path, 0, [(uris[0], 0), (uris[1], 0)])
    write_source_log(tmp_path, 1, [(uris[2], 1)])
    write_offset(tmp_path, 0, {"logOffset": 1})

    assert [file.path for file in present_files(batch_paths(tmp_path, 0))] == files


def test_a_later_batch_takes_the_entries_behind_the_batch_before(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{n}.json", EVENT * (n + 1)) for n in range(4)]
    for number, file in enumerate(files):
        write_source_log(tmp_path, number, [(Path(file).as_uri(), number)])
    write_offset(tmp_path, 0, {"logOffset": 0})
    write_offset(tmp_path, 1, {"logOffset": 2})
    write_offset(tmp_path, 2, {"logOffset": 3})

    assert [(file.path, file.size) for file in present_files(batch_paths(tmp_path, 1))] == [
        (files[1], 18),
        (files[2], 27),
    ]
    assert [file.path for file in present_files(batch_paths(tmp_path, 2))] == [files[3]]


def test_a_compacted_entry_gives_only_its_own_files(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{n}.json") for n in range(4)]
    uris = [(Path(file).as_uri(), number) for number, file in enumerate(files)]
    write_source_log(tmp_path, 2, uris[:3], compact=True)
    write_source_log(tmp_path, 3, uris[3:])
    write_offset(tmp_path, 0, {"logOffset": 1})
    write_offset(tmp_path, 1, {"logOffset": 3})

    assert [file.path for file in present_files(batch_paths(tmp_path, 1))] == files[2:]


def test_the_log_lists_the_newest_compacted_file_and_what_follows_it(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{n}.json") for n in range(4)]
    uris = [(Path(file).as_uri(), number) for number, file in enumerate(files)]
    write_source_log(tmp_path, 1, uris[:2], compact=True)
    write_source_log(tmp_path, 2, uris[2:3])
    # Entries of before are in the compacted file, or Spark no longer knows them.
    write_source_log(tmp_path, 0, [((tmp_path / "in" / "gone.json").as_uri(), 0)])
    assert logged_files(tmp_path) == set(files[:3])


def one_file(folder: Path) -> tuple[str, LandedFile, dict[str, Any]]:
    """Land a file; give its path, its state, and the note of the commit that took it."""
    file = put(folder / "in" / "a.json")
    taken = list_files(str(folder / "in"))[file]
    files = [[file, taken.size, taken.modified, 1]]
    return file, taken, {"generation": "g1", "batch": 0, "files": files}


def test_an_empty_file_of_the_log_is_no_list_of_files(tmp_path: Path) -> None:
    write_offset(tmp_path, 0, {"logOffset": 0})
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").touch()
    for read in (logged_files, partial(batch_paths, batch=0)):
        with pytest.raises(ValueError, match="unpack"):
            read(tmp_path)


def test_a_hop_that_opens_reads_bronzes_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, taken, note = one_file(tmp_path)
    bronze = Lake(tmp_path).bronze("shop")
    write_commit(bronze, 0, note=note)
    guard, reads = LandingGuard((str(tmp_path / "in"),), bronze, lambda paths: {}), [0]

    def counted(table: Any) -> Any:
        reads[0] += 1
        return commits(table)

    monkeypatch.setattr(landed_files, "commits", counted)
    assert guard.read() == {file: taken}
    guard.check()
    assert (reads, guard.taken) == ([1], {file: taken})
    # Later checks find what other commits took.
    guard.check()
    assert reads == [2]


def test_a_batch_without_new_files_takes_none(tmp_path: Path) -> None:
    write_offset(tmp_path, 0, {"logOffset": 4})
    write_offset(tmp_path, 1, {"logOffset": 4})

    assert present_files(batch_paths(tmp_path, 1)) == []


def test_awkward_names_survive_the_source_log(tmp_path: Path) -> None:
    file = put(tmp_path / "a b" / "100%" / "ü#1?.json")
    write_source_log(tmp_path, 0, [(Path(file).as_uri(), 0)])
    write_offset(tmp_path, 0, {"logOffset": 0})

    (taken,) = present_files(batch_paths(tmp_path, 0))
    assert taken == list_files(str(tmp_path / "a b"))[file]


def test_a_folder_behind_a_link_offers_the_paths_that_were_taken(tmp_path: Path) -> None:
    put(tmp_path / "real" / "a.json")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    write_source_log(tmp_path, 0, [((link / "a.json").as_uri(), 0)])
    write_offset(tmp_path, 0, {"logOffset": 0})
    taken = {file.path: file for file in present_files(batch_paths(tmp_path, 0))}
    put(tmp_path / "real" / "a.json", EVENT * 2)

    with pytest.raises(SourceChangedError):
        refuse_changed(list_files(str(link)), taken)


def test_a_name_that_spark_does_not_see_is_refused_also_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets into no batch, which would report it."""
    landing = tmp_path / "in:é"
    put(landing / "a.json")
    guard = LandingGuard((str(landing),), Lake(tmp_path).bronze("shop"), lambda paths: {})
    guard.check()
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + LISTING_SECONDS)
    for name, problem in ((b"caf\xe9.json", "bytes that are not UTF-8"), (b"10:15", "a colon")):
        put(landing / os.fsdecode(name) / "b.json")
        shown = re.escape(name.decode(errors="backslashreplace"))
        with pytest.raises(SourceNameError, match=f"{shown}/b.json, .* with {problem} in its name"):
            guard.check_if_due()
        shutil.rmtree(landing / os.fsdecode(name))


def test_a_run_that_goes_on_lists_its_source_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _, note = one_file(tmp_path)
    bronze = Lake(tmp_path).bronze("shop")
    guard = LandingGuard((str(tmp_path / "in"),), bronze, lambda paths: {})
    guard.check()
    write_commit(bronze, 0, note=note)
    put(Path(file), EVENT * 2)

    guard.check_if_due()
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + LISTING_SECONDS)
    with pytest.raises(SourceChangedError, match=r"a\.json: 9 bytes when read, 18 bytes now"):
        guard.check_if_due()
    # All files were moved away, which is no fault of a run that goes on.
    Path(file).unlink()
    guard.check_if_due()


def test_a_name_that_is_used_again_stops_a_run_that_goes_on(tmp_path: Path) -> None:
    """Spark would not read the file, and the guard has let go of the one before."""
    file, taken, note = one_file(tmp_path)
    bronze = Lake(tmp_path).bronze("shop")
    put(tmp_path / "in" / "b.json")
    write_commit(bronze, 0, note=note)
    guard = LandingGuard((str(tmp_path / "in"),), bronze, lambda paths: {})
    guard.check()
    assert guard.taken == {file: taken}
    Path(file).unlink()
    guard.check()
    assert guard.taken == {}
    put(Path(file), EVENT * 2)

    with pytest.raises(SourceChangedError, match=r"a\.json: 9 bytes when read, 18 bytes now"):
        guard.check()


def test_a_name_from_before_bronzes_log_stops_a_run_that_goes_on(tmp_path: Path) -> None:
    """Its file was deleted once it was read, and so were the commits that name it."""
    file, taken, note = one_file(tmp_path)
    other = put(tmp_path / "in" / "b.json")
    cut_off, whole = Lake(tmp_path / "cut").bronze("shop"), Lake(tmp_path).bronze("shop")
    write_commit(cut_off, 7, note={**note, "files": []})
    write_commit(whole, 0, note={**note, "files": []})

    def taken_before(paths: Collection[str]) -> dict[str, LandedFile]:
        assert other not in paths
        return {file: taken} if file in paths else {}

    Path(file).unlink()
    folder = (str(tmp_path / "in"),)
    guard = LandingGuard(folder, cut_off, taken_before, logged=lambda: {file})
    guard.check()
    # Spark reads no file of the name again.
    put(Path(file), EVENT * 2)
    with pytest.raises(SourceChangedError, match=r"a\.json: 9 bytes when read, 18 bytes now"):
        guard.check()
    # A log that has all commits names all files.
    LandingGuard(folder, whole, taken_before, logged=lambda: pytest.fail("asked")).check()


def test_files_of_a_moved_folder_are_told_before_they_are_read_again(tmp_path: Path) -> None:
    said = list[str]()
    for name in ("1.json", "2.json", "3.json", "4.json"):
        put(tmp_path / "new" / "x" / name)
    put(tmp_path / "new" / "x" / "5.json", EVENT * 2)
    now = list_files(str(tmp_path / "new"))
    states = [(path, one.size, one.modified) for path, one in now.items()]
    (kept, *_), *moved, (other, _, at) = states
    bronze = Lake(tmp_path).bronze("shop")
    files = [[path.replace("/new/", "/old/"), size, at, 1] for path, size, at in moved]
    # One is in its place, and one has another size.
    files += [[*states[0], 1], [other.replace("/new/", "/old/"), 9, at, 1]]
    write_commit(bronze, 0, note={"generation": "g1", "batch": 0, "files": files})
    guard = LandingGuard((str(tmp_path / "new"),), bronze, lambda paths: {})

    guard.check(said.append)
    guard.check(said.append)

    first = moved[0][0]
    assert said == [
        "3 files have the name, size and time of files that were ingested from another folder, and "
        f"are read again as new records: {first} was {first.replace('/new/', '/old/')}"
    ]
    assert kept in guard.taken


def test_a_cleaned_folder_may_be_empty_once_files_were_taken(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    bronze = Lake(tmp_path).bronze("shop")
    guard = LandingGuard((str(tmp_path / "in"),), bronze, lambda paths: {}, is_cleaned=True)
    with pytest.raises(SourceError, match="holds no file"):
        guard.check()
    write_commit(bronze, 0, note={"generation": "g1", "batch": 0, "files": [["/a", 9, 7, 1]]})

    guard.check()
    check_landing((str(tmp_path / "in"),), taken_files(commits(bronze)), is_cleaned=True)
    with pytest.raises(SourceError, match="holds no file"):
        check_landing((str(tmp_path / "in"),), taken_files(commits(bronze)))


def test_a_source_that_is_one_file_is_not_cleaned(tmp_path: Path) -> None:
    guard = LandingGuard(
        (put(tmp_path / "a.json"),),
        Lake(tmp_path).bronze("shop"),
        lambda paths: {},
        is_cleaned=True,
    )
    with pytest.raises(SourceError, match=r"clean_source needs a folder, and .*a\.json is a file"):
        guard.check()


def _source(folder: Path, *, archive: bool = False) -> FilesSource:
    keys = {"clean_source": "archive", "archive_dir": str(folder / "old")} if archive else {}
    return FilesSource.model_validate(
        {"kind": "files", "path": str(folder / "in"), "clean_source": "delete", **keys}
    )


def test_unchanged_files_are_deleted_and_missing_ones_are_no_problem(tmp_path: Path) -> None:
    for name in ("a.json", "deep/b.json", "new.json"):
        put(tmp_path / "in" / name)
    landed = list_files(str(tmp_path / "in"))
    taken = [file for path, file in landed.items() if not path.endswith("new.json")]

    assert clean_landing(_source(tmp_path), taken) == []
    assert list(list_files(str(tmp_path / "in"))) == [str(tmp_path / "in" / "new.json")]
    assert clean_landing(_source(tmp_path), taken) == []


def test_a_changed_file_is_left_and_named_and_the_others_are_deleted(tmp_path: Path) -> None:
    grown, other = put(tmp_path / "in" / "a.json"), put(tmp_path / "in" / "b.json")
    taken = list_files(str(tmp_path / "in"))
    put(Path(grown), EVENT * 2)

    for archive in (False, True):
        with pytest.raises(SourceChangedError, match=r"a\.json: 9 bytes when read, 18 bytes now"):
            clean_landing(_source(tmp_path, archive=archive), taken.values())
        assert Path(grown).read_text() == EVENT * 2
        assert not Path(other).exists()


def test_a_file_is_archived_under_its_path_and_never_replaces_another(tmp_path: Path) -> None:
    put(tmp_path / "in" / "deep" / "a.json")
    put(tmp_path / "in" / "b.json", EVENT * 2)
    put(tmp_path / "old" / "b.json", "another")
    taken = list_files(str(tmp_path / "in")).values()

    (problem,) = clean_landing(_source(tmp_path, archive=True), taken)

    assert problem == f"{tmp_path}/in/b.json: another file is at {tmp_path}/old/b.json"
    assert (tmp_path / "old" / "deep" / "a.json").read_text() == EVENT
    assert (tmp_path / "old" / "b.json").read_text() == "another"
    assert list(list_files(str(tmp_path / "in"))) == [f"{tmp_path}/in/b.json"]


@pytest.mark.parametrize("linked", [True, False], ids=["one disk", "another disk"])
def test_an_interrupted_move_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    file = put(tmp_path / "in" / "a.json")
    taken = list_files(str(tmp_path / "in")).values()

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def cut_off(path: str) -> None:
        raise KeyboardInterrupt

    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "unlink", cut_off)
        clean_landing(_source(tmp_path, archive=True), taken)
    assert Path(file).exists()

    assert clean_landing(_source(tmp_path, archive=True), taken) == []
    assert not Path(file).exists()
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["a.json"]
    assert (tmp_path / "old" / "a.json").read_text() == EVENT


def test_a_file_behind_a_link_is_archived_with_its_content(tmp_path: Path) -> None:
    real = put(tmp_path / "elsewhere" / "a.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").symlink_to("../elsewhere/a.json")

    clean_landing(_source(tmp_path, archive=True), list_files(str(tmp_path / "in")).values())

    assert (tmp_path / "old" / "a.json").read_text() == EVENT
    assert not (tmp_path / "old" / "a.json").is_symlink()
    assert list((tmp_path / "in").iterdir()) == []
    assert Path(real).exists()


def test_a_file_that_another_process_archives_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in" / "a.json")
    put(tmp_path / "old" / "a.json", "another")
    taken = list_files(str(tmp_path / "in")).values()

    monkeypatch.setattr(folders, "_is_copied", lambda *_: False)

    assert len(clean_landing(_source(tmp_path, archive=True), taken)) == 1
    assert (tmp_path / "old" / "a.json").read_text() == "another"


def test_what_may_not_be_deleted_is_a_warning_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path / "in" / "a.json")

    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "unlink", refuse)
    problems = clean_landing(_source(tmp_path), list_files(str(tmp_path / "in")).values())

    assert problems == [f"{file}: Permission denied"]
    told = uncleaned_text(_source(tmp_path), problems)
    assert "could not be deleted" in told
    assert file in told


def test_a_file_that_goes_while_the_folder_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in" / "a.json")
    gone = Path(put(tmp_path / "in" / "b.json"))
    real = os.scandir

    @contextmanager
    def scanned(folder: str) -> Iterator[list[os.DirEntry[str]]]:
        with real(folder) as entries:
            found = list(entries)
        gone.unlink(missing_ok=True)
        yield found

    monkeypatch.setattr(os, "scandir", scanned)
    assert list(list_files(str(tmp_path / "in"))) == [str(tmp_path / "in" / "a.json")]


@pytest.mark.parametrize(
    ("name", "format_", "problem"),
    [
        ("a.jsonl.xz", "json", "an archive that is not supported: unpack it, or compress it as"),
        ("a.ZIP", "json", "an archive"),
        ("a.parquet.xz", "parquet", "an archive"),
        ("a.json.GZ", "json", r"compression is known as \.gz only: rename it"),
        ("a.json.gzip", "json", r"known as \.gz only: rename it"),
        ("a.csv.Zstd", "csv", r"known as \.zst only: rename it"),
        ("a.json.lz4", "json", "an archive"),
        ("a.csv.snappy", "csv", "an archive"),
        ("a.csv.deflate", "csv", "an archive"),
        ("a.parquet", "json", "is not text: write source.format: parquet"),
        ("a.avro", "json", "write source.format: avro"),
        ("a.orc", "json", "convert it to Parquet"),
    ],
)
def test_what_a_name_says_cannot_be_read_is_refused(
    tmp_path: Path, name: str, format_: FileFormat, problem: str
) -> None:
    file = put(tmp_path / name)
    with pytest.raises(SourceError, match=rf"{name}: .*{problem}"):
        check_landing((str(tmp_path),), {}, format_)
    with pytest.raises(SourceError, match=rf"{name}: .*{problem}"):
        refuse_unreadable([file], format_)
    # What bronze holds already is not asked again.
    check_landing((str(tmp_path),), list_files(str(tmp_path)), format_)


@pytest.mark.parametrize("name", ["a", "a.json", "a.gz", "a.bz2", "a.zst", "a.csv"])
def test_text_of_any_other_name_is_read(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    check_landing((str(tmp_path),), {}, "json")


_REPAIR = "tidelake repair shop --hop bronze"


def test_files_of_a_planned_batch_are_refused_with_the_command_that_drops_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, other = put(tmp_path / "a.json"), put(tmp_path / "b.xlsx")
    with pytest.raises(SourceError, match=rf"(?s)b\.xlsx: is not text.*{_REPAIR}"):
        refuse_unreadable([kept, other], "json", repair=_REPAIR)
    monkeypatch.setattr(landed_files, "WHOLE_FILE_BYTES", 1)
    with pytest.raises(SourceError, match=rf"(?s)b\.xlsx: 9 bytes, at most 1.*{_REPAIR}"):
        refuse_too_large(present_files([other]), repair=_REPAIR)
    counted = present_files([kept, other])
    assert planned_files([kept, other], _REPAIR) == counted
    # The user did as told.
    Path(other).unlink()
    paths = [kept, other]
    for check in (
        lambda: refuse_unreadable(paths, "json", repair=_REPAIR),
        lambda: planned_files(paths, _REPAIR),
        lambda: check_unchanged(counted, _REPAIR),
    ):
        with pytest.raises(SourceChangedError) as gone:
            check()
        assert str(gone.value) == (
            "files changed before they were read, and none of their batch was ingested:\n"
            f"  - {other}: does not exist\n"
            f"Put them back, or leave them out with: {_REPAIR}; then run again."
        )


def test_a_file_too_large_for_memory_is_refused_where_it_must_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a.parquet", "x" * 11)
    monkeypatch.setattr(landed_files, "WHOLE_FILE_BYTES", 11)
    check_landing((str(tmp_path),), {}, "parquet")
    monkeypatch.setattr(landed_files, "WHOLE_FILE_BYTES", 10)
    with pytest.raises(SourceError, match=r"a\.parquet: 11 bytes, at most 10: split it"):
        check_landing((str(tmp_path),), {}, "parquet")


@pytest.mark.parametrize("read", [99, 101])
def test_the_bytes_of_a_whole_file_are_compared_exactly(read: int) -> None:
    check_bytes(LandedFile("/a.parquet.gz", 100, 0), 100, whole=True)
    with pytest.raises(SourceChangedError, match="100 bytes listed"):
        check_bytes(LandedFile("/a.parquet.gz", 100, 0), read, whole=True)


def test_at_most_ten_files_are_listed() -> None:
    with pytest.raises(SourceError, match=r"(?s)09: it is.*… and 2 more.*Replace each"):
        refuse_broken({f"{at:02}": "it is" for at in range(12)})


def test_the_files_of_several_folders_are_listed_together(tmp_path: Path) -> None:
    first, second = put(tmp_path / "de" / "a.json"), put(tmp_path / "at" / "a.json")
    (tmp_path / "fr").mkdir()
    folders = tuple(str(tmp_path / name) for name in ("de", "at", "fr"))

    # A folder without files is a folder that waits for them, but none may be missing.
    assert set(list_files(*folders)) == {first, second}
    with pytest.raises(SourceError, match="nowhere does not exist"):
        list_files(*folders, str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match=r"/fr, .*/fr holds no file\. Put"):
        list_files(folders[2], folders[2])

    taken = list_files(*folders)
    put(Path(second), EVENT * 2)
    with pytest.raises(SourceChangedError, match=r"at/a\.json: 9 bytes when read, 18 bytes now"):
        check_landing(folders, taken)
