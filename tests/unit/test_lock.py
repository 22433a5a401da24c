"""One writer a hop: the lock, its holder's name, and that it ends with the holder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from threading import Timer

import pytest

from tidelake.errors import LockedError
from tidelake.runtime.lock import hold


def test_a_second_holder_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with (
        hold(tmp_path, "shop, hop gold,"),
        pytest.raises(
            LockedError, match=f"^shop, hop gold, is being written by process {os.getpid()}"
        ) as refused,
        hold(tmp_path, "shop, hop gold,"),
    ):
        pass

    assert refused.value.exit_code == 3


def test_the_lock_is_free_again_afterwards_even_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold(tmp_path, "shop"):
        raise ZeroDivisionError

    with hold(tmp_path, "shop"):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_refused_holder_leaves_the_first_ones_name(tmp_path: Path) -> None:
    with hold(tmp_path, "shop"):
        for _ in range(2):
            with pytest.raises(LockedError, match=str(os.getpid())), hold(tmp_path, "shop"):
                pass


@pytest.mark.parametrize("refused", [errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK])
def test_where_a_volume_knows_no_locks_work_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(refused, "not here")

    monkeypatch.setattr(fcntl, "flock", flock)

    with hold(tmp_path, "shop"), hold(tmp_path, "shop"):
        pass


def test_a_volume_that_cannot_write_to_a_files_end_knows_no_locks_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(file: int, text: bytes) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "write", write)

    with hold(tmp_path, "shop"):
        pass


def test_any_other_error_of_the_lock_file_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(fcntl, "flock", flock)

    with pytest.raises(OSError, match="the disk"), hold(tmp_path, "shop"):
        pass


def test_the_name_of_a_holder_that_was_killed_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("99999999 and more")

    with hold(tmp_path, "shop"):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("before", ["", "99999999"])
def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(
    tmp_path: Path, before: str
) -> None:
    """Taken this moment: the file is empty, or names one that was killed."""
    with (tmp_path / ".lock").open("a+", encoding="utf-8") as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        (tmp_path / ".lock").write_text(before)
        writes = Timer(0.2, (tmp_path / ".lock").write_text, [str(os.getpid())])
        writes.start()
        with (
            pytest.raises(LockedError, match=f"by process {os.getpid()}"),
            hold(tmp_path, "shop"),
        ):
            pass


def test_two_folders_are_held_side_by_side_and_made_where_missing(tmp_path: Path) -> None:
    with hold(tmp_path / "a" / "gold", "shop"), hold(tmp_path / "a" / "silver", "shop"):
        assert (tmp_path / "a" / "silver" / ".lock").exists()
