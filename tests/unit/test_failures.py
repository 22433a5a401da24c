"""What stops a step is told by its place, its reason and its remedy."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from tidelake.cli.failures import run_command
from tidelake.errors import SourceChangedError, TidelakeError
from tidelake.runtime.failures import named, naming
from tidelake.runtime.hop import Run

_PLACE = "shop, hop silver"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "An error occurred while calling o7.save.\n: org.apache.spark.SparkException: Aborted\n"
            "\tat org.x.Y(Y.scala:1)\nCaused by: java.io.IOException: No space left on device\n",
            "shop, hop silver stopped: No space left on device\nFree some space",
        ),
        (
            "java.io.FileNotFoundException: /lake/x.parquet (Permission denied)",
            "shop, hop silver stopped: /lake/x.parquet (Permission denied)\nGive this user",
        ),
        (
            "java.io.FileNotFoundException: /lake/x.parquet (Read-only file system)",
            "shop, hop silver stopped: /lake/x.parquet (Read-only file system)\nMake the file",
        ),
        ("Disk quota exceeded", "shop, hop silver stopped: Disk quota exceeded\nFree some"),
    ],
)
def test_what_the_machine_refuses_is_told_with_its_remedy(said: str, told: str) -> None:
    error = named(RuntimeError(said), _PLACE)
    assert str(error).startswith(told)
    assert (error.exit_code, type(error)) == (1, TidelakeError)


def test_the_reason_may_lie_in_a_cause() -> None:
    try:
        raise ValueError("failed") from OSError(28, "No space left on device")
    except ValueError as error:
        assert "No space left on device" in str(named(error, _PLACE))


def test_a_file_that_is_gone_is_a_changed_source() -> None:
    error = named(RuntimeError("java.io.FileNotFoundException: File a.jsonl is gone"), _PLACE)
    assert isinstance(error, SourceChangedError)


def test_anything_else_is_told_by_its_first_line_and_the_log() -> None:
    told = str(named(ValueError("\n  what?\nmore"), _PLACE))
    assert told.startswith("shop, hop silver stopped: ValueError: what?\n")
    assert "tidelake-spark-" in told


def _run(*, stops: bool) -> Run:
    """Give what naming looks at."""
    stop = threading.Event()
    if stops:
        stop.set()
    return cast(Run, SimpleNamespace(stop=stop, pipeline=SimpleNamespace(name="shop")))


def test_a_step_beside_the_batches_is_named_unless_the_run_was_asked_to_stop() -> None:
    with (
        pytest.raises(TidelakeError, match=r"^shop, closing an epoch, stopped: .*No space left"),
        naming(_run(stops=False), "closing an epoch,"),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"), naming(_run(stops=True), "closing an epoch,"):
        raise OSError(28, "No space left on device")


def test_what_the_system_refuses_a_command_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device", "lake/.lock")

    assert run_command(full, []) == 1
    assert capsys.readouterr().err == "tidelake: lake/.lock: No space left on device\n"
