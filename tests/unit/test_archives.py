"""Compressed files: what is read of them, and which are broken."""

from __future__ import annotations

import bz2
import gzip
import random
import tracemalloc
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.bronze import archives
from tidelake.bronze.archives import (
    BZIP2_TAIL,
    decompressed,
    ends_as_bzip2,
    ends_as_zstandard,
    refuse_broken_archive,
    suspect_archives,
)
from tidelake.bronze.file_format import BrokenFileError

_TEXT = b"some words " * 1000
_COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", _COMPRESS)
def test_compressed_content_is_read_and_a_cut_one_is_broken(suffix: str) -> None:
    compress = _COMPRESS[suffix]
    content, name = compress(_TEXT), f"file:///a.{suffix}"
    assert decompressed(name, content) == _TEXT
    assert decompressed(name, content + content) == _TEXT + _TEXT
    assert decompressed(name, content + compress(b"") + content) == _TEXT + _TEXT
    assert decompressed("file:///a.txt", content) == content
    for cut in (1, 9, len(content) // 2, len(content) - 1):
        with pytest.raises(BrokenFileError, match="truncated or damaged"):
            decompressed(name, content[:cut])
        with pytest.raises(BrokenFileError, match="truncated or damaged"):
            refuse_broken_archive(name, BytesIO(content[:cut]))
    with pytest.raises(BrokenFileError, match="truncated or damaged"):
        decompressed(name, _TEXT)
    refuse_broken_archive(name, BytesIO(content))
    refuse_broken_archive("a.txt", BytesIO(content[:9]))


@pytest.mark.parametrize("suffix", ["gz", "bz2"])
def test_decompressed_content_is_in_memory_once(suffix: str) -> None:
    size = 24 << 20
    content = _COMPRESS[suffix](bytes(size))
    tracemalloc.start()
    try:
        assert len(decompressed(f"a.{suffix}", content)) == size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The last growth of the buffer may move it, and takes an eighth more.
    assert peak < 1.6 * size


def test_what_grows_beyond_memory_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_DECOMPRESSED", 1000)
    with pytest.raises(BrokenFileError, match="decompressed it has more than"):
        decompressed("a.gz", gzip.compress(_TEXT))


@given(st.binary(max_size=300))
def test_the_end_of_bzip2_is_found_and_missed_when_cut(data: bytes) -> None:
    content = bz2.compress(data)
    assert ends_as_bzip2(content[-BZIP2_TAIL:])
    assert not any(ends_as_bzip2(content[:-cut][-BZIP2_TAIL:]) for cut in range(1, 11))
    assert not ends_as_bzip2((content + b"BZh9")[-BZIP2_TAIL:])


def _frame(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, "zstd", asbytes=True)
    return compressed


# Blocks of one repeated byte, a header without the size, with a dictionary's id, and a checksum.
_FRAMES = (
    _frame(b""),
    _frame(_TEXT),
    _frame(random.Random(1).randbytes(1 << 18) + bytes(1 << 18)),
    b"\x28\xb5\x2f\xfd\x04\x58" + b"\x10\x00\x00ab" + b"\x3b\x00\x00a" + b"sums",
    b"\x28\xb5\x2f\xfd\xa3" + bytes(4) + b"\x02\x00\x00\x00" + b"\x11\x00\x00ab",
    b"\x5f\x2a\x4d\x18\x03\x00\x00\x00any",
)


@pytest.mark.parametrize("at", range(len(_FRAMES)))
def test_the_end_of_zstandard_is_found_and_missed_when_cut(at: int) -> None:
    before, last = _FRAMES[1] + _FRAMES[-1], _FRAMES[at]
    assert ends_as_zstandard(BytesIO(before + last))
    steps = {1, 2, 3, 4, 5, 8, 9, 10, 12, 13, len(last) // 2, len(last) - 5, len(last) - 1}
    for cut in (step for step in steps if 0 < step < len(last)):
        assert not ends_as_zstandard(BytesIO(before + last[:cut])), cut
        assert not ends_as_zstandard(BytesIO(last[:cut])), cut
    assert not ends_as_zstandard(BytesIO(last + b"text"))
    assert ends_as_zstandard(BytesIO(b""))


def test_archives_that_spark_would_read_in_part_are_suspects(tmp_path: Path) -> None:
    contents = {
        "whole.bz2": bz2.compress(b"x"),
        # Spark skips a later stream that is damaged.
        "of several streams.bz2": bz2.compress(b"x") * 2,
        "cut.bz2": bz2.compress(b"x")[:-1],
        "whole.zst": _frame(b"x") * 2,
        "cut.zst": _frame(b"x") * 2 + _frame(b"x")[:9],
        "cut.gz": gzip.compress(b"x")[:-1],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = suspect_archives([str(tmp_path / name) for name in contents])
    assert [Path(path).name for path in found] == [
        "of several streams.bz2",
        "cut.bz2",
        "cut.zst",
    ]


@pytest.mark.parametrize("suffix", _COMPRESS)
def test_a_second_archive_in_a_file_is_broken_wherever_it_is_cut(suffix: str) -> None:
    content = _COMPRESS[suffix](_TEXT)
    for cut in range(1, len(content)):
        with pytest.raises(BrokenFileError, match="truncated or damaged"):
            refuse_broken_archive(f"a.{suffix}", BytesIO(content + content[:cut]))


# Bytes of headers; and one of the content, which nothing in this Zstandard protects.
@pytest.mark.parametrize(
    ("suffix", "places"), [("gz", (0, 2, 20)), ("bz2", (0, 4, 20)), ("zst", (0, 2))]
)
def test_a_damaged_or_foreign_part_after_the_first_is_broken(
    suffix: str, places: tuple[int, ...]
) -> None:
    content, name = _COMPRESS[suffix](_TEXT), f"a.{suffix}"
    assert decompressed(name, content * 3) == _TEXT * 3
    for damaged in (
        *(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] for at in places),
        b"plain lines\n" * 9,
    ):
        with pytest.raises(BrokenFileError, match="truncated or damaged"):
            decompressed(name, content + damaged + content)
        with pytest.raises(BrokenFileError, match="truncated or damaged"):
            refuse_broken_archive(name, BytesIO(content + damaged))


def test_streams_of_bzip2_are_found_wherever_a_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bz2.compress(b"some")
    monkeypatch.setattr(archives, "_STEP", len(content) + 1)
    for name, filled in (("one", content), ("two", content + content)):
        (tmp_path / f"{name}.bz2").write_bytes(filled)
    path = str(tmp_path)
    assert suspect_archives([f"{path}/one.bz2", f"{path}/two.bz2"]) == [f"{path}/two.bz2"]
