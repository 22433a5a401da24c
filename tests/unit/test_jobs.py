"""Entry points of the scheduled jobs: which command each is, and how it ends."""

from __future__ import annotations

import sys
import threading
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.bundle.calls import command_of
from tests.running import land
from tidelake import cli
from tidelake.cli import app, jobs
from tidelake.cli.exits import run_command
from tidelake.config import Pipeline, load_environment, load_pipeline
from tidelake.replay.backfill import Span
from tidelake.replay.backfill_state import Start, State

PROJECT = Path(__file__).parents[2]


def test_each_job_has_a_file_and_a_script() -> None:
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    files = {file.stem for file in (PROJECT / "jobs").glob("*.py")}

    assert {name.removeprefix("tidelake-") for name in scripts if "-" in name} == files
    assert all(scripts[f"tidelake-{name}"] == f"tidelake.cli.jobs:{name}" for name in files)


@pytest.mark.parametrize(
    ("job", "command"),
    [
        ("run", "run x"),
        ("dimensions", "run --hop dimensions x"),
        ("ingest", "run --hop bronze x"),
        ("refine", "run --hop silver x"),
        ("publish", "run --hop gold x"),
        ("stream", "run --trigger continuous x"),
        ("gate", "check --tables x"),
        ("verify", "verify x"),
        ("alerts", "alerts x"),
        ("maintain", "maintain x"),
        ("backfill", "backfill x"),
        ("repair", "repair x"),
        ("quarantine", "quarantine x"),
        ("late", "late x"),
        ("erase", "erase x"),
        ("doctor", "doctor x"),
    ],
)
def test_a_job_is_a_command_with_the_arguments_of_the_schedule(job: str, command: str) -> None:
    assert command_of(f"tidelake-{job}", ["x"]) == command.split()


@pytest.mark.parametrize("entry", [jobs.verify, cli.main], ids=["verify", "any command"])
@pytest.mark.parametrize(("code", "exits"), [(0, False), (1, True), (3, True)])
def test_a_task_that_went_well_returns_and_another_exits_with_its_code(
    monkeypatch: pytest.MonkeyPatch, entry: Callable[[], None], code: int, exits: bool
) -> None:
    monkeypatch.setattr(cli, "run_command", lambda *_: code)
    monkeypatch.setattr(sys, "argv", ["tidelake-verify"])

    if not exits:
        entry()
        return
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == code


@pytest.mark.parametrize(
    ("given", "days"),
    [
        (["--start", "2026-01-05", "--end", "2026-01-06"], (5, 6)),
        (["--start", "2026-01-05T00:00:00.000Z", "--for", "1 day"], (5, 6)),
        (["--start", "2026-01-05T02:00:00+02:00", "--for", "24 hours"], (5, 6)),
        (["--start", "2026-01-05", "--end", "2026-01-07", "--for", ""], (5, 7)),
        (["--start", "", "--end", "", "--for", ""], None),
    ],
)
def test_the_range_of_a_backfill_is_what_a_person_or_the_backfill_screen_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], days: tuple[int, int] | None
) -> None:
    asked = []
    monkeypatch.setattr("tidelake.cli.rebuilding.started", no_spark)

    def build(
        _: object,
        start: Start,
        span: Span | None,
        *,
        since: datetime | None,
        table: str | None,
        gives_up: bool,
    ) -> State:
        assert table is None and not gives_up
        asked.append((start, span, since))
        return State(start, "definition")

    monkeypatch.setattr("tidelake.replay.backfill.build", build)

    arguments = ["backfill", "run", "clickstream", "--from", "silver", *given]
    assert run_command(app, [*arguments, "--root", str(tmp_path)]) == 0

    ((start, span, since),) = asked
    assert (start, since) == ("silver", None)
    wanted = None if days is None else tuple(datetime(2026, 1, day, tzinfo=UTC) for day in days)
    assert span == wanted


@pytest.mark.parametrize(
    "given",
    [["--for", "1 day"], ["--start", "2026-01-05", "--end", "2026-01-06", "--for", "1 day"]],
)
def test_the_length_of_a_backfill_stands_for_its_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str]
) -> None:
    arguments = ["backfill", "run", "clickstream", "--from", "silver", *given]

    assert run_command(app, [*arguments, "--root", str(tmp_path)]) == 2
    assert (
        "--for replaces --end and needs --start: give --start and --for" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("pipeline", "options", "words"),
    [
        ("flights", ["--trigger", "continuous"], "to the end of its source. Leave --trigger out"),
        ("flights", ["--trigger", "10 seconds"], "to the end of its source. Leave --trigger out"),
        ("flights", ["--trigger", "soon"], "'soon' is not a trigger"),
        ("flights", ["--source", "there"], "each dimension has its own. Leave it out"),
        ("clickstream", [], "landing/products does not exist"),
    ],
)
def test_dimensions_that_cannot_run_are_refused_before_spark_starts(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pipeline: str,
    options: list[str],
    words: str,
) -> None:
    monkeypatch.setattr("tidelake.cli.flow.started", None)
    arguments = ["run", pipeline, "--hop", "dimensions", *options]

    assert run_command(app, [*arguments, "--root", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_a_pipeline_that_looks_nothing_up_has_no_dimensions_to_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tidelake.cli.flow.started", None)

    assert (
        run_command(app, ["run", "payments", "--hop", "dimensions", "--root", str(tmp_path)]) == 0
    )
    assert "payments has no dimensions" in capsys.readouterr().err


def test_every_dimension_of_a_pipeline_runs_through_all_hops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []
    for name in ("airlines", "planes"):
        land(tmp_path / "landing" / name, "a.jsonl", [b"{}"])
    monkeypatch.setattr(
        "tidelake.cli.flow.started",
        lambda *_: nullcontext(Context(load_pipeline("payments", load_environment("local")))),
    )
    monkeypatch.setattr(
        "tidelake.runtime.runner.run_hops",
        lambda run, hops, *_, **__: ran.append((run.pipeline.name, *hops)),
    )
    monkeypatch.setattr("tidelake.ops.observers.observing", lambda run, *_: nullcontext(run))

    arguments = ["run", "flights", "--hop", "dimensions"]
    assert run_command(app, [*arguments, "--root", str(tmp_path)]) == 0
    hops = ("bronze", "silver", "gold")
    assert sorted(ran) == [("airlines", *hops), ("planes", *hops)]


@dataclass(frozen=True)
class Context:
    """As much of a run as the command line touches."""

    pipeline: Pipeline
    stop: threading.Event = field(default_factory=threading.Event)


def no_spark(*_: object) -> nullcontext[None]:
    return nullcontext()
