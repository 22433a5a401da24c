"""One writer a hop: the lock, its holder's name, and that it ends with the holder."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import threading
from pathlib import Path
from threading import Timer

import pytest

from tidelake.config import Environment
from tidelake.delta.locks import HopLocks, hold, hold_hops, writer
from tidelake.delta.tables import lake_of
from tidelake.errors import LeaseLostError, LockedError, NoLocksError, RefusedError


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
        assert (tmp_path / ".lock").read_text().split()[0] == str(os.getpid())


def test_the_process_that_writes_a_hop_is_not_another_one_with_its_id(tmp_path: Path) -> None:
    """As the first process of each container has the id 1."""
    lake = lake_of(Environment(name="local", root=tmp_path))
    assert writer(lake, "shop", "gold") is None
    with hold_hops(lake, "shop", ["gold"]):
        assert writer(lake, "shop", "gold") == os.getpid()
        file = Path(str(lake.checkpoints("shop", "gold"))) / ".lock"
        process, started = file.read_text().split()
    assert writer(lake, "shop", "gold") is None
    # As after a kill; the process of the test lives.
    file.write_text(f"{process} {started}")
    assert writer(lake, "shop", "gold") == os.getpid()
    file.write_text(f"{process} {float(started) - 60}")
    assert writer(lake, "shop", "gold") is None
    # As earlier versions wrote it.
    file.write_text(process)
    assert writer(lake, "shop", "gold") == os.getpid()


def test_a_refused_holder_leaves_the_first_ones_name(tmp_path: Path) -> None:
    with hold(tmp_path, "shop"):
        for _ in range(2):
            with pytest.raises(LockedError, match=str(os.getpid())), hold(tmp_path, "shop"):
                pass


def _no_locks(monkeypatch: pytest.MonkeyPatch, call: str, refused: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(refused, "not here")

    monkeypatch.setattr(fcntl if call == "flock" else os, call, refuse)


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ("flock", errno.ENOTSUP),
        ("flock", errno.ENOSYS),
        ("flock", errno.ENOLCK),
        # Some volumes cannot write to the end of a file.
        ("write", errno.EOPNOTSUPP),
    ],
)
def test_where_the_file_system_has_no_locks_work_is_refused_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, refused: int
) -> None:
    _no_locks(monkeypatch, call, refused)
    begun = []
    with (
        pytest.raises(NoLocksError, match=r"^shop, hop gold, .*not here.*`locks: none`") as told,
        hold(tmp_path, "shop, hop gold,"),
    ):
        begun.append("work")
    assert (begun, told.value.exit_code) == ([], 4)
    with hold(tmp_path, "shop", optional=True):
        begun.append("work")
    assert begun == ["work"]


class _Unreleased(io.StringIO):
    """A file that is written once, and neither truncated again nor closed without an error."""

    truncated = 0

    def truncate(self, size: int | None = None) -> int:
        self.truncated += 1
        if self.truncated > 1:
            raise OSError(errno.ESPIPE, "Illegal seek")
        return 0

    def close(self) -> None:
        super().close()
        raise OSError(errno.EPERM, "Operation not permitted")


# As volumes of Unity Catalog report that a file cannot be appended to.
@pytest.mark.parametrize(
    "refused",
    [
        io.UnsupportedOperation("File or stream is not seekable."),
        OSError(errno.ESPIPE, "Illegal seek"),
        OSError(errno.EPERM, "Operation not permitted"),
        OSError(errno.EINVAL, "Invalid argument"),
        OSError(errno.EIO, "Input/output error"),
    ],
)
@pytest.mark.parametrize("step", ["open", "flock", "write"])
def test_a_volume_that_refuses_the_lock_file_in_any_way_stops_no_hop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, refused: OSError
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refused

    place = {"open": Path, "flock": fcntl, "write": os}[step]
    monkeypatch.setattr(place, step, refuse)
    begun = []
    with hold(tmp_path, "shop", optional=True):
        begun.append("work")
    assert begun == ["work"]


@pytest.mark.parametrize(
    "refused",
    [
        io.UnsupportedOperation("File or stream is not seekable."),
        OSError(errno.ESPIPE, "Illegal seek"),
    ],
)
def test_where_no_file_can_be_appended_to_locks_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: OSError
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refused

    monkeypatch.setattr(Path, "open", refuse)
    with (
        pytest.raises(NoLocksError, match=r"\((File|Illegal) .*`locks: none`"),
        hold(tmp_path, "shop"),
    ):
        pass


@pytest.mark.parametrize("refused", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_a_full_disk_and_a_missing_right_are_not_taken_for_missing_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Who may not write the lock of a hop may still have the right to write its tables."""
    _no_locks(monkeypatch, "write", refused)
    with pytest.raises(OSError, match="not here"), hold(tmp_path, "shop", optional=True):
        pass


def test_a_lock_that_is_held_is_respected_also_where_locks_are_optional(tmp_path: Path) -> None:
    with (
        hold(tmp_path, "shop"),
        pytest.raises(LockedError),
        hold(tmp_path, "shop", optional=True),
    ):
        pass


@pytest.mark.parametrize("optional", [True, False])
def test_an_error_of_the_release_fails_no_work_that_is_committed_where_locks_are_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optional: bool
) -> None:
    file = _Unreleased()
    monkeypatch.setattr(Path, "open", lambda *_, **__: file)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    monkeypatch.setattr(_Unreleased, "fileno", lambda _: 0, raising=False)
    monkeypatch.setattr(os, "write", lambda *_: None)

    def work() -> None:
        with hold(tmp_path, "shop", optional=optional):
            done.append("committed")

    done: list[str] = []
    if optional:
        work()
    else:
        with pytest.raises(OSError, match="not permitted"):
            work()
    assert (done, file.truncated, file.closed) == (["committed"], 2, True)


def test_errors_of_the_work_itself_are_raised_where_locks_are_optional(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the work"), hold(tmp_path, "shop", optional=True):
        raise OSError(errno.ESPIPE, "of the work")


def test_the_environment_says_whether_a_hop_goes_on_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_locks(monkeypatch, "flock", errno.ENOLCK)
    usual = Environment(name="local", root=tmp_path)
    with pytest.raises(NoLocksError), hold_hops(lake_of(usual), "shop", ["bronze"]):
        pass
    unlocked = lake_of(usual.model_copy(update={"locks": "none"}))
    volume = Environment(name="dev", catalog="main", volume=tmp_path)
    for lake in (unlocked, lake_of(volume)):
        with hold_hops(lake, "shop", ["bronze", "silver"]):
            assert not lake.needs_locks


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
        assert (tmp_path / ".lock").read_text().split()[0] == str(os.getpid())


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


def test_no_step_begins_once_a_lock_is_lost() -> None:
    lost: list[str] = []

    def check() -> None:
        if lost:
            raise LeaseLostError("shop, hop gold,", "s3://lake/.lock")

    locks = HopLocks("tidelake repair shop --hop gold", [lambda: None, check])
    locks.step("empty gold.a")
    lost.append("the lease")
    with pytest.raises(LeaseLostError) as told:
        locks.step("empty gold.b")
    assert str(locks.lost(told.value)).endswith(
        "Done: empty gold.a. Not begun: empty gold.b. "
        "Continue with: tidelake repair shop --hop gold"
    )


def test_no_step_begins_once_a_stop_was_requested(tmp_path: Path) -> None:
    stop, lake = threading.Event(), lake_of(Environment(name="local", root=tmp_path))
    with pytest.raises(KeyboardInterrupt), hold_hops(lake, "shop", ["gold"], stop=stop) as locks:
        locks.step("empty gold.a")
        stop.set()
        locks.step("empty gold.b")


def test_what_was_interrupted_keeps_every_other_command_out(tmp_path: Path) -> None:
    lake = lake_of(Environment(name="local", root=tmp_path))
    erasure, swap = lake.erasure("shop"), lake.swap("shop")
    for file in (erasure, swap):
        file.parent.mkdir(parents=True)
    erasure.write_text("{}")
    with (
        pytest.raises(RefusedError, match=r"an erasure of shop .*: tidelake erase shop"),
        hold_hops(lake, "shop", ["bronze"]),
    ):
        pass
    with hold_hops(lake, "shop", ["bronze"], resumes="erasure"):
        erasure.unlink()
    swap.write_text("promoting")
    with (
        pytest.raises(RefusedError, match=r"a swap of shop's tables .* backfill promote shop"),
        hold_hops(lake, "shop", ["gold"]),
    ):
        pass
    # Bronze is not swapped, and goes on.
    with hold_hops(lake, "shop", ["bronze"]), hold_hops(lake, "shop", ["gold"], resumes="swap"):
        pass
