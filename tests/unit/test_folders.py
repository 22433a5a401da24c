"""Files on a volume, whose file system has no renames and no links, and sets no modes or times."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidelake import folders
from tidelake.examples import output
from tidelake.examples.output import land, silently
from tidelake.folders import move_new, write_whole


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EXDEV])
def volume(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on a volume, as far as changes of names, modes and times go."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    for call in ("replace", "rename", "link", "chmod", "utime"):
        monkeypatch.setattr(os, call, refuse)
    return tmp_path


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_written_over_where_there_is_no_rename(volume: Path) -> None:
    for text in ("a longer first text", "second"):
        write_whole(volume / "state.json", text)
        assert (volume / "state.json").read_text(encoding="utf-8") == text

    assert names_in(volume) == ["state.json"]


def test_a_file_is_moved_where_there_are_neither_links_nor_a_rename(volume: Path) -> None:
    (volume / "in").mkdir()
    (volume / "in" / "a.jsonl").write_bytes(b"1\n")

    move_new(str(volume / "in" / "a.jsonl"), str(volume / "old" / "a.jsonl"))

    assert (names_in(volume / "in"), names_in(volume / "old")) == ([], ["a.jsonl"])
    assert (volume / "old" / "a.jsonl").read_bytes() == b"1\n"


@pytest.mark.parametrize("refused", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_rename_that_fails_for_another_reason_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    write_whole(tmp_path / "state.json", "first")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=os.strerror(refused)):
        write_whole(tmp_path / "state.json", "second")
    assert (tmp_path / "state.json").read_text(encoding="utf-8") == "first"
    assert names_in(tmp_path) == ["state.json"]


def test_a_file_on_a_disk_keeps_its_mode_and_an_archived_one_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.json"
    write_whole(file, "first")
    file.chmod(0o600)
    write_whole(file, "second")
    assert file.stat().st_mode & 0o777 == 0o600

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    os.utime(file, ns=(10**18, 10**18))
    move_new(str(file), str(tmp_path / "old" / "state.json"))
    assert (tmp_path / "old" / "state.json").stat().st_mtime_ns == 10**18


def test_generated_files_are_written_in_place_on_a_volume(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.jsonl": b"1\n", "b.jsonl": b"2\n"}
    for module in (folders, output):
        monkeypatch.setattr(module, "VOLUMES", f"{volume}/")

    land(volume / "landing", files, {}, silently)

    assert {file.name: file.read_bytes() for file in (volume / "landing").iterdir()} == files
